//! Clients that go away, ask for too much or send nonsense, against the real binary (reliability rows 1, 4, 13 to 15,
//! 20).

use std::path::Path;
use std::time::Duration;

use crate::process::{Server, Setup, Stream, reference, until};
use serde_json::{Value, json};

/// More tokens than any test waits for: the checkpoint's context is 1,024.
const LONG: usize = 1000;

fn dense(flags: &[&str]) -> Server {
    Setup::serve(&[&["--max-running", "4"], flags].concat()).model(&reference("dense")).start()
}

fn body(prompt: &str, max_tokens: usize, stream: bool) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "stream": stream, "return_token_ids": true})
}

/// Decode steps so far, as of the last publication of gauges (20 ms or a step ago, whichever is longer) or of idleness:
/// each launches two graphs.
fn decode_steps(server: &Server) -> u64 {
    server.soft("graph_launches") / 2
}

/// Tokens of the next chunk, which may hold those of several steps; none at the end.
async fn next_tokens(stream: &mut Stream) -> Option<u64> {
    Some(stream.chunk().await?["choices"][0]["token_ids"].as_array().expect("a list").len() as u64)
}

/// Everything is back where it was at the start.
async fn idle(server: &Server, pages: [u64; 2]) {
    let zero = |name| server.metric(name) == 0;
    until("nothing runs or waits", || zero("gemma4_requests_running") && zero("gemma4_requests_waiting")).await;
    until("all pages are free", || server.pages_free() == pages).await;
}

/// Tries with this many tokens read before the client leaves; each counts the steps from then to the end. Between a
/// close and the engine stand the kernel and a reactor thread, which a loaded machine may not run for several steps:
/// two tries may be late, though none may run on.
async fn within_two_steps(mut attempt: impl AsyncFnMut(u64) -> u64) {
    let mut counts = Vec::new();
    for tokens in 4..12 {
        let count = attempt(tokens).await;
        assert!(count < LONG as u64 / 4, "it ran on for {count} steps");
        counts.push(count);
    }
    let in_time = counts.iter().filter(|&&count| count <= 2).count();
    assert!(in_time >= counts.len() - 2, "steps after the client left: {counts:?}");
}

/// Steps of tens of milliseconds, so that the way of a close through kernel and reactor is short beside them.
fn slow() -> Server {
    let setup = Setup::serve(&["--max-running", "1", "--max-waiting", "2"]).model(&reference("dense"));
    setup.soft("SEED", "1").soft("DELAY_US", "30000").start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_client_goes_away_is_gone_within_two_steps() {
    let server = slow();
    let pages = server.pages_free();
    let mut aborted = 0;
    within_two_steps(async |enough| {
        let before = decode_steps(&server);
        let mut stream = server.client.open(body("the", LONG, true)).await;
        let mut tokens = 0;
        while tokens < enough {
            tokens += next_tokens(&mut stream).await.expect("a chunk");
        }
        assert_eq!(server.metric("gemma4_requests_running"), 1);
        let held = server.pages_free();
        assert!(held[0] < pages[0] && held[1] < pages[1], "{held:?} of {pages:?}");
        drop(stream);
        aborted += 1;
        idle(&server, pages).await;
        assert_eq!(server.metric("gemma4_requests_aborted_total"), aborted);
        // The first token is the prompt's.
        (decode_steps(&server) - before).saturating_sub(tokens - 1)
    })
    .await;
    assert_eq!(server.metric("gemma4_requests_total{outcome=\"aborted\"}"), aborted);
    assert_eq!(server.metric("gemma4_requests_total{outcome=\"length\"}"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_answer_whose_client_goes_away_is_gone_within_two_steps() {
    // Row 15, B92.
    let server = slow();
    let pages = server.pages_free();
    let mut aborted = 0;
    within_two_steps(async |enough| {
        let before = decode_steps(&server);
        let client = server.client;
        let request = tokio::spawn(async move { client.complete(body("the", LONG, false)).await });
        until("it decodes", || decode_steps(&server) - before >= enough).await;
        let at_close = decode_steps(&server);
        request.abort();
        aborted += 1;
        idle(&server, pages).await;
        assert_eq!(server.metric("gemma4_requests_aborted_total"), aborted);
        decode_steps(&server) - at_close
    })
    .await;
    // A normal end is no abort.
    let reply = server.client.complete(body("the", 2, false)).await;
    assert_eq!(reply.status, 200);
    assert_eq!(server.metric("gemma4_requests_total{outcome=\"length\"}"), 1);
    assert_eq!(server.metric("gemma4_requests_aborted_total"), aborted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_while_queued_is_never_prefilled() {
    // Row 14: neither the streaming nor the other one gets a kernel.
    let server = slow();
    let pages = server.pages_free();
    let start = server.soft("launches");
    assert_eq!(server.client.complete(body("the", 30, false)).await.status, 200);
    idle(&server, pages).await;
    let (launches, before) = (server.soft("launches"), decode_steps(&server));
    let mut running = server.client.open(body("the", 30, true)).await;
    let mut tokens = next_tokens(&mut running).await.expect("it runs");
    let client = server.client;
    let queued =
        [true, false].map(|stream| tokio::spawn(async move { client.open(body("one two", 30, stream)).await }));
    until("both wait", || server.metric("gemma4_requests_waiting") == 2).await;
    queued.iter().for_each(tokio::task::JoinHandle::abort);
    until("both are gone", || server.metric("gemma4_requests_waiting") == 0).await;
    assert_eq!(server.metric("gemma4_requests_running"), 1, "the queue was left while the first one ran");
    while let Some(more) = next_tokens(&mut running).await {
        tokens += more;
    }
    assert_eq!(tokens, 30);
    idle(&server, pages).await;
    assert_eq!(server.metric("gemma4_requests_aborted_total"), 2);
    assert_eq!(decode_steps(&server) - before, 29, "only the first one's");
    assert_eq!(server.soft("launches") - launches, launches - start, "as when the first one was alone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_is_a_503_at_once_and_the_admitted_finish() {
    let server = slow();
    let running = server.client.open(body("the", 60, true)).await;
    let client = server.client;
    let queued =
        ["one", "two"].map(|prompt| tokio::spawn(async move { client.complete(body(prompt, 2, false)).await }));
    until("the queue is full", || server.metric("gemma4_requests_waiting") == 2).await;
    let calls = server.metric("gemma4_prompt_tokens_total");
    let refused = server.client.complete(body("three", 2, false)).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "queue_full"));
    assert!(refused.header("retry-after").is_some_and(|s| s.parse::<u32>().is_ok_and(|s| s > 0)));
    let numbers = refused.text();
    assert!(numbers.contains("its limit of 2") && numbers.contains("2 wait now"), "{numbers}");
    assert_eq!(server.metric("gemma4_prompt_tokens_total"), calls);
    assert_eq!(server.metric("gemma4_requests_total{outcome=\"refused\"}"), 1);
    // The first one leaves, so this test needs not wait for it.
    drop(running);
    for reply in queued {
        assert_eq!(reply.await.expect("an answer").status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_never_fit_is_refused_at_once_with_the_numbers() {
    // Row 4. Four pages of 16 tokens hold 64, whatever runs.
    let server = dense(&["--kv-pages", "4"]);
    let pages = server.pages_free();
    assert_eq!(pages[1], 4);
    let mut running = server.client.open(body("the", 60, true)).await;
    let prompt: Vec<u32> = (0..40).map(|i| 3 + i).collect();
    let ask = async |max_tokens: usize| {
        let body = json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true});
        server.client.complete(body).await
    };
    let refused = tokio::time::timeout(Duration::from_secs(5), ask(26)).await.expect("at once");
    assert_eq!(refused.status, 400, "{}", refused.text());
    let message = refused.json()["error"]["message"].as_str().expect("a sentence").to_owned();
    for number in ["40", "26", "64"] {
        assert!(message.contains(number), "{number} in {message}");
    }
    let refused = ask(2000).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (400, "context_length_exceeded"));
    // What fits once the pool is empty waits, and runs.
    let reply = ask(24).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let mut tokens = 0;
    while let Some(more) = next_tokens(&mut running).await {
        tokens += more;
    }
    assert_eq!(tokens, 60);
    idle(&server, pages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_is_refused_by_name_and_disturbs_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    with_image_token(folder.path());
    let server = Setup::serve(&["--max-running", "4"]).model(folder.path()).start();
    let alone = server.client.complete(body("the quick", 120, false)).await.json()["choices"][0]["text"].clone();
    let mut stream = server.client.open(body("the quick", 120, true)).await;
    let long: Vec<u32> = vec![5; 1020];
    for (body, status, words) in [
        (r#"{"prompt": "a""#.to_owned(), 400, &["malformed_json"][..]),
        ("\u{0}".to_owned(), 400, &["malformed_json"]),
        ("[]".to_owned(), 400, &["object"]),
        (format!("{}1{}", "[".repeat(20_000), "]".repeat(20_000)), 400, &["invalid_request_error"]),
        (r#"{"prompt": 5}"#.to_owned(), 400, &["prompt"]),
        (r#"{"prompt": "a", "max_tokens": "many"}"#.to_owned(), 400, &["max_tokens"]),
        (r#"{"prompt": "a", "max_tokens": 0}"#.to_owned(), 400, &["max_tokens"]),
        (r#"{"prompt": "a", "max_tokens": -1}"#.to_owned(), 400, &["max_tokens"]),
        (r#"{"prompt": "a", "max_tokens": 1e400}"#.to_owned(), 400, &["invalid_request_error"]),
        (r#"{"prompt": "a", "stream": 1}"#.to_owned(), 400, &["stream"]),
        (r#"{"prompt": "a", "temperature": 2.7}"#.to_owned(), 400, &["temperature", "2.7"]),
        (r#"{"prompt": "a", "best_of": 2}"#.to_owned(), 400, &["best_of"]),
        (r#"{"max_tokens": 3}"#.to_owned(), 400, &["prompt", "missing_field"]),
        (r#"{"prompt": []}"#.to_owned(), 400, &["empty_prompt"]),
        (r#"{"prompt": [[]]}"#.to_owned(), 400, &["empty_prompt"]),
        (r#"{"prompt": [2, 512]}"#.to_owned(), 400, &["token_id_out_of_range", "512"]),
        (r#"{"prompt": [2, -7]}"#.to_owned(), 400, &["prompt"]),
        (r#"{"prompt": [2, 46]}"#.to_owned(), 400, &["unsupported_modality", "image", "46"]),
        (json!({"prompt": long, "max_tokens": 10}).to_string(), 400, &["1020", "10", "1024"]),
        (r#"{"prompt": "a", "model": "other"}"#.to_owned(), 404, &["model_not_found"]),
    ] {
        let reply = server.client.send("POST", "/v1/completions", &[], body.clone()).await;
        let shown = &body[..body.len().min(60)];
        assert_eq!(reply.status, status, "{shown}: {}", reply.text());
        reply.error_code();
        for word in words {
            assert!(reply.text().contains(word), "{word} in the answer to {shown}: {}", reply.text());
        }
    }
    let bytes: &[u8] = b"{\"prompt\": \"\xff\xfe\"}";
    assert_eq!(server.client.send("POST", "/v1/completions", &[], bytes).await.status, 400);
    let huge = server.client.open_with("POST", "/v1/completions", &[("content-length", "104857600")], "").await;
    assert_eq!(huge.status, 413);
    assert_eq!(server.client.get("/v1/nothing").await.status, 404);
    assert_eq!(server.client.get("/v1/completions").await.status, 405);
    let mut text = String::new();
    while let Some(chunk) = stream.chunk().await {
        text += chunk["choices"][0]["text"].as_str().expect("text");
    }
    assert_eq!(text, alone);
    assert_eq!(server.ready(), Some(200));
}

/// `dense` with an image token inside the vocabulary.
fn with_image_token(folder: &Path) {
    for file in ["model.safetensors", "tokenizer.json", "generation_config.json"] {
        std::fs::copy(reference("dense").join(file), folder.join(file)).expect("a copy");
    }
    let config = std::fs::read_to_string(reference("dense").join("config.json")).expect("a config");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config["image_token_id"] = json!(46);
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a config");
}
