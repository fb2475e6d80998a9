//! Quantised repositories are refused by the name of their form, whichever part of the repository gives it away.

use crate::folder::*;
use serde_json::{Value, json};

const WHY: &str = "and only bf16 safetensors are served yet";

fn group(kind: &str, bits: u64, activation_bits: Option<u64>) -> Value {
    let activations = activation_bits.map(|bits| json!({"num_bits": bits, "type": kind}));
    let weights = json!({"num_bits": bits, "type": kind, "symmetric": true, "strategy": "group", "group_size": 32});
    json!({"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}})
}

#[test]
fn a_quantization_config_is_refused_by_method_and_form() {
    let compressed = |format: &str, groups: Value| {
        let ignored = ["lm_head"];
        json!({
            "quant_method": "compressed-tensors", "format": format, "config_groups": groups, "ignore": ignored,
        })
    };
    for (config, found, form) in [
        (compressed("pack-quantized", group("int", 4, None)), "compressed-tensors", "W4A16 (compressed-tensors"),
        (compressed("int-quantized", group("int", 8, Some(8))), "compressed-tensors", "W8A8 (compressed-tensors"),
        (compressed("float-quantized", group("float", 8, Some(8))), "compressed-tensors", "FP8 (e4m3 with scales)"),
        (compressed("nvfp4-pack-quantized", group("float", 4, Some(4))), "compressed-tensors", "NVFP4 (compressed-te"),
        (compressed("nvfp4-pack-quantized", json!({})), "compressed-tensors", "NVFP4 (compressed-tensors)"),
        (compressed("sparse-24", json!({})), "compressed-tensors", "quantised (compressed-tensors sparse-24)"),
        (json!({"quant_method": "fp8", "weight_block_size": [128, 128]}), "fp8", "FP8 (e4m3 with scales)"),
        (json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}), "modelopt", "NVFP4 (modelopt)"),
        (json!({"quant_method": "modelopt", "quant_algo": "FP8"}), "modelopt", "FP8 (e4m3 with scales)"),
        (json!({"quant_method": "gemma"}), "gemma", "QAT mobile (quant_method gemma"),
        (json!({"quant_method": "awq", "bits": 4}), "awq", "AWQ"),
        (json!({"quant_method": "gptq", "bits": 4}), "gptq", "GPTQ"),
        (json!({"quant_method": "bitsandbytes"}), "bitsandbytes", "bitsandbytes"),
        (json!({"quant_method": "auto-round"}), "auto-round", "quantised (auto-round)"),
        (json!({}), "an object of 0 fields", "quantised (by an unnamed method)"),
        (json!(4), "4", "quantised (by an unnamed method)"),
    ] {
        for place in ["", "/text_config"] {
            let folder = Folder::of("dense");
            folder.edit(CONFIG, |c| c.pointer_mut(place).unwrap()["quantization_config"] = config.clone());
            let field = format!("{}quantization_config is {found}: ", &place.replace("/text_config", "text_config."));
            refused(&folder, &["config.json: ", &field, form, WHY]);
        }
    }
    let older = Folder::of("dense");
    older.edit(CONFIG, |c| c["compression_config"] = compressed("pack-quantized", group("int", 4, None)));
    refused(&older, &["compression_config is compressed-tensors", "W4A16"]);
    let none = Folder::of("dense");
    none.edit(CONFIG, |c| c["quantization_config"] = Value::Null);
    none.open().unwrap_or_else(|e| panic!("{e}"));
}

/// The layouts of spec/gemma4.md, 1.5, in a folder whose config.json says nothing.
#[test]
fn tensors_alone_give_a_form_away() {
    const PROJECTION: &str = "model.language_model.layers.0.mlp.down_proj";
    type Layout = &'static [(&'static str, &'static str, &'static [usize])];
    let layouts: [(Layout, &str, &str); 8] = [
        (
            &[("weight_packed", "I32", &[64, 16]), ("weight_scale", "BF16", &[64, 4]), ("weight_shape", "I64", &[2])],
            "weight_packed is I32",
            "W4A16",
        ),
        (
            &[
                ("weight_packed", "U8", &[64, 64]),
                ("weight_scale", "F8_E4M3", &[64, 8]),
                ("weight_global_scale", "F32", &[1]),
                ("input_global_scale", "F32", &[1]),
            ],
            "weight_global_scale is F32",
            "NVFP4 (compressed-tensors)",
        ),
        (
            &[
                ("weight", "U8", &[64, 64]),
                ("weight_scale", "F8_E4M3", &[64, 8]),
                ("weight_scale_2", "F32", &[]),
                ("input_scale", "F32", &[]),
            ],
            "weight_scale_2 is F32",
            "NVFP4 (modelopt)",
        ),
        (&[("weight", "F8_E4M3", &[64, 128]), ("weight_scale", "BF16", &[64, 1])], "weight is F8_E4M3", "FP8 (e4m3"),
        (&[("weight", "F8_E4M3", &[64, 128])], "weight is F8_E4M3", "FP8 (e4m3"),
        (&[("weight", "U8", &[64, 64]), ("weight_scale", "F32", &[64, 1])], "weight is U8", "QAT mobile"),
        (
            &[("qweight", "I32", &[16, 64]), ("qzeros", "I32", &[4, 8]), ("scales", "F16", &[4, 64])],
            "qzeros is I32",
            "AWQ",
        ),
        (
            &[("qweight", "I32", &[16, 64]), ("qzeros", "I32", &[4, 8]), ("g_idx", "I32", &[128])],
            "g_idx is I32",
            "GPTQ",
        ),
    ];
    for (layout, found, form) in layouts {
        let folder = Folder::changed("dense", |tensors| {
            tensors.retain(|t| t.name != format!("{PROJECTION}.weight"));
            tensors.extend(
                layout.iter().map(|(n, dtype, shape)| Tensor::zeros(&format!("{PROJECTION}.{n}"), dtype, shape)),
            );
        });
        refused(&folder, &["model.safetensors: tensor ", &format!("{PROJECTION}.{found}: "), form, WHY]);
    }
    // The mobile form has tables of its own, and no embedding by the usual name.
    let mobile = Folder::changed("ple", |tensors| {
        let embed = find(tensors, "embed_tokens.weight");
        embed.name = embed.name.replace(".weight", ".embedding_quantized");
    });
    refused(&mobile, &["embed_tokens.embedding_quantized is BF16", "QAT mobile"]);
}

#[test]
fn a_wrong_dtype_is_no_form_and_another_tower_is_not_looked_at() {
    let bytes = Folder::changed("dense", |tensors| {
        *find(tensors, "layers.0.mlp.down_proj.weight") =
            Tensor::zeros("model.language_model.layers.0.mlp.down_proj.weight", "U8", &[64, 128]);
    });
    refused(&bytes, &["layers.0.mlp.down_proj.weight is U8, expected BF16"]);
    let tower = Folder::changed("dense", |tensors| {
        for (name, dtype) in [("weight_packed", "I32"), ("weight", "F8_E4M3"), ("weight_scale_2", "F32")] {
            tensors.push(Tensor::zeros(&format!("model.vision_tower.x.{name}"), dtype, &[8]));
        }
    });
    tower.open().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_folder_of_gguf_or_with_modelopts_own_config_is_refused_by_the_file() {
    let gguf = Folder::without_weights("dense");
    gguf.write("b-Q8_0.GGUF", "GGUF");
    gguf.write("a-Q4_0.gguf", "GGUF");
    refused(&gguf, &["a-Q4_0.gguf: a GGUF file: the weights are GGUF, ", WHY]);
    // Such a repository has no config.json either.
    gguf.remove(CONFIG);
    refused(&gguf, &["a-Q4_0.gguf: a GGUF file"]);
    // Beside safetensors it is another copy.
    let both = Folder::of("dense");
    both.write("a-Q4_0.gguf", "GGUF");
    both.open().unwrap_or_else(|e| panic!("{e}"));

    let modelopt = Folder::of("dense");
    modelopt.write(
        "hf_quant_config.json",
        json!({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}})
            .to_string(),
    );
    refused(&modelopt, &["hf_quant_config.json: quantization.quant_algo is NVFP4", "NVFP4 (modelopt)", WHY]);
    modelopt.write("hf_quant_config.json", json!({"quantization": {"quant_algo": null}}).to_string());
    modelopt.open().unwrap_or_else(|e| panic!("{e}"));
    // What cannot be read may have said anything.
    modelopt.write("hf_quant_config.json", "{\"quantization\": ");
    refused(&modelopt, &["hf_quant_config.json: ", "EOF"]);
}
