//! `config.json` and its neighbours, read once into one resolved description of the model.
//!
//! Two serialisations of the same configuration are in circulation (the published one with `global_head_dim`, the
//! re-saved one with `per_layer_config`), each with the text part nested or at the top level; all give the same
//! [`ModelConfig`]. What cannot be served is refused here by the name of its field; later code sees only valid numbers.

use serde_json::Value;

pub use super::fields::ConfigError;
use super::fields::{Fields, clipped, shown};
use super::kernels::bindings::{G4_EXPERTS_MAX, G4_EXPERTS_TOP_MAX, G4_SAMPLE_GROUP, G4_SAMPLE_GROUPS_MAX};
use super::layers;
pub use super::layers::{LayerConfig, LayerKind, RopeConfig};
use super::weight_format;
use crate::limits::EOS_IDS_MAX;
use crate::sampling::SamplingParams;

/// A Gemma 4 text tower with every default applied.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Outer `model_type`, `gemma4` or `gemma4_unified`, also when the file holds the text part only.
    pub model_type: ModelType,
    /// H: width of the residual stream.
    pub hidden: usize,
    /// Query heads of every layer.
    pub heads: usize,
    /// V: rows of the embedding and of the head.
    pub vocab: usize,
    /// W: tokens a sliding layer sees, the current one included.
    pub window: usize,
    pub rms_eps: f32,
    /// Cap of the final logits; 0 means none.
    pub softcap: f32,
    pub rope_sliding: RopeConfig,
    pub rope_global: RopeConfig,
    /// Positions the model was made for: positions 0 to `max_position - 1`.
    pub max_position: usize,
    /// The head is the embedding unless the checkpoint holds a head of its own.
    pub tied_head: bool,
    /// One entry a layer, in order.
    pub layers: Vec<LayerConfig>,
    /// D: width of the embedding that every layer has of a token beside the residual stream; none: models without.
    pub per_layer_width: Option<usize>,
    /// A mixture of experts beside the MLP of every layer; none: models without.
    pub experts: Option<ExpertsConfig>,
    /// Union of every EOS list of the checkpoint, generation_config first, without repetition; at least one.
    pub eos_ids: Vec<u32>,
    pub bos_id: u32,
    pub pad_id: u32,
    /// Ids that must never be generated. They may lie at or above `vocab` (then they cannot be).
    pub suppressed_ids: Vec<u32>,
    /// Image, audio and video ids that a text-only server refuses in a prompt. They may lie at or above `vocab`.
    pub modality_ids: Vec<ModalityId>,
    /// `add_bos_token` of tokenizer_config.json, if it says.
    pub add_bos_token: Option<bool>,
    /// How tokens are chosen for a request that does not say: generation_config.json.
    pub sampling: SamplingParams,
}

/// The experts of a layer: each a gated MLP, of which a token goes to a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsConfig {
    pub count: usize,
    /// Experts a token goes to: those its router gives the largest logits.
    pub top: usize,
    /// Width of one expert.
    pub intermediate: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelType {
    Gemma4,
    Gemma4Unified,
}

/// `do_sample: false` is greedy; otherwise a field that is absent is neutral.
fn sampling(generation: &Fields) -> Result<SamplingParams, ConfigError> {
    let number = |key, min, max, neutral| Ok(generation.number(key, min, max)?.unwrap_or(neutral) as f32);
    let is_greedy = generation.flag("do_sample")? == Some(false);
    Ok(SamplingParams {
        temperature: if is_greedy { 0.0 } else { number("temperature", 0.0, 100.0, 1.0)? },
        top_k: generation.count("top_k", 0, u32::MAX as usize)?.unwrap_or(0) as u32,
        top_p: number("top_p", 0.0, 1.0, 1.0)?,
        min_p: number("min_p", 0.0, 1.0, 0.0)?,
        typical_p: number("typical_p", 1e-6, 1.0, 1.0)?,
        repetition_penalty: number("repetition_penalty", 0.01, 2.0, 1.0)?,
        ..SamplingParams::greedy()
    })
}

/// A token id that stands for something other than text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModalityId {
    /// Name of the config field that gives it.
    pub field: &'static str,
    pub id: u32,
}

// Bounds that no Gemma 4 comes near; they keep later arithmetic far from overflow.
pub(super) const HIDDEN_MAX: usize = 1 << 16;
pub(super) const HEADS_MAX: usize = 1 << 8;
/// What the sampler's groups cover.
const VOCAB_MAX: usize = (G4_SAMPLE_GROUP * G4_SAMPLE_GROUPS_MAX) as usize;
const POSITIONS_MAX: usize = 1 << 22;
/// What a warp holds of a layer's slice (csrc/kernels/per_layer_input.cu).
const PER_LAYER_WIDTH_MAX: usize = 512;
const SUPPRESSED_MAX: usize = 1 << 10;
const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer_config.json";

impl ModelConfig {
    /// Reads the checkpoint's `config.json`, and `generation_config.json` and `tokenizer_config.json` where it has
    /// them. Fails with the file, the field and the value of the first thing that cannot be served.
    pub fn parse(
        config_json: &[u8],
        generation_config: Option<&[u8]>,
        tokenizer_config: Option<&[u8]>,
    ) -> Result<ModelConfig, ConfigError> {
        let config = json(CONFIG, config_json)?;
        let generation = generation_config.map_or(Ok(empty()), |bytes| json(GENERATION, bytes))?;
        let tokenizer = tokenizer_config.map_or(Ok(empty()), |bytes| json(TOKENIZER, bytes))?;
        let outer = Fields::top(CONFIG, &config)?;
        let generation = Fields::top(GENERATION, &generation)?;
        let tokenizer = Fields::top(TOKENIZER, &tokenizer)?;

        let (model_type, text) = text_part(&outer)?;
        for fields in [&outer, &text] {
            refuse_unsupported(fields)?;
        }
        let hidden = text.require_count("hidden_size", 8, HIDDEN_MAX)?;
        if hidden % 8 != 0 {
            return Err(text.unsupported("hidden_size", hidden, "the kernels read rows in groups of 8 elements"));
        }
        let vocab = text.require_count("vocab_size", 2, VOCAB_MAX)?;
        let heads = text.require_count("num_attention_heads", 1, HEADS_MAX)?;
        let layers = layers::resolve(&text, heads)?;
        let (rope_sliding, rope_global) = layers::ropes(&text)?;
        let ids = Ids { outer: &outer, text: &text, generation: &generation, vocab };
        Ok(ModelConfig {
            model_type,
            hidden,
            heads,
            vocab,
            window: text.require_count("sliding_window", 1, POSITIONS_MAX)?,
            rms_eps: text.number("rms_norm_eps", 1e-12, 1e-2)?.unwrap_or(1e-6) as f32,
            softcap: text.number("final_logit_softcapping", 1e-3, 1e6)?.unwrap_or(0.0) as f32,
            rope_sliding,
            rope_global,
            max_position: text.require_count("max_position_embeddings", 1, POSITIONS_MAX)?,
            tied_head: match text.flag("tie_word_embeddings")? {
                Some(tied) => tied,
                None => outer.flag("tie_word_embeddings")?.unwrap_or(true),
            },
            layers,
            per_layer_width: per_layer_width(&text, vocab)?,
            experts: experts(&text)?,
            eos_ids: ids.eos()?,
            bos_id: ids.single("bos_token_id", 2)?,
            pad_id: ids.single("pad_token_id", 0)?,
            suppressed_ids: ids.suppressed()?,
            modality_ids: ids.modality()?,
            add_bos_token: tokenizer.flag("add_bos_token")?,
            sampling: sampling(&generation)?,
        })
    }

    pub fn rope(&self, kind: LayerKind) -> RopeConfig {
        match kind {
            LayerKind::Sliding => self.rope_sliding,
            LayerKind::Global => self.rope_global,
        }
    }

    /// The layers of one kind, with their index.
    pub fn layers_of(&self, kind: LayerKind) -> impl Iterator<Item = (usize, &LayerConfig)> {
        self.layers.iter().enumerate().filter(move |(_, layer)| layer.kind == kind)
    }

    /// Those of them that the cache holds K and V of.
    pub fn kv_layers_of(&self, kind: LayerKind) -> impl Iterator<Item = (usize, &LayerConfig)> {
        self.layers_of(kind).filter(|(_, layer)| layer.owns_kv())
    }

    /// The layer whose K and V layer `index` reads: its own, or its donor's.
    pub fn kv_owner(&self, index: usize) -> usize {
        self.layers[index].kv_donor.unwrap_or(index)
    }

    /// How many layers have K and V of their own: all but a tail.
    pub fn layers_with_kv(&self) -> usize {
        self.layers.iter().take_while(|layer| layer.owns_kv()).count()
    }

    /// Whether, of the first `end` layers, none behind layer `index` reads the K and V that it reads.
    pub fn is_last_reader(&self, index: usize, end: usize) -> bool {
        let owner = self.kv_owner(index);
        (index + 1..end).all(|later| self.kv_owner(later) != owner)
    }
}

fn json(file: &'static str, bytes: &[u8]) -> Result<Value, ConfigError> {
    serde_json::from_slice(bytes).map_err(|e| ConfigError::Json { file, why: clipped(&e.to_string()) })
}

fn empty() -> Value {
    Value::Object(Default::default())
}

/// The object that holds the text tower's fields: `text_config`, or the top level of a text-only export.
fn text_part<'a>(outer: &Fields<'a>) -> Result<(ModelType, Fields<'a>), ConfigError> {
    let name = outer.string("model_type")?.ok_or_else(|| outer.missing("model_type"))?;
    let (model_type, nested) = match name {
        "gemma4" => (ModelType::Gemma4, true),
        "gemma4_unified" => (ModelType::Gemma4Unified, true),
        "gemma4_text" => (ModelType::Gemma4, false),
        "gemma4_unified_text" => (ModelType::Gemma4Unified, false),
        "gemma4_assistant" | "gemma4_unified_assistant" => {
            return Err(outer.unsupported("model_type", name, "a drafter cannot be served alone"));
        }
        _ => {
            let why = "only gemma4 and gemma4_unified (and their _text exports) are served";
            return Err(outer.unsupported("model_type", name, why));
        }
    };
    if !nested {
        return Ok((model_type, outer.clone()));
    }
    let text = outer.object("text_config")?.ok_or_else(|| outer.missing("text_config"))?;
    let expected = format!("{name}_text");
    match text.string("model_type")? {
        Some(inner) if inner != expected => {
            Err(text.unsupported("model_type", inner, format!("expected {expected} inside {name}")))
        }
        _ => Ok((model_type, text)),
    }
}

/// Features of other members of the family, and values no published checkpoint has.
fn refuse_unsupported(fields: &Fields) -> Result<(), ConfigError> {
    weight_format::check_config(fields)?;
    for key in ["dtype", "torch_dtype"] {
        if let Some(dtype) = fields.string(key)?.filter(|&dtype| dtype != "bfloat16") {
            return Err(fields.unsupported(key, dtype, "only bfloat16 checkpoints are served"));
        }
    }
    for key in ["hidden_activation", "hidden_act"] {
        if let Some(name) = fields.string(key)?.filter(|&name| name != "gelu_pytorch_tanh") {
            return Err(fields.unsupported(key, name, "the kernels compute gelu_pytorch_tanh"));
        }
    }
    if fields.flag("attention_bias")? == Some(true) {
        return Err(fields.unsupported("attention_bias", true, "the kernels add no bias"));
    }
    if let Some(value) = fields.get("use_bidirectional_attention").filter(|v| v.as_str() != Some("vision")) {
        let why = "text is served causally; only null and \"vision\" mean that";
        return Err(fields.unsupported("use_bidirectional_attention", shown(value), why));
    }
    Ok(())
}

/// Width of the per-layer embeddings; zero and absent mean none, and then `vocab_size_per_layer_input` says nothing.
fn per_layer_width(text: &Fields, vocab: usize) -> Result<Option<usize>, ConfigError> {
    let key = "hidden_size_per_layer_input";
    let Some(width @ 1..) = text.count(key, 0, PER_LAYER_WIDTH_MAX)? else {
        return Ok(None);
    };
    if width % 8 != 0 {
        return Err(text.unsupported(key, width, "the kernels read rows in groups of 8 elements"));
    }
    let rows_key = "vocab_size_per_layer_input";
    match text.count(rows_key, 0, usize::MAX)? {
        Some(rows) if rows != vocab => {
            Err(text.unsupported(rows_key, rows, format!("every token needs a row, and vocab_size is {vocab}")))
        }
        _ => Ok(Some(width)),
    }
}

/// Without `enable_moe_block` the other fields say nothing: other members of the family have them as null or 0.
fn experts(text: &Fields) -> Result<Option<ExpertsConfig>, ConfigError> {
    if text.flag("enable_moe_block")? != Some(true) {
        return Ok(None);
    }
    let count = text.require_count("num_experts", 1, G4_EXPERTS_MAX as usize)?;
    let top = text.require_count("top_k_experts", 1, G4_EXPERTS_TOP_MAX as usize)?;
    if top > count {
        return Err(text.unsupported("top_k_experts", top, format!("num_experts is {count}")));
    }
    // Early drafts of the format have the second name.
    const WIDTHS: [&str; 2] = ["moe_intermediate_size", "expert_intermediate_size"];
    let width = WIDTHS.into_iter().find(|key| text.get(key).is_some()).unwrap_or(WIDTHS[0]);
    let intermediate = text.require_count(width, 8, layers::INTERMEDIATE_MAX)?;
    if intermediate % 8 != 0 {
        return Err(text.unsupported(width, intermediate, "the kernels read rows in groups of 8 elements"));
    }
    Ok(Some(ExpertsConfig { count, top, intermediate }))
}

/// The places token ids come from.
struct Ids<'a> {
    outer: &'a Fields<'a>,
    text: &'a Fields<'a>,
    generation: &'a Fields<'a>,
    vocab: usize,
}

impl Ids<'_> {
    /// The union of all lists: a model stopped by one file's list alone runs on past `<turn|>`
    /// (github.com/waybarrios/vllm-mlx/pull/610).
    fn eos(&self) -> Result<Vec<u32>, ConfigError> {
        let key = "eos_token_id";
        let mut union = Vec::new();
        for fields in [self.generation, self.outer, self.text] {
            for id in fields.token_ids(key, self.vocab - 1)? {
                if !union.contains(&id) {
                    union.push(id);
                }
            }
        }
        if union.len() > EOS_IDS_MAX {
            let found = format!("{} ids in all files together", union.len());
            return Err(self.generation.unsupported(key, found, format!("at most {EOS_IDS_MAX} can stop a sequence")));
        }
        // What the text configuration's class defaults to.
        Ok(if union.is_empty() { vec![1] } else { union })
    }

    fn single(&self, key: &str, default: u32) -> Result<u32, ConfigError> {
        for fields in [self.generation, self.text, self.outer] {
            match fields.token_ids(key, self.vocab - 1)?.as_slice() {
                [] => {}
                [id] => return Ok(*id),
                _ => return Err(fields.unsupported(key, "a list", "expected one id")),
            }
        }
        Ok(default)
    }

    fn suppressed(&self) -> Result<Vec<u32>, ConfigError> {
        let key = "suppress_tokens";
        let ids = self.generation.token_ids(key, i32::MAX as usize)?;
        if ids.len() > SUPPRESSED_MAX {
            let why = format!("at most {SUPPRESSED_MAX} can be suppressed");
            return Err(self.generation.unsupported(key, format!("a list of {}", ids.len()), why));
        }
        Ok(ids)
    }

    fn modality(&self) -> Result<Vec<ModalityId>, ConfigError> {
        // `eoa_token_index` is how the published files spell the end of audio.
        const FIELDS: [&str; 8] = [
            "image_token_id",
            "audio_token_id",
            "video_token_id",
            "boi_token_id",
            "boa_token_id",
            "eoi_token_id",
            "eoa_token_id",
            "eoa_token_index",
        ];
        let mut ids = Vec::new();
        for field in FIELDS {
            for id in self.outer.token_ids(field, i32::MAX as usize)? {
                ids.push(ModalityId { field, id });
            }
        }
        Ok(ids)
    }
}
