//! `gemma4-serve inspect` as a user sees it: the real binary, no device.

use crate::folder::{CONFIG, Folder, SHARDS, Tensor};
use crate::process::{Ended, Setup, reference};
use clap::ValueEnum;
use gemma4_serve::model::checkpoint::Checkpoint;
use gemma4_serve::model::plan::{MemoryPlan, PlanOptions};
use gemma4_serve::model::synthetic::{SyntheticModel, Variant};
use serde_json::{Value, json};

const GB: u64 = 1_000_000_000;

/// Runs to its end. The first driver call would fail: nothing here makes one.
fn run(flags: &[&str]) -> Ended {
    Setup::bare(&[&["inspect"], flags].concat()).soft("FAIL_CALL", "1").spawn().exit()
}

fn page(flags: &[&str]) -> String {
    let ended = run(flags);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{flags:?}");
    ended.stdout
}

fn report(flags: &[&str]) -> Value {
    serde_json::from_str(&page(&[flags, &["--json"]].concat())).expect("JSON")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Text parameters in millions, all and without embeddings; KV bytes a token, sliding and global (spec/gemma4.md, 1.2).
const SIZES: [(&str, u64, u64, u64, u64); 5] = [
    ("e2b", 4_629, 1_877, 12_288, 6_144),
    ("e4b", 7_463, 3_973, 40_960, 16_384),
    ("12b", 11_907, 10_901, 327_680, 16_384),
    ("26b-a4b", 25_233, 24_495, 204_800, 20_480),
    ("31b", 30_697, 29_288, 819_200, 81_920),
];

#[test]
fn the_numbers_of_each_size_are_the_specifications_and_add_up() {
    for (name, parameters, without, sliding, global) in SIZES {
        let report = report(&["--synthetic", name]);
        let model = &report["model"];
        assert_eq!(model["size"], name);
        let millions = |value: &Value| (number(value) + 500_000) / 1_000_000;
        assert_eq!(
            (millions(&model["parameters"]), millions(&model["parameters_without_embeddings"])),
            (parameters, without)
        );
        assert_eq!(report["kv"], json!({"sliding_token_bytes": sliding, "global_token_bytes": global}));
        assert_eq!((&model["eos_ids"], &model["own_head"]), (&json!([1, 106, 50]), &json!(false)));
        assert_eq!(number(&report["weights"]["device_bytes"]), 2 * number(&model["parameters"]), "{name}: bf16");
        let plans = report["plans"].as_array().unwrap();
        let asked: Vec<(u64, u64)> = plans.iter().map(|p| (number(&p["context"]), number(&p["slots"]))).collect();
        let slots = [1, 2, 4, 8, 16, 32, 64];
        assert_eq!(asked, [8192, 131_072].iter().flat_map(|&c| slots.map(|s| (c, s))).collect::<Vec<_>>());
        for plan in plans {
            let part = |key: &str| number(&plan[key]);
            let parts = ["weight_bytes", "kv_sliding_bytes", "kv_global_bytes", "other_bytes"].map(part);
            assert_eq!(parts.iter().sum::<u64>(), part("total_bytes"));
            let ring = if name.starts_with('e') { 528 } else { 1040 };
            assert_eq!(parts[1], part("slots") * ring * sliding, "{name}: a ring a slot");
            assert_eq!(parts[2], part("slots") * part("context") * global, "{name}");
        }
        let lines: u64 = report["plan_lines"].as_array().unwrap().iter().map(|line| number(&line["bytes"])).sum();
        assert_eq!(lines, number(&plans[slots.len() - 1]["total_bytes"]));
    }
}

#[test]
fn a_table_on_the_host_is_not_among_the_devices_bytes() {
    let [device, host] = ["device", "host"].map(|place| report(&["--synthetic", "e2b", "--per-layer-table", place]));
    let table = number(&device["weights"]["per_layer_table_bytes"]);
    let bytes = |report: &Value| number(&report["weights"]["device_bytes"]);
    assert_eq!((table, host["weights"]["per_layer_table"].as_str()), (262_144 * 35 * 256 * 2, Some("host")));
    assert_eq!(bytes(&device) - bytes(&host), table);
    let total = |report: &Value| number(&report["plans"][0]["total_bytes"]);
    assert_eq!(total(&device) - total(&host), table);
}

/// The largest that is said to fit does, the next does not, and what is said to be missing is what is missing.
#[test]
fn what_fits_on_a_card_is_the_edge_of_the_memory_plan() {
    for (name, ..) in SIZES {
        let report = report(&["--synthetic", name, "--memory", "10GiB", "--memory", "24GB", "--memory", "141GB"]);
        let variant = Variant::from_str(name, false).unwrap();
        let config = Checkpoint::synthetic(&SyntheticModel { variant, layers: None }).unwrap().config;
        let plan = |(context, slots): (u64, u64), bytes| {
            let max_context = Some(context as usize);
            let options = PlanOptions { max_running: slots as usize, max_context, ..PlanOptions::default() };
            MemoryPlan::resolve(&config, &options, false, bytes)
        };
        let plans = |asked, bytes| plan(asked, bytes).is_ok();
        let holds = |context, slots, bytes| {
            plan((context, slots), bytes).is_ok_and(|plan| plan.full_sequences() as u64 >= slots)
        };
        let cards = report["cards"].as_array().unwrap();
        let memory: Vec<u64> = cards.iter().map(|card| number(&card["memory_bytes"])).collect();
        assert_eq!(memory, [10 << 30, 24 * GB, 141 * GB]);
        for (card, bytes) in cards.iter().zip(memory) {
            let fits = |key: &str| card[key].as_array().unwrap().clone();
            for (by, fit) in
                fits("by_slots").iter().map(|f| ("slots", f)).chain(fits("by_context").iter().map(|f| ("context", f)))
            {
                let [context, slots, missing] = ["context", "slots", "missing_bytes"].map(|key| number(&fit[key]));
                let what = format!("{name}, {bytes} bytes: {fit}");
                assert_eq!(missing > 0, context * slots == 0, "{what}");
                if missing > 0 {
                    let asked = (context.max(16), slots.max(1));
                    // A plan of defaults may use nine tenths.
                    let more = |short: u64| bytes + (missing - short) * 10 / 9 + 20;
                    assert!(plans(asked, more(0)) && !plans(asked, more(100)), "{what}");
                    continue;
                }
                assert!(holds(context, slots, bytes), "{what}");
                let (longer, another) = (context + 16, slots + 1);
                match by {
                    "slots" => assert!(longer > config.max_position as u64 || !holds(longer, slots, bytes), "{what}"),
                    _ => assert!(another > 128 || !holds(context, another, bytes), "{what}"),
                }
            }
        }
    }
}

#[test]
fn the_page_says_what_would_be_loaded() {
    let embedded = page(&[]);
    for line in
        ["(embedded)\n", "  layers                6: 4 sliding (window 64), 2 global\n", "embedded tiny", "4096 tokens"]
    {
        assert!(embedded.contains(line), "{line:?} is not in\n{embedded}");
    }
    let folder = Folder::changed("ple", |tensors| {
        for (name, bytes) in
            [("model.vision_tower.a", 10), ("model.vision_tower.b.input_max", 4), ("model.embed_audio.x", 6)]
        {
            tensors.push(Tensor::zeros(name, "U8", &[bytes]));
        }
        tensors.push(Tensor::zeros("model.language_model.layers.0.mlp.up_proj.input_max", "F32", &[1]));
    });
    let page = page(&["--model", &folder.path().display().to_string(), "--max-context", "512", "--max-running", "3"]);
    for words in [
        "other than the published ones",
        "8: 5 sliding (window 16), 3 global; the last 3 read another's K and V\n",
        "32 wide, 262.1 kB in all, looked up by row on the device\n",
        "512          3         96", // context, slots, and pages of 16
        "model.safetensors",
    ] {
        assert!(page.contains(words), "{words:?} is not in\n{page}");
    }
    let left_out: Vec<String> = page
        .lines()
        .skip_while(|line| *line != "left out")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let mut left_out: Vec<&str> = left_out.iter().map(String::as_str).collect();
    left_out.sort_unstable();
    assert_eq!(
        left_out,
        [
            "input_min to v_cache_scale 1 tensors 4 B ranges of quantisation-aware training",
            "k_proj, v_proj, k_norm 9 tensors 264.2 kB of layers that read another's K and V",
            "model.embed_audio 1 tensors 6 B another modality",
            "model.vision_tower 2 tensors 14 B another modality",
        ]
    );
    assert!(page.lines().all(|line| line.trim_end() == line), "no line ends in a blank");
}

#[test]
fn shards_are_listed_and_a_published_shape_is_known_by_its_config() {
    let folder = Folder::sharded("dense", 40);
    let files = report(&["--model", &folder.path().display().to_string()])["files"].clone();
    for (file, (name, tensors)) in files.as_array().unwrap().iter().zip(SHARDS.into_iter().zip([40, 45])) {
        let bytes = folder.read(name).len();
        assert_eq!(*file, json!({"path": name, "tensors": tensors, "bytes": bytes}));
    }
    let cut = report(&["--synthetic", "12b", "--synthetic-layers", "6"]);
    assert_eq!((&cut["model"]["size"], &cut["files"]), (&Value::Null, &json!([])));
}

#[test]
fn a_refusal_is_exit_code_2_and_one_line() {
    let damaged = Folder::of("dense");
    damaged.edit(CONFIG, |config| config["text_config"]["hidden_size"] = json!(72));
    let damaged = damaged.path().display().to_string();
    let dense = reference("dense").display().to_string();
    for (flags, words) in [
        (&["--model", damaged.as_str()][..], "embed_tokens.weight has shape [512, 64], config.json says [512, 72]"),
        (&["--model", "no/such/folder"], "--model no/such/folder: "),
        (&["--model", &dense, "--max-context", "1025"], "--max-context is 1025: expected 1 to 1024"),
        (&["--synthetic", "12b", "--synthetic-layers", "49"], "--synthetic-layers 49: 12b has 1 to 48"),
    ] {
        let ended = run(flags);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{flags:?}");
        assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains(words), "{flags:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{flags:?}: {}", ended.stderr);
    }
    for flags in [&["--memory", "24"][..], &["--max-running", "129"], &["--prefill-chunk", "0"], &["--port", "1"]] {
        let ended = run(flags);
        assert!(ended.code == Some(2) && ended.stderr.contains(flags[0]), "{flags:?}: {}", ended.stderr);
    }
}
