//! `gemma4-serve bench`: what a decode step and a prompt cost on a device, without HTTP, beside the bytes they had to
//! move and the copy bandwidth of the same run. A table, and JSON with every raw number. No figure is asserted, but a
//! step that fails, or a row whose record is not a token, fails the bench.
//!
//! Rounds alternate: one round measures the copy, then every configuration once, so that a drift of clocks or a noisy
//! neighbour falls on all of them; the table gives medians over rounds and their range.
//!
//! Decode at a context does not run a prompt of that length: the cells of the KV cache are filled by the kernel that
//! makes synthetic weights, each of its own memory, with the deviation of normed keys and values. A step then reads
//! what it would read after a prompt (64 rows of 32768 tokens would take minutes to compute). Tokens are nonsense;
//! times do not depend on them.

mod direct;
mod report;
mod switches;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};

use crate::config::{ConfigError, ModelFlags, in_range};
use crate::device::{DeviceChoice, DeviceKind, DriverError};
use crate::engine::EngineError;
use crate::engine::handle::Refusal;
use crate::engine::runner::Runner;
use crate::engine::start::{StartError, build_runner, default_spin, load_device};
use crate::limits::{PREFILL_CHUNK_MAX, ROWS_MAX};
use crate::model::checkpoint::Checkpoint;
use crate::model::kernels::KernelImage;
use crate::model::plan::PlanOptions;
use crate::slots::CollectError;
use direct::Direct;
use report::{Copies, DecodePoint, Device, Model, PromptPoint, Report, Settings, SwitchPoint, printed};

#[derive(Args, Clone, Debug)]
pub struct BenchFlags {
    #[command(flatten)]
    model: ModelFlags,
    /// Where to run: auto, cuda:N, or soft.
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    /// What to measure: decode, prompt, switches (the engine's loop with each step switch off in turn).
    #[arg(long, value_delimiter = ',', default_value = "decode,prompt", value_name = "PARTS")]
    measure: Vec<Part>,
    /// Rows of the decode steps, each 1 to 128.
    #[arg(long, value_delimiter = ',', default_value = "1,4,8,16,32,64", value_name = "ROWS",
        value_parser = in_range(1, ROWS_MAX))]
    rows: Vec<usize>,
    /// Tokens in the cache of every row when its steps begin [default: 1024,8192,32768 on a GPU, 64 on the software
    /// device]. Configurations whose pages do not fit are named and left out.
    #[arg(long, value_delimiter = ',', value_name = "TOKENS", value_parser = in_range(1, 1 << 20))]
    contexts: Vec<usize>,
    /// Tokens of the prompts [default: 512,2048,8192 on a GPU, 64 on the software device].
    #[arg(long, value_delimiter = ',', value_name = "TOKENS", value_parser = in_range(1, 1 << 20))]
    prompts: Vec<usize>,
    /// Rows of the engine's steps under `--measure switches`, each 1 to 128.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16", value_name = "ROWS",
        value_parser = in_range(1, ROWS_MAX))]
    switch_rows: Vec<usize>,
    /// Decode steps measured in a round, 1 to 100000; three more run before them.
    #[arg(long, default_value_t = 20, value_name = "STEPS", value_parser = in_range(1, 100_000))]
    steps: usize,
    /// Rounds, 1 to 1000.
    #[arg(long, default_value_t = 5, value_name = "ROUNDS", value_parser = in_range(1, 1000))]
    rounds: usize,
    /// Prompt tokens computed at once, 1 to 65536.
    #[arg(long, default_value_t = 2048, value_name = "TOKENS", value_parser = in_range(1, PREFILL_CHUNK_MAX))]
    prefill_chunk: usize,
    /// Mebibytes of the copy whose bandwidth is the measure [default: 4096 on a GPU, 64 on the software device].
    #[arg(long, value_name = "MIB", value_parser = in_range(1, 1 << 20))]
    copy_mib: Option<usize>,
    /// Launches kernels one by one instead of replaying captured graphs.
    #[arg(long)]
    no_graphs: bool,
    /// Also writes every raw number here.
    #[arg(long, value_name = "FILE.json")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Decode,
    Prompt,
    Switches,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("{knob} {tokens}: the model has {positions} positions and {spare} of them are needed beside")]
    Positions { knob: &'static str, tokens: usize, positions: usize, spare: usize },
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Collect(#[from] CollectError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("no decode configuration fits: of {rows} rows and {context} tokens, {why}")]
    NothingFits { rows: usize, context: usize, why: String },
    #[error("the engine refused a request: {0}")]
    Refused(#[from] Refusal),
    #[error("{what}, row {row}: the record's token is {token}, a status")]
    Status { what: String, row: usize, token: i32 },
    #[error("{what}: {why}")]
    Request { what: String, why: String },
    #[error("--json {path}: {why}")]
    Json { path: String, why: String },
}

impl BenchError {
    /// Whether something failed while running (exit code 1), rather than a flag or file being refused (exit code 2).
    pub fn is_failure(&self) -> bool {
        match self {
            BenchError::Config(_)
            | BenchError::Positions { .. }
            | BenchError::NothingFits { .. }
            | BenchError::Json { .. } => false,
            BenchError::Start(error) => error.is_device_failure(),
            _ => true,
        }
    }
}

/// Steps of every round that are not measured: the first is a rebuild, the next find the pipeline filling.
const WARM_UP_STEPS: usize = 3;
/// Tokens of the prompts of the engine's rows.
const SWITCH_PROMPT: usize = 16;

/// Runs the subcommand and prints the table.
pub fn run(flags: &BenchFlags) -> Result<(), BenchError> {
    let started = Instant::now();
    let checkpoint = flags.model.clone().resolve()?.open().map_err(StartError::from)?;
    let kind = load_device(flags.device)?;
    let settings = settings(flags, kind);
    let mut runner = build(&checkpoint, kind, &settings)?;
    let start_up_seconds = started.elapsed().as_secs_f64();
    let mut report = Report {
        program: concat!("gemma4-serve ", env!("CARGO_PKG_VERSION")),
        model: Model::of(&checkpoint),
        device: Device::of(&runner, kind),
        start_up_seconds,
        copies: Copies::default(),
        decode: Vec::new(),
        prompt: Vec::new(),
        switches: Vec::new(),
        settings,
    };
    // Written after every round, so that a bench which is cut off leaves the rounds it had.
    let save = |report: &Report| save(report, flags.json.as_deref());
    runner = measure_direct(runner, &mut report, &save)?;
    if !report.settings.switch_rows.is_empty() {
        switches::measure(runner, &mut report, &save)?;
    }
    println!("{}", printed(&report));
    Ok(())
}

fn save(report: &Report, path: Option<&Path>) -> Result<(), BenchError> {
    let Some(path) = path else { return Ok(()) };
    let fail = |why: String| BenchError::Json { path: path.display().to_string(), why };
    let text = serde_json::to_string_pretty(report).map_err(|e| fail(e.to_string()))?;
    std::fs::write(path, text + "\n").map_err(|e| fail(e.to_string()))
}

/// The flags with the device's defaults; a part that is not measured has no configurations.
fn settings(flags: &BenchFlags, kind: DeviceKind) -> Settings {
    let gpu = kind != DeviceKind::Soft;
    let or = |given: &[usize], gpu_default: &[usize]| match given {
        [] if gpu => gpu_default.to_vec(),
        [] => vec![64],
        given => given.to_vec(),
    };
    let only = |part: Part, values: Vec<usize>| if flags.measure.contains(&part) { values } else { Vec::new() };
    Settings {
        rows: only(Part::Decode, flags.rows.clone()),
        contexts: only(Part::Decode, or(&flags.contexts, &[1024, 8192, 32_768])),
        prompts: only(Part::Prompt, or(&flags.prompts, &[512, 2048, 8192])),
        switch_rows: only(Part::Switches, flags.switch_rows.clone()),
        per_layer_table: flags.model.per_layer_table,
        steps: flags.steps,
        warm_up_steps: WARM_UP_STEPS,
        rounds: flags.rounds,
        prefill_chunk: flags.prefill_chunk,
        copy_bytes: (flags.copy_mib.unwrap_or(if gpu { 4096 } else { 64 }) as u64) << 20,
        graphs: !flags.no_graphs,
    }
}

/// Device, weights and buffers for everything that is measured, kernels launched once, graphs captured.
fn build(checkpoint: &Checkpoint, kind: DeviceKind, settings: &Settings) -> Result<Runner, BenchError> {
    let largest = |values: &[usize]| values.iter().copied().max().unwrap_or(0);
    let steps = settings.steps + settings.warm_up_steps;
    let needs = [
        ("--contexts", largest(&settings.contexts), steps + 1),
        ("--prompts", largest(&settings.prompts), 1),
        ("--switch-rows", largest(&settings.switch_rows), SWITCH_PROMPT + switches::spare_tokens(settings)),
    ];
    let positions = checkpoint.config.max_position;
    for (knob, tokens, spare) in needs {
        if tokens > 0 && tokens + spare > positions {
            return Err(BenchError::Positions { knob, tokens, positions, spare });
        }
    }
    let options = PlanOptions {
        max_running: largest(&settings.rows).max(largest(&settings.switch_rows)).max(1),
        max_context: needs.iter().filter(|(_, tokens, _)| *tokens > 0).map(|(_, tokens, spare)| tokens + spare).max(),
        per_layer_table: settings.per_layer_table,
        prefill_chunk: settings.prefill_chunk.min(largest(&settings.prompts).max(SWITCH_PROMPT)),
        ..PlanOptions::default()
    };
    let image = KernelImage::Shipped(kind);
    let (mut runner, _) = build_runner(checkpoint, kind, image, &options, default_spin(kind), &mut |_, _| {})?;
    runner.warm_up(|| {})?;
    if settings.graphs {
        runner.capture(|_| {})?;
    }
    Ok(runner)
}

/// Saves a report.
type Save<'a> = &'a dyn Fn(&Report) -> Result<(), BenchError>;

/// Copy, prompts and decode steps, round by round.
fn measure_direct(runner: Runner, report: &mut Report, save: Save) -> Result<Runner, BenchError> {
    let settings = report.settings.clone();
    let mut direct = Direct::new(runner, &settings)?;
    report.copies = Copies { bytes: direct.copy_bytes(), ..Copies::default() };
    for &tokens in &settings.prompts {
        report.prompt.push(PromptPoint::new(tokens));
    }
    for &context in &settings.contexts {
        for &rows in &settings.rows {
            report.decode.push(DecodePoint::new(rows, context, &direct, &settings));
        }
    }
    if let [point, ..] = &report.decode[..]
        && report.decode.iter().all(|point| point.left_out.is_some())
    {
        let (rows, context, why) = (point.rows, point.context, point.left_out.clone().unwrap_or_default());
        return Err(BenchError::NothingFits { rows, context, why });
    }
    for _ in 0..settings.rounds {
        report.copies.rounds_ms.push(direct.copy()?);
        for point in &mut report.prompt {
            point.rounds.push(direct.prompt(point.tokens)?);
        }
        for point in report.decode.iter_mut().filter(|point| point.left_out.is_none()) {
            point.rounds.push(direct.decode(point.rows, point.context)?);
        }
        report.conclude();
        save(report)?;
    }
    Ok(direct.into_runner())
}
