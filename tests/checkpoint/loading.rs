//! Opening checkpoints: what is read is what the files hold, and every kind of damage is refused by name.

use std::path::Path;

use crate::folder::{CONFIG, Folder, INDEX, SHARDS, Tensor, WEIGHTS, find, reference, tensors_of};
use gemma4_serve::model::checkpoint::{Checkpoint, Content, TensorView};
use gemma4_serve::model::safetensors::{Dtype, read_header};
use proptest::prelude::*;
use serde_json::json;

fn open_with(model: &str, weights: &[u8]) -> Result<Checkpoint, String> {
    let folder = Folder::without_weights(model);
    folder.write(WEIGHTS, weights);
    folder.open()
}

/// Opens the dense checkpoint after a change to its list of tensors.
fn open_changed(change: impl FnOnce(&mut Vec<Tensor>)) -> Result<Checkpoint, String> {
    open_changed_of("dense", change)
}

fn open_changed_of(model: &str, change: impl FnOnce(&mut Vec<Tensor>)) -> Result<Checkpoint, String> {
    Folder::changed(model, change).open()
}

/// Two shards and an index, after a change to the index's map.
fn sharded(change: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) -> Folder {
    let folder = Folder::sharded("dense", 40);
    folder.edit(INDEX, |index| change(index["weight_map"].as_object_mut().unwrap()));
    folder
}

fn refusal(result: Result<Checkpoint, String>, expected: &[&str]) {
    let error = result.err().unwrap_or_else(|| panic!("accepted, expected {expected:?}"));
    for part in expected {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

/// Every view of a checkpoint, in a fixed order.
fn views(checkpoint: &Checkpoint) -> Vec<TensorView<'_>> {
    let mut views = vec![checkpoint.embed(), checkpoint.norm()];
    views.extend(checkpoint.head());
    views.extend(checkpoint.per_layer().into_iter().flat_map(|of| [of.table, of.projection, of.norm]));
    for index in 0..checkpoint.config.layers.len() {
        checkpoint.layer(index).map(|view| views.push(*view));
    }
    views
}

#[test]
fn every_tensor_of_the_references_is_served_as_the_file_holds_it() {
    for (model, count, unused) in [("dense", 85, 0), ("unified", 57, 0), ("ple", 132, 9), ("moe", 110, 0)] {
        let file = std::fs::read(reference(model).join("model.safetensors")).unwrap();
        let infos = read_header(&file).unwrap();
        let checkpoint = Checkpoint::open(&reference(model)).unwrap();
        let views = views(&checkpoint);
        assert_eq!((views.len(), infos.len()), (count, count + unused));
        let bytes: usize = views.iter().map(|view| view.byte_count()).sum();
        assert_eq!(checkpoint.weight_bytes(), bytes as u64);
        for view in views {
            let info = infos.iter().find(|info| info.name == view.name).unwrap();
            let stored = Content::Stored(&file[info.bytes.clone()]);
            assert_eq!((view.shape, view.content), (info.shape.as_slice(), stored), "{}", view.name);
        }
        assert_eq!(checkpoint.name, model);
        assert!(checkpoint.tokenizer_json().unwrap().starts_with(b"{"));
    }
}

#[test]
fn the_layer_fields_are_the_tensors_they_say() {
    let checkpoint = Checkpoint::open(&reference("dense")).unwrap();
    let sliding = checkpoint.layer(0);
    let name = |short: &str| format!("model.language_model.layers.0.{short}");
    let pairs = [
        (sliding.input_norm, "input_layernorm.weight", vec![64]),
        (sliding.q, "self_attn.q_proj.weight", vec![1024, 64]),
        (sliding.k.unwrap(), "self_attn.k_proj.weight", vec![512, 64]),
        (sliding.v.unwrap(), "self_attn.v_proj.weight", vec![512, 64]),
        (sliding.o, "self_attn.o_proj.weight", vec![64, 1024]),
        (sliding.q_norm, "self_attn.q_norm.weight", vec![256]),
        (sliding.k_norm.unwrap(), "self_attn.k_norm.weight", vec![256]),
        (sliding.post_attn_norm, "post_attention_layernorm.weight", vec![64]),
        (sliding.pre_ffw_norm, "pre_feedforward_layernorm.weight", vec![64]),
        (sliding.gate, "mlp.gate_proj.weight", vec![128, 64]),
        (sliding.up, "mlp.up_proj.weight", vec![128, 64]),
        (sliding.down, "mlp.down_proj.weight", vec![64, 128]),
        (sliding.post_ffw_norm, "post_feedforward_layernorm.weight", vec![64]),
        (sliding.layer_scalar, "layer_scalar", vec![1]),
    ];
    for (view, short, shape) in pairs {
        assert_eq!((view.name, view.shape), (name(short).as_str(), shape.as_slice()));
    }
    let global = checkpoint.layer(5);
    assert!(global.v.is_none());
    assert_eq!((global.q.shape, global.k.unwrap().shape), (&[2048, 64][..], &[512, 64][..]));
}

#[test]
fn the_embedded_checkpoint_is_the_folder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny");
    let (embedded, opened) = (Checkpoint::embedded().unwrap(), Checkpoint::open(&folder).unwrap());
    assert_eq!((&embedded.config, embedded.name.as_str()), (&opened.config, "tiny"));
    for (a, b) in views(&embedded).into_iter().zip(views(&opened)) {
        assert_eq!(a, b);
    }
    assert_eq!(embedded.tokenizer_json(), opened.tokenizer_json());
    assert_eq!(embedded.chat_template(), opened.chat_template());
    assert!(embedded.chat_template().is_some());
}

#[test]
fn both_config_spellings_open_the_same_weights() {
    for model in ["dense", "unified", "ple", "moe"] {
        let folder = Folder::of(model);
        folder.write(CONFIG, std::fs::read(reference(model).join("config.hf-5.24-style.json")).unwrap());
        let checkpoint = folder.open().unwrap();
        assert_eq!(checkpoint.config, Checkpoint::open(&reference(model)).unwrap().config);
    }
}

#[test]
fn the_three_prefixes_in_circulation_are_found() {
    for prefix in ["language_model.model.", "model."] {
        let checkpoint = open_changed(|tensors| {
            for t in tensors {
                t.name = t.name.replace("model.language_model.", prefix);
            }
        });
        assert!(checkpoint.unwrap().embed().name.starts_with(prefix));
    }
    let renamed = open_changed(|tensors| {
        for t in tensors {
            t.name = t.name.replace("model.language_model.", "transformer.");
        }
    });
    refusal(renamed, &["no text tower", "model.language_model."]);
    let two = open_changed(|tensors| {
        let embed = find(tensors, "embed_tokens.weight").clone();
        tensors.push(Tensor { name: "model.embed_tokens.weight".into(), ..embed });
    });
    refusal(two, &["two text towers", "model.language_model. and under model."]);
}

#[test]
fn other_towers_and_quantisation_ranges_are_skipped_and_nothing_else() {
    let extra = |name: &str| {
        let name = name.to_owned();
        open_changed(|tensors| tensors.push(Tensor { name, dtype: Dtype::F32, shape: vec![1], bytes: vec![0; 4] }))
    };
    for name in [
        "model.vision_tower.encoder.layers.0.weight",
        "model.audio_tower.x",
        "model.embed_vision.embedding_projection.weight",
        "model.embed_audio.x",
        "model.vision_embedder.x",
        "model.language_model.layers.0.mlp.gate_proj.input_max",
        "model.language_model.layers.0.self_attn.k_cache_scale",
    ] {
        extra(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    for name in [
        "model.language_model.layers.0.mlp.gate_proj.bias",
        "model.language_model.layers.6.layer_scalar",
        "model.language_model.vision_tower.x",
        "model.surprise",
        "surprise",
    ] {
        refusal(extra(name), &["model.safetensors: tensor ", name, "is unknown"]);
    }
    let v = "model.language_model.layers.5.self_attn.v_proj.weight";
    refusal(extra(v), &[v, "attention_k_eq_v"]);
}

/// <https://github.com/huggingface/transformers/issues/45312>: published files still hold what shared layers do not
/// use.
#[test]
fn k_and_v_of_a_layer_that_shares_anothers_are_ignored_by_name_and_nothing_else() {
    let unused =
        |name: &str| ["k_proj", "v_proj", "k_norm"].iter().any(|t| name.ends_with(&format!("self_attn.{t}.weight")));
    let is_of = |name: &str, layers: &[usize]| layers.iter().any(|index| name.contains(&format!("layers.{index}.")));
    let is_unused = |name: &str| unused(name) && is_of(name, &[5, 6, 7]);
    let without = open_changed_of("ple", |tensors| tensors.retain(|t| !is_unused(&t.name)));
    assert_eq!(views(&without.unwrap()).len(), 132);
    // Other shapes and dtypes too: they are not looked at.
    let other = open_changed_of("ple", |tensors| {
        let k = find(tensors, "layers.6.self_attn.k_proj.weight");
        (k.dtype, k.shape, k.bytes) = (Dtype::F32, vec![1], vec![0; 4]);
    });
    let checkpoint = other.unwrap();
    assert!(checkpoint.layer(6).k.is_none() && checkpoint.layer(6).v.is_none() && checkpoint.layer(6).k_norm.is_none());
    assert!(checkpoint.layer(4).k.is_some() && checkpoint.layer(4).v.is_some());
    // The donor's are needed, and a name that is none of the three is unknown.
    refusal(
        open_changed_of("ple", |tensors| tensors.retain(|t| !t.name.ends_with("layers.4.self_attn.v_proj.weight"))),
        &["layers.4.self_attn.v_proj.weight [512, 64] is missing"],
    );
    for name in
        ["layers.6.self_attn.k_proj.bias", "layers.6.self_attn.v_norm.weight", "layers.8.self_attn.k_proj.weight"]
    {
        let extra = open_changed_of("ple", |tensors| {
            find(tensors, "layers.6.self_attn.k_proj.weight").name = format!("model.language_model.{name}")
        });
        refusal(extra, &[name, "is unknown"]);
    }
}

#[test]
fn per_layer_embeddings_are_held_to_the_config() {
    for (tensor, shape) in [
        ("embed_tokens_per_layer.weight", "[512, 256]"),
        ("per_layer_model_projection.weight", "[256, 64]"),
        ("per_layer_projection_norm.weight", "[32]"),
        ("layers.7.per_layer_input_gate.weight", "[32, 64]"),
        ("layers.0.per_layer_projection.weight", "[64, 32]"),
        ("layers.3.post_per_layer_input_norm.weight", "[64]"),
    ] {
        let missing = open_changed_of("ple", |tensors| tensors.retain(|t| !t.name.ends_with(tensor)));
        refusal(missing, &[tensor, shape, "is missing"]);
        let turned = open_changed_of("ple", |tensors| {
            let of = find(tensors, tensor);
            of.shape = match of.shape[..] {
                [rows, depth] => vec![depth, rows],
                _ => vec![of.shape[0], 1],
            };
        });
        refusal(turned, &[tensor, "has shape", &format!("config.json says {shape}")]);
    }
    // A model without them has no such tensor.
    let extra = open_changed(|tensors| {
        let like = find(tensors, "layers.0.mlp.gate_proj.weight").clone();
        tensors.push(Tensor { name: "model.language_model.embed_tokens_per_layer.weight".into(), ..like });
    });
    refusal(extra, &["embed_tokens_per_layer.weight", "is unknown"]);
}

#[test]
fn experts_are_held_to_the_config() {
    for (tensor, shape) in [
        ("layers.0.router.proj.weight", "[16, 64]"),
        ("layers.1.router.scale", "[64]"),
        ("layers.2.router.per_expert_scale", "[16]"),
        ("layers.3.experts.gate_up_proj", "[16, 64, 64]"),
        ("layers.4.experts.down_proj", "[16, 64, 32]"),
        ("layers.0.post_feedforward_layernorm_1.weight", "[64]"),
        ("layers.1.pre_feedforward_layernorm_2.weight", "[64]"),
        ("layers.2.post_feedforward_layernorm_2.weight", "[64]"),
    ] {
        let missing = open_changed_of("moe", |tensors| tensors.retain(|t| !t.name.ends_with(tensor)));
        refusal(missing, &[tensor, shape, "is missing"]);
        let flat = open_changed_of("moe", |tensors| {
            let of = find(tensors, tensor);
            of.shape = match of.shape[..] {
                [count, rows, depth] => vec![count * rows, depth],
                [rows, depth] => vec![depth, rows],
                _ => vec![of.shape[0], 1],
            };
        });
        refusal(flat, &[tensor, "has shape", &format!("config.json says {shape}")]);
    }
    // A model without them has no such tensor, and experts one by one are another form.
    let extra = open_changed(|tensors| {
        let like = find(tensors, "layers.0.mlp.gate_proj.weight").clone();
        tensors.push(Tensor { name: "model.language_model.layers.0.router.proj.weight".into(), ..like });
    });
    refusal(extra, &["layers.0.router.proj.weight", "is unknown"]);
    let unfused = open_changed_of("moe", |tensors| {
        let down = find(tensors, "layers.4.experts.down_proj");
        down.name = "model.language_model.layers.4.experts.0.down_proj.weight".into();
    });
    refusal(unfused, &["layers.4.experts.down_proj [16, 64, 32] is missing"]);
}

/// Caught on `down_proj` alone: `gate_up_proj` is square here, as it is where a model is twice as wide as one expert.
#[test]
fn transposed_experts_are_refused_by_their_shape() {
    let transposed = |tensor: &str, turn: &[usize]| {
        open_changed_of("moe", |tensors| find(tensors, tensor).shape = turn.to_vec()).map(|_| ())
    };
    let error = transposed("layers.4.experts.down_proj", &[16, 32, 64]).unwrap_err();
    let words = "layers.4.experts.down_proj has shape [16, 32, 64], config.json says [16, 64, 32]";
    assert!(error.contains(words), "{error}");
    transposed("layers.4.experts.gate_up_proj", &[16, 64, 64]).unwrap();
    let short = transposed("layers.4.experts.down_proj", &[15, 64, 32]).unwrap_err();
    assert!(short.contains("down_proj"), "{short}");
}

/// The MLP is twice as wide in shared layers only.
#[test]
fn a_double_wide_mlp_where_it_should_not_be_is_refused() {
    let folder = Folder::of("ple");
    folder.edit(CONFIG, |config| {
        let wide = config["text_config"]["use_double_wide_mlp"].take();
        assert_eq!(wide, json!(true));
        config["text_config"]["use_double_wide_mlp"] = json!(false);
    });
    refusal(folder.open(), &["layers.5.mlp.gate_proj.weight has shape [128, 64], config.json says [64, 64]"]);
}

#[test]
fn a_head_of_its_own_is_used_and_an_untied_model_needs_one() {
    let head = |rows: usize| {
        let bytes = vec![1; rows * 64 * 2];
        Tensor { name: "lm_head.weight".into(), dtype: Dtype::Bf16, shape: vec![rows, 64], bytes }
    };
    let checkpoint = open_changed(|tensors| tensors.push(head(512))).unwrap();
    assert_eq!(checkpoint.head().unwrap().name, "lm_head.weight");
    refusal(
        open_changed(|tensors| tensors.push(head(511))),
        &["lm_head.weight has shape [511, 64], config.json says [512, 64]"],
    );

    let folder = Folder::of("dense");
    folder.edit(CONFIG, |config| {
        config["tie_word_embeddings"] = json!(false);
        config["text_config"]["tie_word_embeddings"] = json!(false);
    });
    refusal(folder.open(), &["tie_word_embeddings", "lm_head.weight"]);
}

#[test]
fn a_wrong_shape_or_dtype_or_a_missing_tensor_is_named() {
    let shape = open_changed(|tensors| find(tensors, "layers.3.mlp.down_proj.weight").shape = vec![128, 64]);
    refusal(
        shape,
        &["model.safetensors", "layers.3.mlp.down_proj.weight has shape [128, 64]", "config.json says [64, 128]"],
    );
    let dtype = open_changed(|tensors| find(tensors, "layers.2.layer_scalar").dtype = Dtype::parse("F16").unwrap());
    refusal(dtype, &["layers.2.layer_scalar is F16, expected BF16"]);
    let rank = open_changed(|tensors| find(tensors, "layers.2.layer_scalar").shape = vec![]);
    refusal(rank, &["layers.2.layer_scalar has shape [], config.json says [1]"]);
    for (index, tensor) in tensors_of("dense").iter().enumerate() {
        let missing = open_changed(|tensors| drop(tensors.remove(index)));
        let expected = if tensor.name.ends_with("embed_tokens.weight") { "no text tower" } else { &tensor.name };
        refusal(missing, &[expected]);
    }
}

#[test]
fn shards_give_what_the_single_file_gives() {
    let folder = sharded(|_| {});
    let (sharded, single) = (folder.open().unwrap(), Checkpoint::open(&reference("dense")).unwrap());
    for (a, b) in views(&sharded).into_iter().zip(views(&single)) {
        assert_eq!(a, b);
    }
}

#[test]
fn an_index_that_disagrees_with_its_shards_is_refused() {
    let folder = sharded(|_| {});
    folder.remove(SHARDS[1]);
    refusal(folder.open(), &[&format!("shard {} is missing", SHARDS[1])]);

    let ghost = sharded(|map| drop(map.insert("model.ghost".into(), json!(SHARDS[0]))));
    refusal(ghost.open(), &[&format!("{}: tensor model.ghost is not in it", SHARDS[0])]);

    let moved = "model.language_model.norm.weight";
    let swapped = sharded(|map| {
        let other = if map[moved] == SHARDS[0] { SHARDS[1] } else { SHARDS[0] };
        map[moved] = json!(other);
    });
    refusal(swapped.open(), &[moved]);

    let silent = sharded(|map| drop(map.remove(moved)));
    refusal(silent.open(), &["tensor model.language_model.norm.weight is in it, the index does not say so"]);

    for shard in ["../a.safetensors", "/etc/passwd", "x/a.safetensors", "", "a.bin", ".."] {
        let outside = sharded(|map| drop(map.insert(moved.into(), json!(shard))));
        refusal(outside.open(), &["model.safetensors.index.json: tensor model.language_model.norm.weight is said"]);
    }
    for index in ["", "{}", "{\"weight_map\":{}}", "{\"weight_map\":{\"a\":1}}", "{\"weight_map\":[]}"] {
        folder.write(INDEX, index);
        refusal(folder.open(), &["model.safetensors.index.json: "]);
    }
    let twice = "{\"weight_map\":{\"t\":\"a.safetensors\",\"t\":\"b.safetensors\"}}";
    folder.write(INDEX, twice);
    refusal(folder.open(), &["tensor t stands in it twice"]);
}

#[test]
fn a_folder_without_config_or_weights_or_with_odd_files_is_refused() {
    let open = |path: &Path| Checkpoint::open(path).map_err(|e| e.to_string());
    refusal(open(Path::new("/nonexistent")), &["/nonexistent/config.json"]);
    let folder = Folder::without_weights("dense");
    refusal(open(folder.path()), &["neither model.safetensors nor model.safetensors.index.json"]);
    std::fs::create_dir(folder.path().join("model.safetensors")).unwrap();
    refusal(open(folder.path()), &["model.safetensors: not a regular file"]);
}

#[test]
fn a_file_cut_anywhere_is_refused_by_name() {
    let file = std::fs::read(reference("dense").join("model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let cuts = (0..12)
        .chain((12..header).step_by(97))
        .chain([header - 1, header, header + 1])
        .chain((header + 1..file.len()).step_by(31_013))
        .chain([file.len() - 2, file.len() - 1]);
    for cut in cuts {
        let error = open_with("dense", &file[..cut]).err().unwrap_or_else(|| panic!("cut at {cut} is accepted"));
        assert!(error.contains("model.safetensors: "), "{error}");
        if cut >= header {
            assert!(error.contains("tensor model.") && error.contains("truncated?"), "cut at {cut}: {error}");
        }
    }
    let longer = [&file[..], &[0]].concat();
    refusal(open_with("dense", &longer), &["bytes of data, its tensors end at"]);
}

fn with_header(length: u64, header: &str, data: usize) -> Vec<u8> {
    [&length.to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn a_lying_header_length_is_refused_without_a_large_allocation() {
    let file = std::fs::read(reference("dense").join("model.safetensors")).unwrap();
    let honest = u64::from_le_bytes(file[..8].try_into().unwrap());
    let lies = [0, 1, honest - 1, honest + 1, honest + 8, file.len() as u64, 64 << 20, (64 << 20) + 1, u64::MAX / 2];
    for length in lies.into_iter().chain([u64::MAX - 7, u64::MAX]) {
        let lying = [&length.to_le_bytes()[..], &file[8..]].concat();
        refusal(open_with("dense", &lying), &["model.safetensors: "]);
    }
}

#[test]
fn a_header_that_contradicts_itself_is_refused() {
    let tensor = |name: &str, dtype: &str, shape: &str, begin: u64, end: u64| {
        format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{begin},{end}]}}")
    };
    let a = tensor("a", "BF16", "[2,2]", 0, 8);
    let cases = [
        (vec![a.clone(), a.clone()], 8, "a stands in it twice"),
        (vec![a.clone(), tensor("b", "BF16", "[2]", 4, 8)], 8, "tensor b begins at byte 4 of the data, before a ends"),
        (vec![a.clone(), tensor("b", "BF16", "[4]", 0, 8)], 8, "tensor b begins at byte 0 of the data, before a ends"),
        (vec![a.clone(), tensor("b", "BF16", "[2]", 12, 16)], 16, "bytes 8 to 12 of the data belong to no tensor"),
        (vec![tensor("b", "BF16", "[4]", 8, 16)], 16, "bytes 0 to 8 of the data belong to no tensor (before b)"),
        (vec![tensor("b", "BF16", "[0]", 8, 0)], 16, "tensor b has the offsets 8 to 0"),
        (vec![a.clone()], 7, "tensor a ends at byte 8 of the data but the file holds 7"),
        (vec![a.clone()], 9, "the file holds 9 bytes of data, its tensors end at 8"),
        (vec![tensor("b", "BF16", "[5]", 0, 8)], 8, "tensor b of shape [5] and dtype BF16 needs 10 bytes"),
        (vec![tensor("b", "Q4", "[4]", 0, 8)], 8, "tensor b has the unknown dtype Q4"),
        (vec![tensor("b", "BF16", "[4294967296,4294967296]", 0, 8)], 8, "tensor b of shape [4294967296, 4294967296]"),
        // 16 bits times 2^60 + 4 elements wraps around to the 64 bits that are there.
        (vec![tensor("b", "BF16", "[1152921504606846980]", 0, 8)], 8, "BF16 needs more than 2^61 bytes"),
        (vec![tensor("b", "BF16", "[4]", 0, u64::MAX)], 8, "tensor b ends at byte 18446744073709551615"),
        (vec![tensor("b", "BF16", "[-4]", 0, 8)], 8, "b: invalid value: integer `-4`"),
        (vec!["\"b\":{\"dtype\":\"BF16\",\"shape\":[4]}".into()], 8, "b: missing field `data_offsets`"),
        (vec!["\"b\":7".into()], 8, "b: invalid type"),
    ];
    for (tensors, data, expected) in cases {
        let header = format!("{{{}}}", tensors.join(","));
        let error = read_header(&with_header(header.len() as u64, &header, data)).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected:?} is not in: {error}");
    }
    let padded = format!("{{{a}}}   ");
    assert_eq!(read_header(&with_header(padded.len() as u64, &padded, 8)).unwrap().len(), 1);
    for header in ["", " {}", "[]", "{}x", "null", "{\"a\"", "\u{feff}{}"] {
        assert!(read_header(&with_header(header.len() as u64, header, 0)).is_err(), "{header:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn no_header_panics_and_an_accepted_one_lies_within_its_file(
        offsets in prop::collection::vec((0u64..20, 0u64..20, 0u64..6, 0u64..6), 0..4),
        data in 0usize..40,
        flip in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let tensors: Vec<String> = offsets.iter().enumerate().map(|(i, (begin, size, rows, depth))| format!(
            "\"t{i}\":{{\"dtype\":\"BF16\",\"shape\":[{rows},{depth}],\"data_offsets\":[{begin},{}]}}", begin + size
        )).collect();
        let header = format!("{{{}}}", tensors.join(","));
        let mut file = with_header(header.len() as u64, &header, data);
        if let Some((at, byte)) = flip {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Ok(tensors) = read_header(&file) {
            let mut end = file.len() - tensors.iter().map(|t| t.bytes.len()).sum::<usize>();
            for tensor in tensors {
                prop_assert_eq!(tensor.bytes.start, end);
                prop_assert_eq!(tensor.bytes.len() * 8, tensor.shape.iter().product::<usize>() * tensor.dtype.bits());
                end = tensor.bytes.end;
            }
            prop_assert_eq!(end, file.len());
        }
    }
}
