//! From a bound socket to an exit code.
//!
//! 1. Serving. The engine may still be loading: live 200, ready 503.
//! 2. A signal: readiness 503 at once; requests are still accepted for `--drain-delay`, since balancers lag.
//! 3. The door refuses (503, `Connection: close`); what is in flight gets `--drain-timeout`.
//! 4. The rest ends with one error each; the engine is stopped; exit 0. Liveness is 200 until here.
//!
//! A second signal jumps to 4. The engine's death jumps to exit 1, after its errors are written and late comers told.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::engine::handle::EngineState;
use crate::metrics::UPKEEP_INTERVAL;
use crate::request::{Cancel, Failure};
use crate::server::{App, listen, routes};
use crate::trace;

/// How often the watchdog looks.
const WATCHDOG_INTERVAL: Duration = Duration::from_millis(200);
/// Time for the engine to end cancelled requests by itself (a few steps), before this side does.
const CANCEL_WAIT: Duration = Duration::from_secs(1);
/// Time for last answers to be written to clients that may not read.
const FLUSH_WAIT: Duration = Duration::from_secs(1);
/// How long a server whose engine died still answers: requests under way to it and the next probe read a 503 that says
/// why, not a reset.
const LAST_WORDS: Duration = Duration::from_millis(250);
/// Least time for the engine thread to return once nothing is in flight; a step may take `--step-timeout`.
const ENGINE_STOP_WAIT: Duration = Duration::from_secs(5);

/// How the engine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEnd {
    /// It was asked to.
    Stopped,
    /// Device or engine failed.
    Failed(String),
    /// It did not start: a knob, a checkpoint.
    Refused(String),
}

/// The process's exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Drained = 0,
    Failed = 1,
    Refused = 2,
}

type Engine = Pin<Box<dyn Future<Output = EngineEnd> + Send>>;

/// Serves until drained or dead. `signals` yields once for each SIGTERM or SIGINT; `engine` resolves when the engine
/// thread has ended or has not started.
pub async fn run(
    listener: TcpListener,
    app: Arc<App>,
    signals: mpsc::Receiver<()>,
    engine: impl Future<Output = EngineEnd> + Send + 'static,
) -> Exit {
    let dispatcher = tokio::spawn(app.engine.clone().dispatch());
    let upkeep = tokio::spawn(upkeep(app.clone()));
    let stop = CancellationToken::new();
    let router = routes::router(app.clone());
    let mut connections = tokio::spawn(listen::serve(listener, app.clone(), router, stop.clone()));
    let engine = Box::pin(watched(app.clone(), engine));
    let exit = Lifecycle { app: &app, signals, engine }.until_end().await;
    stop.cancel();
    if tokio::time::timeout(FLUSH_WAIT, &mut connections).await.is_err() {
        connections.abort();
    }
    dispatcher.abort();
    upkeep.abort();
    exit
}

/// The engine's end, or the watchdog's word that a step has not ended within `--step-timeout`, or that the start has
/// made no progress within `--load-timeout`: the engine thread is then stuck in a driver call and will not say anything
/// itself.
async fn watched(app: Arc<App>, engine: impl Future<Output = EngineEnd>) -> EngineEnd {
    let (limit, load_limit) = (app.config.step_timeout, app.config.load_timeout);
    let stuck = async {
        loop {
            tokio::time::sleep(WATCHDOG_INTERVAL.min(limit)).await;
            if app.engine.loading_stalled_for().is_some_and(|stalled| stalled >= load_limit) {
                let seconds = load_limit.as_secs_f64();
                let reason = format!("loading made no progress for {seconds} s (--load-timeout)");
                // Whatever the log's filter says, as every other reason not to start.
                trace::say(std::io::stderr(), format!("error: {reason}\n"));
                return EngineEnd::Failed(reason);
            }
            if app.engine.stalled_for().is_some_and(|stalled| stalled >= limit) {
                return EngineEnd::Failed(format!("no step ended for {} s (--step-timeout)", limit.as_secs_f64()));
            }
        }
    };
    tokio::select! {
        end = engine => end,
        end = stuck => end,
    }
}

/// Folds metric samples together when nobody scrapes.
async fn upkeep(app: Arc<App>) {
    loop {
        tokio::time::sleep(UPKEEP_INTERVAL).await;
        app.metrics.run_upkeep();
    }
}

struct Lifecycle<'a> {
    app: &'a App,
    signals: mpsc::Receiver<()>,
    engine: Engine,
}

/// What ended a wait.
enum Ended {
    Done,
    Signal,
    Engine(EngineEnd),
}

impl Lifecycle<'_> {
    async fn until_end(mut self) -> Exit {
        match self.wait(std::future::pending()).await {
            Ended::Engine(end) => self.engine_ended(end).await,
            Ended::Done | Ended::Signal => self.drain().await,
        }
    }

    /// Waits for `done`, a signal, or the engine's end.
    async fn wait(&mut self, done: impl Future<Output = ()>) -> Ended {
        tokio::select! {
            end = &mut self.engine => Ended::Engine(end),
            Some(()) = self.signals.recv() => Ended::Signal,
            () = done => Ended::Done,
        }
    }

    async fn drain(mut self) -> Exit {
        let app = self.app;
        app.leave();
        if app.engine.state() == EngineState::Loading {
            tracing::info!("signal while loading: nothing to drain");
            return Exit::Drained;
        }
        let (delay, limit) = (app.config.drain_delay, app.config.drain_timeout);
        tracing::info!(in_flight = app.in_flight(), "draining: accepting for {} s more", delay.as_secs_f64());
        let mut ended = self.wait(tokio::time::sleep(delay)).await;
        app.engine.drain();
        if let Ended::Done = ended {
            tracing::info!(in_flight = app.in_flight(), "draining: refusing, waiting up to {} s", limit.as_secs_f64());
            ended = self.wait(async { drop(tokio::time::timeout(limit, app.idle()).await) }).await;
        }
        if let Ended::Engine(end) = ended {
            return self.engine_ended(end).await;
        }
        let second_signal = matches!(ended, Ended::Signal);
        if app.in_flight() > 0 {
            tracing::warn!(in_flight = app.in_flight(), second_signal, "ending what is still in flight");
            app.engine.cancel_all(Cancel::DrainTimeout);
            if !second_signal {
                let _ = tokio::time::timeout(CANCEL_WAIT, app.idle()).await;
            }
            app.engine.fail_all(Failure::DrainTimeout);
            let _ = tokio::time::timeout(FLUSH_WAIT, app.idle()).await;
        }
        app.engine.stop();
        if second_signal {
            return Exit::Drained;
        }
        let limit = ENGINE_STOP_WAIT.max(app.config.step_timeout);
        match self.wait(tokio::time::sleep(limit)).await {
            Ended::Engine(EngineEnd::Failed(reason)) => {
                tracing::error!("the engine failed while it stopped: {reason}");
                Exit::Failed
            }
            Ended::Engine(_) | Ended::Signal => Exit::Drained,
            // Every request has its terminal, but the device has not done what it was asked: nobody should read
            // success.
            Ended::Done => {
                tracing::error!("the engine thread did not return within {} s", limit.as_secs_f64());
                Exit::Failed
            }
        }
    }

    async fn engine_ended(self, end: EngineEnd) -> Exit {
        let (reason, exit) = match end {
            EngineEnd::Refused(reason) => (reason, Exit::Refused),
            EngineEnd::Failed(reason) => (reason, Exit::Failed),
            EngineEnd::Stopped => ("the engine thread ended without being asked to".to_owned(), Exit::Failed),
        };
        tracing::error!("{reason}");
        // Usually dead already, by its own hand; then this changes nothing.
        self.app.engine.declare_dead(&reason);
        if exit == Exit::Failed {
            tokio::time::sleep(LAST_WORDS).await;
        }
        let _ = tokio::time::timeout(FLUSH_WAIT, self.app.idle()).await;
        exit
    }
}
