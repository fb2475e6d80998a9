//! The end of a process whose device, driver or log does not let go of it: it ends all the same, with the code that
//! says why.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::process::{Setup, reference, request};

const BODY: &str = r#"{"prompt":"x","max_tokens":40,"ignore_eos":true}"#;

fn small() -> Setup {
    Setup::serve(&["--max-running", "2", "--prefill-chunk", "16"]).model(&reference("dense"))
}

#[test]
fn a_driver_whose_exit_handlers_wait_does_not_keep_a_failed_server() {
    // Reliability row 28: what libcuda does at exit behind a kernel that never ends is not ours to wait for.
    let server = small().soft("EXIT_WAITS", "1").soft("ARMED_FAIL_CALL", "40").start();
    let answer = request(server.address, "POST", "/v1/completions", BODY).expect("an answer");
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert_eq!(server.exit().code, Some(1));
}

#[test]
fn a_device_that_hangs_while_loading_ends_the_process() {
    let flags = ["--max-running", "2", "--load-timeout", "1", "--log", "off"];
    let setup = Setup::serve(&flags).model(&reference("dense"));
    let ended = setup.soft("EXIT_WAITS", "1").soft("STALL", "1").bound().exit();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("no progress for 1 s (--load-timeout)"), "{}", ended.stderr);
}

#[test]
fn a_log_that_nobody_reads_does_not_keep_a_server_that_cannot_start() {
    // Reliability row 53, of the start.
    let (_unread, mut writer) = std::io::pipe().expect("a pipe");
    let flags = rustix::fs::fcntl_getfl(&writer).expect("flags");
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).expect("flags");
    while writer.write(&[b'.'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).expect("flags");
    assert_eq!(small().soft("MEMORY_BYTES", "1M").exit_unread(Stdio::from(writer)), Some(2));
}

#[test]
fn what_fails_at_the_start_has_the_code_of_its_kind() {
    let server = small().start();
    // Among the buffers, and the first launches.
    let late = [2, 3].map(|quarters| server.soft("calls") * quarters / 4);
    drop(server);
    for (plan, code, words) in [
        // While kernels are loaded: not a kernel that is missing.
        ("60:719".to_owned(), 1, &["CUDA_ERROR_LAUNCH_FAILED"][..]),
        // No memory left for what the plan says fits, at a buffer: a matter of flags, with the numbers.
        (format!("{}:2", late[0]), 2, &["no memory left", "the plan needs", "--kv-pages", "--max-context"]),
        (format!("{}:2", late[1]), 2, &["no memory left", "the plan needs", "--kv-pages", "--max-context"]),
        (format!("{}:719", late[1]), 1, &["CUDA_ERROR_LAUNCH_FAILED"]),
    ] {
        let ended = small().soft("FAIL_CALL", &plan).bound().exit();
        assert_eq!(ended.code, Some(code), "{plan}: {}", ended.stderr);
        assert!(words.iter().all(|word| ended.stderr.contains(word)), "{plan}: {}", ended.stderr);
    }
}

#[test]
fn a_driver_that_fails_is_no_machine_without_a_gpu() {
    for (init, device, code, words) in [
        (999, "auto", 2, "a CUDA driver is here and does not work (cuInit returned 999)"),
        (999, "cuda:0", 2, "does not work (cuInit returned 999)"),
        (34, "cuda:0", 2, "no CUDA driver with a device was found (cuInit returned 34)"),
        (100, "cuda:0", 2, "no CUDA driver with a device was found (cuInit returned 100)"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (source, library) = (folder.path().join("cuda.c"), folder.path().join("libcuda.so.1"));
        let code_of = format!("int cuInit(unsigned flags) {{ return flags ? 1 : {init}; }}\n");
        fs::write(&source, code_of + "int cuDeviceGetCount(int* n) { return *n = 0; }\n").unwrap();
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
        assert!(built.expect("the compiler that builds the server").success());
        let setup = Setup::bare(&["--host", "127.0.0.1", "--port", "0", "--device", device]).model(&reference("dense"));
        let ended = setup.env("LD_LIBRARY_PATH", folder.path()).spawn().exit();
        assert_eq!(ended.code, Some(code), "{device}: {}", ended.stderr);
        assert!(ended.stderr.contains(words), "{device}: {}", ended.stderr);
    }
}
