//! What `inspect` knows of a checkpoint, as numbers: each from the opened checkpoint or the memory plan.

use clap::ValueEnum;
use serde::Serialize;

use super::cards::Card;
use super::page::Page;
use crate::model::checkpoint::{Checkpoint, LeftOut};
use crate::model::config::{LayerKind, ModelConfig, ModelType};
use crate::model::plan::{
    Line, MemoryPlan, PlanError, PlanOptions, STAGING, TablePlace, kv_bytes_a_token, weight_bytes_a_step, weight_lines,
};
use crate::model::synthetic::{SyntheticModel, Variant};

/// What the flags ask for.
#[derive(Clone, Debug)]
pub struct Asked {
    pub contexts: Vec<usize>,
    pub slots: Vec<usize>,
    /// None: what every slot needs at full length.
    pub kv_pages: Option<usize>,
    pub prefill_chunk: usize,
    pub per_layer_table: TablePlace,
    /// Bytes of memory.
    pub cards: Vec<u64>,
}

/// Everything that is printed. Sizes are bytes.
#[derive(Debug, Serialize)]
pub struct Report {
    pub model: Model,
    pub weights: Weights,
    pub kv: Kv,
    pub files: Vec<File>,
    pub left_out: Vec<LeftOutTensors>,
    pub plans: Vec<Plan>,
    /// The lines of the largest plan of the first context.
    pub plan_lines: Vec<PlanLine>,
    pub cards: Vec<Card>,
}

#[derive(Debug, Serialize)]
pub struct Model {
    pub source: String,
    /// The published size it has the shape of; none: another.
    pub size: Option<&'static str>,
    pub model_type: &'static str,
    pub layers: usize,
    pub sliding_layers: usize,
    pub global_layers: usize,
    /// Of the layers, those that read another's K and V.
    pub shared_kv_layers: usize,
    pub hidden: usize,
    pub heads: usize,
    /// Experts of a layer, and of them those a token goes to.
    pub experts: Option<[usize; 2]>,
    pub window: usize,
    pub vocab: usize,
    pub max_position: usize,
    pub parameters: u64,
    pub parameters_without_embeddings: u64,
    pub own_head: bool,
    pub eos_ids: Vec<u32>,
    pub tokenizer: bool,
    pub chat_template: bool,
}

#[derive(Debug, Serialize)]
pub struct Weights {
    /// Packed, as they stand on the device.
    pub device_bytes: u64,
    pub step_bytes: u64,
    /// Width of the per-layer embeddings and bytes of their table, whose rows are looked up.
    pub per_layer_width: Option<usize>,
    pub per_layer_table_bytes: u64,
    pub per_layer_table: TablePlace,
}

#[derive(Debug, Serialize)]
pub struct Kv {
    /// Of each of the last `window` tokens, over all sliding layers.
    pub sliding_token_bytes: u64,
    /// Of every token, over all global layers.
    pub global_token_bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct File {
    pub path: String,
    pub tensors: usize,
    pub bytes: u64,
}

/// Tensors of the files that are not read, by the part of the model they belong to.
#[derive(Debug, Serialize)]
pub struct LeftOutTensors {
    pub name: String,
    pub why: &'static str,
    pub tensors: usize,
    pub bytes: u64,
}

/// What one choice of context and slots takes.
#[derive(Debug, Serialize)]
pub struct Plan {
    pub context: usize,
    pub slots: usize,
    pub kv_pages: usize,
    pub weight_bytes: u64,
    pub kv_sliding_bytes: u64,
    pub kv_global_bytes: u64,
    /// Activations, scratch, tables, logits, staging.
    pub other_bytes: u64,
    pub total_bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct PlanLine {
    pub name: &'static str,
    pub bytes: u64,
    pub arithmetic: String,
}

impl Report {
    pub fn of(source: &str, checkpoint: &Checkpoint, asked: &Asked) -> Result<Report, PlanError> {
        let config = &checkpoint.config;
        let own_head = checkpoint.head().is_some();
        let mut plans = Vec::new();
        let mut plan_lines = Vec::new();
        for &context in &asked.contexts {
            for &slots in &asked.slots {
                let plan = asked.plan(config, own_head, context, slots)?;
                plans.push(Plan::of(config, own_head, &plan));
                if context == asked.contexts[0] {
                    plan_lines = plan.lines;
                }
            }
        }
        let cards = asked.cards.iter().map(|&bytes| Card::of(config, own_head, asked, bytes));
        Ok(Report {
            model: Model::of(source, checkpoint),
            weights: Weights::of(checkpoint, asked.per_layer_table),
            kv: Kv {
                sliding_token_bytes: kv_bytes_a_token(config, LayerKind::Sliding),
                global_token_bytes: kv_bytes_a_token(config, LayerKind::Global),
            },
            files: files(checkpoint),
            left_out: left_out(checkpoint),
            plans,
            plan_lines: plan_lines
                .into_iter()
                .map(|Line { name, arithmetic, bytes }| PlanLine { name, bytes, arithmetic })
                .collect(),
            cards: cards.collect(),
        })
    }

    pub fn json(&self) -> String {
        let mut json = serde_json::to_string_pretty(self).expect("numbers, texts and lists");
        json.push('\n');
        json
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        Page(self).write(f)
    }
}

impl Asked {
    pub fn options(&self, context: Option<usize>, slots: usize) -> PlanOptions {
        PlanOptions {
            max_running: slots,
            max_context: context,
            kv_pages: self.kv_pages,
            prefill_chunk: self.prefill_chunk,
            per_layer_table: self.per_layer_table,
            ..PlanOptions::default()
        }
    }

    /// The plan on a device without limit, with the pages that were asked for or those of every slot at full length.
    fn plan(
        &self,
        config: &ModelConfig,
        own_head: bool,
        context: usize,
        slots: usize,
    ) -> Result<MemoryPlan, PlanError> {
        let options = self.options(Some(context), slots);
        let full = slots * context.div_ceil(options.page_tokens_global);
        let options = PlanOptions { kv_pages: options.kv_pages.or(Some(full)), ..options };
        MemoryPlan::resolve(config, &options, own_head, u64::MAX)
    }
}

impl Model {
    fn of(source: &str, checkpoint: &Checkpoint) -> Model {
        let config = &checkpoint.config;
        let parameters = checkpoint.weight_bytes() / 2;
        let table = checkpoint.per_layer().map(|of| of.table);
        let looked_up = [Some(checkpoint.embed()), checkpoint.head(), table].into_iter().flatten();
        let embeddings: usize = looked_up.map(|tensor| tensor.elements()).sum();
        Model {
            source: source.to_owned(),
            size: published(config).map(Variant::name),
            model_type: match config.model_type {
                ModelType::Gemma4 => "gemma4",
                ModelType::Gemma4Unified => "gemma4_unified",
            },
            layers: config.layers.len(),
            sliding_layers: config.layers_of(LayerKind::Sliding).count(),
            global_layers: config.layers_of(LayerKind::Global).count(),
            shared_kv_layers: config.layers.iter().filter(|layer| !layer.owns_kv()).count(),
            hidden: config.hidden,
            heads: config.heads,
            experts: config.experts.map(|of| [of.count, of.top]),
            window: config.window,
            vocab: config.vocab,
            max_position: config.max_position,
            parameters,
            parameters_without_embeddings: parameters - embeddings as u64,
            own_head: checkpoint.head().is_some(),
            eos_ids: config.eos_ids.clone(),
            tokenizer: checkpoint.has_tokenizer(),
            chat_template: checkpoint.chat_template().is_some(),
        }
    }
}

/// The published size with exactly this shape.
fn published(config: &ModelConfig) -> Option<Variant> {
    let shape = |c: &ModelConfig| {
        let widths = (c.hidden, c.heads, c.vocab, c.window, c.per_layer_width, c.experts);
        (c.model_type, widths, c.layers.clone())
    };
    Variant::value_variants().iter().copied().find(|&variant| {
        let (config_json, _) = SyntheticModel { variant, layers: None }.files();
        ModelConfig::parse(&config_json, None, None).is_ok_and(|of_variant| shape(&of_variant) == shape(config))
    })
}

impl Weights {
    fn of(checkpoint: &Checkpoint, place: TablePlace) -> Weights {
        let config = &checkpoint.config;
        Weights {
            device_bytes: device_bytes(config, checkpoint.head().is_some(), place),
            step_bytes: weight_bytes_a_step(config, 1),
            per_layer_width: config.per_layer_width,
            per_layer_table_bytes: checkpoint.per_layer().map_or(0, |of| of.table.byte_count() as u64),
            per_layer_table: place,
        }
    }
}

/// Of the weights alone, without the buffers they are packed through.
fn device_bytes(config: &ModelConfig, own_head: bool, place: TablePlace) -> u64 {
    weight_lines(config, own_head, place).iter().filter(|line| line.name != STAGING).map(|line| line.bytes).sum()
}

fn files(checkpoint: &Checkpoint) -> Vec<File> {
    let file = |(path, tensors, bytes): (&std::path::Path, usize, u64)| {
        let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into());
        File { path: name, tensors, bytes }
    };
    checkpoint.files().map(file).collect()
}

fn left_out(checkpoint: &Checkpoint) -> Vec<LeftOutTensors> {
    let mut groups: Vec<LeftOutTensors> = Vec::new();
    for (of, name, bytes) in checkpoint.left_out() {
        let (name, why) = match of {
            LeftOut::OtherTower => (tower(name), "another modality"),
            LeftOut::SharedKv => ("k_proj, v_proj, k_norm".to_owned(), "of layers that read another's K and V"),
            LeftOut::Ranges => ("input_min to v_cache_scale".to_owned(), "ranges of quantisation-aware training"),
        };
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => (group.tensors, group.bytes) = (group.tensors + 1, group.bytes + bytes),
            None => groups.push(LeftOutTensors { name, why, tensors: 1, bytes }),
        }
    }
    groups
}

/// `model.vision_tower` of `model.vision_tower.encoder.x`.
fn tower(name: &str) -> String {
    let depth = if name.starts_with("model.") { 2 } else { 1 };
    name.split('.').take(depth).collect::<Vec<_>>().join(".")
}

impl Plan {
    fn of(config: &ModelConfig, own_head: bool, plan: &MemoryPlan) -> Plan {
        let g = &plan.geometry;
        let pool = |kind, pages: usize| g.page_bytes(config, kind).saturating_mul(pages as u64);
        let weight_bytes = device_bytes(config, own_head, g.per_layer_table);
        let kv_sliding_bytes = pool(LayerKind::Sliding, g.sliding_pages);
        let kv_global_bytes = pool(LayerKind::Global, g.global_pages);
        let known = weight_bytes.saturating_add(kv_sliding_bytes).saturating_add(kv_global_bytes);
        Plan {
            context: g.max_context,
            slots: g.max_running,
            kv_pages: g.global_pages,
            weight_bytes,
            kv_sliding_bytes,
            kv_global_bytes,
            other_bytes: plan.total_bytes.saturating_sub(known),
            total_bytes: plan.total_bytes,
        }
    }
}
