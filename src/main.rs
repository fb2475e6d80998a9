//! The program: flags, socket, runtime, engine thread, exit code. Only this file may read the environment.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser;
use gemma4_serve::alloc::CountingAllocator;
use gemma4_serve::bench::BenchError;
use gemma4_serve::config::{Cli, Command, Config, ScoreConfig};
use gemma4_serve::engine::handle::{self, EngineDoor};
use gemma4_serve::engine::start::start_engine;
use gemma4_serve::limits::OTHER_DESCRIPTORS;
use gemma4_serve::score::ScoreError;
use gemma4_serve::server::{self, App, EngineEnd, Exit};
use gemma4_serve::{bench, bench_step, device, inspect, score, trace};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

/// Counts allocations by thread, for `bench-step`.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Threads for long tokenising; more would only take turns.
const BLOCKING_THREADS_MAX: usize = 16;

fn main() -> ExitCode {
    // clap itself exits with 2 on a bad flag.
    let cli = Cli::parse();
    let exit = match cli.command {
        Some(Command::Score(flags)) => match ScoreConfig::resolve(flags) {
            Ok(config) => {
                let log = trace::init("info");
                let exit = score::run(&config).map_or_else(|e| score_failed(&e), |()| Exit::Drained);
                log.flush(Duration::from_millis(200));
                exit
            }
            Err(e) => refused(&e.to_string()),
        },
        Some(Command::Inspect(flags)) => match inspect::run(flags) {
            Ok(page) => {
                // A closed stdout is no failure.
                let _ = std::io::stdout().write_all(page.as_bytes());
                Exit::Drained
            }
            Err(e) => refused(&e.to_string()),
        },
        Some(Command::Bench(flags)) => bench::run(&flags).map_or_else(|e| bench_failed(&e), |()| Exit::Drained),
        Some(Command::BenchStep(flags)) => {
            bench_step::run(&flags).map_or_else(|e| failed(&e.to_string()), |()| Exit::Drained)
        }
        None => match Config::resolve(cli.serve) {
            Ok(config) => serve(config),
            Err(e) => refused(&e.to_string()),
        },
    };
    ExitCode::from(exit as u8)
}

fn serve(config: Config) -> Exit {
    let log = trace::init(&config.log);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("async")
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(e) => return refused(&format!("the async runtime cannot start: {e}")),
    };
    let returned = Arc::new(AtomicBool::new(true));
    let exit = runtime.block_on(serve_async(config, returned.clone()));
    log.flush(Duration::from_millis(200));
    // The engine thread may still be loading, or stuck in a driver call: the process does not wait for it, nor for what
    // the driver wants to do at the end of a process in order.
    if !returned.load(Ordering::Acquire) {
        device::leave(exit as u8);
    }
    runtime.shutdown_background();
    exit
}

/// `returned` is set when the engine thread has ended in order, or has found a reason not to start.
async fn serve_async(config: Config, returned: Arc<AtomicBool>) -> Exit {
    let address = format!("{}:{}", config.host, config.port);
    let listener = match server::bind(&config.host, config.port).await {
        Ok(listener) => listener,
        Err(e) => return refused(&format!("--host, --port: cannot listen on {address}: {e}")),
    };
    raise_descriptor_limit(config.max_connections);
    let signals = match signals() {
        Ok(signals) => signals,
        Err(e) => return refused(&format!("signals cannot be caught: {e}")),
    };
    // From here on there may be an engine.
    returned.store(false, Ordering::Release);
    let bound = listener.local_addr().map_or(address, |bound| bound.to_string());
    let (version, page) = (env!("CARGO_PKG_VERSION"), config.page());
    let page = format!(
        "gemma4-serve {version}\n{page}listening on http://{bound} (ready when the model is loaded: /health/ready)\n"
    );
    trace::say(std::io::stdout(), page);
    let (engine, door) = handle::door(config.max_waiting);
    let app = App::new(config.clone(), engine);
    let engine = spawn_engine(config, door, app.clone(), returned);
    server::run(listener, app, signals, engine).await
}

/// Loads and runs the engine on threads of its own; resolves when it has ended.
fn spawn_engine(
    config: Config,
    door: EngineDoor,
    app: Arc<App>,
    returned: Arc<AtomicBool>,
) -> impl Future<Output = EngineEnd> + Send + 'static {
    let (ended, end) = oneshot::channel();
    let work = move || match start_engine(&config, door, |model| app.set_model(model)) {
        Err(e) => {
            // On stderr whatever the log filter says: it is the only trace of why there is no server.
            trace::say(std::io::stderr(), format!("error: {e}\n"));
            if e.is_device_failure() {
                return EngineEnd::Failed(e.to_string());
            }
            returned.store(true, Ordering::Release);
            EngineEnd::Refused(e.to_string())
        }
        Ok(thread) => match thread.join() {
            Ok(Ok(())) => {
                returned.store(true, Ordering::Release);
                EngineEnd::Stopped
            }
            Ok(Err(failure)) => EngineEnd::Failed(failure.to_string()),
            Err(_) => EngineEnd::Failed("the engine thread panicked".into()),
        },
    };
    let spawned = std::thread::Builder::new().name("engine-start".into()).spawn(move || drop(ended.send(work())));
    async move {
        match spawned {
            Err(e) => EngineEnd::Failed(format!("the engine thread cannot start: {e}")),
            Ok(_) => end.await.unwrap_or_else(|_| EngineEnd::Failed("the engine start panicked".into())),
        }
    }
}

/// Raises the soft limit of file descriptors to what the connections may need, as far as the hard limit goes. At the
/// limit accept pauses and idle connections are closed, so less is worth a warning, not a refusal.
fn raise_descriptor_limit(max_connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = (max_connections + OTHER_DESCRIPTORS) as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let result = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum });
    if result.is_err() || raised < wanted {
        tracing::warn!("--max-connections {max_connections} may need {wanted} file descriptors; the limit is {raised}");
    }
}

/// One message for each SIGTERM or SIGINT.
fn signals() -> std::io::Result<mpsc::Receiver<()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (sender, receiver) = mpsc::channel(8);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                Some(()) = terminate.recv() => {}
                Some(()) = interrupt.recv() => {}
                else => return,
            }
            if sender.send(()).await.is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

fn score_failed(e: &ScoreError) -> Exit {
    if e.is_device_failure() { failed(&e.to_string()) } else { refused(&e.to_string()) }
}

fn bench_failed(e: &BenchError) -> Exit {
    if e.is_failure() { failed(&e.to_string()) } else { refused(&e.to_string()) }
}

fn failed(reason: &str) -> Exit {
    trace::say(std::io::stderr(), format!("error: {reason}\n"));
    Exit::Failed
}

fn refused(reason: &str) -> Exit {
    trace::say(std::io::stderr(), format!("error: {reason}\n"));
    Exit::Refused
}
