//! Gate: damage nobody thought of. Mutants of whole checkpoints, by structure and by bytes: opening one never panics,
//! allocates no more than its files' text accounts for, and refuses in one line that names a file; what is accepted has
//! every byte it says, a memory plan that keeps its promises, and a report.
//!
//! Three bases: one file and the published spelling; two shards, an index, the re-saved spelling, per-layer embeddings
//! and shared K and V; experts. The seed is printed; `cargo test --test gate_fuzz -- --seed N` replays it, `--cases N`
//! sets the number of mutants of each part. proptest makes the mutants and shrinks the one that fails.

mod common;
#[path = "../tests/support/folder.rs"]
mod folder;
#[path = "common/mutate.rs"]
mod mutate;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use common::{Gate, argument};
use folder::{CONFIG, Folder, GENERATION, INDEX, SHARDS, TOKENIZER_CONFIG, WEIGHTS};
use gemma4_serve::alloc::CountingAllocator;
use gemma4_serve::inspect::{Asked, Report};
use gemma4_serve::model::checkpoint::{Checkpoint, Content, TensorView};
use gemma4_serve::model::config::ModelConfig;
use gemma4_serve::model::plan::{MemoryPlan, PlanOptions, TablePlace};
use gemma4_serve::model::safetensors::{Dtype, TensorOut, write};
use gemma4_serve::model::tensors::{self, Expected, PREFIXES};
use mutate::{Edit, apply, edit};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngSeed, TestError, TestRunner};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Mutants of each part, a base each: about half a minute in all.
const CASES: u32 = 1_400;
const CASES_FULL: u32 = 100_000;

fn main() {
    let mut gate = Gate::start("fuzz");
    let seed = common::seed();
    let asked = argument("--cases").map(|text| text.parse().expect("--cases: a number"));
    let cases = asked.unwrap_or(if gate.full { CASES_FULL } else { CASES });
    println!("{cases} mutants a part");
    let seen = Seen::default();
    for base in [Base::single(), Base::sharded(), Base::experts()] {
        for part in [Part::Config, Part::Neighbours, Part::Headers, Part::Everything] {
            fuzz(&mut gate, &base, part, seed, cases, &seen);
        }
    }
    // A fuzzer whose mutants all die of the same thing shows nothing.
    let kinds = seen.kinds.borrow();
    for (words, count) in kinds.iter() {
        println!("     {count:>6} refusals: ... {words} ...");
    }
    gate.fact(kinds.len() >= 16, &format!("{} kinds of refusal of {}", kinds.len(), KINDS.len()));
    gate.finish();
}

/// Words that tell kinds of refusal apart.
const KINDS: [&str; 26] = [
    "is missing",
    "expected an integer",
    "expected a number",
    "expected an object",
    ", expected ",
    "not a JSON object",
    "recursion limit",
    "only gemma4 and gemma4_unified",
    "a list of",
    "the kernels have",
    "quantization_config",
    "it does not begin with {",
    "its header claims",
    "too short for a safetensors header",
    "stands in it twice",
    "begins at byte",
    "belong to no tensor",
    "truncated?",
    "its tensors end at",
    "bytes, its offsets give",
    "has the unknown dtype",
    "expected BF16",
    "config.json says",
    "the index does not say so",
    "the index says it is",
    "must be finite",
];

#[derive(Default)]
struct Seen {
    accepted: Cell<usize>,
    refused: Cell<usize>,
    kinds: RefCell<BTreeMap<&'static str, usize>>,
}

/// What a group of mutants is damaged in.
#[derive(Clone, Copy, Debug)]
enum Part {
    Config,
    /// generation_config.json, tokenizer_config.json, the index.
    Neighbours,
    Headers,
    Everything,
}

/// A whole checkpoint's files.
struct Base {
    name: &'static str,
    folder: Folder,
    texts: Vec<(&'static str, Vec<u8>)>,
    /// File, header and data.
    weights: Vec<(&'static str, Vec<u8>, Vec<u8>)>,
}

/// Damage to one file.
#[derive(Clone, Debug)]
enum Damage {
    Text(Index, Vec<Edit>),
    Header(Index, Vec<Edit>),
    /// A header with an honest length of its own edits, or this one.
    Length(Index, u64),
    /// Bytes of the file's end: fewer, or more.
    Resize(Index, isize),
    /// Two bytes of the data.
    Data(Index, Index, [u8; 2]),
}

fn damage(part: Part) -> impl Strategy<Value = Vec<Damage>> {
    let edits = || prop::collection::vec(edit(), 1..3);
    let place = any::<Index>;
    let text = (place(), edits()).prop_map(|(file, edits)| Damage::Text(file, edits)).boxed();
    let length = prop_oneof![0u64..5_000, any::<u64>(), Just(64 << 20), Just((64 << 20) + 1)];
    let value = prop_oneof![Just([0xc0, 0x7f]), Just([0x80, 0xff]), any::<[u8; 2]>()];
    let weights = prop_oneof![
        6 => (place(), edits()).prop_map(|(file, edits)| Damage::Header(file, edits)),
        1 => (place(), length).prop_map(|(file, length)| Damage::Length(file, length)),
        1 => (place(), -5_000isize..100).prop_map(|(file, by)| Damage::Resize(file, by)),
        1 => (place(), place(), value).prop_map(|(file, at, value)| Damage::Data(file, at, value)),
    ];
    let one = match part {
        Part::Config | Part::Neighbours => text,
        Part::Headers => weights.boxed(),
        Part::Everything => prop_oneof![text, weights].boxed(),
    };
    prop::collection::vec(one, 1..3)
}

fn fuzz(gate: &mut Gate, base: &Base, part: Part, seed: u64, cases: u32, seen: &Seen) {
    let config = Config {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..Config::default()
    };
    let (accepted, refused) = (seen.accepted.get(), seen.refused.get());
    let result = TestRunner::new(config).run(&damage(part), |damage| {
        base.write(part, &damage);
        match base.folder.open() {
            Ok(checkpoint) => {
                seen.accepted.set(seen.accepted.get() + 1);
                check_accepted(&checkpoint);
            }
            Err(sentence) => {
                seen.refused.set(seen.refused.get() + 1);
                for words in KINDS.into_iter().filter(|words| sentence.contains(words)) {
                    *seen.kinds.borrow_mut().entry(words).or_default() += 1;
                }
            }
        }
        Ok(())
    });
    let (accepted, refused) = (seen.accepted.get() - accepted, seen.refused.get() - refused);
    let what = format!("{}, {part:?}: {accepted} mutants accepted, {refused} refused", base.name);
    match result {
        // Both must happen: else the damage is too little or too much.
        Ok(()) => gate.fact(accepted > 0 && refused > 0, &what),
        Err(TestError::Fail(why, damage)) => {
            gate.fact(false, &format!("{what}; --seed {seed} finds {damage:?}: {why}"));
        }
        Err(TestError::Abort(why)) => gate.fact(false, &format!("{what}; aborted: {why}")),
    }
}

/// What later code relies on in an opened checkpoint.
fn check_accepted(checkpoint: &Checkpoint) {
    let config = &checkpoint.config;
    let view = |view: &TensorView| match view.content {
        Content::Stored(bytes) => {
            assert_eq!(bytes.len(), view.byte_count(), "{}", view.name);
            // Reads every byte: a view past its file's end would fault.
            std::hint::black_box(bytes.iter().fold(0u8, |all, byte| all ^ byte));
        }
        Content::Synthetic(_) => panic!("{} is in no file", view.name),
    };
    [Some(checkpoint.embed()), Some(checkpoint.norm()), checkpoint.head()].iter().flatten().for_each(view);
    if let Some(of) = checkpoint.per_layer() {
        [&of.table, &of.projection, &of.norm].into_iter().for_each(view);
    }
    for index in 0..config.layers.len() {
        checkpoint.layer(index).map(view);
    }
    assert!(config.layers.iter().all(|layer| layer.kv_donor.is_none_or(|donor| config.layers[donor].owns_kv())));
    assert!(!config.eos_ids.is_empty() && config.eos_ids.iter().all(|&id| (id as usize) < config.vocab));

    let own_head = checkpoint.head().is_some();
    for (max_running, max_context, kv_pages) in [(1, None, None), (128, None, None), (5, Some(2), Some(7))] {
        let options = PlanOptions { max_running, max_context, kv_pages, ..PlanOptions::default() };
        for free_bytes in [0, 1 << 26, 1 << 33, u64::MAX] {
            let Ok(plan) = MemoryPlan::resolve(config, &options, own_head, free_bytes) else { continue };
            let g = &plan.geometry;
            assert_eq!(plan.total_bytes, plan.lines.iter().fold(0u64, |sum, line| sum.saturating_add(line.bytes)));
            assert!(plan.total_bytes <= free_bytes && (1..=config.max_position).contains(&g.max_context), "{plan}");
            assert!(kv_pages.is_some() || plan.full_sequences() >= 1, "{plan}");
            assert!(g.ring_pages * g.page_tokens_sliding <= config.window + g.page_tokens_sliding, "{plan}");
        }
    }
    let contexts = vec![config.max_position];
    let asked = Asked {
        contexts,
        slots: vec![1, 64],
        kv_pages: None,
        prefill_chunk: 64,
        per_layer_table: TablePlace::Device,
        cards: vec![1 << 30],
    };
    let report = Report::of("a mutant", checkpoint, &asked).unwrap_or_else(|e| panic!("{e}"));
    let page = report.to_string();
    assert!(page.lines().count() < 100 && page.lines().all(|line| !line.contains(char::is_control)), "{page}");
    serde_json::from_str::<Value>(&report.json()).expect("JSON");
}

impl Base {
    /// S F, K = V in the global layer.
    fn single() -> Base {
        Self::new(
            "single",
            None,
            json!({
                "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 256,
                "global_head_dim": 512, "num_global_key_value_heads": 1, "attention_k_eq_v": true,
            }),
        )
    }

    /// S F S F, the last two with K and V of the first two.
    fn sharded() -> Base {
        let global = json!({"head_dim": 512, "num_key_value_heads": 1});
        Self::new(
            "sharded",
            Some(20),
            json!({
                "num_hidden_layers": 4, "num_kv_shared_layers": 2, "use_double_wide_mlp": true,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
                "head_dim": 256, "per_layer_config": {"1": global, "3": global}, "hidden_size_per_layer_input": 8,
                "vocab_size_per_layer_input": 32,
            }),
        )
    }

    /// S F with four experts each, of which a token goes to two.
    fn experts() -> Base {
        Self::new(
            "experts",
            None,
            json!({
                "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 256,
                "global_head_dim": 512, "num_global_key_value_heads": 1, "attention_k_eq_v": true,
                "enable_moe_block": true, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 8,
            }),
        )
    }

    /// With two shards, the first of so many tensors.
    fn new(name: &'static str, split: Option<usize>, layers: Value) -> Base {
        let mut text = json!({
            "model_type": "gemma4_text", "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
            "intermediate_size": 16, "vocab_size": 32, "sliding_window": 16, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-6, "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh",
            "enable_moe_block": false, "eos_token_id": 1, "tie_word_embeddings": true, "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            },
        });
        text.as_object_mut().expect("an object").extend(layers.as_object().expect("an object").clone());
        let config = json!({
            "model_type": "gemma4", "dtype": "bfloat16", "text_config": text, "eos_token_id": [1, 6],
            "image_token_id": 30, "tie_word_embeddings": true,
        });
        let config = config.to_string().into_bytes();
        let generation = json!({"eos_token_id": [1, 6, 5], "temperature": 1.0, "top_k": 64, "top_p": 0.95});
        let model = ModelConfig::parse(&config, None, None).expect("a base is served");
        let named = |Expected { name, shape }| Expected { name: format!("{}{name}", PREFIXES[2].text), shape };
        let tensors: Vec<Expected> = tensors::all(&model).into_iter().map(named).collect();
        let split = split.unwrap_or(tensors.len());
        let parts = [&tensors[..split], &tensors[split..]].into_iter().filter(|part| !part.is_empty());
        let names = if split < tensors.len() { SHARDS.to_vec() } else { vec![WEIGHTS] };
        let mut texts = vec![
            (CONFIG, config),
            (GENERATION, generation.to_string().into_bytes()),
            (TOKENIZER_CONFIG, br#"{"add_bos_token":false,"chat_template":"{{ bos_token }}"}"#.to_vec()),
        ];
        let mut weights = Vec::new();
        let mut map = serde_json::Map::new();
        for (file, part) in names.iter().zip(parts) {
            let (header, data) = file_of(part);
            weights.push((*file, header, data));
            map.extend(part.iter().map(|tensor| (tensor.name.clone(), json!(file))));
        }
        if names.len() > 1 {
            texts.push((INDEX, json!({"metadata": {}, "weight_map": map}).to_string().into_bytes()));
        }
        Base { name, folder: Folder::empty(), texts, weights }
    }

    /// Writes the whole checkpoint, damaged.
    fn write(&self, part: Part, damage: &[Damage]) {
        let (mut texts, mut weights) = (self.texts.clone(), self.weights.clone());
        let mut lengths = vec![None; weights.len()];
        for one in damage {
            match one {
                Damage::Text(file, edits) => {
                    let among = match part {
                        Part::Config => 0..1,
                        Part::Neighbours => 1..texts.len(),
                        _ => 0..texts.len(),
                    };
                    let (_, text) = &mut texts[among.start + file.index(among.len())];
                    *text = apply(text, edits);
                }
                Damage::Header(file, edits) => {
                    let (_, header, _) = &mut weights[file.index(self.weights.len())];
                    *header = apply(header, edits);
                }
                Damage::Length(file, length) => lengths[file.index(self.weights.len())] = Some(*length),
                Damage::Resize(file, by) => {
                    let (_, _, data) = &mut weights[file.index(self.weights.len())];
                    data.resize(data.len().saturating_add_signed(*by), 0);
                }
                Damage::Data(file, at, value) => {
                    let (_, _, data) = &mut weights[file.index(self.weights.len())];
                    let at = 2 * at.index((data.len() / 2).max(1));
                    data.iter_mut().skip(at).zip(value).for_each(|(byte, new)| *byte = *new);
                }
            }
        }
        texts.iter().for_each(|(name, text)| self.folder.write(name, text));
        for ((name, header, data), length) in weights.iter().zip(lengths) {
            let length = length.unwrap_or(header.len() as u64);
            self.folder.write(name, [&length.to_le_bytes()[..], header, data].concat());
        }
    }
}

/// Header and data of a file of these tensors, all ones.
fn file_of(part: &[Expected]) -> (Vec<u8>, Vec<u8>) {
    let data: Vec<Vec<u8>> = part.iter().map(|t| [0x80, 0x3f].repeat(t.shape.iter().product())).collect();
    let tensors = part.iter().zip(&data).map(|(t, bytes)| TensorOut {
        name: &t.name,
        dtype: Dtype::Bf16,
        shape: &t.shape,
        bytes,
    });
    let mut file = Vec::new();
    write(&mut file, &tensors.collect::<Vec<_>>()).expect("a file in memory");
    let header_bytes = u64::from_le_bytes(*file.first_chunk().expect("a length")) as usize;
    let data = file.split_off(8 + header_bytes);
    (file.split_off(8), data)
}
