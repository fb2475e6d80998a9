//! Signals to the real binary with streams in flight (reliability rows 46 to 48). Only processes these tests started
//! are signalled.

use std::time::{Duration, Instant};

use crate::process::{Server, Setup, Signal, Stream, reference, request, until};
use serde_json::{Value, json};

fn dense(flags: &[&str]) -> Server {
    Setup::serve(&[&["--max-running", "4"], flags].concat()).model(&reference("dense")).start()
}

/// A stream that runs, and how many tokens its first chunk had.
async fn open(server: &Server, max_tokens: usize) -> (Stream, usize) {
    let body = json!({"prompt": "the", "max_tokens": max_tokens, "ignore_eos": true, "stream": true,
        "return_token_ids": true});
    let mut stream = server.client.open(body).await;
    assert_eq!(stream.status, 200);
    let first = stream.chunk().await.expect("a first token");
    (stream, tokens_of(&first))
}

fn tokens_of(chunk: &Value) -> usize {
    chunk["choices"][0]["token_ids"].as_array().expect("a chunk").len()
}

/// All tokens of a stream, and whether the stream ended with `[DONE]`; the error object of an error event.
async fn rest((stream, first): &mut (Stream, usize)) -> (usize, bool, Option<Value>) {
    let mut events = stream.rest().await;
    let done = events.last().is_some_and(|e| e == "[DONE]");
    if done {
        events.pop();
    }
    let mut events: Vec<Value> = events.iter().map(|e| serde_json::from_str(e).expect("JSON")).collect();
    let error = events.pop_if(|e| e["error"].is_object()).map(|e| e["error"].clone());
    let tokens: usize = events.iter().map(tokens_of).sum();
    (*first + tokens, done, error)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_drains_in_order_and_exits_0() {
    let server = dense(&["--drain-delay", "0.8", "--drain-timeout", "60"]);
    let mut streams = [open(&server, 300).await, open(&server, 300).await];
    assert_eq!(server.ready(), Some(200));
    let signalled = Instant::now();
    server.process.signal(Signal::TERM);
    // 1. Readiness is off at once: long before the delay is over.
    until("readiness is off", || server.ready() == Some(503)).await;
    assert!(signalled.elapsed() < Duration::from_millis(700), "{:?}", signalled.elapsed());
    let ready = server.client.get("/health/ready").await;
    assert_eq!(ready.json()["reason"], "draining");
    // 2. Requests are still accepted.
    let late = server.client.complete(json!({"prompt": "late", "max_tokens": 1})).await;
    assert_eq!(late.status, 200, "{}", late.text());
    // 3. After the delay they are refused; liveness stays.
    let short = r#"{"prompt":"later","max_tokens":1}"#;
    let post = || request(server.address, "POST", "/v1/completions", short).expect("the socket is open");
    until("new requests are refused", || post().status == 503).await;
    assert!(signalled.elapsed() >= Duration::from_millis(800), "{:?}", signalled.elapsed());
    let refused = server.client.complete(json!({"prompt": "later"})).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "draining"));
    assert_eq!(refused.header("connection"), Some("close"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(server.client.get("/health/live").await.status, 200);
    // 4. What was in flight finishes.
    for stream in &mut streams {
        assert_eq!(rest(stream).await, (300, true, None));
    }
    drop(streams);
    let ended = server.exit();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_longer_than_the_drain_timeout_ends_with_an_error_and_no_done() {
    let server = dense(&["--drain-delay", "0", "--drain-timeout", "0.5"]);
    let mut stream = open(&server, 1000).await;
    let client = server.client;
    let whole =
        tokio::spawn(
            async move { client.complete(json!({"prompt": "a", "max_tokens": 1000, "ignore_eos": true})).await },
        );
    until("both run", || server.metric("gemma4_requests_running") == 2).await;
    server.process.signal(Signal::TERM);
    let (tokens, done, error) = rest(&mut stream).await;
    assert!(tokens < 1000 && !done, "{tokens} {done}");
    assert_eq!(error.expect("an error event")["code"], "drain_timeout");
    let whole = whole.await.expect("an answer");
    assert_eq!((whole.status, whole.error_code().as_str()), (503, "drain_timeout"));
    drop(stream);
    let ended = server.exit();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_sigterm_does_not_wait() {
    let server = dense(&["--drain-delay", "300", "--drain-timeout", "300"]);
    let mut stream = open(&server, 1000).await;
    server.process.signal(Signal::TERM);
    until("the first one is seen", || server.ready() == Some(503)).await;
    server.process.signal(Signal::TERM);
    let (tokens, done, error) = rest(&mut stream).await;
    assert!(tokens < 1000 && !done && error.is_some(), "{tokens} {done} {error:?}");
    drop(stream);
    assert_eq!(server.exit().code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigint_and_an_idle_server_end_after_the_delay() {
    let server = dense(&["--drain-delay", "0.3", "--drain-timeout", "300"]);
    let signalled = Instant::now();
    server.process.signal(Signal::INT);
    assert_eq!(server.exit().code, Some(0));
    assert!(signalled.elapsed() >= Duration::from_millis(300));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_leaves_truncation_and_a_free_port() {
    let server = dense(&[]);
    let mut stream = open(&server, 1000).await;
    let port = server.address.port().to_string();
    server.process.signal(Signal::KILL);
    let (tokens, done, error) = rest(&mut stream).await;
    assert!(tokens < 1000 && !done && error.is_none(), "{tokens} {done} {error:?}");
    drop(stream);
    assert_eq!(server.exit().code, None);
    let flags = ["--device", "soft", "--host", "127.0.0.1", "--port", port.as_str(), "--max-running", "1"];
    let server = Setup::bare(&flags).start();
    assert_eq!(server.client.complete(json!({"prompt": "a", "max_tokens": 1})).await.status, 200);
}
