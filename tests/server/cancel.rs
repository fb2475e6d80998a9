//! Clients that go away: streaming or not, queued or running (B92, reliability rows 13 to 15).

use std::time::Duration;

use crate::support::{Command, Server, Setup, ids};
use serde_json::{Value, json};

/// A request that would run for ever.
fn endless(stream: bool) -> Value {
    json!({"prompt": "x", "max_tokens": 50_000, "ignore_eos": true, "stream": stream})
}

async fn server(max_running: usize) -> Server {
    let server = Setup { max_running, ..Setup::default() }.start(|_| ids("abc")).await;
    server.engine.send(Command::Pace(Duration::from_millis(1)));
    server
}

/// Sends a request and goes away once `fact` holds.
async fn leave_when(server: &Server, body: Value, fact: impl Fn() -> bool) {
    let client = server.client;
    let request = tokio::spawn(async move {
        let mut stream = client.open(body).await;
        while stream.event().await.is_some() {}
    });
    server.until("the moment to leave", fact).await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn a_client_that_leaves_while_decoding_ends_its_request_streaming_or_not() {
    for stream in [true, false] {
        let server = server(8).await;
        leave_when(&server, endless(stream), || server.engine.steps() > 20).await;
        let steps = server.engine.steps();
        server.until_quiet().await;
        let more = server.engine.steps() - steps;
        assert!(more < 500, "stream {stream}: {more} steps after the client left");
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_queued_is_never_run() {
    for stream in [true, false] {
        let server = server(8).await;
        server.engine.send(Command::Admit(false));
        leave_when(&server, endless(stream), || server.app.engine.waiting() == 1).await;
        server.until_quiet().await;
        server.engine.send(Command::Admit(true));
        assert_eq!(server.client.complete(json!({"prompt": "y", "max_tokens": 1})).await.status, 200);
        assert_eq!(server.engine.seen().len(), 1, "only the second request reached the engine's rows");
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_token_ends_its_request() {
    for stream in [true, false] {
        let server = server(8).await;
        server.engine.send(Command::Step(0));
        leave_when(&server, endless(stream), || server.engine.running() == 1).await;
        server.until_quiet().await;
        assert_eq!(server.engine.steps(), 0);
    }
}

#[tokio::test]
async fn a_client_that_leaves_behind_bytes_nobody_reads_ends_its_request() {
    // hyper looks for the end of the connection only where nothing is buffered before it.
    for more in ["", "\r\n", "GET /health/live HTTP/1.1\r\nhost: t\r\n\r\n"] {
        let server = server(8).await;
        let mut socket = raw_post(server.client.connect().await, &endless(false)).await;
        tokio::io::AsyncWriteExt::write_all(&mut socket, more.as_bytes()).await.unwrap();
        server.until("it runs", || server.engine.steps() > 20).await;
        let steps = server.engine.steps();
        drop(socket);
        server.until_quiet().await;
        let steps = server.engine.steps() - steps;
        assert!(steps < 5000, "{more:?}: {steps} steps after the client left");
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_its_text_is_tokenised_keeps_its_place_until_that_ends() {
    // Seconds of tokenising in a build for tests; what bounds that work is not free before it ends.
    let setup = Setup { max_context: 4 << 20, kv_tokens_max: 4 << 20, ..Setup::flags(&["--max-waiting", "1"]) };
    let server = setup.start(|_| ids("abc")).await;
    let text = "a b ".repeat(1 << 20);
    let mut socket = raw_post(server.client.connect().await, &json!({"prompt": text, "max_tokens": 1})).await;
    server.until("the body is read and its place taken", || server.app.engine.waiting() == 1).await;
    tokio::io::AsyncWriteExt::shutdown(&mut socket).await.unwrap();
    drop(socket);
    server.until("the request is gone", || server.app.in_flight() == 0).await;
    let small = json!({"prompt": "x", "max_tokens": 1});
    let refused = server.client.complete(small.clone()).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "queue_full"));
    server.until_quiet().await;
    assert_eq!(server.client.complete(small).await.status, 200);
    assert_eq!(server.engine.seen().len(), 1, "the text of the one that left never reached the engine");
    let metrics = server.client.get("/metrics").await.text();
    assert!(metrics.contains("gemma4_requests_total{outcome=\"aborted\"}"), "{metrics}");
}

#[tokio::test]
async fn leaving_ends_all_prompts_of_the_request_and_no_others() {
    let server = server(8).await;
    let mut neighbour =
        server.client.open(json!({"prompt": "n", "max_tokens": 400, "ignore_eos": true, "stream": true})).await;
    let mut body = endless(true);
    body["prompt"] = json!(["a", "b", "c"]);
    leave_when(&server, body, || server.engine.running() == 4).await;
    server.until("only the neighbour runs", || server.engine.running() == 1).await;
    let mut text = String::new();
    while let Some(chunk) = neighbour.chunk().await {
        text += chunk["choices"][0]["text"].as_str().unwrap();
    }
    assert_eq!(text, "abc", "the neighbour's answer is whole");
    server.until_quiet().await;
}

#[tokio::test]
async fn a_client_that_stops_reading_is_cut_off_after_the_write_limit_and_slows_nobody() {
    // Reliability row 17.
    let setup = Setup { send_buffer_bytes: Some(4096), ..Setup::flags(&["--write-timeout", "0.5"]) };
    let server = setup.start(|_| ids("abc")).await;
    server.engine.send(Command::TokensPerStep(50));
    server.engine.send(Command::Pace(Duration::from_millis(2)));
    let mut body = endless(true);
    body["return_token_ids"] = json!(true);
    let mut slow = raw_post(server.client.connect_slow().await, &body).await;
    server.until("the slow one runs", || server.engine.running() == 1).await;
    let fast = server.client.complete(json!({"prompt": "x"})).await;
    assert_eq!(fast.status, 200);
    // The engine ends the slow one's tokens whether or not they are read; the connection ends by the time limit.
    server.until_quiet().await;
    let mut rest = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut slow, &mut rest).await;
    assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"), "cut off, not ended");
}

async fn raw_post(mut socket: tokio::net::TcpStream, body: &Value) -> tokio::net::TcpStream {
    let body = body.to_string();
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    tokio::io::AsyncWriteExt::write_all(&mut socket, head.as_bytes()).await.unwrap();
    socket
}
