//! `gemma4-serve bench`: decode step and prompt throughput of a model on a device, without HTTP. Medians and ranges of
//! alternating rounds; a table, and JSON for plots. Not a test: no figure is asserted.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use crate::device::{DeviceChoice, DriverError};
use crate::engine::runner::{PromptChunk, RowOwner, Runner};
use crate::engine::start::{StartError, build_runner, load_device};
use crate::limits::ROWS_MAX;
use crate::model::checkpoint::Checkpoint;
use crate::model::kernels::{G4Slot, KernelImage};
use crate::model::plan::PlanOptions;
use crate::request::RequestId;
use crate::slots::CollectError;

#[derive(Args, Clone, Debug)]
pub struct BenchFlags {
    /// Folder of the checkpoint; without it the embedded model.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Where to run: auto, cuda:N, or soft.
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    /// Rows of the decode steps measured, each 1 to 128.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32", value_name = "ROWS",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=ROWS_MAX as u64))]
    rows: Vec<usize>,
    /// Tokens in the cache of each row when its steps are measured, and of the prompt measured, 1 to 65536.
    #[arg(long, default_value_t = 64, value_name = "TOKENS",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    context: usize,
    /// Decode steps of one round, 1 to 100000.
    #[arg(long, default_value_t = 20, value_name = "STEPS",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    steps: usize,
    /// Rounds; each measures every row count once, 1 to 1000.
    #[arg(long, default_value_t = 5, value_name = "ROUNDS",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000))]
    rounds: usize,
    /// Launches kernels one by one instead of replaying captured graphs.
    #[arg(long)]
    no_graphs: bool,
    /// Also writes the raw numbers here.
    #[arg(long, value_name = "FILE.json")]
    json: Option<PathBuf>,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Collect(#[from] CollectError),
    #[error("--json {path}: {why}")]
    Json { path: String, why: String },
}

/// Seconds of one figure, a value a round.
#[derive(Default)]
struct Samples(Vec<f64>);

impl Samples {
    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    fn median(&self) -> f64 {
        let sorted = self.sorted();
        sorted[sorted.len() / 2]
    }
}

/// Runs the subcommand and prints the table.
pub fn run(flags: &BenchFlags) -> Result<(), BenchError> {
    let started = Instant::now();
    let kind = load_device(flags.device)?;
    let checkpoint = match &flags.model {
        Some(folder) => Checkpoint::open(folder),
        None => Checkpoint::embedded(),
    }
    .map_err(StartError::from)?;
    let rows_max = flags.rows.iter().copied().max().unwrap_or(1);
    let options = PlanOptions {
        max_running: rows_max,
        // Every row keeps its place: rounds of steps from the same context, one token each.
        max_context: Some(flags.context + flags.steps + 2),
        prefill_chunk: flags.context,
        ..PlanOptions::default()
    };
    let (mut runner, plan) =
        build_runner(&checkpoint, kind, KernelImage::Shipped(kind), &options, Duration::ZERO, &mut |_, _| {})?;
    runner.warm_up()?;
    if !flags.no_graphs {
        runner.capture(|_| {})?;
    }
    let start_up = started.elapsed();
    let mut bench = Bench { runner, context: flags.context, steps: flags.steps, generation: 0, roster: 0 };
    bench.grant(plan.geometry.ring_pages, plan.geometry.global_table_pages, rows_max)?;

    let mut prompt = Samples::default();
    let mut decode: Vec<(usize, Samples)> = flags.rows.iter().map(|&rows| (rows, Samples::default())).collect();
    for _ in 0..flags.rounds {
        prompt.0.push(bench.prompt()?.as_secs_f64());
        for (rows, samples) in &mut decode {
            samples.0.push(bench.decode(*rows)?.as_secs_f64() / flags.steps as f64);
        }
    }
    println!("{}", table(flags, &bench.runner, start_up, &prompt, &decode));
    match &flags.json {
        Some(path) => {
            let fail = |e: std::io::Error| BenchError::Json { path: path.display().to_string(), why: e.to_string() };
            std::fs::write(path, json(flags, &prompt, &decode)).map_err(fail)
        }
        None => Ok(()),
    }
}

struct Bench {
    runner: Runner,
    context: usize,
    steps: usize,
    generation: u32,
    roster: u64,
}

impl Bench {
    /// Gives each slot pages of its own.
    fn grant(&mut self, ring: usize, table: usize, slots: usize) -> Result<(), BenchError> {
        for slot in 0..slots {
            let pages = |count: usize| (slot * count..(slot + 1) * count).map(|page| page as u32).collect::<Vec<_>>();
            self.runner.grant_pages(slot, &pages(ring), &pages(table))?;
        }
        Ok(())
    }

    /// One prompt of `context` tokens through slot 0.
    fn prompt(&mut self) -> Result<Duration, BenchError> {
        let vocab = self.runner.forward.config.vocab;
        let tokens: Vec<u32> = (0..self.context).map(|i| (i * 31 % vocab) as u32).collect();
        let started = Instant::now();
        let flight = self.runner.launch_prompt(
            PromptChunk { slot: 0, start: 0, tokens: &tokens, pages: None, last: None, sampling: None },
            Vec::new(),
        )?;
        self.runner.collect(&flight, |_, _| {})?;
        Ok(started.elapsed())
    }

    /// `steps` decode steps of `rows` rows that begin at position `context`.
    fn decode(&mut self, rows: usize) -> Result<Duration, BenchError> {
        self.generation += 1;
        self.roster += 1;
        for slot in 0..rows {
            let limit = self.context + self.steps + 2;
            let state = G4Slot::unstoppable(self.context, 2, limit, self.generation);
            self.runner.set_slot(slot, state)?;
        }
        let owners: Vec<RowOwner> =
            (0..rows).map(|slot| RowOwner { slot, generation: self.generation, id: RequestId(0) }).collect();
        let started = Instant::now();
        for _ in 0..self.steps {
            let (flight, _) = self.runner.launch_decode(self.roster, owners.clone())?;
            self.runner.collect(&flight, |_, _| {})?;
        }
        Ok(started.elapsed())
    }
}

fn table(
    flags: &BenchFlags,
    runner: &Runner,
    start_up: Duration,
    prompt: &Samples,
    decode: &[(usize, Samples)],
) -> String {
    let mut text = String::new();
    let context = flags.context;
    let _ = writeln!(text, "device {}, start-up {:.0} ms", runner.context.info().name, start_up.as_secs_f64() * 1e3);
    let _ = writeln!(text, "context {context} tokens, {} rounds, {} steps a round", flags.rounds, flags.steps);
    let line = |samples: &Samples, per: f64| {
        let sorted = samples.sorted();
        let (low, high) = (sorted[0], sorted[sorted.len() - 1]);
        format!("{:>10.3} ms  ({:.3} to {:.3})  {:>10.0} tokens/s", samples.median() * 1e3, low * 1e3, high * 1e3, per)
    };
    let _ = writeln!(text, "prompt of {context:>4}     {}", line(prompt, context as f64 / prompt.median()));
    for (rows, samples) in decode {
        let _ = writeln!(text, "decode, {rows:>3} rows    {}", line(samples, *rows as f64 / samples.median()));
    }
    text
}

fn json(flags: &BenchFlags, prompt: &Samples, decode: &[(usize, Samples)]) -> String {
    let decode: Vec<_> =
        decode.iter().map(|(rows, s)| serde_json::json!({ "rows": rows, "step_seconds": s.0 })).collect();
    let value = serde_json::json!({
        "context_tokens": flags.context,
        "steps": flags.steps,
        "prompt_seconds": prompt.0,
        "decode": decode,
    });
    format!("{value:#}\n")
}
