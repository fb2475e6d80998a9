//! `gemma4-serve score`: teacher-forced logits of a list of token ids, through the kernels and graphs that serve.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use crate::config::{ScoreConfig, ScorePath};
use crate::device::{DeviceBuffer, DeviceKind};
use crate::engine::runner::{PromptChunk, RowOwner, Runner};
use crate::engine::start::{StartError, build_runner};
use crate::limits::{PREFILL_CHUNK_MAX, ROWS_MAX};
use crate::model::checkpoint::Checkpoint;
use crate::model::kernels::{G4Slot, KernelImage};
use crate::model::plan::{PlanOptions, TablePlace};
use crate::request::RequestId;
use crate::slots::CollectError;

/// Why a score could not be made. Nothing is written then.
#[derive(Debug, thiserror::Error)]
pub enum ScoreError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("--ids {path}: {why}")]
    Ids { path: String, why: String },
    #[error("--out {path}: {why}")]
    Out { path: String, why: String },
    #[error(transparent)]
    Driver(#[from] crate::device::DriverError),
    #[error(transparent)]
    Collect(#[from] CollectError),
}

impl ScoreError {
    /// Whether the device failed (exit code 1), rather than a flag or file being refused (exit code 2).
    pub fn is_device_failure(&self) -> bool {
        match self {
            ScoreError::Start(error) => error.is_device_failure(),
            ScoreError::Driver(_) | ScoreError::Collect(_) => true,
            ScoreError::Ids { .. } | ScoreError::Out { .. } => false,
        }
    }
}

/// Logits `[tokens][vocab]`, and hidden states by index when asked for.
pub struct Scores {
    pub tokens: usize,
    pub vocab: usize,
    pub logits: Vec<f32>,
    /// State i `[tokens][hidden]`: 0 the scaled embedding, i the output of layer i - 1.
    pub hidden: Vec<Vec<f32>>,
    pub width: usize,
}

/// What to score and how.
#[derive(Clone, Copy, Debug)]
pub struct ScoreOptions {
    pub path: ScorePath,
    pub graphs: bool,
    pub hidden: bool,
    /// Keys of an attention segment for both families; none: the kernels' own.
    pub segment: Option<usize>,
    pub per_layer_table: TablePlace,
}

/// Runs the subcommand: reads the ids, scores, writes the file.
pub fn run(config: &ScoreConfig) -> Result<(), ScoreError> {
    let checkpoint = config.model.open().map_err(StartError::from)?;
    let ids = read_ids(&config.ids, checkpoint.config.vocab)?;
    let kind = crate::engine::start::load_device(config.device)?;
    let options = ScoreOptions {
        path: config.path,
        graphs: config.graphs,
        hidden: config.hidden,
        segment: config.attention_segment,
        per_layer_table: config.per_layer_table,
    };
    let scores = score(&checkpoint, kind, KernelImage::Shipped(kind), &ids, options)?;
    write(&config.out, &scores)
}

/// Scores `ids` with a model of its own on the device.
pub fn score(
    checkpoint: &Checkpoint,
    device: DeviceKind,
    image: KernelImage,
    ids: &[u32],
    options: ScoreOptions,
) -> Result<Scores, ScoreError> {
    let chunk = match options.path {
        ScorePath::Prefill => ids.len().min(PREFILL_CHUNK_MAX),
        ScorePath::Decode => 1,
        ScorePath::Chunks(n) => n.min(ids.len()),
    };
    let defaults = PlanOptions::default();
    let plan = PlanOptions {
        max_running: 1,
        max_context: Some(ids.len() + 1),
        prefill_chunk: chunk,
        segment_sliding: options.segment.unwrap_or(defaults.segment_sliding),
        segment_global: options.segment.unwrap_or(defaults.segment_global),
        per_layer_table: options.per_layer_table,
        ..defaults
    };
    let (mut runner, _) = build_runner(checkpoint, device, image, &plan, Duration::ZERO, &mut |_, _| {})?;
    if options.hidden {
        runner.tap_hidden()?;
    }
    runner.warm_up(|| {})?;
    grant_everything(&mut runner)?;
    let mut scores = Scores {
        tokens: ids.len(),
        vocab: checkpoint.config.vocab,
        logits: Vec::with_capacity(ids.len() * checkpoint.config.vocab),
        hidden: vec![Vec::new(); if options.hidden { checkpoint.config.layers.len() + 1 } else { 0 }],
        width: checkpoint.config.hidden,
    };
    match options.path {
        ScorePath::Decode => decode(&mut runner, ids, options.graphs, &mut scores)?,
        ScorePath::Prefill | ScorePath::Chunks(_) => prompt(&mut runner, ids, chunk, &mut scores)?,
    }
    Ok(scores)
}

/// Gives slot 0 the whole of both pools.
fn grant_everything(runner: &mut Runner) -> Result<(), ScoreError> {
    let g = runner.forward.geometry.clone();
    let sliding: Vec<u32> = (0..g.ring_pages as u32).collect();
    let global: Vec<u32> = (0..g.global_table_pages.min(g.global_pages) as u32).collect();
    Ok(runner.grant_pages(0, &sliding, &global)?)
}

fn prompt(runner: &mut Runner, ids: &[u32], chunk: usize, scores: &mut Scores) -> Result<(), ScoreError> {
    let out = DeviceBuffer::new(&runner.context, chunk.min(ROWS_MAX) * scores.vocab)?;
    for (index, tokens) in ids.chunks(chunk).enumerate() {
        let flight = runner.launch_prompt(
            PromptChunk {
                slot: 0,
                start: index * chunk,
                tokens,
                scored: None,
                every_row: true,
                pages: None,
                last: None,
                sampling: None,
            },
            Vec::new(),
        )?;
        runner.collect(&flight, &mut Vec::new())?;
        let mut first = 0;
        while first < tokens.len() {
            let count = (tokens.len() - first).min(ROWS_MAX);
            scores.logits.extend(runner.prompt_logits(first, count, &out)?);
            first += count;
        }
        take_hidden(runner, tokens.len(), scores)?;
    }
    Ok(())
}

/// One token at a time through the graphs of bucket 1; the given token replaces the one the model picked.
fn decode(runner: &mut Runner, ids: &[u32], graphs: bool, scores: &mut Scores) -> Result<(), ScoreError> {
    if graphs {
        runner.capture(|_| {})?;
    }
    for (position, &id) in ids.iter().enumerate() {
        let generation = position as u32 + 1;
        let state = G4Slot::unstoppable(position, id, ids.len() + 1, generation);
        runner.set_slot(0, state)?;
        let owner = RowOwner { slot: 0, generation, id: RequestId(0), wants_logprobs: false };
        let (flight, _) = runner.launch_decode(0, vec![owner])?;
        runner.collect(&flight, &mut Vec::new())?;
        scores.logits.extend(runner.read_logits(1)?);
        take_hidden(runner, 1, scores)?;
    }
    Ok(())
}

fn take_hidden(runner: &Runner, rows: usize, scores: &mut Scores) -> Result<(), ScoreError> {
    let Some(tap) = runner.tap() else { return Ok(()) };
    for (index, state) in scores.hidden.iter_mut().enumerate() {
        let bits = runner.stream.download(tap.state(index, rows))?;
        state.extend(bits.into_iter().map(|b| half::bf16::from_bits(b).to_f32()));
    }
    Ok(())
}

fn read_ids(path: &Path, vocab: usize) -> Result<Vec<u32>, ScoreError> {
    let fail = |why: String| ScoreError::Ids { path: path.display().to_string(), why };
    let text = std::fs::read(path).map_err(|e| fail(e.to_string()))?;
    let ids: Vec<u32> = serde_json::from_slice(&text).map_err(|e| fail(format!("not a list of token ids: {e}")))?;
    if ids.is_empty() {
        return Err(fail("the list is empty".into()));
    }
    match ids.iter().find(|&&id| id as usize >= vocab) {
        Some(id) => Err(fail(format!("id {id} is not below the vocabulary size {vocab}"))),
        None => Ok(ids),
    }
}

fn write(path: &Path, scores: &Scores) -> Result<(), ScoreError> {
    let fail = |why: String| ScoreError::Out { path: path.display().to_string(), why };
    let mut tensors = HashMap::new();
    let view = |data: &[f32], width: usize| {
        let bytes: Vec<u8> = data.iter().flat_map(|v| v.to_le_bytes()).collect();
        (vec![scores.tokens, width], bytes)
    };
    tensors.insert("logits".to_owned(), view(&scores.logits, scores.vocab));
    for (index, state) in scores.hidden.iter().enumerate() {
        tensors.insert(format!("hidden.{index}"), view(state, scores.width));
    }
    let views: HashMap<&str, safetensors::tensor::TensorView> = tensors
        .iter()
        .map(|(name, (shape, bytes))| {
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes)
                .map(|view| (name.as_str(), view))
        })
        .collect::<Result<_, _>>()
        .map_err(|e| fail(e.to_string()))?;
    safetensors::serialize_to_file(views, None, path).map_err(|e| fail(e.to_string()))
}
