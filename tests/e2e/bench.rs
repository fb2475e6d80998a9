//! `gemma4-serve bench` as people run it, small: what its JSON holds, and that a failing step fails it. No time is
//! asserted.

use std::fs;
use std::path::Path;

use crate::process::{Ended, Setup, reference};
use gemma4_serve::model::safetensors::read_header;
use serde_json::Value;

fn bench(flags: &[&str], model: Option<&Path>) -> Ended {
    let setup =
        Setup::bare(&[&["bench", "--device", "soft", "--copy-mib", "1", "--prefill-chunk", "16"], flags].concat());
    let setup = match model {
        Some(folder) => setup.model(folder),
        None => setup,
    };
    setup.spawn().exit()
}

/// A bench of the compiled-in model, with the prefill chunk that it has by default, and its JSON.
fn with_the_defaults(flags: &[&str], json: &Path) -> Setup {
    let json = json.to_str().expect("a path in UTF-8");
    Setup::bare(&[&["bench", "--device", "soft", "--copy-mib", "1", "--json", json], flags].concat())
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().unwrap_or_else(|| panic!("{field} of {value}"))
}

fn positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|v| v > 0.0 && v.is_finite())
}

/// A median within its range.
fn spread(value: &Value) -> bool {
    let [median, min, max] = ["median", "min", "max"].map(|field| value[field].as_f64().unwrap_or(-1.0));
    0.0 < min && min <= median && median <= max
}

#[test]
fn the_json_holds_every_round_of_every_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("bench.json");
    let ended = bench(
        &[
            "--measure",
            "decode,prompt,switches",
            "--rows",
            "1,3",
            "--contexts",
            "10,100",
            "--prompts",
            "7,40",
            "--switch-rows",
            "2",
            "--steps",
            "4",
            "--rounds",
            "2",
            "--json",
            json.to_str().unwrap(),
        ],
        None,
    );
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();

    assert_eq!((report["model"]["name"].as_str(), report["device"]["kind"].as_str()), (Some("tiny"), Some("soft")));
    assert_eq!(report["model"]["layers"], 6);
    assert_eq!(report["copies"]["bytes"], 1 << 20);
    assert!(list(&report["copies"], "rounds_ms").len() == 2 && spread(&report["copies"]["bytes_per_second"]));

    let prompts = list(&report, "prompt");
    assert_eq!(prompts.iter().map(|p| p["tokens"].as_u64().unwrap()).collect::<Vec<_>>(), [7, 40]);
    for point in prompts {
        let rounds = list(point, "rounds");
        assert!(rounds.len() == 2 && rounds.iter().all(|r| positive(&r["device_ms"])), "{point}");
        assert!(spread(&point["first_token_ms"]) && spread(&point["tokens_per_second"]), "{point}");
    }

    let decode = list(&report, "decode");
    let places: Vec<_> = decode.iter().map(|p| (p["context"].as_u64().unwrap(), p["rows"].as_u64().unwrap())).collect();
    assert_eq!(places, [(10, 1), (10, 3), (100, 1), (100, 3)]);
    for (point, (context, rows)) in decode.iter().zip(places) {
        let rounds = list(point, "rounds");
        assert!(rounds.len() == 2 && rounds.iter().all(|r| list(r, "step_ms").len() == 4), "{point}");
        assert!(spread(&point["step_ms"]) && spread(&point["wall_step_ms"]) && point["left_out"].is_null(), "{point}");
        // The middle step sees the context, three unmeasured steps, two measured ones and itself. Four sliding layers
        // of one head of 256 with a window of 64, two global layers of one head of 512; K and V, two bytes each.
        let keys = context + 3 + 2 + 1;
        let (sliding, global) = (4 * 256 * 4, 2 * 512 * 4);
        assert_eq!(point["bytes"]["kv_read"], rows * (sliding * keys.min(64) + global * keys));
        assert_eq!(point["bytes"]["kv_written"], rows * (sliding + global));
        assert_eq!(point["bytes"]["weights"], report["model"]["parameters"].as_u64().unwrap() * 2);
        assert!(["tokens_per_second", "bytes_per_second", "share_of_copy"].iter().all(|f| positive(&point[*f])));
    }

    let switches = list(&report, "switches");
    let names: Vec<_> = switches.iter().map(|p| p["variant"].as_str().unwrap()).collect();
    assert_eq!(names, ["defaults", "no pipeline", "no fingerprint", "no graphs"]);
    for point in switches {
        let rounds = list(point, "rounds");
        assert!(rounds.len() == 2 && rounds.iter().all(|r| list(r, "host_step_ms").len() == 4), "{point}");
        let sum = |field: &str| rounds.iter().map(|r| r[field].as_u64().unwrap()).collect::<Vec<_>>();
        let (uploads, graphs, kernels) = (sum("h2d_copies"), sum("graph_launches"), sum("kernel_launches"));
        match point["variant"].as_str().unwrap() {
            // The row index before each step.
            "no fingerprint" => assert_eq!((uploads, graphs, kernels), (vec![4, 4], vec![8, 8], vec![0, 0])),
            "no graphs" => assert!(uploads == [0, 0] && graphs == [0, 0] && kernels[0] > 4 * 50, "{point}"),
            _ => assert_eq!((uploads, graphs, kernels), (vec![0, 0], vec![8, 8], vec![0, 0])),
        }
    }
    for words in ["copy of 1 MiB", "prompt of     40 tokens", "context", "engine, no pipeline"] {
        assert!(ended.stdout.contains(words), "{words:?} is not in: {}", ended.stdout);
    }
}

/// The dense reference with a bf16 NaN in a matrix, which no start looks into: every row is NaN from then on.
fn with_nan() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json", "tokenizer.json"] {
        fs::copy(reference("dense").join(name), folder.path().join(name)).unwrap();
    }
    let mut weights = fs::read(reference("dense").join("model.safetensors")).unwrap();
    let infos = read_header(&weights).unwrap();
    let down = infos.iter().find(|info| info.name.ends_with("layers.0.mlp.down_proj.weight")).unwrap();
    weights[down.bytes.start..down.bytes.start + 2].copy_from_slice(&[0xc0, 0x7f]);
    fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    folder
}

#[test]
fn a_row_without_a_token_fails_the_bench() {
    let folder = with_nan();
    for (measure, words) in [
        ("decode", &["decode, 2 rows, context 8, row 0", "-2"][..]),
        ("prompt", &["prompt of 8 tokens, row 0", "-2"]),
        ("switches", &["defaults, 2 rows", "not a number"]),
    ] {
        let flags = ["--measure", measure, "--rows", "2", "--contexts", "8", "--prompts", "8", "--switch-rows", "2"];
        let ended = bench(&[&flags[..], &["--rounds", "1", "--steps", "2"]].concat(), Some(folder.path()));
        assert_eq!(ended.code, Some(1), "{measure}: {}", ended.stderr);
        for word in words {
            assert!(ended.stderr.contains(word), "{measure}: {word:?} is not in: {}", ended.stderr);
        }
    }
}

#[test]
fn what_cannot_be_measured_is_refused_by_its_flag() {
    for (flags, words) in [
        (&["--rows", "0"][..], &["--rows", "1 to 128"][..]),
        (&["--contexts", "4096"], &["--contexts 4096", "4096 positions"]),
        (&["--measure", "speed"], &["--measure", "decode"]),
        (&["--synthetic", "e2b", "--synthetic-layers", "36"], &["--synthetic-layers 36", "e2b has 1 to 35"]),
        (&["--synthetic", "12b", "--synthetic-layers", "49"], &["--synthetic-layers 49", "12b has 1 to 48"]),
        (&["--synthetic", "7b"], &["--synthetic", "26b-a4b"]),
        (&["--synthetic-layers", "2"], &["--synthetic"]),
    ] {
        let ended = bench(flags, None);
        assert_eq!(ended.code, Some(2), "{flags:?}: {}", ended.stderr);
        for word in words {
            assert!(ended.stderr.contains(word), "{flags:?}: {word:?} is not in: {}", ended.stderr);
        }
    }
}

#[test]
fn rows_whose_pages_do_not_fit_are_left_out_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("bench.json");
    let flags = ["--measure", "decode", "--rows", "1,64", "--contexts", "64,900", "--steps", "2", "--rounds", "1"];
    let setup = with_the_defaults(&flags, &json);
    let ended = setup.soft("MEMORY_BYTES", "100M").spawn().exit();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let left_out: Vec<_> = list(&report, "decode").iter().map(|point| point["left_out"].is_string()).collect();
    assert_eq!(left_out, [false, false, false, true], "{}", ended.stdout);
    assert!(ended.stdout.contains("left out: it needs"), "{}", ended.stdout);
    assert!(ended.stdout.contains("numbers: 3 of 4 decode configurations, 0 prompts"), "{}", ended.stdout);
    // With none left there is nothing to report.
    let flags = ["--measure", "decode", "--rows", "64", "--contexts", "900", "--steps", "2", "--rounds", "1"];
    let ended = with_the_defaults(&flags, &json).soft("MEMORY_BYTES", "100M").spawn().exit();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("no decode configuration fits: of 64 rows and 900 tokens, it needs"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_bench_that_fails_leaves_the_rounds_before() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("bench.json");
    let flags = ["--measure", "decode", "--rows", "1", "--contexts", "8", "--steps", "2", "--rounds", "1000"];
    let setup = with_the_defaults(&flags, &json);
    let ended = setup.soft("FAIL_CALL", "3000").spawn().exit();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let point = &list(&report, "decode")[0];
    let rounds = list(point, "rounds").len();
    assert!((1..1000).contains(&rounds) && spread(&point["step_ms"]), "{rounds} rounds: {point}");
}
