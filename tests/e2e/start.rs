//! What the real binary refuses at start: exit code 2 and a sentence that names the knob, the file or the tensor; a
//! failing device is exit code 1 (reliability rows 29, 51 and 52).

use std::fs;
use std::path::Path;

use crate::process::{Ended, Setup, reference};
use gemma4_serve::model::safetensors::{TensorOut, read_header, write};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The program ends by itself with this code, and every word is on stderr; it was never ready.
fn ends(setup: Setup, code: i32, words: &[&str]) -> Ended {
    let ended = setup.spawn().exit();
    assert_eq!(ended.code, Some(code), "{words:?}: {}", ended.stderr);
    for word in words {
        assert!(ended.stderr.contains(word), "{word:?} is not in: {}", ended.stderr);
    }
    assert!(ended.stderr.contains("error: "), "{}", ended.stderr);
    assert!(!ended.stdout.contains("start-up"), "{}", ended.stdout);
    ended
}

/// `dense` without its weights, after a change to its config.
fn folder(change: impl FnOnce(&mut Value)) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["generation_config.json", "tokenizer.json"] {
        fs::copy(reference("dense").join(name), folder.path().join(name)).expect("a copy");
    }
    let config = fs::read_to_string(reference("dense").join("config.json")).expect("a config");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    change(&mut config);
    fs::write(folder.path().join("config.json"), config.to_string()).expect("a config");
    folder
}

/// The weights of `dense`, after a change to the file's bytes.
fn damaged(change: impl FnOnce(&mut Vec<u8>)) -> TempDir {
    let folder = folder(|_| {});
    let mut weights = fs::read(reference("dense").join("model.safetensors")).expect("weights");
    change(&mut weights);
    fs::write(folder.path().join("model.safetensors"), weights).expect("weights");
    folder
}

/// The weights of `dense`, each tensor under the names that `names` gives it: none leaves it out.
fn renamed(bytes: &[u8], names: impl for<'n> Fn(&'n str) -> Vec<&'n str>) -> Vec<u8> {
    let infos = read_header(bytes).expect("a header");
    let mut tensors = Vec::new();
    for info in &infos {
        let (shape, bytes) = (&info.shape[..], &bytes[info.bytes.clone()]);
        tensors.extend(names(&info.name).into_iter().map(|name| TensorOut { name, dtype: info.dtype, shape, bytes }));
    }
    let mut file = Vec::new();
    write(&mut file, &tensors).expect("a file in memory");
    file
}

fn refused_model(folder: &Path, words: &[&str]) {
    ends(Setup::serve(&["--max-running", "2"]).model(folder), 2, words);
}

#[test]
fn bad_flags_are_refused_with_name_and_range() {
    for (flags, words) in [
        (&["--max-running", "0"][..], &["--max-running", "1 to 128"][..]),
        (&["--max-running", "129"], &["--max-running", "1 to 128"]),
        (&["--max-waiting", "many"], &["--max-waiting", "1 to 65536"]),
        (&["--max-context", "1"], &["--max-context", "from 2"]),
        (&["--kv-pages", "0"], &["--kv-pages", "from 1"]),
        (&["--prefill-chunk", "0"], &["--prefill-chunk", "1 to 65536"]),
        (&["--port", "65536"], &["--port", "65535"]),
        (&["--drain-delay", "-1"], &["--drain-delay", "0 to 3600"]),
        (&["--drain-timeout", "nan"], &["--drain-timeout", "0 to 86400"]),
        (&["--device", "gpu"], &["--device", "cuda:N"]),
        (&["--served-model-name", ""], &["--served-model-name"]),
        (&["--model", "no/such/folder"], &["--model", "no/such/folder"]),
        (&["--model", "Cargo.toml"], &["--model", "Cargo.toml", "not a folder"]),
        (&["--log", "[["], &["--log"]),
        (&["--temperature", "1"], &["--temperature"]),
    ] {
        let ended = ends(Setup::bare(flags), 2, words);
        assert_eq!(ended.stdout, "", "nothing was bound: {flags:?}");
    }
}

#[test]
fn sizes_that_cannot_be_had_are_refused_with_the_knobs() {
    let knobs = ["does not fit", "--kv-pages", "--max-running", "--max-context", "--prefill-chunk"];
    ends(Setup::serve(&[]).soft("MEMORY_BYTES", "8M"), 2, &knobs);
    ends(Setup::serve(&["--kv-pages", "2000000"]), 2, &["does not fit", "--kv-pages (now 2000000"]);
    ends(Setup::serve(&["--max-context", "5000"]), 2, &["--max-context is 5000", "4096"]);
}

#[test]
fn a_socket_that_cannot_be_bound_is_refused_with_the_flag() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let flags = ["--device", "soft", "--host", "127.0.0.1", "--port", port.as_str()];
    ends(Setup::bare(&flags), 2, &["--port", &format!("127.0.0.1:{port}"), "in use"]);
}

#[test]
fn damaged_weights_are_refused_with_file_and_tensor() {
    let missing = folder(|_| {});
    refused_model(missing.path(), &["neither model.safetensors nor model.safetensors.index.json"]);
    let cut = damaged(|bytes| bytes.truncate(1_000_000));
    refused_model(cut.path(), &["model.safetensors: tensor model.language_model.layers.", "truncated?"]);
    let empty = damaged(Vec::clear);
    refused_model(empty.path(), &["model.safetensors: "]);
    // A header of 2^48 bytes, and one that reaches past the end of the file.
    let lying = damaged(|bytes| bytes[..8].copy_from_slice(&(1u64 << 48).to_le_bytes()));
    refused_model(lying.path(), &["model.safetensors: its header claims 281474976710656 bytes"]);
    let lying = damaged(|bytes| bytes[..8].copy_from_slice(&50_000_000u64.to_le_bytes()));
    refused_model(lying.path(), &["model.safetensors: ", "50000000"]);
    let garbage = damaged(|bytes| bytes[8..40].fill(b'x'));
    refused_model(garbage.path(), &["model.safetensors: "]);
}

/// Of each kind of damage one case goes through the program: a line on stderr, and nothing else but the log.
#[test]
fn a_refusal_of_a_checkpoint_is_one_line() {
    const NORM: &str = "model.language_model.layers.3.input_layernorm.weight";
    let nan = damaged(|bytes| {
        let at =
            read_header(bytes).expect("a header").into_iter().find(|info| info.name == NORM).expect("a norm").bytes;
        bytes[at][..2].copy_from_slice(&[0xc0, 0x7f]);
    });
    let quantised = folder(|c| c["quantization_config"] = json!({"quant_method": "fp8"}));
    let gguf = folder(|_| {});
    fs::write(gguf.path().join("model-Q4_0.gguf"), "GGUF").expect("a file");
    let nested = folder(|_| {});
    fs::write(nested.path().join("config.json"), "[".repeat(1_000_000)).expect("a file");
    let looped = folder(|_| {});
    std::os::unix::fs::symlink("model.safetensors", looped.path().join("model.safetensors")).expect("a link");
    for (folder, words) in [
        (nan, &["model.safetensors: tensor ", NORM, "holds NaN at element 0"][..]),
        (quantised, &["config.json: quantization_config is fp8", "FP8"]),
        (gguf, &["model-Q4_0.gguf: a GGUF file"]),
        (nested, &["config.json: not a JSON object: recursion limit"]),
        (looped, &["model.safetensors: Too many levels of symbolic links"]),
    ] {
        let ended = ends(Setup::serve(&["--max-running", "2", "--log", "off"]).model(folder.path()), 2, words);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    ends(Setup::bare(&["--model", "no/such/model.gguf"]), 2, &["--model no/such/model.gguf"]);
}

#[test]
fn tensors_that_are_missing_or_unknown_are_refused_by_name() {
    const NORM: &str = "model.language_model.layers.3.input_layernorm.weight";
    const OTHER: &str = "model.language_model.layers.3.surprise.weight";
    let without = damaged(|bytes| *bytes = renamed(bytes, |name| if name == NORM { vec![] } else { vec![name] }));
    refused_model(without.path(), &["tensor", NORM, "missing"]);
    let unknown =
        damaged(|bytes| *bytes = renamed(bytes, |name| if name == NORM { vec![name, OTHER] } else { vec![name] }));
    refused_model(unknown.path(), &["tensor", OTHER]);
}

#[test]
fn a_missing_or_truncated_shard_is_refused_by_name() {
    let folder = folder(|_| {});
    let bytes = fs::read(reference("dense").join("model.safetensors")).expect("weights");
    let early = |name: &str| name.contains("layers.0.") || name.contains("layers.1.");
    let shards = [
        ("model-00001-of-00002.safetensors", renamed(&bytes, |name| Vec::from_iter(early(name).then_some(name)))),
        ("model-00002-of-00002.safetensors", renamed(&bytes, |name| Vec::from_iter((!early(name)).then_some(name)))),
    ];
    let infos = read_header(&bytes).expect("a header");
    let map: serde_json::Map<String, Value> =
        infos.iter().map(|info| (info.name.clone(), json!(shards[usize::from(!early(&info.name))].0))).collect();
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string();
    fs::write(folder.path().join("model.safetensors.index.json"), index).expect("an index");
    let [(first, first_bytes), (second, second_bytes)] = &shards;
    fs::write(folder.path().join(first), first_bytes).expect("a shard");
    refused_model(folder.path(), &[second]);
    fs::write(folder.path().join(second), &second_bytes[..second_bytes.len() - 1]).expect("a shard");
    refused_model(folder.path(), &[second, "tensor model.", "truncated?"]);
    // Whole, it serves.
    fs::write(folder.path().join(second), second_bytes).expect("a shard");
    Setup::serve(&["--max-running", "1"]).model(folder.path()).start();
}

#[test]
fn configs_of_other_models_are_refused_by_field() {
    type Change = fn(&mut Value);
    let changes: [(Change, &[&str]); 6] = [
        (|c| c["model_type"] = json!("llama"), &["config.json: model_type is llama", "gemma4_unified"]),
        (|c| c["text_config"]["enable_moe_block"] = json!(true), &["num_experts", "missing"]),
        (|c| c["text_config"]["hidden_size_per_layer_input"] = json!(36), &["hidden_size_per_layer_input is 36"]),
        (|c| c["text_config"]["num_hidden_layers"] = json!(5), &["num_hidden_layers is 5"]),
        (|c| c["text_config"]["hidden_activation"] = json!("silu"), &["hidden_activation"]),
        (|c| *c = json!([1]), &["config.json"]),
    ];
    for (change, words) in changes {
        refused_model(folder(change).path(), words);
    }
    let wider = folder(|c| c["text_config"]["hidden_size_per_layer_input"] = json!(16));
    fs::copy(reference("dense").join("model.safetensors"), wider.path().join("model.safetensors")).expect("a copy");
    refused_model(wider.path(), &["embed_tokens_per_layer.weight", "missing"]);
    let folder = folder(|_| {});
    fs::remove_file(folder.path().join("config.json")).expect("it was there");
    refused_model(folder.path(), &["config.json"]);
}

#[test]
fn a_checkpoint_without_a_tokenizer_is_refused() {
    let folder = damaged(|_| {});
    fs::write(folder.path().join("tokenizer.json"), "{").expect("a file");
    refused_model(folder.path(), &["tokenizer.json cannot be read"]);
    fs::remove_file(folder.path().join("tokenizer.json")).expect("it was there");
    refused_model(folder.path(), &["tokenizer.json is missing"]);
}

#[test]
fn a_device_that_fails_at_start_is_exit_code_1() {
    // The third call, one in the middle of loading, and a kernel of the first launches; the gate `faults` does more.
    ends(Setup::serve(&["--max-running", "2"]).soft("FAIL_CALL", "3"), 1, &["CUDA_ERROR_UNKNOWN (999)"]);
    ends(Setup::serve(&["--max-running", "2"]).soft("FAIL_CALL", "300"), 1, &["CUDA_ERROR_UNKNOWN (999)"]);
    ends(Setup::serve(&["--max-running", "2"]).soft("FAIL_LAUNCH", "60"), 1, &["CUDA_ERROR_ILLEGAL_ADDRESS (700)"]);
}
