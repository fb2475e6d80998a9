//! `gemma4-serve bench-step`: what a decode step costs the host, by the engine's own loop.
//!
//! The software device's kernels are switched off (`skip_kernels`), so what is left is the host: receive, plan, stage,
//! launch, collect, settle, and the driver. Nobody writes records then, so the bench puts them where the sampler would
//! have, before each step and outside of what is measured. The model is synthetic: the sliding layers of the embedded
//! checkpoint with a context limit of its own; without global layers a row's pages cost accounting but no memory, so
//! 128 rows of 100,000 tokens fit.
//!
//! Instructions are counted from outside, in [`Engine::step`] from the end of `warmed` to the end of `measured`:
//! scripts/bench_step.py.

use std::time::{Duration, Instant};

use clap::Args;

use crate::alloc::allocations;
use crate::config::in_range;
use crate::device::{DeviceChoice, DeviceKind, DriverError, Traffic, soft};
use crate::engine::handle::{EngineHandle, Refusal, TokenStream, door};
use crate::engine::start::{StartError, build_runner, load_device};
use crate::engine::{Engine, EngineError, Switches};
use crate::limits::ROWS_MAX;
use crate::model::checkpoint::Checkpoint;
use crate::model::config::LayerKind;
use crate::model::kernels::{G4Record, KernelImage};
use crate::model::plan::PlanOptions;
use crate::request::GenerateRequest;
use crate::slots::device_step;

#[derive(Args, Clone, Debug)]
pub struct BenchStepFlags {
    /// Rows of the decode steps measured, each 1 to 128.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,128", value_name = "ROWS",
        value_parser = in_range(1, ROWS_MAX))]
    rows: Vec<usize>,
    /// Tokens of each row's prompt, each 1 to 1000000.
    #[arg(long, value_delimiter = ',', default_value = "100,10000,100000", value_name = "TOKENS",
        value_parser = in_range(1, 1_000_000))]
    context: Vec<usize>,
    /// Decode steps measured at each point, 1 to 1000000.
    #[arg(long, default_value_t = 256, value_name = "STEPS",
        value_parser = in_range(1, 1_000_000))]
    steps: usize,
    /// As for serving.
    #[arg(long)]
    no_graphs: bool,
    #[arg(long)]
    no_pipeline: bool,
    #[arg(long)]
    no_fingerprint: bool,
    #[arg(long)]
    no_tail: bool,
    /// Microseconds to ask for a step's end before parking, 0 to 10000.
    #[arg(long, default_value_t = 0, value_name = "MICROSECONDS",
        value_parser = in_range(0, 10_000))]
    spin_us: usize,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchStepError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("{0}")]
    Bench(String),
}

/// What the measured steps of one point came to.
#[derive(Default)]
struct Sample {
    /// Of each step.
    wall_ns: Vec<u64>,
    allocations: u64,
    traffic: Traffic,
    /// Waits for an event, a stream or the context.
    host_waits: u64,
}

/// Runs the subcommand: one line of JSON a point.
pub fn run(flags: &BenchStepFlags) -> Result<(), BenchStepError> {
    let kind = load_device(DeviceChoice::Soft)?;
    check_the_counter()?;
    if !soft::set("skip_kernels", 1) {
        return Err(BenchStepError::Bench("the device cannot switch its kernels off".into()));
    }
    for &rows in &flags.rows {
        for &context in &flags.context {
            let sample = point(flags, kind, rows, context)?;
            println!("{}", line(flags, rows, context, sample));
        }
    }
    Ok(())
}

/// A count that cannot move would always be 0.
fn check_the_counter() -> Result<(), BenchStepError> {
    let before = allocations();
    drop(std::hint::black_box(Box::new(1u64)));
    match allocations() - before {
        1 => Ok(()),
        n => {
            Err(BenchStepError::Bench(format!("one allocation counts as {n}: this program has no counting allocator")))
        }
    }
}

/// Steps between a roster at rest and the first that is measured.
const WARM_UP_STEPS: usize = 20;
/// Long prompts come in many chunks, so that the buffers of a chunk stay small.
const CHUNK_TOKENS: usize = 2048;

fn point(flags: &BenchStepFlags, kind: DeviceKind, rows: usize, context: usize) -> Result<Sample, BenchStepError> {
    let (mut engine, handle) = engine(flags, kind, rows, context)?;
    let request = GenerateRequest {
        prompt: (0..context).map(|i| (i % 500) as u32).collect(),
        max_tokens: max_tokens(flags, rows, context) as u32,
        ignore_eos: true,
        stop_token_ids: Vec::new(),
        sampling: Default::default(),
    };
    let submit = |_| -> Result<TokenStream, BenchStepError> {
        let place = handle.reserve(1)?.pop().ok_or_else(|| BenchStepError::Bench("no place".into()))?;
        Ok(place.submit(request.clone())?)
    };
    let streams = (0..rows).map(submit).collect::<Result<Vec<_>, _>>()?;
    warmed(&mut engine, rows)?;
    let mut sample = Sample { wall_ns: Vec::with_capacity(flags.steps), ..Sample::default() };
    measured(&mut engine, flags.steps, &mut sample)?;
    if engine.scheduler().decoding_count() != rows {
        return Err(BenchStepError::Bench("a row ended while it was measured".into()));
    }
    // Ended in order: what is in flight is collected before the device is given back.
    drop(streams);
    while step(&mut engine)? {}
    Ok(sample)
}

/// Tokens a row may generate: room for the steps in which the later rows' prompts run too, one chunk between two steps.
fn max_tokens(flags: &BenchStepFlags, rows: usize, context: usize) -> usize {
    2 * rows * context.div_ceil(CHUNK_TOKENS) + WARM_UP_STEPS + flags.steps + 8
}

fn engine(
    flags: &BenchStepFlags,
    kind: DeviceKind,
    rows: usize,
    context: usize,
) -> Result<(Engine, EngineHandle), BenchStepError> {
    let mut checkpoint = Checkpoint::embedded().map_err(StartError::from)?;
    let config = &mut checkpoint.config;
    let sliding = config.layers.iter().take_while(|layer| layer.kind == LayerKind::Sliding).count();
    config.layers.truncate(sliding);
    let max_context = context + max_tokens(flags, rows, context);
    config.max_position = max_context;
    let options = PlanOptions {
        max_running: rows,
        max_context: Some(max_context),
        prefill_chunk: CHUNK_TOKENS,
        ..PlanOptions::default()
    };
    let spin = Duration::from_micros(flags.spin_us as u64);
    let (mut runner, _) = build_runner(&checkpoint, kind, KernelImage::Shipped(kind), &options, spin, &mut |_, _| {})?;
    let switches = Switches { pipeline: !flags.no_pipeline, fingerprint: !flags.no_fingerprint, tail: !flags.no_tail };
    if !switches.tail {
        runner.without_tail();
    }
    runner.warm_up(|| {})?;
    if !flags.no_graphs {
        runner.capture(|_| {})?;
    }
    let (handle, door) = door(ROWS_MAX);
    door.ready();
    Ok((Engine::new(runner, door, switches).with_one_generation(), handle))
}

/// One engine step, with the records that the skipped sampler would have written for it.
fn step(engine: &mut Engine) -> Result<bool, BenchStepError> {
    write_records(engine)?;
    Ok(engine.step()?)
}

fn write_records(engine: &mut Engine) -> Result<(), DriverError> {
    let runner = engine.runner();
    let step = device_step(runner.steps_launched() + 1);
    runner.write_records(&[G4Record { token: 7, logprob: 0.0, step, generation: 1 }; ROWS_MAX])
}

/// Steps until every row decodes, and some more. Not inlined: what is counted up to its end is thrown away.
#[inline(never)]
fn warmed(engine: &mut Engine, rows: usize) -> Result<(), BenchStepError> {
    while engine.scheduler().decoding_count() < rows {
        step(engine)?;
    }
    for _ in 0..WARM_UP_STEPS {
        step(engine)?;
    }
    Ok(())
}

/// The steps that count. Not inlined: instructions are counted between its beginning and its end.
#[inline(never)]
fn measured(engine: &mut Engine, steps: usize, sample: &mut Sample) -> Result<(), BenchStepError> {
    for _ in 0..steps {
        write_records(engine)?;
        // Asking for a counter of the device allocates, so that is outermost.
        let (traffic, waited) = (engine.runner().context.traffic(), waits());
        let (allocated, started) = (allocations(), Instant::now());
        engine.step()?;
        let (wall, allocated) = (started.elapsed(), allocations() - allocated);
        sample.wall_ns.push(wall.as_nanos() as u64);
        sample.allocations += allocated;
        sample.host_waits += waits() - waited;
        let after = engine.runner().context.traffic();
        sample.traffic.h2d_copies += after.h2d_copies - traffic.h2d_copies;
        sample.traffic.h2d_bytes += after.h2d_bytes - traffic.h2d_bytes;
        sample.traffic.d2h_copies += after.d2h_copies - traffic.d2h_copies;
        sample.traffic.kernel_launches += after.kernel_launches - traffic.kernel_launches;
        sample.traffic.graph_launches += after.graph_launches - traffic.graph_launches;
    }
    Ok(())
}

fn waits() -> u64 {
    soft::counter("synchronisations").unwrap_or(0)
}

/// Counts are sums over the point's steps.
fn line(flags: &BenchStepFlags, rows: usize, context: usize, mut sample: Sample) -> String {
    sample.wall_ns.sort_unstable();
    let traffic = &sample.traffic;
    serde_json::json!({
        "rows": rows,
        "context": context,
        "steps": flags.steps,
        "wall_ns_median": sample.wall_ns[sample.wall_ns.len() / 2],
        "heap_allocations": sample.allocations,
        "h2d_copies": traffic.h2d_copies,
        "h2d_bytes": traffic.h2d_bytes,
        "d2h_copies": traffic.d2h_copies,
        "graph_launches": traffic.graph_launches,
        "kernel_launches": traffic.kernel_launches,
        "host_waits": sample.host_waits,
    })
    .to_string()
}
