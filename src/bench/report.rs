//! What a bench measured: raw numbers, what they sum up to, and the page that is printed. Its JSON is these structs.

use std::fmt::Write as _;

use serde::Serialize;

use super::direct::Direct;
use crate::device::DeviceKind;
use crate::engine::runner::Runner;
use crate::model::checkpoint::Checkpoint;
use crate::model::config::LayerKind;
use crate::model::plan::{TablePlace, kv_bytes_a_key, kv_bytes_a_token, weight_bytes_a_step};

#[derive(Serialize)]
pub struct Report {
    pub program: &'static str,
    pub model: Model,
    pub device: Device,
    pub settings: Settings,
    pub start_up_seconds: f64,
    pub copies: Copies,
    pub prompt: Vec<PromptPoint>,
    pub decode: Vec<DecodePoint>,
    pub switches: Vec<SwitchPoint>,
}

#[derive(Serialize)]
pub struct Model {
    pub name: String,
    pub layers: usize,
    pub hidden: usize,
    pub vocab: usize,
    /// bf16 weights of the text tower.
    pub parameters: u64,
}

#[derive(Serialize)]
pub struct Device {
    pub kind: &'static str,
    pub name: String,
    pub compute: (i32, i32),
    pub multiprocessors: u32,
    pub driver_version: i32,
}

#[derive(Clone, Serialize)]
pub struct Settings {
    pub rows: Vec<usize>,
    pub contexts: Vec<usize>,
    pub prompts: Vec<usize>,
    pub switch_rows: Vec<usize>,
    pub steps: usize,
    pub warm_up_steps: usize,
    pub rounds: usize,
    pub prefill_chunk: usize,
    pub per_layer_table: TablePlace,
    pub copy_bytes: u64,
    pub graphs: bool,
}

/// Median, least and largest of the rounds.
#[derive(Clone, Copy, Default, Serialize)]
pub struct Summary {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// A copy inside device memory, the measure of what the memory gives.
#[derive(Default, Serialize)]
pub struct Copies {
    /// Of one copy: read once and written once.
    pub bytes: u64,
    /// Device milliseconds of one copy, a value a round.
    pub rounds_ms: Vec<f64>,
    /// Read and written bytes a second.
    pub bytes_per_second: Summary,
}

#[derive(Serialize)]
pub struct PromptPoint {
    pub tokens: usize,
    pub rounds: Vec<PromptRound>,
    pub first_token_ms: Summary,
    /// Of the device's time.
    pub tokens_per_second: Summary,
}

#[derive(Serialize)]
pub struct PromptRound {
    /// From before the first launch until the first token's record is read.
    pub first_token_seconds: f64,
    pub device_ms: f64,
}

#[derive(Serialize)]
pub struct DecodePoint {
    pub rows: usize,
    /// Tokens in the cache of each row at the first step, the unmeasured ones included.
    pub context: usize,
    /// Why it was not measured.
    pub left_out: Option<String>,
    pub bytes: StepBytes,
    pub rounds: Vec<DecodeRound>,
    /// Mean device milliseconds of a round's steps.
    pub step_ms: Summary,
    pub wall_step_ms: Summary,
    pub tokens_per_second: f64,
    /// Bytes that had to move over the median step time, and its share of the copy's bandwidth.
    pub bytes_per_second: f64,
    pub share_of_copy: f64,
}

/// Bytes a step has to move however it is computed, at the middle step of a round. Activations, logits and page tables
/// are not among them: they could stay on the chip.
#[derive(Clone, Copy, Serialize)]
pub struct StepBytes {
    /// Every weight once, the head included, padding included; of experts as many as rows that choose evenly go to.
    pub weights: u64,
    /// K and V of the visible keys of every row: the window in sliding layers, all in global ones.
    pub kv_read: u64,
    /// K and V of the new tokens.
    pub kv_written: u64,
}

#[derive(Serialize)]
pub struct DecodeRound {
    /// From the last unmeasured record to the last measured one, on the host.
    pub wall_seconds: f64,
    /// Between the events behind each step, so a gap in which the device waited for the host counts.
    pub step_ms: Vec<f64>,
}

#[derive(Serialize)]
pub struct SwitchPoint {
    pub variant: &'static str,
    pub rows: usize,
    pub rounds: Vec<EngineRound>,
    /// Device milliseconds a step, gaps included.
    pub step_ms: Summary,
    pub host_step_ms: Summary,
}

#[derive(Serialize)]
pub struct EngineRound {
    pub device_ms: f64,
    /// Of each call of the engine's step, waiting for the device included.
    pub host_step_ms: Vec<f64>,
    pub h2d_copies: u64,
    pub kernel_launches: u64,
    pub graph_launches: u64,
}

impl Model {
    pub fn of(checkpoint: &Checkpoint) -> Self {
        let config = &checkpoint.config;
        Model {
            name: checkpoint.name.clone(),
            layers: config.layers.len(),
            hidden: config.hidden,
            vocab: config.vocab,
            parameters: checkpoint.weight_bytes() / 2,
        }
    }
}

impl Device {
    pub fn of(runner: &Runner, kind: DeviceKind) -> Self {
        let info = runner.context.info();
        Device {
            kind: kind.label(),
            name: info.name.clone(),
            compute: info.compute,
            multiprocessors: info.multiprocessors,
            driver_version: info.driver_version,
        }
    }
}

impl Summary {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        match (sorted.first(), sorted.last()) {
            (Some(&min), Some(&max)) => {
                let middle = sorted.len() / 2;
                let even = sorted.len().is_multiple_of(2);
                let median = if even { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] };
                Summary { median, min, max }
            }
            _ => Summary::default(),
        }
    }
}

impl PromptPoint {
    pub fn new(tokens: usize) -> Self {
        let (first_token_ms, tokens_per_second) = (Summary::default(), Summary::default());
        PromptPoint { tokens, rounds: Vec::new(), first_token_ms, tokens_per_second }
    }
}

impl DecodePoint {
    pub fn new(rows: usize, context: usize, direct: &Direct, settings: &Settings) -> Self {
        let (needed, pages) = direct.pages(rows, context);
        let left_out = (needed > pages).then(|| format!("it needs {needed} global pages, {pages} fit"));
        // The middle step sees the context, the steps before it and its own token.
        let keys = context + settings.warm_up_steps + settings.steps / 2 + 1;
        DecodePoint {
            rows,
            context,
            left_out,
            bytes: StepBytes::of(direct.runner(), rows, keys),
            rounds: Vec::new(),
            step_ms: Summary::default(),
            wall_step_ms: Summary::default(),
            tokens_per_second: 0.0,
            bytes_per_second: 0.0,
            share_of_copy: 0.0,
        }
    }
}

impl StepBytes {
    /// Of a step in which each of `rows` rows sees `keys` keys, its own among them.
    fn of(runner: &Runner, rows: usize, keys: usize) -> Self {
        let config = &runner.forward.config;
        let families = [(LayerKind::Sliding, keys.min(config.window)), (LayerKind::Global, keys)];
        let visible: u64 = families.iter().map(|&(kind, keys)| kv_bytes_a_key(config, kind) * keys as u64).sum();
        let written: u64 = families.iter().map(|&(kind, _)| kv_bytes_a_token(config, kind)).sum();
        StepBytes {
            weights: weight_bytes_a_step(config, rows),
            kv_read: rows as u64 * visible,
            kv_written: rows as u64 * written,
        }
    }

    pub fn sum(&self) -> u64 {
        self.weights + self.kv_read + self.kv_written
    }
}

impl SwitchPoint {
    pub fn new(variant: &'static str, rows: usize) -> Self {
        let (step_ms, host_step_ms) = (Summary::default(), Summary::default());
        SwitchPoint { variant, rows, rounds: Vec::new(), step_ms, host_step_ms }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

impl Report {
    /// Sums up the rounds so far.
    pub fn conclude(&mut self) {
        let steps = self.settings.steps as f64;
        let copied = 2.0 * self.copies.bytes as f64;
        self.copies.bytes_per_second = Summary::of(self.copies.rounds_ms.iter().map(|ms| copied / ms * 1e3));
        for point in &mut self.prompt {
            point.first_token_ms = Summary::of(point.rounds.iter().map(|r| r.first_token_seconds * 1e3));
            let tokens = point.tokens as f64;
            point.tokens_per_second = Summary::of(point.rounds.iter().map(|r| tokens / r.device_ms * 1e3));
        }
        for point in self.decode.iter_mut().filter(|point| !point.rounds.is_empty()) {
            point.step_ms = Summary::of(point.rounds.iter().map(|r| mean(&r.step_ms)));
            point.wall_step_ms = Summary::of(point.rounds.iter().map(|r| r.wall_seconds * 1e3 / steps));
            point.tokens_per_second = point.rows as f64 / point.wall_step_ms.median * 1e3;
            point.bytes_per_second = point.bytes.sum() as f64 / point.step_ms.median * 1e3;
            point.share_of_copy = point.bytes_per_second / self.copies.bytes_per_second.median;
        }
        for point in &mut self.switches {
            point.step_ms = Summary::of(point.rounds.iter().map(|r| r.device_ms / steps));
            point.host_step_ms = Summary::of(point.rounds.iter().map(|r| mean(&r.host_step_ms)));
        }
    }
}

/// The page: a line a configuration, medians with their range.
pub fn printed(report: &Report) -> String {
    let mut text = String::new();
    let (model, device, settings) = (&report.model, &report.device, &report.settings);
    let _ = writeln!(
        text,
        "{}, {} layers, {:.3} billion parameters, on {} ({}); start-up {:.1} s; {} rounds of {} steps",
        model.name,
        model.layers,
        model.parameters as f64 / 1e9,
        device.name,
        device.kind,
        report.start_up_seconds,
        settings.rounds,
        settings.steps,
    );
    let copy = report.copies.bytes_per_second;
    let _ = writeln!(
        text,
        "copy of {} MiB: {:.1} GB/s read and written ({:.1} to {:.1})",
        report.copies.bytes >> 20,
        copy.median / 1e9,
        copy.min / 1e9,
        copy.max / 1e9
    );
    for point in &report.prompt {
        let (first, rate) = (point.first_token_ms, point.tokens_per_second);
        let _ = writeln!(
            text,
            "prompt of {:>6} tokens: first token {} ms, {:.0} tokens/s on the device ({:.0} to {:.0})",
            point.tokens,
            ranged(first),
            rate.median,
            rate.min,
            rate.max
        );
    }
    if !report.decode.is_empty() {
        let _ = writeln!(
            text,
            "{:>8} {:>5} {:>32} {:>32} {:>10} {:>9} {:>9} {:>6}",
            "context", "rows", "device ms a step", "wall ms a step", "tokens/s", "GB moved", "GB/s", "share"
        );
    }
    for point in &report.decode {
        let _ = match &point.left_out {
            Some(why) => writeln!(text, "{:>8} {:>5} left out: {why}", point.context, point.rows),
            None => writeln!(
                text,
                "{:>8} {:>5} {:>32} {:>32} {:>10.1} {:>9.3} {:>9.1} {:>5.1}%",
                point.context,
                point.rows,
                ranged(point.step_ms),
                ranged(point.wall_step_ms),
                point.tokens_per_second,
                point.bytes.sum() as f64 / 1e9,
                point.bytes_per_second / 1e9,
                point.share_of_copy * 1e2
            ),
        };
    }
    for point in &report.switches {
        let _ = writeln!(
            text,
            "engine, {:<16} {:>3} rows: device {} ms a step, host {} ms a step",
            point.variant,
            point.rows,
            ranged(point.step_ms),
            ranged(point.host_step_ms)
        );
    }
    let _ = writeln!(text, "{}", numbers(report));
    text
}

/// The last line: what was measured, in one sentence.
fn numbers(report: &Report) -> String {
    let left_out = report.decode.iter().filter(|point| point.left_out.is_some()).count();
    let mut text = format!(
        "numbers: {} of {} decode configurations, {} prompts, {} of the engine; copy {:.1} GB/s",
        report.decode.len() - left_out,
        report.decode.len(),
        report.prompt.len(),
        report.switches.len(),
        report.copies.bytes_per_second.median / 1e9
    );
    if let Some(point) = report.decode.iter().find(|point| point.left_out.is_none()) {
        let (rows, context, ms) = (point.rows, point.context, point.step_ms.median);
        let _ = write!(text, "; {rows} rows at {context}: {ms:.3} ms, {:.1} %", point.share_of_copy * 1e2);
    }
    if let Some(point) = report.switches.first() {
        let _ = write!(text, "; engine, {} rows: {:.3} ms", point.rows, point.step_ms.median);
    }
    text
}

fn ranged(summary: Summary) -> String {
    format!("{:.3} ({:.3} to {:.3})", summary.median, summary.min, summary.max)
}
