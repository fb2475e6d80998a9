//! Synthetic models: the shape of a published checkpoint, and values that a kernel makes up on the device
//! (`csrc/kernels/synthetic.cu`). No file is read, so a 24 GB model starts in seconds: for benchmarks and load tests,
//! whose times depend on shapes and not on what the weights say.
//!
//! The configuration is written out as the published `config.json` spells it and read by the same parser as a file, so
//! what cannot be served is refused by the parser's own words.

use std::fmt::{self, Write as _};

use serde_json::{Value, json};

use super::config::ModelConfig;
use super::safetensors::{Dtype, TensorInfo};
use super::tensors::{self, EMBED, Expected, PREFIXES};

/// The published models by their size (spec/gemma4.md, 1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Variant {
    #[value(name = "e2b")]
    E2b,
    #[value(name = "e4b")]
    E4b,
    #[value(name = "12b")]
    Dense12b,
    #[value(name = "26b-a4b")]
    Moe26b,
    #[value(name = "31b")]
    Dense31b,
}

/// What `--synthetic` and `--synthetic-layers` ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntheticModel {
    pub variant: Variant,
    /// The last so many layers of the published pattern, so that the model ends with a global layer as published; none:
    /// all of them. Where the tail shares K and V, the last of the layers with their own and the last of the tail, in
    /// the published proportion.
    pub layers: Option<usize>,
}

impl Variant {
    /// As the flag spells it.
    pub fn name(self) -> &'static str {
        match self {
            Variant::E2b => "e2b",
            Variant::E4b => "e4b",
            Variant::Dense12b => "12b",
            Variant::Moe26b => "26b-a4b",
            Variant::Dense31b => "31b",
        }
    }

    pub fn layers(self) -> usize {
        self.shape().layers
    }

    fn shape(self) -> Shape {
        let dense = Shape {
            model_type: "gemma4",
            hidden: 3840,
            layers: 48,
            global_every: 6,
            heads: 16,
            kv_heads: 8,
            global_kv_heads: Some(1),
            intermediate: 15360,
            window: 1024,
            kv_shared_layers: 0,
            per_layer_input: 0,
            experts: None,
            max_position: 262_144,
        };
        let small =
            Shape { global_kv_heads: None, window: 512, per_layer_input: 256, max_position: 131_072, ..dense.clone() };
        match self {
            Variant::E2b => Shape {
                hidden: 1536,
                layers: 35,
                global_every: 5,
                heads: 8,
                kv_heads: 1,
                intermediate: 6144,
                kv_shared_layers: 20,
                ..small
            },
            Variant::E4b => Shape {
                hidden: 2560,
                layers: 42,
                heads: 8,
                kv_heads: 2,
                intermediate: 10240,
                kv_shared_layers: 18,
                ..small
            },
            Variant::Dense12b => Shape { model_type: "gemma4_unified", ..dense },
            Variant::Moe26b => Shape {
                hidden: 2816,
                layers: 30,
                global_kv_heads: Some(2),
                intermediate: 2112,
                experts: Some(Experts { count: 128, top: 8, intermediate: 704 }),
                ..dense
            },
            Variant::Dense31b => Shape {
                hidden: 5376,
                layers: 60,
                heads: 32,
                kv_heads: 16,
                global_kv_heads: Some(4),
                intermediate: 21504,
                ..dense
            },
        }
    }
}

/// What differs between the published configurations.
#[derive(Clone)]
struct Shape {
    /// Outer `model_type`.
    model_type: &'static str,
    hidden: usize,
    layers: usize,
    /// Layers from one global layer to the next; the last is global.
    global_every: usize,
    heads: usize,
    kv_heads: usize,
    /// KV heads of global layers where K = V; none: as sliding layers, and V is a matrix of its own.
    global_kv_heads: Option<usize>,
    intermediate: usize,
    window: usize,
    kv_shared_layers: usize,
    per_layer_input: usize,
    experts: Option<Experts>,
    max_position: usize,
}

impl Shape {
    /// How many of so many layers share K and V; two at least do not, of which one slides and one is global.
    fn shared_of(&self, layers: usize) -> usize {
        (layers * self.kv_shared_layers / self.layers).min(layers.saturating_sub(2))
    }
}

#[derive(Clone, Copy)]
struct Experts {
    count: usize,
    top: usize,
    intermediate: usize,
}

const VOCAB: usize = 262_144;

impl fmt::Display for SyntheticModel {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "gemma-4-{}-synthetic", self.variant.name())?;
        self.layers.map_or(Ok(()), |layers| write!(f, "-{layers}-layers"))
    }
}

impl SyntheticModel {
    /// `config.json` and `generation_config.json`.
    pub fn files(&self) -> (Vec<u8>, Vec<u8>) {
        let shape = self.variant.shape();
        let text = text_config(&shape, self.variant, self.layers.unwrap_or(shape.layers));
        let config = json!({
            "model_type": shape.model_type,
            "dtype": "bfloat16",
            "text_config": text,
            "tie_word_embeddings": true,
            "eos_token_id": [1, 106],
            "boi_token_id": 255_999,
            "boa_token_id": 256_000,
            "image_token_id": 258_880,
            "audio_token_id": 258_881,
            "eoi_token_id": 258_882,
            "eoa_token_index": 258_883,
            "video_token_id": 258_884,
        });
        let mut generation = json!({ "bos_token_id": 2, "pad_token_id": 0, "eos_token_id": [1, 106, 50] });
        if self.variant == Variant::Dense12b {
            generation["suppress_tokens"] = json!([258_883, 258_882]);
        }
        (config.to_string().into_bytes(), generation.to_string().into_bytes())
    }
}

fn text_config(shape: &Shape, variant: Variant, layers: usize) -> Value {
    let kind = |index: usize| {
        if (index + 1).is_multiple_of(shape.global_every) { "full_attention" } else { "sliding_attention" }
    };
    let shared = shape.shared_of(layers);
    let first_shared = shape.layers - shape.kv_shared_layers;
    let owners = first_shared - (layers - shared)..first_shared;
    let kinds: Vec<_> = owners.chain(shape.layers - shared..shape.layers).map(kind).collect();
    let experts = shape.experts;
    json!({
        "model_type": format!("{}_text", shape.model_type),
        "dtype": "bfloat16",
        "hidden_size": shape.hidden,
        "num_hidden_layers": layers,
        "layer_types": kinds,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "num_global_key_value_heads": shape.global_kv_heads,
        "head_dim": 256,
        "global_head_dim": 512,
        "intermediate_size": shape.intermediate,
        "use_double_wide_mlp": variant == Variant::E2b,
        "sliding_window": shape.window,
        "attention_k_eq_v": shape.global_kv_heads.is_some(),
        "attention_bias": false,
        "num_kv_shared_layers": shared,
        "hidden_size_per_layer_input": shape.per_layer_input,
        "vocab_size": VOCAB,
        "vocab_size_per_layer_input": VOCAB,
        "enable_moe_block": experts.is_some(),
        "num_experts": experts.map(|e| e.count),
        "top_k_experts": experts.map(|e| e.top),
        "moe_intermediate_size": experts.map(|e| e.intermediate),
        "max_position_embeddings": shape.max_position,
        "rms_norm_eps": 1e-6,
        "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": true,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
        "rope_parameters": {
            "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 },
            "full_attention": { "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6 },
        },
    })
}

/// Every tensor of such a model, named as published.
pub(super) fn tensor_infos(config: &ModelConfig) -> Vec<TensorInfo> {
    let info = |Expected { name, shape }| TensorInfo {
        name: format!("{}{name}", PREFIXES[0].text),
        dtype: Dtype::Bf16,
        shape,
        bytes: 0..0,
    };
    tensors::all(config).into_iter().map(info).collect()
}

/// How the values of a synthetic tensor spread: `(center + odd) * 2^-exponent`, where `odd` is one of the 2^bits odd
/// numbers around zero, each as likely. All of them are exact in bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    pub center: i32,
    pub bits: u32,
    pub exponent: u32,
}

/// Standard deviation of the odd numbers of 7 bits.
const ODD_DEVIATION: f64 = 73.9;

impl Spread {
    /// Matrices keep the scale of what passes through them (a deviation of about `depth^-1/2`), the embedding an
    /// eighth of it: else the head would find the last token itself in the residual stream, and answers would repeat
    /// one token. Norm weights and layer scalars are 113/128 to 143/128.
    pub fn of(name: &str, shape: &[usize]) -> Spread {
        match *shape {
            [_, depth] | [_, _, depth] => {
                let exponent = (ODD_DEVIATION * (depth as f64).sqrt()).log2().round() as u32;
                let quieter = if name.ends_with(EMBED) { 3 } else { 0 };
                Spread { center: 0, bits: 7, exponent: exponent + quieter }
            }
            _ => Spread { center: 128, bits: 4, exponent: 7 },
        }
    }

    /// Keys and values after their norms: a deviation of about 1.
    pub fn of_cache() -> Spread {
        Spread { center: 0, bits: 7, exponent: 6 }
    }
}

/// What tells one tensor's values from another's: FNV-1a of its name.
pub fn key(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Special tokens of the published tokenizer that prompts and stops know, by id.
const SPECIAL: [(usize, &str); 24] = [
    (0, "<pad>"),
    (1, "<eos>"),
    (2, "<bos>"),
    (3, "<unk>"),
    (4, "<mask>"),
    (46, "<|tool>"),
    (47, "<tool|>"),
    (48, "<|tool_call>"),
    (49, "<tool_call|>"),
    (50, "<|tool_response>"),
    (51, "<tool_response|>"),
    (52, "<|\\\"|>"),
    (98, "<|think|>"),
    (100, "<|channel>"),
    (101, "<channel|>"),
    (105, "<|turn>"),
    (106, "<turn|>"),
    (255_999, "<|image>"),
    (256_000, "<|audio>"),
    (258_880, "<|image|>"),
    (258_881, "<|audio|>"),
    (258_882, "<image|>"),
    (258_883, "<audio|>"),
    (258_884, "<|video|>"),
];
/// The 256 byte tokens stand from here, as in the published tokenizer.
const FIRST_BYTE: usize = 238;

/// A `tokenizer.json` of `vocab` tokens without merges: every byte of a text is one token, the special tokens have
/// their published ids, and every other id is `<unusedN>`, so whatever the model picks has a text.
pub(super) fn tokenizer_json(vocab: usize) -> Vec<u8> {
    let mut text = String::with_capacity(vocab * 26);
    text.push_str(r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":["#);
    for (place, (id, token)) in SPECIAL.iter().enumerate() {
        let comma = if place == 0 { "" } else { "," };
        let _ = write!(
            text,
            r#"{comma}{{"id":{id},"content":"{token}","single_word":false,"lstrip":false,"rstrip":false,"#
        );
        text.push_str(r#""normalized":false,"special":true}"#);
    }
    text.push_str(r#"],"normalizer":null,"pre_tokenizer":null,"post_processor":null,"#);
    text.push_str(r#""decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"}]},"#);
    text.push_str(r#""model":{"type":"BPE","dropout":null,"unk_token":"<unk>","continuing_subword_prefix":null,"#);
    text.push_str(r#""end_of_word_suffix":null,"fuse_unk":true,"byte_fallback":true,"ignore_merges":false,"vocab":{"#);
    let mut special = SPECIAL.iter().peekable();
    for id in 0..vocab {
        let comma = if id == 0 { "" } else { "," };
        let _ = match special.next_if(|(at, _)| *at == id) {
            Some((_, token)) => write!(text, "{comma}\"{token}\":{id}"),
            None if (FIRST_BYTE..FIRST_BYTE + 256).contains(&id) => {
                write!(text, "{comma}\"<0x{:02X}>\":{id}", id - FIRST_BYTE)
            }
            None => write!(text, "{comma}\"<unused{id}>\":{id}"),
        };
    }
    text.push_str(r#"},"merges":[]}}"#);
    text.into_bytes()
}
