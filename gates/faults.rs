//! Gate: a failing driver call ends every request with one error, turns readiness off and the process with exit code 1.
//!
//! A recorded run counts the driver calls from the end of start-up to the end of a short scenario. Then a fresh
//! process a call: the n-th fails. Each client must hold a whole answer or exactly one error, nobody may find the
//! server ready afterwards, the exit code is 1, and the device must see no call after the failing one (it reports
//! them on stderr). The same for kernels whose failure sticks to the context, and for calls during the start, where
//! the server must never become ready. A subset by default; every call while serving with `--full`, and more of the
//! rest.

mod common;
#[path = "../tests/support/process.rs"]
mod process;

use std::net::SocketAddr;

use common::Gate;
use process::{RawReply, Setup, reference, request, wait};
use serde_json::{Value, json};

/// How many of the recorded run's calls fail, spread over it with the first and the last: in the subset and with
/// `--full`.
struct Size {
    calls: u64,
    kernels: u64,
    start_calls: u64,
    start_kernels: u64,
}
const SUBSET: Size = Size { calls: 14, kernels: 4, start_calls: 8, start_kernels: 3 };
const FULL: Size = Size { calls: u64::MAX, kernels: 64, start_calls: 128, start_kernels: 32 };

/// CUDA_ERROR_INVALID_CONTEXT: never a code that a loop might take for "not yet".
const CODE: &str = "201";

fn main() {
    let mut gate = Gate::start("faults");
    let recorded = record(&mut gate);
    let size = if gate.full { FULL } else { SUBSET };
    for n in spread(recorded.calls, size.calls) {
        let verdict = serving("ARMED_FAIL_CALL", &format!("{n}:{CODE}"));
        gate.fact(verdict.is_ok(), &format!("call {n} of {} fails while serving: {}", recorded.calls, text(verdict)));
    }
    for n in spread(recorded.kernels, size.kernels) {
        let verdict = serving("ARMED_FAIL_LAUNCH", &n.to_string());
        gate.fact(verdict.is_ok(), &format!("kernel {n} of {} fails for good: {}", recorded.kernels, text(verdict)));
    }
    for n in spread(recorded.start_calls, size.start_calls) {
        let verdict = starting("FAIL_CALL", &format!("{n}:{CODE}"));
        gate.fact(verdict.is_ok(), &format!("call {n} of {} fails at start: {}", recorded.start_calls, text(verdict)));
    }
    for n in spread(recorded.start_kernels, size.start_kernels) {
        let verdict = starting("FAIL_LAUNCH", &n.to_string());
        let of = recorded.start_kernels;
        gate.fact(verdict.is_ok(), &format!("kernel {n} of {of} fails for good at start: {}", text(verdict)));
    }
    gate.finish();
}

/// `count` numbers of `1..=last` at most, the first and the last among them.
fn spread(last: u64, count: u64) -> Vec<u64> {
    let count = count.min(last);
    let mut all: Vec<u64> = (0..count).map(|i| 1 + i * (last - 1) / (count - 1).max(1)).collect();
    all.dedup();
    all
}

fn text(verdict: Result<String, String>) -> String {
    verdict.unwrap_or_else(|wrong| wrong)
}

/// What a run without faults does.
struct Recorded {
    start_calls: u64,
    start_kernels: u64,
    calls: u64,
    kernels: u64,
}

fn setup() -> Setup {
    Setup::serve(&["--max-running", "4", "--prefill-chunk", "16"]).model(&reference("dense"))
}

fn record(gate: &mut Gate) -> Recorded {
    let server = setup().start();
    let idle = || server.metric("gemma4_requests_running") == 0 && server.soft("calls") > 0;
    wait("the gauges of idleness", idle);
    let (start_calls, start_kernels) = (server.soft("calls"), server.soft("kernels_run"));
    let answers = scenario(server.address);
    wait("idle", idle);
    let recorded = Recorded {
        start_calls,
        start_kernels,
        calls: server.soft("calls") - start_calls,
        kernels: server.soft("kernels_run") - start_kernels,
    };
    let whole = answers.iter().filter(|a| judge(a) == Ok(Answer::Whole)).count();
    gate.fact(whole == answers.len(), &format!("without a fault {whole} of {} requests finish", answers.len()));
    let failed = server.soft("calls_failed");
    gate.fact(failed == 0 && recorded.calls > 50, &format!("{} calls while serving, {failed} failed", recorded.calls));
    recorded
}

/// The log names the user of each request that was accepted.
const USERS: [&str; 3] = ["alpha", "beta", "gamma"];

/// Three requests together, streamed and not, longer than a chunk and a page; each on a thread of its own.
fn scenario(address: SocketAddr) -> Vec<std::io::Result<RawReply>> {
    let prompt: Vec<u32> = (0..20).map(|i| 3 + i * 7).collect();
    let body = |user: &str, prompt: Value, stream: bool, max_tokens: u32| {
        json!({"user": user, "prompt": prompt, "max_tokens": max_tokens, "stream": stream, "ignore_eos": true})
            .to_string()
    };
    let bodies = [
        body(USERS[0], json!(prompt), true, 6),
        body(USERS[1], json!("the"), false, 5),
        body(USERS[2], json!(["a", "b"]), true, 3),
    ];
    let clients = bodies.map(|body| std::thread::spawn(move || request(address, "POST", "/v1/completions", &body)));
    clients.into_iter().map(|client| client.join().expect("a client")).collect()
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Whole,
    OneError,
    /// The process ended before it accepted the request.
    Nobody,
}

/// What a client holds; an error when it is neither a whole answer nor exactly one error.
fn judge(reply: &std::io::Result<RawReply>) -> Result<Answer, String> {
    let Ok(reply) = reply else { return Ok(Answer::Nobody) };
    let events = reply.events();
    let done = events.last() == Some(&"[DONE]");
    let errors = reply.text.matches("\"error\":{").count();
    match (reply.status, errors) {
        (200, 0) if done || (events.is_empty() && reply.text.contains("\"finish_reason\":\"")) => Ok(Answer::Whole),
        (200, 1) if !done && events.last().is_some_and(|e| e.contains("\"error\":{")) => Ok(Answer::OneError),
        (503, 1) if events.is_empty() && reply.text.contains("engine_failed") => Ok(Answer::OneError),
        _ => Err(format!("{} with {errors} errors, done {done}: {}", reply.status, reply.text)),
    }
}

/// One process with a fault planned for after its start; the facts in a few words.
fn serving(fault: &str, plan: &str) -> Result<String, String> {
    let server = setup().soft(fault, plan).start();
    let replies = scenario(server.address);
    let mut answers = replies.iter().map(judge).collect::<Result<Vec<_>, _>>()?;
    // Batches differ from run to run: where this one needed fewer calls, further requests reach the fault.
    for _ in 0..40 {
        if answers.contains(&Answer::OneError) {
            break;
        }
        let more =
            request(server.address, "POST", "/v1/completions", r#"{"prompt":"x","max_tokens":2,"ignore_eos":true}"#);
        answers.push(judge(&more)?);
    }
    // From the first error on nobody finds it ready, however long the process still answers.
    let mut first_status = None;
    while let Some(status) = server.ready() {
        if status != 503 {
            return Err(format!("ready is {status} after {answers:?}"));
        }
        first_status = Some(status);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let ended = server.exit();
    if ended.code != Some(1) {
        return Err(format!("exit code {:?}, {answers:?}: {}", ended.code, ended.stderr));
    }
    for (user, answer) in USERS.iter().zip(&answers) {
        if *answer == Answer::Nobody && ended.stderr.contains(&format!("user=Some(\"{user}\")")) {
            return Err(format!("{user} was accepted and got nothing: {answers:?}"));
        }
    }
    let later: Vec<_> = ended.stderr.lines().filter(|line| line.contains("called after a call had failed")).collect();
    if !later.is_empty() {
        return Err(format!("{} driver calls after the failing one: {later:?}", later.len()));
    }
    let count = |kind| answers.iter().filter(|answer| **answer == kind).count();
    let (whole, errors) = (count(Answer::Whole), count(Answer::OneError));
    let status = first_status.ok_or("nobody answered the probe after the failure")?;
    if errors == 0 {
        return Err(format!("the fault was never met: {answers:?}"));
    }
    Ok(format!("{whole} whole, {errors} errors, ready {status}, exit 1"))
}

/// One process with a fault planned for its start: it must end, with exit code 1, and never be ready.
fn starting(fault: &str, plan: &str) -> Result<String, String> {
    let server = setup().soft(fault, plan).bound();
    while server.process.alive() {
        if server.ready() == Some(200) {
            return Err("it became ready".into());
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let ended = server.exit();
    let said = ended.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or("no reason on stderr");
    match ended.code {
        Some(1) if said.starts_with("error: ") => Ok(format!("exit 1, {said}")),
        code => Err(format!("exit code {code:?}, {said}")),
    }
}
