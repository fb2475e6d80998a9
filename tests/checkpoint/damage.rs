//! Damaged checkpoints: each is refused in one sentence that names the file, and the tensor where there is one, without
//! a panic and without allocating what a lie claims (reliability row 52). `loading` has the cases of names,
//! shapes and indices; here is what else can be wrong with a folder.

use std::os::unix::fs::symlink;

use crate::folder::*;
use serde_json::json;

const NAN: [u8; 2] = [0xc0, 0x7f];
const INFINITY: [u8; 2] = [0x80, 0x7f];

#[test]
fn whole_checkpoints_open_within_the_budget_that_damaged_ones_are_held_to() {
    for model in ["dense", "unified", "ple", "moe"] {
        Folder::of(model).open().unwrap_or_else(|e| panic!("{e}"));
        Folder::sharded(model, 30).open().unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn a_norm_or_scalar_that_is_not_finite_is_refused_by_name() {
    let vectors: Vec<(usize, String)> = tensors_of("ple")
        .iter()
        .enumerate()
        .filter(|(_, t)| t.shape.len() == 1)
        .map(|(index, t)| (index, t.name.clone()))
        .filter(|(_, name)| !["5", "6", "7"].iter().any(|l| name.contains(&format!("layers.{l}.self_attn.k_norm"))))
        .collect();
    // Five norms, a scalar and q_norm a layer, k_norm of five, the last norm and that of the per-layer embeddings.
    assert_eq!(vectors.len(), 8 * 7 + 5 + 2);
    for (place, (index, name)) in vectors.iter().enumerate() {
        let (bits, value) = if place % 2 == 0 { (NAN, "NaN") } else { (INFINITY, "inf") };
        let folder = Folder::changed("ple", |tensors| {
            let bytes = &mut tensors[*index].bytes;
            let last = bytes.len() - 2;
            bytes[last..].copy_from_slice(&bits);
        });
        refused(&folder, &["model.safetensors: tensor ", name, &format!("holds {value} at element"), "must be finite"]);
    }
}

/// Only vectors are read at the opening; and what is never served may hold anything.
#[test]
fn a_matrix_and_an_unused_norm_are_not_read_at_the_opening() {
    let with_nan =
        |suffix: &str| Folder::changed("ple", |tensors| find(tensors, suffix).bytes[..2].copy_from_slice(&NAN)).open();
    for suffix in ["layers.0.mlp.gate_proj.weight", "layers.6.self_attn.k_norm.weight"] {
        with_nan(suffix).unwrap_or_else(|e| panic!("{suffix}: {e}"));
    }
    assert!(with_nan("layers.4.self_attn.k_norm.weight").is_err());
}

#[test]
fn a_directory_or_a_link_that_leads_nowhere_in_place_of_a_file_is_refused() {
    let names = [CONFIG, GENERATION, TOKENIZER_CONFIG, "tokenizer.json", INDEX, SHARDS[0], SHARDS[1]];
    for name in names.into_iter().chain([WEIGHTS, "chat_template.jinja"]) {
        let folder = || {
            let folder = Folder::sharded("dense", 40);
            if names.contains(&name) {
                folder.remove(name);
            }
            folder
        };
        let directory = folder();
        std::fs::create_dir(directory.path().join(name)).unwrap();
        refused(&directory, &[name, "not a regular file"]);
        let itself = folder();
        symlink(name, itself.path().join(name)).unwrap();
        refused(&itself, &[name, "ymbolic link"]);
        let pair = folder();
        symlink("there", pair.path().join(name)).unwrap();
        symlink(name, pair.path().join("there")).unwrap();
        refused(&pair, &[name, "ymbolic link"]);
        // As a cache of downloads looks whose blob is gone.
        let dangling = folder();
        symlink("blobs/gone", dangling.path().join(name)).unwrap();
        refused(&dangling, &[name]);
    }
}

#[test]
fn a_link_to_a_whole_file_is_that_file() {
    let folder = Folder::sharded("dense", 40);
    for name in [CONFIG, GENERATION, INDEX, SHARDS[0]] {
        std::fs::rename(folder.path().join(name), folder.path().join(format!("blob-{name}"))).unwrap();
        symlink(format!("blob-{name}"), folder.path().join(name)).unwrap();
    }
    folder.open().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn an_empty_file_or_one_cut_in_the_middle_is_refused_by_its_name() {
    for name in [CONFIG, GENERATION, TOKENIZER_CONFIG, INDEX, SHARDS[0], SHARDS[1]] {
        let empty = Folder::sharded("dense", 40);
        empty.write(name, "");
        refused(&empty, &[name]);
        let cut = Folder::sharded("dense", 40);
        cut.damage(name, |bytes| bytes.truncate(bytes.len() / 2));
        refused(&cut, &[name]);
        let text = Folder::sharded("dense", 40);
        text.damage(name, |bytes| bytes.fill(0xff));
        refused(&text, &[name]);
    }
    let template = Folder::of("dense");
    template.write("chat_template.jinja", [b'{', 0xff, b'}']);
    refused(&template, &["chat_template.jinja: not UTF-8"]);
}

#[test]
fn deep_nesting_is_refused_before_the_stack_is_gone() {
    for open in ["[", "{\"a\":"] {
        let deep = open.repeat(1_000_000);
        for name in [CONFIG, GENERATION, TOKENIZER_CONFIG, INDEX] {
            let folder = Folder::sharded("dense", 40);
            folder.write(name, &deep);
            refused(&folder, &[name]);
            let folder = Folder::sharded("dense", 40);
            folder.write(name, format!("{{\"weight_map\":{deep}"));
            refused(&folder, &[name]);
        }
        for header in [format!("{{\"t\":{deep}"), format!("{{\"__metadata__\":{deep}")] {
            let folder = Folder::without_weights("dense");
            folder.write(WEIGHTS, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat());
            refused(&folder, &["model.safetensors: its header is not what safetensors writes"]);
        }
    }
}

/// A header of one tensor, and eight bytes of data.
fn header_of(tensor: &str) -> Vec<u8> {
    let header = format!("{{{tensor}}}");
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat()
}

#[test]
fn a_lie_about_a_size_allocates_nothing_like_it() {
    let norm = "\"model.language_model.norm.weight\"";
    for (shape, offsets, words) in [
        ("[9223372036854775807]", "[0,8]", "needs more than 2^61 bytes"),
        ("[4294967295,4294967295,4294967295]", "[0,8]", "needs more than 2^61 bytes"),
        ("[68719476736]", "[0,8]", "needs 137438953472 bytes, its offsets give 8"),
        ("[68719476736]", "[0,137438953472]", "ends at byte 137438953472 of the data but the file holds 8"),
        ("[4]", "[0,18446744073709551615]", "ends at byte 18446744073709551615"),
        ("[4]", "[18446744073709551608,18446744073709551615]", "bytes 0 to 18446744073709551608"),
        ("[4]", "[8,0]", "has the offsets 8 to 0"),
        ("[4]", "[0,4]", "the file holds 8 bytes of data, its tensors end at 4"),
    ] {
        let folder = Folder::without_weights("dense");
        let tensor = format!("{norm}:{{\"dtype\":\"BF16\",\"shape\":{shape},\"data_offsets\":{offsets}}}");
        folder.write(WEIGHTS, header_of(&tensor));
        refused(&folder, &["model.safetensors: ", words]);
    }
    for claimed in [1 << 20, 64 << 20, (64 << 20) + 1, u64::MAX] {
        let folder = Folder::of("dense");
        folder.damage(WEIGHTS, |bytes| bytes[..8].copy_from_slice(&u64::to_le_bytes(claimed)));
        refused(&folder, &["model.safetensors: its header"]);
    }
    // Numbers of config.json, each the largest that is served or larger.
    for (field, value) in [
        ("num_hidden_layers", json!(1024)),
        ("num_hidden_layers", json!(u64::MAX)),
        ("vocab_size", json!(1 << 20)),
        ("hidden_size", json!(65536)),
        ("intermediate_size", json!(1 << 20)),
        ("num_key_value_heads", json!(u64::MAX)),
        ("hidden_size_per_layer_input", json!(512)),
    ] {
        let folder = Folder::of("dense");
        folder.edit(CONFIG, |config| {
            config["text_config"][field] = value.clone();
            config["text_config"]["layer_types"] = json!(null);
        });
        let sentence = refused(&folder, &[]);
        assert!(sentence.contains(field) || sentence.contains("tensor model."), "{field} = {value}: {sentence}");
    }
}

#[test]
fn tensors_that_overlap_or_leave_a_hole_are_refused_by_name() {
    // The second of two tensors of the file is moved by two bytes, its size kept.
    for (by, words) in [(-2i64, "begins at byte"), (2, "belong to no tensor")] {
        let folder = Folder::of("dense");
        folder.damage(WEIGHTS, |bytes| {
            let header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let mut header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_bytes]).unwrap();
            let tensors = header.as_object_mut().unwrap();
            let second = tensors.values_mut().find(|t| t["data_offsets"][0].as_i64().is_some_and(|at| at > 0)).unwrap();
            for end in 0..2 {
                second["data_offsets"][end] = json!(second["data_offsets"][end].as_i64().unwrap() + by);
            }
            let header = header.to_string();
            let data = bytes.split_off(8 + header_bytes);
            *bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        });
        refused(&folder, &["model.safetensors: ", words]);
    }
}

#[test]
fn a_tensor_in_two_shards_is_refused_whatever_the_index_says() {
    let twice = |index: &dyn Fn(&Folder)| {
        let folder = Folder::sharded("dense", 40);
        let mut tensors = tensors_of("dense");
        let second = [&tensors.split_off(40)[..], &tensors[..1]].concat();
        folder.write(SHARDS[1], file_of(&second));
        index(&folder);
        (folder, tensors.swap_remove(0).name)
    };
    let (folder, name) = twice(&|_| {});
    refused(&folder, &[SHARDS[1], &name, "is in it, the index does not say so"]);
    let (folder, name) = twice(&|folder| {
        folder.damage(INDEX, |bytes| {
            let first = format!("\"weight_map\":{{\"{}\":\"{}\",", tensors_of("dense")[0].name, SHARDS[1]);
            *bytes = String::from_utf8(bytes.clone()).unwrap().replace("\"weight_map\":{", &first).into_bytes();
        });
    });
    refused(&folder, &[INDEX, &format!("tensor {name} stands in it twice")]);
}

#[test]
fn a_name_with_control_characters_or_without_end_stays_one_short_line() {
    for name in ["model.a\\nb", "model.\\u001b[31mred", "model.\\u0000"] {
        let folder = Folder::without_weights("dense");
        let tensor = format!("\"{name}\":{{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]}}");
        folder.write(WEIGHTS, header_of(&tensor));
        refused(&folder, &["is no name of a tensor"]);
        let folder = Folder::sharded("dense", 40);
        folder.write(INDEX, format!("{{\"weight_map\":{{\"{name}\":\"a.safetensors\"}}}}"));
        refused(&folder, &["is no name of a tensor"]);
        folder.write(INDEX, format!("{{\"weight_map\":{{\"t\":\"{name}.safetensors\"}}}}"));
        refused(&folder, &["tensor t is said to be in"]);
        folder.write(CONFIG, format!("{{\"model_type\":\"{name}\"}}"));
        refused(&folder, &["model_type is model."]);
    }
    let long = "x".repeat(1 << 20);
    for tensor in [
        format!("\"{long}\":{{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]}}"),
        format!("\"t\":{{\"dtype\":\"{long}\",\"shape\":[4],\"data_offsets\":[0,8]}}"),
        format!("\"t\":{{\"{long}\":1}}"),
    ] {
        let folder = Folder::without_weights("dense");
        folder.write(WEIGHTS, header_of(&tensor));
        refused(&folder, &["xxx..."]);
    }
    let folder = Folder::of("dense");
    folder.edit(CONFIG, |config| config["text_config"]["per_layer_config"] = json!({ (long.as_str()): {} }));
    refused(&folder, &["per_layer_config.xxx"]);
}

#[test]
fn a_config_that_contradicts_the_tensors_names_the_tensor_and_both_shapes() {
    for (field, value, words) in [
        ("hidden_size", json!(72), "embed_tokens.weight has shape [512, 64], config.json says [512, 72]"),
        ("vocab_size", json!(511), "embed_tokens.weight has shape [512, 64], config.json says [511, 64]"),
        ("intermediate_size", json!(144), "gate_proj.weight has shape [128, 64], config.json says [144, 64]"),
        ("num_attention_heads", json!(8), "q_proj.weight has shape [1024, 64], config.json says [2048, 64]"),
        ("num_key_value_heads", json!(1), "k_proj.weight has shape [512, 64], config.json says [256, 64]"),
        ("num_global_key_value_heads", json!(2), "k_proj.weight has shape [512, 64], config.json says [1024, 64]"),
        ("attention_k_eq_v", json!(false), "layers.5.self_attn.k_proj.weight has shape [512, 64]"),
        ("num_hidden_layers", json!(5), "layer_types is a list of 6: num_hidden_layers is 5"),
        ("layer_types", json!(vec!["full_attention"; 6]), "layers.0.self_attn.q_proj.weight has shape [1024, 64]"),
    ] {
        let folder = Folder::of("dense");
        folder.edit(CONFIG, |config| config["text_config"][field] = value);
        refused(&folder, &[words]);
    }
}
