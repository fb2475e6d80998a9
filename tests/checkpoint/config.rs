//! Reading config.json: both spellings, what is refused and by which name, and no panic on anything.

use gemma4_serve::model::config::{ExpertsConfig, LayerConfig, LayerKind, ModelConfig, ModelType, RopeConfig};
use proptest::prelude::*;
use serde_json::{Value, json};

fn file(path: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/data/reference/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn dense() -> Value {
    serde_json::from_slice(&file("dense/config.json")).unwrap()
}

fn parse(config: &Value) -> Result<ModelConfig, String> {
    parse_with(config, None)
}

fn parse_with(config: &Value, generation: Option<&Value>) -> Result<ModelConfig, String> {
    let generation = generation.map(Value::to_string);
    ModelConfig::parse(config.to_string().as_bytes(), generation.as_ref().map(|g| g.as_bytes()), None)
        .map_err(|e| e.to_string())
}

/// The dense config with one field set, `text_config.` or outer.
fn dense_with(path: &str, value: Value) -> Value {
    let mut config = dense();
    let (object, key) = match path.rsplit_once('.') {
        Some((parents, key)) => {
            (parents.split('.').fold(&mut config, |at, parent| &mut at.as_object_mut().unwrap()[parent]), key)
        }
        None => (&mut config, path),
    };
    object[key] = value;
    config
}

#[test]
fn both_spellings_give_the_same_model() {
    for model in ["dense", "unified", "ple", "moe"] {
        let [published, resaved] = ["config.json", "config.hf-5.24-style.json"].map(|name| {
            let generation = file(&format!("{model}/generation_config.json"));
            let tokenizer = file(&format!("{model}/tokenizer_config.json"));
            let config = file(&format!("{model}/{name}"));
            ModelConfig::parse(&config, Some(&generation), Some(&tokenizer)).unwrap()
        });
        assert_eq!(published, resaved, "{model}");
    }
}

#[test]
fn the_dense_reference_resolves_to_its_known_numbers() {
    let config = ModelConfig::parse(
        &file("dense/config.json"),
        Some(&file("dense/generation_config.json")),
        Some(&file("dense/tokenizer_config.json")),
    )
    .unwrap();
    assert_eq!(config.model_type, ModelType::Gemma4);
    assert_eq!((config.hidden, config.heads, config.vocab, config.window), (64, 4, 512, 16));
    assert_eq!((config.rms_eps, config.softcap, config.max_position, config.tied_head), (1e-6, 30.0, 1024, true));
    assert_eq!(config.rope_sliding, RopeConfig { theta: 1e4, pairs: 128, head_dim: 256 });
    assert_eq!(config.rope_global, RopeConfig { theta: 1e6, pairs: 64, head_dim: 512 });
    let of = |kind, head_dim, kv_heads, k_eq_v| LayerConfig {
        kind,
        head_dim,
        kv_heads,
        k_eq_v,
        intermediate: 128,
        kv_donor: None,
    };
    let (sliding, global) = (of(LayerKind::Sliding, 256, 2, false), of(LayerKind::Global, 512, 1, true));
    assert_eq!(config.layers, [sliding, sliding, sliding, sliding, sliding, global]);
    assert_eq!((config.per_layer_width, config.experts), (None, None));
    assert_eq!((config.eos_ids.as_slice(), config.bos_id, config.pad_id), (&[1, 106][..], 2, 0));
    assert_eq!(config.add_bos_token, Some(false));
    let ids: Vec<u32> = config.modality_ids.iter().map(|m| m.id).collect();
    assert_eq!(ids, [258880, 258881, 258884, 255999, 256000, 258882, 258883]);
}

/// S S F S F + S S F: the last three read K and V of layers 3 and 4 and have an MLP of twice the width.
#[test]
fn the_ple_reference_resolves_to_its_known_numbers() {
    let config = ModelConfig::parse(&file("ple/config.json"), None, None).unwrap();
    assert_eq!((config.hidden, config.heads, config.vocab, config.per_layer_width), (64, 2, 512, Some(32)));
    let of = |kind, kv_donor: Option<usize>| LayerConfig {
        kind,
        head_dim: if kind == LayerKind::Sliding { 256 } else { 512 },
        kv_heads: 1,
        k_eq_v: false,
        intermediate: if kv_donor.is_some() { 128 } else { 64 },
        kv_donor,
    };
    let (s, g) = (LayerKind::Sliding, LayerKind::Global);
    let kinds = [(s, None), (s, None), (g, None), (s, None), (g, None), (s, Some(3)), (s, Some(3)), (g, Some(4))];
    assert_eq!(config.layers, kinds.map(|(kind, donor)| of(kind, donor)));
    assert_eq!((config.kv_owner(2), config.kv_owner(6)), (2, 3));
    let last_readers: Vec<usize> = (0..8).filter(|&index| config.is_last_reader(index, 8)).collect();
    assert_eq!(last_readers, [0, 1, 2, 6, 7]);
}

#[test]
fn the_moe_reference_resolves_to_its_known_numbers() {
    let config = ModelConfig::parse(&file("moe/config.json"), None, None).unwrap();
    assert_eq!((config.hidden, config.heads, config.vocab, config.window), (64, 2, 512, 16));
    assert_eq!(config.experts, Some(ExpertsConfig { count: 16, top: 4, intermediate: 32 }));
    let (s, g) = (LayerKind::Sliding, LayerKind::Global);
    let of = |kind| LayerConfig {
        kind,
        head_dim: if kind == s { 256 } else { 512 },
        kv_heads: if kind == s { 2 } else { 1 },
        k_eq_v: kind == g,
        intermediate: 64,
        kv_donor: None,
    };
    assert_eq!(config.layers, [s, s, g, s, g].map(of));
}

fn moe_with(changes: &[(&str, Value)]) -> Result<ModelConfig, String> {
    let mut config: Value = serde_json::from_slice(&file("moe/config.json")).unwrap();
    for (field, value) in changes {
        config["text_config"][field] = value.clone();
    }
    parse(&config)
}

#[test]
fn experts_are_read_in_their_early_spelling_and_left_where_the_block_is_off() {
    let early = moe_with(&[("moe_intermediate_size", Value::Null), ("expert_intermediate_size", json!(40))]).unwrap();
    assert_eq!(early.experts.map(|of| of.intermediate), Some(40));
    // The later name counts where both are there.
    let both = moe_with(&[("expert_intermediate_size", json!(40))]).unwrap();
    assert_eq!(both.experts.map(|of| of.intermediate), Some(32));
    for off in [json!(false), Value::Null] {
        let nothing = [("num_experts", json!(-1)), ("top_k_experts", Value::Null), ("moe_intermediate_size", json!(0))];
        let changes = [&[("enable_moe_block", off)], &nothing[..]].concat();
        assert_eq!(moe_with(&changes).unwrap().experts, None);
    }
    assert_eq!(
        moe_with(&[("num_experts", json!(256)), ("top_k_experts", json!(16))]).unwrap().experts.unwrap().top,
        16
    );
}

#[test]
fn experts_that_cannot_be_served_are_refused_by_field_and_number() {
    let cases = [
        ("num_experts", Value::Null, "text_config.num_experts is missing"),
        ("num_experts", json!(257), "num_experts is 257, expected 1 to 256"),
        ("num_experts", json!(0), "num_experts is 0, expected 1 to 256"),
        ("num_experts", json!(3), "top_k_experts is 4: num_experts is 3"),
        ("top_k_experts", Value::Null, "top_k_experts is missing"),
        ("top_k_experts", json!(17), "top_k_experts is 17, expected 1 to 16"),
        ("top_k_experts", json!(0), "top_k_experts is 0, expected 1 to 16"),
        ("moe_intermediate_size", Value::Null, "moe_intermediate_size is missing"),
        ("moe_intermediate_size", json!(36), "moe_intermediate_size is 36: the kernels"),
        ("moe_intermediate_size", json!("32"), "moe_intermediate_size is \"32\", expected an integer"),
        ("expert_intermediate_size", json!(4), ""),
        ("enable_moe_block", json!("yes"), "enable_moe_block is \"yes\", expected true or false"),
    ];
    for (field, value, expected) in cases {
        match moe_with(&[(field, value.clone())]) {
            Ok(_) => assert!(expected.is_empty(), "{field} = {value} is accepted"),
            Err(error) => assert!(!expected.is_empty() && error.contains(expected), "{field} = {value}: {error}"),
        }
    }
}

#[test]
fn a_text_only_export_gives_the_same_layers() {
    for model in ["dense", "unified", "ple", "moe"] {
        for name in ["config.json", "config.hf-5.24-style.json"] {
            let outer: Value = serde_json::from_slice(&file(&format!("{model}/{name}"))).unwrap();
            let (nested, text) = (parse(&outer).unwrap(), parse(&outer["text_config"]).unwrap());
            assert_eq!(nested.layers, text.layers);
            assert_eq!(nested.model_type, text.model_type);
            assert_eq!((nested.hidden, nested.vocab, nested.window), (text.hidden, text.vocab, text.window));
        }
    }
}

#[test]
fn the_published_12b_and_31b_shapes_are_accepted() {
    for (model, hidden, layers, heads, kv, global_kv, intermediate) in
        [("gemma4_unified", 3840, 48, 16, 8, 1, 15360), ("gemma4", 5376, 60, 32, 16, 4, 21504)]
    {
        let config = json!({
            "model_type": model, "dtype": "bfloat16", "eos_token_id": [1, 106], "image_token_id": 258880,
            "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
            "text_config": {
                "model_type": format!("{model}_text"), "hidden_size": hidden, "num_hidden_layers": layers,
                "num_attention_heads": heads, "num_key_value_heads": kv, "num_global_key_value_heads": global_kv,
                "head_dim": 256, "global_head_dim": 512, "intermediate_size": intermediate, "vocab_size": 262144,
                "sliding_window": 1024, "attention_k_eq_v": true, "num_kv_shared_layers": 0,
                "max_position_embeddings": 262144, "use_bidirectional_attention": "vision",
                "final_logit_softcapping": 30, "rms_norm_eps": 1e-6, "eos_token_id": 1,
            }
        });
        let generation = json!({"eos_token_id": [1, 106, 50], "suppress_tokens": [258883, 258882]});
        let config = parse_with(&config, Some(&generation)).unwrap();
        let global: Vec<usize> = config.layers_of(LayerKind::Global).map(|(index, _)| index).collect();
        assert_eq!(global, (5..layers).step_by(6).collect::<Vec<_>>());
        assert_eq!(config.layers[5].kv_heads, global_kv);
        assert_eq!(config.eos_ids, [1, 106, 50]);
        assert_eq!(config.suppressed_ids, [258883, 258882]);
    }
}

/// What E2B and E4B publish: KV heads of global layers null, donors by the list, double-wide or not.
#[test]
fn the_published_e2b_and_e4b_shapes_are_accepted() {
    for (hidden, every, layers, kv, intermediate, double_wide, shared, donors) in
        [(1536, 5, 35, 1, 6144, true, 20, (13, 14)), (2560, 6, 42, 2, 10240, false, 18, (22, 23))]
    {
        let kind = |i: usize| if i % every == every - 1 { "full_attention" } else { "sliding_attention" };
        let config = json!({
            "model_type": "gemma4", "eos_token_id": [1, 106], "text_config": {
                "model_type": "gemma4_text", "hidden_size": hidden, "num_hidden_layers": layers,
                "num_attention_heads": 8, "num_key_value_heads": kv, "num_global_key_value_heads": null,
                "layer_types": (0..layers).map(kind).collect::<Vec<_>>(), "intermediate_size": intermediate,
                "use_double_wide_mlp": double_wide, "attention_k_eq_v": false, "num_kv_shared_layers": shared,
                "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144, "vocab_size": 262144,
                "sliding_window": 512, "max_position_embeddings": 131072, "use_bidirectional_attention": null,
            }
        });
        let config = parse(&config).unwrap();
        assert_eq!(config.per_layer_width, Some(256));
        for (index, layer) in config.layers.iter().enumerate() {
            let is_shared = index >= layers - shared;
            let global = index % every == every - 1;
            let donor = if global { donors.1 } else { donors.0 };
            assert_eq!(layer.kv_donor, is_shared.then_some(donor), "layer {index}");
            assert_eq!(layer.intermediate, if is_shared && double_wide { 2 * intermediate } else { intermediate });
            assert_eq!((layer.kv_heads, layer.k_eq_v), (kv, false));
        }
    }
}

#[test]
fn per_layer_embeddings_want_a_row_for_every_token() {
    let mut config: Value = serde_json::from_slice(&file("ple/config.json")).unwrap();
    config["text_config"]["vocab_size_per_layer_input"] = json!(500);
    let error = parse(&config).unwrap_err();
    assert!(error.contains("text_config.vocab_size_per_layer_input is 500: every token needs a row"), "{error}");
    // The 26B writes the field beside a width of zero.
    config["text_config"]["hidden_size_per_layer_input"] = json!(0);
    assert_eq!(parse(&config).unwrap().per_layer_width, None);
}

#[test]
fn a_layer_that_shares_k_and_v_has_the_kv_heads_of_its_donor() {
    let mut config: Value = serde_json::from_slice(&file("ple/config.hf-5.24-style.json")).unwrap();
    config["text_config"]["per_layer_config"]["7"]["num_key_value_heads"] = json!(2);
    let error = parse(&config).unwrap_err();
    let words = "per_layer_config.7.num_key_value_heads is 2: layer 7 reads K and V of layer 4, which has 1";
    assert!(error.contains(words), "{error}");
}

/// <https://github.com/waybarrios/vllm-mlx/pull/610>: one list alone let the model run on past `<turn|>`.
#[test]
fn the_eos_ids_are_the_union_of_every_list() {
    let mut config = dense_with("text_config.eos_token_id", json!(7));
    config["eos_token_id"] = json!([106, 1]);
    let eos = |generation: Value| parse_with(&config, Some(&generation)).unwrap().eos_ids;
    assert_eq!(eos(json!({"eos_token_id": [50, 1]})), [50, 1, 106, 7]);
    assert_eq!(eos(json!({"eos_token_id": 50})), [50, 106, 1, 7]);
    assert_eq!(eos(json!({"eos_token_id": null})), [106, 1, 7]);
    let ids: Vec<u32> = (0..17).collect();
    let error = parse_with(&config, Some(&json!({"eos_token_id": ids}))).unwrap_err();
    assert!(error.contains("generation_config.json: eos_token_id is 18 ids"), "{error}");
}

#[test]
fn the_last_layer_is_global_whatever_the_list_says() {
    let config = parse(&dense_with("text_config.layer_types", json!(vec!["sliding_attention"; 6]))).unwrap();
    assert_eq!(config.layers[5].kind, LayerKind::Global);
    let config = parse(&dense_with("text_config.layer_types", Value::Null)).unwrap();
    assert_eq!(config.layers_of(LayerKind::Global).count(), 1);
}

#[test]
fn the_global_kv_head_count_counts_only_when_k_is_v() {
    let config = parse(&dense_with("text_config.attention_k_eq_v", json!(false))).unwrap();
    assert_eq!((config.layers[5].kv_heads, config.layers[5].k_eq_v), (2, false));
}

#[test]
fn what_cannot_be_served_is_refused_by_its_field_and_value() {
    let huge = json!(1u64 << 40);
    let cases = [
        ("model_type", json!("llama"), "config.json: model_type is llama: only gemma4"),
        ("model_type", json!("gemma4_assistant"), "model_type is gemma4_assistant: a drafter"),
        ("model_type", Value::Null, "model_type is missing"),
        ("text_config", Value::Null, "text_config is missing"),
        ("text_config", json!([]), "text_config is a list of 0, expected an object"),
        ("text_config.model_type", json!("gemma3_text"), "text_config.model_type is gemma3_text"),
        ("text_config.enable_moe_block", json!(true), "text_config.num_experts is missing"),
        ("text_config.hidden_size_per_layer_input", json!(36), "hidden_size_per_layer_input is 36: the kernels"),
        ("text_config.hidden_size_per_layer_input", json!(520), "hidden_size_per_layer_input is 520, expected 0 to"),
        ("text_config.num_kv_shared_layers", json!(1), "num_kv_shared_layers is 1: no layer before 5 is of the kind"),
        ("text_config.num_kv_shared_layers", json!(6), "num_kv_shared_layers is 6: no layer before 0 is of the kind"),
        ("text_config.num_kv_shared_layers", json!(7), "num_kv_shared_layers is 7: num_hidden_layers is 6"),
        ("quantization_config", json!({"quant_method": "awq"}), "quantization_config is awq"),
        ("text_config.quantization_config", json!({}), "text_config.quantization_config is an object of 0 fields"),
        ("dtype", json!("float16"), "config.json: dtype is float16"),
        ("text_config.dtype", json!("float32"), "text_config.dtype is float32"),
        ("text_config.hidden_activation", json!("silu"), "hidden_activation is silu"),
        ("text_config.attention_bias", json!(true), "attention_bias is true"),
        ("text_config.use_bidirectional_attention", json!("all"), "use_bidirectional_attention is \"all\""),
        ("text_config.hidden_size", json!(0), "text_config.hidden_size is 0, expected 8 to"),
        ("text_config.hidden_size", json!(-64), "text_config.hidden_size is -64, expected 8 to"),
        ("text_config.hidden_size", huge.clone(), "text_config.hidden_size is 1099511627776"),
        ("text_config.hidden_size", json!(64.0), "text_config.hidden_size is 64.0, expected an integer"),
        ("text_config.hidden_size", json!("64"), "text_config.hidden_size is \"64\", expected an integer"),
        ("text_config.hidden_size", json!(68), "text_config.hidden_size is 68"),
        ("text_config.hidden_size", Value::Null, "text_config.hidden_size is missing"),
        ("text_config.intermediate_size", json!(24), "text_config.intermediate_size is 24"),
        (
            "text_config.intermediate_size",
            json!((1 << 20) + 16),
            "intermediate_size is 1048592, expected 16 to 1048576",
        ),
        ("text_config.num_hidden_layers", huge.clone(), "num_hidden_layers is 1099511627776"),
        ("text_config.num_hidden_layers", json!(7), "layer_types is a list of 6: num_hidden_layers is 7"),
        ("text_config.layer_types", json!([1, 2, 3, 4, 5, 6]), "layer_types is 1"),
        ("text_config.num_attention_heads", json!(3), "num_key_value_heads is 2: layer 0 has 3 query heads"),
        ("text_config.num_attention_heads", json!(64), "num_key_value_heads is 2: layer 0 has 64 query heads"),
        ("text_config.num_attention_heads", json!(12), "num_key_value_heads is 2: layer 0 has 12"),
        ("text_config.num_global_key_value_heads", json!(3), "num_global_key_value_heads is 3: layer 5"),
        ("text_config.head_dim", json!(128), "text_config.head_dim is 128: layer 0 is sliding"),
        ("text_config.global_head_dim", json!(256), "text_config.global_head_dim is 256: layer 5 is global"),
        ("text_config.per_layer_config", json!({"6": {}}), "per_layer_config.6 is present"),
        ("text_config.per_layer_config", json!({"05": {}}), "per_layer_config.05 is present"),
        ("text_config.per_layer_config", json!({"5": {"rope": 1}}), "per_layer_config.5.rope is present"),
        ("text_config.per_layer_config", json!({"5": {"head_dim": 256}}), "per_layer_config.5.head_dim is 256"),
        ("text_config.vocab_size", json!(1), "text_config.vocab_size is 1"),
        ("text_config.sliding_window", json!(0), "text_config.sliding_window is 0"),
        ("text_config.max_position_embeddings", json!(0), "text_config.max_position_embeddings is 0"),
        ("text_config.rms_norm_eps", json!(0), "text_config.rms_norm_eps is 0"),
        ("text_config.rms_norm_eps", json!("x"), "text_config.rms_norm_eps is \"x\", expected a number"),
        ("text_config.final_logit_softcapping", json!(-1), "final_logit_softcapping is -1"),
        ("text_config.eos_token_id", json!(512), "text_config.eos_token_id is 512, expected 0 to 511"),
        ("text_config.bos_token_id", json!([1, 2]), "text_config.bos_token_id is a list"),
        ("text_config.rope_parameters.full_attention.rope_type", json!("yarn"), "full_attention.rope_type is yarn"),
        ("text_config.rope_parameters.full_attention.factor", json!(8), "full_attention.factor is 8"),
        ("text_config.rope_parameters.full_attention.rope_theta", json!(0), "full_attention.rope_theta is 0"),
        ("text_config.rope_parameters.full_attention.surprise", json!(0), "full_attention.surprise is present"),
        (
            "text_config.rope_parameters.sliding_attention.partial_rotary_factor",
            json!(0.5),
            "sliding_attention.partial_rotary_factor is 0.5",
        ),
        ("image_token_id", json!(-1), "image_token_id is -1"),
    ];
    for (path, value, expected) in cases {
        let error = parse(&dense_with(path, value.clone())).expect_err(&format!("{path} = {value}"));
        assert!(error.contains(expected), "{path} = {value}: {error}");
    }
    for bytes in ["", "[]", "{", "nonsense", "{\"model_type\":\"gemma4\",\"text_config\":{\"hidden_size\":1e999}}"] {
        let error = ModelConfig::parse(bytes.as_bytes(), None, None).unwrap_err().to_string();
        assert!(error.starts_with("config.json: "), "{error}");
    }
    let nested = "[".repeat(100_000);
    assert!(ModelConfig::parse(nested.as_bytes(), None, None).is_err());
}

/// A re-saved config whose overrides were lost would give global layers the sliding head dim.
#[test]
fn a_resaved_config_without_its_overrides_is_refused() {
    let mut config: Value = serde_json::from_slice(&file("dense/config.hf-5.24-style.json")).unwrap();
    config["text_config"]["per_layer_config"] = json!({});
    let error = parse(&config).unwrap_err();
    assert!(error.contains("text_config.head_dim is 256: layer 5 is global"), "{error}");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-2i64..600).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof![
            Just("gemma4"),
            Just("gemma4_unified"),
            Just("gemma4_text"),
            Just("full_attention"),
            Just("sliding_attention"),
            Just("vision"),
            Just("bfloat16"),
            Just("ünïcode"),
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((prop_oneof![Just("0"), Just("5"), Just("head_dim")], inner), 0..4).prop_map(
                |fields| Value::Object(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
            ),
        ]
    })
}

/// Replaces or removes the `pick`-th field, counted over the whole tree.
fn mutate(value: &mut Value, pick: &mut usize, new: &Option<Value>) {
    let Some(map) = value.as_object_mut() else { return };
    let keys: Vec<String> = map.keys().cloned().collect();
    for key in keys {
        if *pick == 0 {
            match new {
                Some(new) => map.insert(key, new.clone()),
                None => map.remove(&key),
            };
            *pick = usize::MAX;
            return;
        }
        *pick -= 1;
        mutate(&mut map[&key], pick, new);
        if *pick == usize::MAX {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_config_panics_and_an_accepted_one_is_consistent(
        model in prop_oneof![Just("dense"), Just("unified"), Just("ple"), Just("moe")],
        resaved in any::<bool>(),
        picks in prop::collection::vec((0usize..70, prop::option::weighted(0.8, any_json())), 1..4),
        generation in any_json(),
    ) {
        let name = if resaved { "config.hf-5.24-style.json" } else { "config.json" };
        let mut config: Value = serde_json::from_slice(&file(&format!("{model}/{name}"))).unwrap();
        for (pick, new) in &picks {
            mutate(&mut config, &mut pick.clone(), new);
        }
        let generation = json!({"eos_token_id": generation});
        if let Ok(config) = parse_with(&config, Some(&generation)) {
            prop_assert!(config.hidden % 8 == 0 && config.hidden > 0);
            prop_assert_eq!(config.layers.last().unwrap().kind, LayerKind::Global);
            if let Some(experts) = config.experts {
                prop_assert!((1..=16).contains(&experts.top) && (experts.top..=256).contains(&experts.count));
                prop_assert!(experts.intermediate > 0 && experts.intermediate % 8 == 0);
            }
            for layer in &config.layers {
                let head_dim = if layer.kind == LayerKind::Sliding { 256 } else { 512 };
                prop_assert_eq!(layer.head_dim, head_dim);
                prop_assert!([1, 2, 4, 8, 16].contains(&(config.heads / layer.kv_heads)));
                if let Some(donor) = layer.kv_donor.map(|donor| config.layers[donor]) {
                    prop_assert!(donor.owns_kv() && donor.kind == layer.kind && donor.kv_heads == layer.kv_heads);
                }
            }
            prop_assert!(!config.eos_ids.is_empty());
            prop_assert!(config.eos_ids.iter().all(|&id| (id as usize) < config.vocab));
        }
    }
}
