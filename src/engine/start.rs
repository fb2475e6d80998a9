//! From flags to a running engine: device, checkpoint, memory plan, weights, graphs, then the engine thread's loop.
//!
//! Everything happens on the engine thread, since the device's context is bound to it; the caller waits for the word
//! that it is ready or why it is not.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::counters::publish_soft_counters;
use super::handle::EngineDoor;
use super::runner::Runner;
use super::{Engine, EngineError, Switches};
use crate::config::Config;
use crate::device::{Context, DeviceChoice, DeviceKind, DriverError, LoadError, Stream, load_driver, soft};
use crate::images;
use crate::metrics;
use crate::model::checkpoint::{Checkpoint, CheckpointError};
use crate::model::forward::Forward;
use crate::model::kernels::{KernelError, KernelImage, Kernels};
use crate::model::plan::{MemoryPlan, PlanError, PlanOptions};
use crate::model::weights::Weights;
use crate::sampling::SamplingParams;
use crate::scheduler::buckets;
use crate::server::ServedModel;
use crate::text::{ChatTemplate, Tokenizer};
use crate::trace;

/// Why the server refuses to start. `Display` names the knob, file or tensor.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Device(#[from] LoadError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("{checkpoint}: tokenizer.json {why}")]
    Tokenizer { checkpoint: String, why: String },
    #[error("{source_name}: {why}")]
    ChatTemplate { source_name: String, why: String },
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Kernels(#[from] KernelError),
    #[error(
        "the device has no memory left ({call}), though the plan needs {planned} of the {free} bytes that were free: \
         its own granules, graphs or another process took the rest; lower --kv-pages, --max-context, --max-running \
         or --prefill-chunk"
    )]
    OutOfMemory { call: &'static str, planned: u64, free: u64 },
    #[error("while starting: {0}")]
    Driver(#[from] DriverError),
    #[error("the engine thread could not be started: {0}")]
    Thread(String),
}

impl StartError {
    /// Whether the device failed (exit code 1), rather than a flag, file or size being refused (exit code 2).
    pub fn is_device_failure(&self) -> bool {
        matches!(self, StartError::Driver(_) | StartError::Kernels(KernelError::Driver(_)) | StartError::Thread(_))
    }
}

/// What the engine thread returns: `Ok` after an orderly stop.
pub type EngineThread = JoinHandle<Result<(), EngineError>>;

/// Starts the engine thread and waits until it is ready. `on_ready` is called once, before the door says ready.
pub fn start_engine(
    config: &Config,
    door: EngineDoor,
    on_ready: impl FnOnce(ServedModel),
) -> Result<EngineThread, StartError> {
    let (ready, is_ready) = crossbeam_channel::bounded(1);
    let (go, may_go) = crossbeam_channel::bounded::<()>(1);
    let config = config.clone();
    let switches = Switches { pipeline: config.pipeline, fingerprint: config.fingerprint, tail: config.tail };
    metrics::set_scrape_hook(publish_soft_counters);
    let thread = std::thread::Builder::new().name("engine".into()).spawn(move || match load(&config, &door) {
        Ok((runner, model)) => {
            let _ = ready.send(Ok(model));
            // The model is set before the door opens, so that no request meets an open door without one.
            let _ = may_go.recv();
            door.ready();
            Engine::new(runner, door, switches).run()
        }
        Err(error) => {
            door.die(&error.to_string());
            let _ = ready.send(Err(error));
            Ok(())
        }
    });
    let thread = thread.map_err(|e| StartError::Thread(e.to_string()))?;
    let model = is_ready.recv().map_err(|_| StartError::Thread("it panicked while loading".into()))??;
    on_ready(model);
    let _ = go.send(());
    Ok(thread)
}

/// Loads the driver the flag asks for.
pub fn load_device(choice: DeviceChoice) -> Result<DeviceKind, StartError> {
    Ok(load_driver(choice, !images::FATBINS.is_empty())?)
}

/// Opens the device on the calling thread, resolves the memory plan against what is free, loads kernels and weights and
/// allocates everything a step needs. `spin` bounds the busy part of the wait for a step; `progress` hears bytes of
/// weights uploaded and in total.
pub fn build_runner(
    checkpoint: &Checkpoint,
    device: DeviceKind,
    image: KernelImage,
    options: &PlanOptions,
    spin: Duration,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Runner, MemoryPlan), StartError> {
    let context = Context::open(device.ordinal())?;
    let stream = Stream::new(&context)?;
    let kernels = Kernels::load(&context, image)?;
    let (free_bytes, _) = context.memory()?;
    let plan = MemoryPlan::resolve(&checkpoint.config, options, checkpoint.head().is_some(), free_bytes as u64)?;
    let runner = place(context, stream, kernels, checkpoint, &plan, spin, progress);
    Ok((runner.map_err(|e| not_placed(&plan, e))?, plan))
}

/// Weights and buffers of a plan.
fn place(
    context: Context,
    stream: Stream,
    kernels: Kernels,
    checkpoint: &Checkpoint,
    plan: &MemoryPlan,
    spin: Duration,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Runner, StartError> {
    let geometry = plan.geometry.clone();
    let total = checkpoint.weight_bytes();
    let mut report = |done: usize| progress(done as u64, total);
    let weights = Weights::load(&context, &stream, &kernels, checkpoint, &geometry, &mut report)?;
    let forward = Forward::new(&context, &stream, checkpoint.config.clone(), geometry, kernels, weights)?;
    Ok(Runner::new(context, stream, forward, spin)?)
}

/// A failure to place what is planned: where the device has no memory left after all, the refusal says the numbers.
fn not_placed(plan: &MemoryPlan, error: impl Into<StartError>) -> StartError {
    match error.into() {
        StartError::Driver(e) if e.is_out_of_memory() => {
            StartError::OutOfMemory { call: e.call, planned: plan.total_bytes, free: plan.free_bytes }
        }
        error => error,
    }
}

/// Everything before the first request. The door hears of every phase and tensor, for the watchdog.
fn load(config: &Config, door: &EngineDoor) -> Result<(Runner, ServedModel), StartError> {
    let mut phases = Phases::start(door);
    let kind = load_device(config.device)?;
    ::metrics::gauge!(metrics::DEVICE_INFO, "kind" => kind.label()).set(1.0);
    let checkpoint = config.model.open()?;
    let tokenizer = load_tokenizer(&checkpoint)?;
    let chat_template = load_chat_template(config, &checkpoint, &tokenizer)?;
    phases.done("checkpoint and tokenizer");
    let options = PlanOptions {
        max_running: config.max_running,
        max_context: config.max_context,
        kv_pages: config.kv_pages,
        prefill_chunk: config.prefill_chunk,
        per_layer_table: config.per_layer_table,
        ..PlanOptions::default()
    };
    let bar = progress_bar("loading", "{bytes}/{total_bytes}");
    let (mut runner, plan) = build_runner(
        &checkpoint,
        kind,
        KernelImage::Shipped(kind),
        &options,
        config.spin.unwrap_or(default_spin(kind)),
        &mut |done, total| {
            door.loading_goes_on();
            bar.set_length(total);
            bar.set_position(done);
        },
    )?;
    bar.finish_and_clear();
    phases.done("device, weights and buffers");
    if !config.tail {
        runner.without_tail();
    }
    runner.warm_up(|| door.loading_goes_on()).map_err(|e| not_placed(&plan, e))?;
    phases.done("first launch of every kernel");
    if config.graphs {
        let bar = progress_bar("capturing", "{pos}/{len} buckets");
        bar.set_length(buckets(config.max_running).len() as u64);
        let captured = runner.capture(|_| {
            door.loading_goes_on();
            bar.inc(1)
        });
        captured.map_err(|e| not_placed(&plan, e))?;
        bar.finish_and_clear();
        phases.done("capture");
    }
    // From here on the software device refuses to allocate, load or capture.
    soft::arm(true);
    let info = runner.context.info().clone();
    let page = format!(
        "device {} ({}), compute {}.{}, {} multiprocessors, driver {}\n{plan}\n\
         eos ids {:?}, bos id {}, {} graph nodes\n{}",
        info.name,
        kind.label(),
        info.compute.0,
        info.compute.1,
        info.multiprocessors,
        info.driver_version,
        checkpoint.config.eos_ids,
        checkpoint.config.bos_id,
        runner.graph_nodes(),
        phases.page(),
    );
    trace::say(std::io::stdout(), page);
    let model = served_model(config, &checkpoint, &runner, tokenizer, chat_template);
    Ok((runner, model))
}

/// What `--spin-us` is by default: 50 on a GPU and none on the software device, whose kernels need the cores a spin
/// would burn.
pub fn default_spin(kind: DeviceKind) -> Duration {
    match kind {
        DeviceKind::Cuda(_) => Duration::from_micros(50),
        DeviceKind::Soft => Duration::ZERO,
    }
}

fn load_tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer, StartError> {
    let fail = |why: String| StartError::Tokenizer { checkpoint: checkpoint.name.clone(), why };
    let bytes = checkpoint.tokenizer_json().ok_or_else(|| fail("is missing".into()))?;
    Tokenizer::from_bytes(&bytes).map_err(|e| fail(format!("cannot be read: {e}")))
}

/// The flag's file, else the checkpoint's own.
fn load_chat_template(
    config: &Config,
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
) -> Result<Option<ChatTemplate>, StartError> {
    let fail = |source_name: String, why: String| StartError::ChatTemplate { source_name, why };
    let (source_name, source) = match (&config.chat_template, checkpoint.chat_template()) {
        (Some(path), _) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|e| fail(name.clone(), format!("cannot be read: {e}")))?;
            (name, text)
        }
        (None, Some(source)) => (checkpoint.name.clone(), source.to_owned()),
        (None, None) => return Ok(None),
    };
    let eos_id = checkpoint.config.eos_ids.first().copied().unwrap_or_default();
    let template = ChatTemplate::new(source, tokenizer, checkpoint.config.bos_id, eos_id);
    template.map(Some).map_err(|e| fail(source_name, e.to_string()))
}

fn served_model(
    config: &Config,
    checkpoint: &Checkpoint,
    runner: &Runner,
    tokenizer: Tokenizer,
    chat_template: Option<ChatTemplate>,
) -> ServedModel {
    let model = &checkpoint.config;
    let geometry = &runner.forward.geometry;
    ServedModel {
        id: config.served_model_name.clone(),
        tokenizer,
        chat_template,
        bos_id: model.bos_id,
        eos_ids: ServedModel::unite_eos([&model.eos_ids[..]]),
        refused_ids: model.modality_ids.iter().map(|m| (m.id, m.field.to_owned())).collect(),
        vocab_size: model.vocab,
        sampling: SamplingParams { logprobs_mode: config.logprobs_mode, ..model.sampling.clone() },
        max_context: geometry.max_context,
        kv_tokens_max: geometry.global_pages.saturating_mul(geometry.page_tokens_global),
    }
}

/// A bar on stderr, silent when stderr is no terminal.
fn progress_bar(what: &'static str, counts: &str) -> ProgressBar {
    let bar = ProgressBar::new(0).with_prefix(what);
    let template = format!("{{prefix}} [{{bar:40}}] {counts}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

/// How long each phase of the start took.
struct Phases<'a> {
    door: &'a EngineDoor,
    since: Instant,
    done: Vec<(&'static str, Duration)>,
}

impl<'a> Phases<'a> {
    fn start(door: &'a EngineDoor) -> Self {
        Phases { door, since: Instant::now(), done: Vec::new() }
    }

    fn done(&mut self, name: &'static str) {
        let now = Instant::now();
        self.door.loading_goes_on();
        self.done.push((name, now - self.since));
        self.since = now;
    }

    fn page(&self) -> String {
        let line = |(name, took): &(&str, Duration)| format!("  {name:<30} {:>9.1} ms\n", took.as_secs_f64() * 1e3);
        let total: Duration = self.done.iter().map(|(_, took)| *took).sum();
        let lines: String = self.done.iter().map(line).collect();
        format!("start-up\n{lines}{}", line(&("total", total)))
    }
}
