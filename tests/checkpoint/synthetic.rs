//! Synthetic models: the published shapes, values that are the same on the device and off it, a tokenizer for any text.

use gemma4_serve::device::{Context, DeviceBuffer, DeviceChoice, Stream, load_driver};
use gemma4_serve::model::checkpoint::{Checkpoint, Content, TensorView};
use gemma4_serve::model::config::{ExpertsConfig, LayerKind, ModelConfig, ModelType};
use gemma4_serve::model::kernels::{Gemm, KernelImage, Kernels};
use gemma4_serve::model::plan::{kv_bytes_a_token, weight_bytes_a_step};
use gemma4_serve::model::synthetic::{Spread, SyntheticModel, Variant, key};
use gemma4_serve::text::{Detokenizer, Tokenizer};
use serde_json::Value;

fn open(variant: Variant, layers: Option<usize>) -> Checkpoint {
    Checkpoint::synthetic(&SyntheticModel { variant, layers }).unwrap()
}

/// What the specification's table says of a served model.
struct Row {
    variant: Variant,
    model_type: ModelType,
    hidden: usize,
    layers: usize,
    /// Layers from one global layer to the next.
    every: usize,
    window: usize,
    max_position: usize,
    heads: usize,
    kv_heads: (usize, usize),
    intermediate: usize,
    /// Layers at the end that share K and V, and the width of their MLP.
    shared: (usize, usize),
    per_layer_width: Option<usize>,
    /// Text parameters, all and without embeddings, in millions.
    parameters: (u64, u64),
    /// KV bytes a token, sliding and global.
    kv_bytes: (u64, u64),
    weight_gigabytes: f64,
}

const ROWS: [Row; 5] = [
    Row {
        variant: Variant::E2b,
        model_type: ModelType::Gemma4,
        hidden: 1536,
        layers: 35,
        every: 5,
        window: 512,
        max_position: 131_072,
        heads: 8,
        kv_heads: (1, 1),
        intermediate: 6144,
        shared: (20, 12288),
        per_layer_width: Some(256),
        parameters: (4_629, 1_877),
        kv_bytes: (12_288, 6_144),
        weight_gigabytes: 4.56,
    },
    Row {
        variant: Variant::E4b,
        model_type: ModelType::Gemma4,
        hidden: 2560,
        layers: 42,
        every: 6,
        window: 512,
        max_position: 131_072,
        heads: 8,
        kv_heads: (2, 2),
        intermediate: 10240,
        shared: (18, 10240),
        per_layer_width: Some(256),
        parameters: (7_463, 3_973),
        kv_bytes: (40_960, 16_384),
        weight_gigabytes: 9.29,
    },
    Row {
        variant: Variant::Dense12b,
        model_type: ModelType::Gemma4Unified,
        hidden: 3840,
        layers: 48,
        every: 6,
        window: 1024,
        max_position: 262_144,
        heads: 16,
        kv_heads: (8, 1),
        intermediate: 15360,
        shared: (0, 15360),
        per_layer_width: None,
        parameters: (11_907, 10_901),
        kv_bytes: (327_680, 16_384),
        weight_gigabytes: 23.8,
    },
    Row {
        variant: Variant::Moe26b,
        model_type: ModelType::Gemma4,
        hidden: 2816,
        layers: 30,
        every: 6,
        window: 1024,
        max_position: 262_144,
        heads: 16,
        kv_heads: (8, 2),
        intermediate: 2112,
        shared: (0, 2112),
        per_layer_width: None,
        parameters: (25_233, 24_495),
        kv_bytes: (204_800, 20_480),
        // 3.82 B parameters of one token's.
        weight_gigabytes: 7.64,
    },
    Row {
        variant: Variant::Dense31b,
        model_type: ModelType::Gemma4,
        hidden: 5376,
        layers: 60,
        every: 6,
        window: 1024,
        max_position: 262_144,
        heads: 32,
        kv_heads: (16, 4),
        intermediate: 21504,
        shared: (0, 21504),
        per_layer_width: None,
        parameters: (30_697, 29_288),
        kv_bytes: (819_200, 81_920),
        weight_gigabytes: 61.4,
    },
];

#[test]
fn a_synthetic_model_has_the_published_shape_and_size() {
    for row in ROWS {
        let checkpoint = open(row.variant, None);
        let config = &checkpoint.config;
        assert_eq!(config.model_type, row.model_type);
        assert_eq!((config.hidden, config.heads, config.vocab), (row.hidden, row.heads, 262_144));
        assert_eq!((config.window, config.max_position), (row.window, row.max_position));
        let experts = ExpertsConfig { count: 128, top: 8, intermediate: 704 };
        assert_eq!(config.experts, (row.variant == Variant::Moe26b).then_some(experts));
        assert_eq!((config.tied_head, config.softcap, config.per_layer_width), (true, 30.0, row.per_layer_width));
        assert_eq!((&config.eos_ids[..], config.bos_id, config.pad_id), (&[1, 106, 50][..], 2, 0));
        assert_eq!((config.rope_sliding.theta, config.rope_sliding.pairs), (1e4, 128));
        assert_eq!((config.rope_global.theta, config.rope_global.pairs), (1e6, 64));
        assert_eq!(config.layers.len(), row.layers);
        for (index, layer) in config.layers.iter().enumerate() {
            let global = index % row.every == row.every - 1;
            let shares = index >= row.layers - row.shared.0;
            let intermediate = if shares { row.shared.1 } else { row.intermediate };
            let kind = if global { LayerKind::Global } else { LayerKind::Sliding };
            let k_eq_v = global && row.per_layer_width.is_none();
            assert_eq!((layer.kind, layer.k_eq_v, layer.intermediate), (kind, k_eq_v, intermediate));
            assert_eq!(layer.owns_kv(), !shares);
            let attention = if global { (512, row.kv_heads.1) } else { (256, row.kv_heads.0) };
            assert_eq!((layer.head_dim, layer.kv_heads), attention, "layer {index}");
        }
        let all = checkpoint.weight_bytes() / 2;
        let table = checkpoint.per_layer().map_or(0, |of| of.table.elements());
        let embedding = (checkpoint.embed().elements() + table) as u64;
        let millions = |count: u64| (count + 500_000) / 1_000_000;
        assert_eq!((millions(all), millions(all - embedding)), row.parameters);
        let kv = [LayerKind::Sliding, LayerKind::Global].map(|kind| kv_bytes_a_token(config, kind));
        assert_eq!((kv[0], kv[1]), row.kv_bytes);
        let read = weight_bytes_a_step(config, 1) as f64 / 1e9;
        assert!((read - row.weight_gigabytes).abs() < 0.06, "{read} GB a step");
    }
}

#[test]
fn the_other_variants_are_written_as_the_table_has_them() {
    for (variant, hidden, layers, heads, kv, intermediate, window, shared) in [
        (Variant::E2b, 1536, 35, 8, 1, 6144, 512, 20),
        (Variant::E4b, 2560, 42, 8, 2, 10240, 512, 18),
        (Variant::Moe26b, 2816, 30, 16, 8, 2112, 1024, 0),
    ] {
        let (config, _) = SyntheticModel { variant, layers: None }.files();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let text = &config["text_config"];
        let count = |field: &str| text[field].as_u64().unwrap();
        assert_eq!(
            (count("hidden_size"), count("num_hidden_layers"), count("num_attention_heads")),
            (hidden, layers, heads)
        );
        assert_eq!((count("num_key_value_heads"), count("intermediate_size")), (kv, intermediate));
        assert_eq!((count("sliding_window"), count("num_kv_shared_layers")), (window, shared));
        let kinds = text["layer_types"].as_array().unwrap();
        let every = if variant == Variant::E2b { 5 } else { 6 };
        let global: Vec<usize> = (0..kinds.len()).filter(|&i| kinds[i] == "full_attention").collect();
        assert_eq!(global, (0..kinds.len()).filter(|i| i % every == every - 1).collect::<Vec<_>>());
        assert_eq!((kinds.len() as u64, kinds.last().unwrap()), (layers, &Value::from("full_attention")));
    }
}

#[test]
fn fewer_layers_are_the_last_of_the_pattern() {
    for layers in [1, 2, 5, 6, 7, 13, 48] {
        let kinds = |config: &ModelConfig| config.layers.iter().map(|layer| layer.kind).collect::<Vec<_>>();
        let all = kinds(&open(Variant::Dense12b, None).config);
        assert_eq!(kinds(&open(Variant::Dense12b, Some(layers)).config), all[48 - layers..]);
    }
}

/// Layers with K and V of their own in front, sliding and global, and the published share of the tail behind them.
#[test]
fn fewer_layers_of_a_model_with_a_shared_tail_keep_both_parts() {
    for (variant, all) in [(Variant::E2b, 35), (Variant::E4b, 42)] {
        for layers in 1..=all {
            let config = open(variant, Some(layers)).config;
            let owners = config.layers_with_kv();
            let last_of = |end: usize| config.layers[..end].iter().rev().map(|l| l.kind).take(2).collect::<Vec<_>>();
            let wide = if variant == Variant::E2b { 12_288 } else { 10_240 };
            assert!(config.layers[owners..].iter().all(|layer| layer.intermediate == wide), "{layers}");
            assert!(last_of(owners)[0] == LayerKind::Global && last_of(layers)[0] == LayerKind::Global, "{layers}");
            assert!(layers < 2 || last_of(owners)[1] == LayerKind::Sliding, "{layers}");
            let proportion = layers * if variant == Variant::E2b { 20 } else { 18 } / all;
            assert_eq!(layers - owners, proportion.min(layers.saturating_sub(2)), "{layers}");
        }
    }
}

/// The value of one element by the rule of csrc/kernels/synthetic.cu, with the host's own arithmetic.
fn value(name: &str, spread: Spread, index: usize) -> u16 {
    let low = (index as u32).wrapping_mul(0x9e37_79b9).wrapping_add(key(name));
    let mut h = low.wrapping_add(((index as u64 >> 32) as u32).wrapping_mul(0x7f4a_7c15));
    h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    h ^= h >> 16;
    let odd = 2 * (h >> (32 - spread.bits)) as i32 - ((1 << spread.bits) - 1);
    let value = f64::from(spread.center + odd) / 2f64.powi(spread.exponent as i32);
    let bits = half::bf16::from_f64(value);
    assert_eq!(bits.to_f64(), value, "a bf16");
    bits.to_bits()
}

#[test]
fn a_tensor_made_on_the_device_is_the_one_a_file_with_these_values_would_give() {
    let kind = load_driver(DeviceChoice::Soft, false).unwrap();
    let context = Context::open(kind.ordinal()).unwrap();
    let stream = Stream::new(&context).unwrap();
    let kernels = Kernels::load(&context, KernelImage::Shipped(kind)).unwrap();
    for (n, k) in [(48, 64), (33, 40), (16, 3840)] {
        let (name, spread) = (format!("matrix {n} {k}"), Spread::of("matrix", &[n, k]));
        let host: Vec<u16> = (0..n * k).map(|i| value(&name, spread, i)).collect();
        let source = DeviceBuffer::new(&context, n * k).unwrap();
        stream.upload(source.all(), &host).unwrap();
        let [loaded, made] = [(); 2].map(|()| DeviceBuffer::<u16>::new(&context, Gemm::packed_len(n, k)).unwrap());
        kernels.pack(&stream, source.all(), loaded.all(), n, k).unwrap();
        kernels.synthetic_packed(&stream, &name, spread, made.all(), n, k).unwrap();
        assert_eq!(stream.download(made.all()).unwrap(), stream.download(loaded.all()).unwrap(), "{name}");
        // Activations keep their scale: the deviation is depth^-1/2 within the factor that a power of two allows.
        let mean_square =
            host.iter().map(|&b| half::bf16::from_bits(b).to_f64().powi(2)).sum::<f64>() / host.len() as f64;
        let ratio = (mean_square * k as f64).sqrt();
        assert!((0.68..1.47).contains(&ratio), "{name}: {ratio}");
    }
    for len in [1, 8, 4099] {
        let made = DeviceBuffer::<u16>::new(&context, len).unwrap();
        kernels.synthetic(&stream, "vector", Spread::of("vector", &[len]), made.all()).unwrap();
        let host: Vec<u16> = (0..len).map(|i| value("vector", Spread::of("vector", &[len]), i)).collect();
        assert_eq!(stream.download(made.all()).unwrap(), host);
    }
}

#[test]
fn every_tensor_is_synthetic_and_named_as_published() {
    let checkpoint = open(Variant::Dense12b, Some(2));
    let mut names = Vec::new();
    let mut take = |tensor: &TensorView| {
        assert_eq!(tensor.content, Content::Synthetic(Spread::of(tensor.name, tensor.shape)));
        names.push(tensor.name.to_owned());
    };
    take(&checkpoint.embed());
    take(&checkpoint.norm());
    checkpoint.layer(0).map(&mut take);
    checkpoint.layer(1).map(&mut take);
    assert!(checkpoint.layer(0).v.is_some() && checkpoint.layer(1).v.is_none());
    assert!(checkpoint.head().is_none());
    assert_eq!(names.len(), 2 + 14 + 13);
    assert!(names.contains(&"model.language_model.layers.1.mlp.down_proj.weight".to_owned()), "{names:?}");
    let keys: std::collections::HashSet<u32> = names.iter().map(|name| key(name)).collect();
    assert_eq!(keys.len(), names.len(), "no two tensors share their values");
}

#[test]
fn the_synthetic_tokenizer_takes_any_text_and_has_a_text_for_every_id() {
    let checkpoint = open(Variant::Dense12b, Some(1));
    let tokenizer = Tokenizer::from_bytes(&checkpoint.tokenizer_json().unwrap()).unwrap();
    assert_eq!(tokenizer.vocab_size(), checkpoint.config.vocab);
    for text in ["Hello, world!\n", "naïve 你好 🙂", "\0\t\"\\"] {
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!((ids.len(), tokenizer.decode(&ids)), (text.len(), text.to_owned()));
    }
    assert_eq!(tokenizer.encode("<bos><|turn>a<turn|>").unwrap(), [2, 105, 238 + 97, 106]);
    let mut text = String::new();
    let mut detokenizer = Detokenizer::default();
    for id in [5, 237, 494, 262_143] {
        detokenizer.push(&tokenizer.piece(id), &mut text);
    }
    assert_eq!(text, "<unused5><unused237><unused494><unused262143>");
    assert!([0, 1, 2, 106, 258_884].iter().all(|&id| tokenizer.is_special(id)));
}
