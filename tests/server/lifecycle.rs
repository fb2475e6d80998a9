//! Loading, readiness, drain, second signal, death of the engine: what probes and clients see, and the exit code.

use std::time::{Duration, Instant};

use crate::support::{Client, Command, Server, Setup, Stream, ids, model};
use gemma4_serve::request::Failure;
use gemma4_serve::server::Exit;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const DRAIN: [&str; 2] = ["--drain-delay=0.3", "--drain-timeout=40"];

async fn server(flags: &[&'static str]) -> Server {
    Setup::flags(flags).start(|_| ids(&"abc".repeat(10))).await
}

fn streaming() -> Value {
    json!({"prompt": "x", "max_tokens": 100, "stream": true, "stream_options": {"include_usage": true}})
}

/// A stream whose first chunk has come, the engine held before the next token.
async fn begun(server: &Server) -> Stream {
    server.engine.send(Command::Step(1));
    let mut stream = server.client.open(streaming()).await;
    assert!(stream.chunk().await.is_some());
    stream
}

/// Readiness: status and reason.
async fn ready(client: Client) -> (u16, Option<String>) {
    let reply = client.get("/health/ready").await;
    (reply.status, reply.json()["reason"].as_str().map(str::to_owned))
}

async fn until_ready_says(server: &Server, reason: &str) {
    let start = Instant::now();
    while ready(server.client).await != (503, Some(reason.to_owned())) {
        assert!(start.elapsed() < Duration::from_secs(30), "readiness never said {reason}");
    }
}

fn spawn_complete(client: Client) -> JoinHandle<crate::support::Reply> {
    tokio::spawn(async move { client.complete(json!({"prompt": "x"})).await })
}

#[tokio::test]
async fn while_loading_live_is_200_ready_503_and_requests_503_with_retry_after() {
    // Reliability row 44.
    let server = Setup { loading: true, ..Setup::default() }.start(|_| ids("a")).await;
    assert_eq!(server.client.get("/health/live").await.status, 200);
    assert_eq!(ready(server.client).await, (503, Some("loading".into())));
    let probe = server.client.get("/health").await;
    assert_eq!(
        (probe.json()["status"].as_str(), probe.json()["error"]["code"].as_str()),
        (Some("unavailable"), Some("loading"))
    );
    for reply in [server.client.complete(json!({"prompt": "x"})).await, server.client.get("/v1/models").await] {
        assert_eq!((reply.status, reply.error_code().as_str()), (503, "loading"));
        assert_eq!(reply.header("retry-after"), Some("5"));
    }
    server.load(model(64, 64)).await;
    assert_eq!(ready(server.client).await, (200, None));
    assert_eq!(server.client.get("/health").await.status, 200, "an alias of ready");
    assert_eq!(server.client.complete(json!({"prompt": "x"})).await.status, 200);
    let models = server.client.get("/v1/models").await.json();
    assert_eq!((models["object"].as_str(), models["data"][0]["id"].as_str()), (Some("list"), Some("m")));
}

#[tokio::test]
async fn a_signal_while_loading_exits_0_at_once() {
    let server = Setup { loading: true, ..Setup::flags(&["--drain-delay", "60"]) }.start(|_| ids("a")).await;
    server.signal().await;
    assert_eq!(server.exit().await, Exit::Drained);
}

#[tokio::test]
async fn a_drain_accepts_for_its_delay_then_refuses_and_lets_streams_finish() {
    // B91, reliability row 46.
    let server = server(&DRAIN).await;
    let mut streams = vec![begun(&server).await];
    server.engine.send(Command::Step(0));
    let client = server.client;
    for _ in 0..2 {
        let mut other = tokio::spawn(async move { client.open(streaming()).await });
        server.engine.send(Command::Step(1));
        streams.push((&mut other).await.unwrap());
    }
    server.signal().await;
    until_ready_says(&server, "draining").await;
    assert_eq!(client.get("/health/live").await.status, 200);
    // Still accepted: balancers lag behind the probe.
    let late = spawn_complete(client);
    server.until("a request of the delay is accepted", || server.app.in_flight() == 4).await;
    server.until("the delay is over", || server.app.accepting().is_err()).await;
    let refused = client.complete(json!({"prompt": "x"})).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "draining"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refused.header("connection"), Some("close"));
    assert_eq!(client.get("/health/live").await.status, 200, "alive until the end");
    // What is in flight goes on to its own end.
    server.engine.send(Command::Free);
    for mut stream in streams {
        let rest = stream.rest().await;
        assert_eq!(rest.last().map(String::as_str), Some("[DONE]"));
        let usage: Value = serde_json::from_str(&rest[rest.len() - 2]).unwrap();
        assert_eq!(usage["usage"]["completion_tokens"], 31, "the whole answer");
    }
    assert_eq!(late.await.unwrap().status, 200);
    let start = Instant::now();
    assert_eq!(server.exit().await, Exit::Drained);
    assert!(start.elapsed() < Duration::from_secs(20), "exits when the last has ended, not at the limit");
    assert!(tokio::net::TcpStream::connect(client.address).await.is_err(), "the socket is closed");
}

#[tokio::test]
async fn what_outlasts_the_drain_timeout_gets_one_error() {
    let server = server(&["--drain-delay=0", "--drain-timeout=0.3"]).await;
    let mut stream = begun(&server).await;
    let gathered = spawn_complete(server.client);
    server.until("both run", || server.engine.running() == 2).await;
    server.signal().await;
    let rest = stream.rest().await;
    assert_eq!(rest.len(), 1, "one terminal and no [DONE]: {rest:?}");
    let error: Value = serde_json::from_str(&rest[0]).unwrap();
    assert_eq!(
        (error["error"]["code"].as_str(), error["error"]["type"].as_str()),
        (Some("drain_timeout"), Some("unavailable_error"))
    );
    let reply = gathered.await.unwrap();
    assert_eq!((reply.status, reply.error_code().as_str()), (503, "drain_timeout"));
    assert_eq!(server.exit().await, Exit::Drained);
}

#[tokio::test]
async fn a_stuck_engine_does_not_keep_the_drain_from_ending() {
    let server = server(&["--drain-delay=0", "--drain-timeout=0.1", "--step-timeout=6"]).await;
    let mut stream = begun(&server).await;
    let _stall = server.engine.stall();
    server.signal().await;
    let rest = stream.rest().await;
    assert!(rest.len() == 1 && rest[0].contains("drain_timeout"), "{rest:?}");
    assert_eq!(server.exit().await, Exit::Failed);
}

#[tokio::test]
async fn a_second_signal_does_not_wait() {
    // Reliability row 47; in the delay and in the wait for streams.
    for pause in [0, 400] {
        let server = server(&["--drain-delay=0.2", "--drain-timeout=60"]).await;
        let mut stream = begun(&server).await;
        server.signal().await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let start = Instant::now();
        server.signal().await;
        let rest = stream.rest().await;
        assert!(rest.len() == 1 && rest[0].contains("drain_timeout"), "still one terminal: {rest:?}");
        assert_eq!(server.exit().await, Exit::Drained);
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn an_idle_server_drains_and_idle_connections_do_not_hold_it() {
    let server = server(&["--drain-delay=0"]).await;
    let _silent = server.client.connect().await;
    server.signal().await;
    let start = Instant::now();
    assert_eq!(server.exit().await, Exit::Drained);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_dying_engine_ends_every_request_once_and_the_process_with_1() {
    // Reliability rows 26 and 50.
    for panics in [false, true] {
        let server = server(&[]).await;
        let mut stream = begun(&server).await;
        let gathered = spawn_complete(server.client);
        server.until("both run", || server.engine.running() == 2).await;
        server.engine.send(if panics {
            Command::Panic
        } else {
            Command::Die("CUDA_ERROR_ECC_UNCORRECTABLE in launch")
        });
        let rest = stream.rest().await;
        assert_eq!(rest.len(), 1, "an error event and no [DONE]: {rest:?}");
        let error: Value = serde_json::from_str(&rest[0]).unwrap();
        assert_eq!(error["error"]["code"], "engine_failed");
        let reply = gathered.await.unwrap();
        assert_eq!((reply.status, reply.error_code().as_str()), (503, "engine_failed"));
        assert_eq!(reply.header("retry-after"), None, "a dead engine does not come back");
        if !panics {
            assert!(reply.text().contains("CUDA_ERROR_ECC_UNCORRECTABLE"), "{}", reply.text());
        }
        assert!(server.app.ready().is_err(), "readiness is off");
        assert_eq!(server.exit().await, Exit::Failed);
    }
}

#[tokio::test]
async fn a_step_that_never_ends_trips_the_watchdog() {
    // Row 28 of the fault table: readiness goes red first, every request ends with an error, the process with 1.
    let server = server(&["--stall-timeout", "0.2", "--step-timeout", "4"]).await;
    let mut stream = begun(&server).await;
    let _stall = server.engine.stall();
    until_ready_says(&server, "engine_stalled").await;
    let rest = stream.rest().await;
    assert_eq!(rest.len(), 1, "an error event and no [DONE]: {rest:?}");
    assert!(rest[0].contains("--step-timeout"), "{rest:?}");
    assert_eq!(server.exit().await, Exit::Failed);
}

#[tokio::test]
async fn with_the_engine_dead_readiness_and_requests_say_so() {
    // B90. The handle is declared dead from outside (the watchdog's way), so that the process is still there to ask.
    let server = server(&[]).await;
    server.app.engine.declare_dead("the watchdog saw no step");
    assert_eq!(ready(server.client).await, (503, Some("engine_failed".into())));
    assert_eq!(server.client.get("/health/live").await.status, 200);
    let reply = server.client.complete(json!({"prompt": "x"})).await;
    assert_eq!((reply.status, reply.error_code().as_str(), reply.header("retry-after")), (503, "engine_failed", None));
}

#[tokio::test]
async fn a_failure_of_one_request_is_its_own() {
    let server = server(&[]).await;
    let mut stream = begun(&server).await;
    server.engine.send(Command::Fail(Failure::NotANumber { output_index: 1 }));
    let rest = stream.rest().await;
    assert!(rest.len() == 1 && rest[0].contains("not_a_number"), "{rest:?}");
    // Before the first byte a stream's failure has a status. The engine counts the first request until its next turn.
    server.until("the first is gone", || server.engine.running() == 0).await;
    let client = server.client;
    let early = tokio::spawn(async move { client.complete(streaming()).await });
    server.until("it runs", || server.engine.running() == 1).await;
    server.engine.send(Command::Fail(Failure::AllMasked { output_index: 0 }));
    let reply = early.await.unwrap();
    assert_eq!((reply.status, reply.error_code().as_str()), (400, "all_masked"));
    server.engine.send(Command::Free);
    assert_eq!(client.complete(json!({"prompt": "x"})).await.status, 200);
    server.until_quiet().await;
}

#[tokio::test]
async fn a_drain_lets_an_answer_be_written_to_the_end() {
    // An answer of a megabyte, most of it not yet the kernel's when the signal comes.
    let setup = Setup { send_buffer_bytes: Some(4096), ..Setup::flags(&["--drain-delay=0", "--drain-timeout=40"]) };
    let server = setup.start(|_| ids("abc")).await;
    server.engine.send(Command::TokensPerStep(1000));
    let mut stream = server.client.open_large().await;
    server.until("all is generated", || server.engine.running() == 0).await;
    server.signal().await;
    until_refused(&server).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(server.app.in_flight(), 1, "it counts until it is written");
    let answer = stream.whole().await;
    assert!(answer.len() > 1 << 20, "{} bytes", answer.len());
    assert_eq!(serde_json::from_slice::<Value>(&answer).unwrap()["usage"]["completion_tokens"], 90_000);
    assert_eq!(server.exit().await, Exit::Drained);
}

async fn until_refused(server: &Server) {
    let start = Instant::now();
    while server.client.complete(json!({"prompt": "x"})).await.status != 503 {
        assert!(start.elapsed() < Duration::from_secs(30), "never refused");
    }
}

#[tokio::test]
async fn a_stalled_engine_turns_readiness_off_and_idleness_does_not() {
    // B90.
    let server = server(&["--stall-timeout", "0.3"]).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(ready(server.client).await, (200, None), "idle is ready");
    let mut stream = begun(&server).await;
    let stall = server.engine.stall();
    until_ready_says(&server, "engine_stalled").await;
    drop(stall);
    server.engine.send(Command::Free);
    assert_eq!(stream.rest().await.last().map(String::as_str), Some("[DONE]"));
    assert_eq!(ready(server.client).await, (200, None), "and back");
}

#[tokio::test]
async fn probes_are_quick_while_the_engine_is_stalled_and_a_megabyte_is_tokenised() {
    // Reliability rows 11 and 45.
    let server = server(&["--stall-timeout", "60"]).await;
    let _stream = begun(&server).await;
    let stall = server.engine.stall();
    let client = server.client;
    // About a second of tokenising; this test's runtime has one thread, which it must not take.
    let long = json!({"prompt": "the and is ".repeat(100_000)});
    let long = tokio::spawn(async move { client.complete(long).await });
    server.until("the long prompt has its place", || server.app.engine.waiting() == 1).await;
    for i in 0..20 {
        assert_eq!(client.get("/health/live").await.status, 200);
        assert_eq!(client.get("/health/ready").await.status, 200);
        assert!(i > 2 || !long.is_finished(), "probes are answered before the tokenising ends");
    }
    // All of them while the engine did not move.
    drop(stall);
    assert_eq!(long.await.unwrap().error_code(), "context_length_exceeded");
}

#[tokio::test]
async fn a_silent_stream_gets_comments() {
    let server = server(&["--stream-keep-alive", "0.1"]).await;
    server.engine.send(Command::Step(0));
    let mut stream = server.client.open(streaming()).await;
    assert_eq!(stream.status, 200);
    for _ in 0..3 {
        assert_eq!(stream.event().await.as_deref(), Some(": keep-alive"));
    }
    server.engine.send(Command::Free);
    assert_eq!(stream.rest().await.last().map(String::as_str), Some("[DONE]"));
}
