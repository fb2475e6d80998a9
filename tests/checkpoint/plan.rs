//! The memory plan: its arithmetic against numbers worked out by hand, and what it promises about fitting.

use gemma4_serve::model::config::{LayerKind, ModelConfig};
use gemma4_serve::model::plan::{Line, MemoryPlan, PlanError, PlanOptions, TablePlace, weight_bytes_a_step};
use proptest::prelude::*;
use serde_json::json;

const GIB: u64 = 1 << 30;

fn tiny() -> ModelConfig {
    reference("dense")
}

fn reference(name: &str) -> ModelConfig {
    let path = format!("{}/tests/data/reference/{name}/config.json", env!("CARGO_MANIFEST_DIR"));
    ModelConfig::parse(&std::fs::read(path).unwrap(), None, None).unwrap()
}

fn published(hidden: usize, layers: usize, heads: usize, kv: usize, global_kv: usize, i: usize) -> ModelConfig {
    let config = json!({
        "model_type": "gemma4_text", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "num_global_key_value_heads": global_kv, "intermediate_size": i,
        "vocab_size": 262144, "sliding_window": 1024, "attention_k_eq_v": true, "max_position_embeddings": 262144,
    });
    ModelConfig::parse(config.to_string().as_bytes(), None, None).unwrap()
}

fn of_12b() -> ModelConfig {
    published(3840, 48, 16, 8, 1, 15360)
}

fn of_31b() -> ModelConfig {
    published(5376, 60, 32, 16, 4, 21504)
}

fn line<'a>(plan: &'a MemoryPlan, name: &str) -> &'a Line {
    plan.lines.iter().find(|line| line.name == name).unwrap_or_else(|| panic!("no line {name}"))
}

fn bytes(plan: &MemoryPlan, name: &str) -> u64 {
    line(plan, name).bytes
}

#[test]
fn every_line_of_the_tiny_model_is_what_a_hand_computes() {
    let options = PlanOptions {
        max_running: 5,
        max_context: Some(1000),
        kv_pages: Some(100),
        prefill_chunk: 64,
        ..PlanOptions::default()
    };
    let plan = MemoryPlan::resolve(&tiny(), &options, false, GIB).unwrap();
    // Sliding layer: q 1024x64, k and v 512x64, o 64x1024, gate and up 128x64, down 64x128; global: q 2048x64, k
    // 512x64.
    let sliding = 1024 * 64 * 2 + 2 * 512 * 64 + 3 * 128 * 64;
    let global = 2048 * 64 * 2 + 512 * 64 + 3 * 128 * 64;
    assert_eq!(bytes(&plan, "weights of the layers"), 2 * (5 * sliding + global));
    assert_eq!(bytes(&plan, "embedding and head"), 2 * 512 * 64);
    // Per layer four norms of 64, a scalar, and q_norm and k_norm of the head dim.
    assert_eq!(bytes(&plan, "norms and scalars"), 2 * (64 + 5 * (4 * 64 + 1 + 512) + (4 * 64 + 1 + 1024)));
    // Two buffers of the largest matrix.
    assert_eq!(bytes(&plan, "staging of packing"), 2 * (2 * 2048 * 64));
    assert_eq!(bytes(&plan, "rotary table, sliding"), 2 * 1000 * 128 * 2);
    assert_eq!(bytes(&plan, "rotary table, global"), 2 * 1000 * 64 * 2);
    // Ring of 17 tokens: 2 pages; K and V, 5 layers, 2 heads, 16 tokens, 256 dims.
    assert_eq!(bytes(&plan, "KV pool, sliding"), 5 * 2 * (2 * 5 * 2 * 16 * 256 * 2));
    assert_eq!(bytes(&plan, "KV pool, global"), 100 * (2 * 16 * 512 * 2));
    // Widest q | k | v: global, (4 + 1) x 512.
    assert_eq!(bytes(&plan, "activations"), 64 * ((3 * 64 + 2560 + 2 * 2048 + 3 * 128) * 2 + 16));
    assert_eq!(bytes(&plan, "chunk K and V, sliding"), 5 * (2 * 2 * 16 * 256 * 2));
    // Sliding: 15 keys before the current one touch at most 2 segments; global: 1000 tokens touch 4, 100 pages hold
    // less.
    assert_eq!((plan.geometry.sliding_items, plan.geometry.global_items), (5 * 2, 100 * 16 / 256 + 5));
    assert_eq!(bytes(&plan, "attention partials"), 11 * 4 * (512 + 2) * 4);
    // Bucket 8 covers 5 running rows.
    assert_eq!(bytes(&plan, "logits"), 8 * (512 * 4 + 2 * 16));
    assert_eq!(bytes(&plan, "slots and page tables"), 5 * (172 + 4 + 4 * (2 + 63)));
    assert_eq!(plan.total_bytes, plan.lines.iter().map(|line| line.bytes).sum::<u64>());
}

/// Layers 5 to 7 own no K and V, have q alone and an MLP of twice the width; every layer has a branch 32 wide.
#[test]
fn every_line_of_the_tiny_model_with_per_layer_embeddings_is_what_a_hand_computes() {
    let options = PlanOptions {
        max_running: 5,
        max_context: Some(1000),
        kv_pages: Some(100),
        prefill_chunk: 64,
        ..PlanOptions::default()
    };
    let plan = MemoryPlan::resolve(&reference("ple"), &options, false, GIB).unwrap();
    // q and o 512x64 or 1024x64; k and v 256x64 or 512x64, in owners; MLP 64x64 or 128x64; gate and back 32x64.
    let sliding = 2 * 512 * 64 + 2 * 256 * 64 + 3 * 64 * 64 + 2 * 32 * 64;
    let global = 2 * 1024 * 64 + 2 * 512 * 64 + 3 * 64 * 64 + 2 * 32 * 64;
    let sliding_shared = 2 * 512 * 64 + 3 * 128 * 64 + 2 * 32 * 64;
    let global_shared = 2 * 1024 * 64 + 3 * 128 * 64 + 2 * 32 * 64;
    assert_eq!(
        bytes(&plan, "weights of the layers"),
        2 * (3 * sliding + 2 * global + 2 * sliding_shared + global_shared)
    );
    // Five norms of 64 and a scalar a layer; q_norm, in owners k_norm too; the norm of 32 and the last of 64.
    let norms = 8 * (5 * 64 + 1) + 3 * 2 * 256 + 2 * 2 * 512 + 2 * 256 + 512 + 32 + 64;
    assert_eq!(bytes(&plan, "norms and scalars"), 2 * norms);
    assert_eq!(bytes(&plan, "per-layer embeddings"), 512 * 8 * 32 * 2);
    assert_eq!(bytes(&plan, "per-layer projection"), 8 * 32 * 64 * 2);
    // Rings of 2 pages; K and V, 3 sliding owners and 2 global ones, 1 head, 16 tokens.
    assert_eq!(bytes(&plan, "KV pool, sliding"), 5 * 2 * (2 * 3 * 16 * 256 * 2));
    assert_eq!(bytes(&plan, "KV pool, global"), 100 * (2 * 2 * 16 * 512 * 2));
    // Widest q | k | v: a global owner, (2 + 2) x 512; MLP 128; per-layer embeddings 8 x 32.
    assert_eq!(bytes(&plan, "activations"), 64 * ((3 * 64 + 2048 + 2 * 1024 + 3 * 128 + 256) * 2 + 16));
    // One scratch for all: the donor's chunk stays there for the layers that share it.
    assert_eq!(bytes(&plan, "chunk K and V, sliding"), 5 * (2 * 16 * 256 * 2));

    // The table on the host: the same line on the other side, and nothing else changes.
    let on_host = PlanOptions { per_layer_table: TablePlace::Host, ..options };
    let host = MemoryPlan::resolve(&reference("ple"), &on_host, false, GIB).unwrap();
    assert!(plan.host_lines.is_empty() && host.host_lines[..] == [line(&plan, "per-layer embeddings").clone()]);
    assert_eq!(host.total_bytes, plan.total_bytes - 512 * 8 * 32 * 2);
    assert_eq!(host.lines.len(), plan.lines.len() - 1);
    assert_eq!(MemoryPlan::resolve(&tiny(), &on_host, false, GIB), Err(PlanError::NoTable));
}

/// Five layers with 16 experts 32 wide, of which a token goes to 4.
#[test]
fn every_line_of_the_tiny_model_with_experts_is_what_a_hand_computes() {
    let options = PlanOptions {
        max_running: 5,
        max_context: Some(1000),
        kv_pages: Some(100),
        prefill_chunk: 64,
        ..PlanOptions::default()
    };
    let config = reference("moe");
    let plan = MemoryPlan::resolve(&config, &options, false, GIB).unwrap();
    // q and o 512x64 or 1024x64; k and v 512x64, K = V in global layers; MLP 64x64; router 16x64.
    let sliding = 2 * 512 * 64 + 2 * 512 * 64 + 3 * 64 * 64 + 16 * 64;
    let global = 2 * 1024 * 64 + 512 * 64 + 3 * 64 * 64 + 16 * 64;
    let dense = 2 * (3 * sliding + 2 * global);
    assert_eq!(bytes(&plan, "weights of the layers"), dense);
    // gate | up 64x64 and down 64x32 of each.
    let expert = (64 * 64 + 64 * 32) * 2;
    assert_eq!(bytes(&plan, "weights of experts"), 5 * 16 * expert);
    // Seven norms of 64, the router's scale, a scale an expert and a scalar a layer; q_norm and k_norm; the last norm.
    let norms = 2 * (5 * (8 * 64 + 16 + 1) + 3 * 2 * 256 + 2 * 2 * 512 + 64);
    assert_eq!(bytes(&plan, "norms and scalars"), norms);
    assert_eq!(bytes(&plan, "activations"), 64 * ((3 * 64 + 1536 + 2 * 1024 + 3 * 64) * 2 + 16));
    // x, 16 logits; for each of 4 experts gate | up, their product, the output, and 24 bytes of ids; a count.
    let pairs = 4 * ((2 * 32 + 32 + 64) * 2 + 24);
    assert_eq!(bytes(&plan, "activations of experts"), 64 * (64 * 2 + 16 * 4 + pairs) + 4);
    // A row reads the experts it goes to; two that choose for themselves 1 - (3/4)^2 of them, many all.
    let others = dense + norms + 512 * 64 * 2;
    assert_eq!(weight_bytes_a_step(&config, 1), others + 5 * 4 * expert);
    assert_eq!(weight_bytes_a_step(&config, 2), others + 5 * 7 * expert);
    assert_eq!(weight_bytes_a_step(&config, 1000), others + 5 * 16 * expert);
    let page = plan.to_string();
    assert!(page.contains("5 layers x 16 experts x 12288 B, packed; a token reads 4 a layer"), "{page}");
    assert_eq!(plan.total_bytes, plan.lines.iter().map(|line| line.bytes).sum::<u64>());
}

/// Weights read per token and KV bytes per token as the specification has them.
#[test]
fn the_published_models_have_their_published_sizes() {
    let options = PlanOptions { kv_pages: Some(16384), ..PlanOptions::default() };
    for (config, weights, sliding, global) in [(of_12b(), 23.8e9, 327680, 16384), (of_31b(), 61.4e9, 819200, 81920)] {
        let plan = MemoryPlan::resolve(&config, &options, false, 200 * GIB).unwrap();
        let names = ["weights of the layers", "embedding and head", "norms and scalars"];
        let sum: u64 = names.iter().map(|name| bytes(&plan, name)).sum();
        assert!((sum as f64 / weights - 1.0).abs() < 0.003, "{sum}");
        assert_eq!(plan.geometry.page_bytes(&config, LayerKind::Sliding), 16 * sliding);
        assert_eq!(plan.geometry.page_bytes(&config, LayerKind::Global), 16 * global);
        assert_eq!(plan.geometry.ring_pages, 65);
    }
}

#[test]
fn the_default_takes_what_all_sequences_need_or_what_fits() {
    let plan = MemoryPlan::resolve(&tiny(), &PlanOptions::default(), false, 2 * GIB).unwrap();
    assert_eq!((plan.geometry.max_context, plan.geometry.global_pages), (1024, 64 * 64));
    let plan = MemoryPlan::resolve(&of_12b(), &PlanOptions::default(), false, 139 * GIB).unwrap();
    assert_eq!(plan.geometry.max_context, 262144);
    assert!(plan.full_sequences() >= 1 && plan.full_sequences() < 64);
    assert!(plan.total_bytes <= plan.free_bytes / 10 * 9);
    let small =
        MemoryPlan::resolve(&of_12b(), &PlanOptions { max_running: 8, ..PlanOptions::default() }, false, 31 * GIB);
    let small = small.unwrap();
    assert!(small.geometry.max_context < 262144, "{small}");
    assert_eq!(small.full_sequences(), 1);
}

#[test]
fn what_does_not_fit_names_the_knobs_and_the_bytes() {
    let error = MemoryPlan::resolve(&of_31b(), &PlanOptions::default(), false, 24 * GIB).unwrap_err().to_string();
    let knobs = ["--kv-pages", "--max-running", "--max-context", "--prefill-chunk"];
    for part in knobs.into_iter().chain(["25769803776 free bytes", "of them weights"]) {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    let plan_of = |prefill_chunk| {
        let options = PlanOptions { prefill_chunk, kv_pages: Some(1000), ..PlanOptions::default() };
        MemoryPlan::resolve(&of_12b(), &options, false, 139 * GIB).unwrap()
    };
    let (plan, more) = (plan_of(2048), plan_of(2064));
    let token_bytes = plan.geometry.chunk_token_bytes(&of_12b());
    assert_eq!(more.total_bytes - plan.total_bytes, 16 * token_bytes);
    let options = PlanOptions { kv_pages: Some(i32::MAX as usize), ..PlanOptions::default() };
    let error = MemoryPlan::resolve(&tiny(), &options, false, 2 * GIB).unwrap_err().to_string();
    assert!(error.contains("--kv-pages (now 2147483647, 32768 bytes each)"), "{error}");
    let options = PlanOptions { max_context: Some(262144), ..PlanOptions::default() };
    let error = MemoryPlan::resolve(&of_12b(), &options, false, 40 * GIB).unwrap_err().to_string();
    assert!(error.contains("--max-context (now 262144)"), "{error}");
}

#[test]
fn a_knob_out_of_range_is_named() {
    let base = PlanOptions::default;
    let cases = [
        (PlanOptions { max_running: 0, ..base() }, "--max-running is 0: expected 1 to 128"),
        (PlanOptions { max_running: 129, ..base() }, "--max-running is 129"),
        (PlanOptions { prefill_chunk: 0, ..base() }, "--prefill-chunk is 0"),
        (PlanOptions { max_context: Some(1025), ..base() }, "--max-context is 1025: expected 1 to 1024"),
        (PlanOptions { kv_pages: Some(0), ..base() }, "--kv-pages is 0"),
    ];
    for (options, expected) in cases {
        let error = MemoryPlan::resolve(&tiny(), &options, false, GIB).unwrap_err();
        assert!(matches!(error, PlanError::Knob { .. }) && error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn the_printed_page_holds_every_line_and_the_knobs() {
    let plan = MemoryPlan::resolve(&of_12b(), &PlanOptions::default(), false, 139 * GIB).unwrap();
    let page = plan.to_string();
    for line in &plan.lines {
        assert!(page.contains(line.name) && page.contains(&line.bytes.to_string()), "{page}");
    }
    assert!(page.contains(&format!("--kv-pages {}", plan.geometry.global_pages)), "{page}");
    assert!(page.lines().count() < 30);
    println!("{page}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_plan_fits_and_a_default_is_the_largest_that_does(
        config in prop_oneof![
            Just(tiny()), Just(reference("ple")), Just(reference("moe")), Just(of_12b()), Just(of_31b())
        ],
        max_running in 1usize..=128,
        max_context in prop::option::of(1usize..=1024),
        kv_pages in prop::option::of(1usize..=100_000),
        prefill_chunk in 1usize..=4096,
        free_bytes in prop_oneof![0u64..64 << 20, 0u64..160 * GIB],
    ) {
        let options = PlanOptions { max_running, max_context, kv_pages, prefill_chunk, ..PlanOptions::default() };
        let resolve = |options: &PlanOptions| MemoryPlan::resolve(&config, options, false, free_bytes);
        let Ok(plan) = resolve(&options) else {
            // Then the least that was asked for does not fit either.
            let least = PlanOptions { max_context: max_context.or(Some(1)), kv_pages: kv_pages.or(Some(1)), ..options };
            if kv_pages.is_some() || max_context.is_some_and(|tokens| tokens <= 16) {
                prop_assert!(resolve(&least).map_or(true, |plan| plan.total_bytes > free_bytes / 10 * 9));
            }
            return Ok(());
        };
        let g = &plan.geometry;
        let budget = if kv_pages.is_some() { free_bytes } else { free_bytes / 10 * 9 };
        prop_assert!(plan.total_bytes <= budget);
        prop_assert!(g.max_context >= 1 && g.max_context <= config.max_position);
        prop_assert!(g.decode_rows >= max_running);
        if kv_pages.is_none() {
            prop_assert!(plan.full_sequences() >= 1);
            if g.global_pages < max_running * g.global_table_pages {
                let more = PlanOptions {
                    kv_pages: Some(g.global_pages + 1), max_context: Some(g.max_context), ..options.clone()
                };
                prop_assert!(resolve(&more).map_or(true, |plan| plan.total_bytes > budget));
            }
        }
        if max_context.is_none() && g.max_context < config.max_position {
            let longer = (g.max_context + 16).min(config.max_position);
            let pages = kv_pages.unwrap_or(longer.div_ceil(16));
            let more = PlanOptions { kv_pages: Some(pages), max_context: Some(longer), ..options };
            let held = kv_pages.is_some_and(|pages| longer > pages * 16);
            prop_assert!(held || resolve(&more).map_or(true, |plan| plan.total_bytes > budget));
        }
    }
}
