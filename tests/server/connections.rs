//! Connections that are silent, slow or too many; and the numbers of `/metrics`.

use std::time::{Duration, Instant};

use crate::support::{Command, Server, Setup, ids};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn server(flags: &[&'static str]) -> Server {
    Setup::flags(flags).start(|_| ids("abc")).await
}

#[tokio::test]
async fn idle_sockets_over_the_cap_do_not_keep_a_request_out() {
    // Reliability row 9.
    let server = server(&["--max-connections", "20", "--header-timeout", "60"]).await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(server.client.connect().await);
    }
    let start = Instant::now();
    assert_eq!(server.client.complete(json!({"prompt": "x"})).await.status, 200);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // The oldest were closed.
    let mut byte = [0];
    assert!(matches!(silent[0].read(&mut byte).await, Ok(0) | Err(_)));
}

#[tokio::test]
async fn a_busy_connection_is_never_closed_for_a_new_one() {
    let server = server(&["--max-connections", "3"]).await;
    server.engine.send(Command::Step(1));
    let mut stream = server.client.open(json!({"prompt": "x", "stream": true})).await;
    let mut silent = Vec::new();
    for _ in 0..30 {
        silent.push(server.client.connect().await);
    }
    assert_eq!(server.client.get("/health/live").await.status, 200);
    server.engine.send(Command::Free);
    assert_eq!(stream.rest().await.last().map(String::as_str), Some("[DONE]"));
}

#[tokio::test]
async fn one_connection_is_enough_for_one_client_at_a_time() {
    let server = server(&["--max-connections", "1"]).await;
    for _ in 0..5 {
        let socket = server.client.connect().await;
        // At the cap, and nobody else wants in: it may take its time.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let body = json!({"prompt": "x"}).to_string();
        let stream = server.client.open_on(socket, "POST", "/v1/completions", &[], body).await;
        assert_eq!(stream.status, 200);
    }
}

#[tokio::test]
async fn a_connection_whose_answer_is_being_written_is_not_idle() {
    let setup = Setup { send_buffer_bytes: Some(4096), ..Setup::flags(&["--max-connections", "1"]) };
    let server = setup.start(|_| ids("abc")).await;
    server.engine.send(Command::TokensPerStep(1000));
    let mut slow = server.client.open_large().await;
    // Somebody wants in while megabytes of the answer are unwritten; it is let in when they are not.
    let client = server.client;
    let next = tokio::spawn(async move { client.complete(json!({"prompt": "x"})).await.status });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!next.is_finished());
    let answer: serde_json::Value = serde_json::from_slice(&slow.whole().await).unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 90_000);
    assert_eq!(next.await.unwrap(), 200);
}

#[tokio::test]
async fn uploads_that_stand_still_keep_no_large_body_out() {
    let server = server(&["--body-timeout", "3600"]).await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n";
    let announced = "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 8000000\r\n\r\n";
    let mut still = Vec::new();
    for i in 0..64 {
        let mut socket = server.client.connect().await;
        let bytes = if i % 2 == 0 { format!("{head}1\r\n{{\r\n") } else { format!("{announced}{{") };
        socket.write_all(bytes.as_bytes()).await.unwrap();
        still.push(socket);
    }
    server.until("all are under way", || server.app.in_flight() == 64).await;
    let large = json!({"prompt": "x", "max_tokens": 1, "user": "u".repeat(200_000)});
    assert_eq!(server.client.complete(large.clone()).await.status, 200);
    let mut chunked = server.client.connect().await;
    let body = large.to_string();
    let request = format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    chunked.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    let read = tokio::time::timeout(Duration::from_secs(60), chunked.read_exact(&mut answer)).await;
    assert!(read.is_ok_and(|read| read.is_ok()) && answer.ends_with(b"200"), "{answer:?}");
}

#[tokio::test]
async fn a_body_that_stops_behind_its_share_is_told_its_own_time() {
    let server = server(&["--body-timeout", "0.5"]).await;
    let mut socket = server.client.connect().await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 300000\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(&[b' '; 200_000]).await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(60), socket.read_to_end(&mut answer)).await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("within 0.5 s"), "{answer}");
    let user = "u".repeat(200_000);
    assert_eq!(server.client.complete(json!({"prompt": "x", "user": user})).await.status, 200, "its share is free");
}

#[tokio::test]
async fn a_head_that_does_not_arrive_ends_its_connection() {
    let server = server(&["--header-timeout", "0.3"]).await;
    let mut silent = server.client.connect().await;
    let mut half = server.client.connect().await;
    half.write_all(b"POST /v1/completions HT").await.unwrap();
    let start = Instant::now();
    for socket in [&mut silent, &mut half] {
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest).await;
    }
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_connection_is_kept_for_the_next_request_and_bytes_may_come_one_by_one() {
    // Reliability row 19.
    let server = server(&[]).await;
    let body = json!({"prompt": "x"}).to_string();
    let request = format!("POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut socket = server.client.connect().await;
    let mut texts = Vec::new();
    for step in [1, 7, request.len()] {
        for piece in request.as_bytes().chunks(step) {
            socket.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        let mut answer = Vec::new();
        while !answer.ends_with(b"}}") {
            let mut buffer = [0; 512];
            let n = socket.read(&mut buffer).await.unwrap();
            assert!(n > 0, "kept open");
            answer.extend_from_slice(&buffer[..n]);
        }
        let answer = String::from_utf8(answer).unwrap();
        let json: serde_json::Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        texts.push(json["choices"].to_string());
    }
    assert!(texts.windows(2).all(|w| w[0] == w[1]));
}

#[tokio::test]
async fn what_is_not_http_is_answered_with_400_and_disturbs_nothing() {
    let server = server(&[]).await;
    for bytes in [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"\r\n\r\nhello\r\n\r\n", &[0xff; 300]] {
        let mut socket = server.client.connect().await;
        socket.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(1), socket.read_to_end(&mut answer)).await;
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400 "), "{answer:?}");
    }
    assert_eq!(server.client.complete(json!({"prompt": "x"})).await.status, 200);
}
