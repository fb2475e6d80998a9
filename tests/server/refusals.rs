//! Every refusal of the door: its status, code, numbers and the field it names; nothing else is disturbed.

use crate::support::{Client, Command, Reply, Server, Setup, ids};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn server() -> Server {
    Setup { max_context: 64, kv_tokens_max: 48, ..Setup::default() }.start(|_| ids("abc")).await
}

/// The server still serves, and nothing of a refused request is left.
async fn unharmed(server: &Server) {
    assert_eq!(server.client.complete(json!({"prompt": "x"})).await.status, 200);
    server.until_quiet().await;
}

fn message(reply: &Reply) -> String {
    reply.json()["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn bad_bodies_are_400_with_the_field_and_cost_no_device_work() {
    // B41, B43, B45, B46 and the list of issue 2.
    let server = server().await;
    for (body, code, param) in [
        ("", "malformed_json", None),
        ("{\"prompt\":", "malformed_json", None),
        ("[1]", "invalid_type", None),
        ("7", "invalid_type", None),
        ("{}", "missing_field", Some("prompt")),
        (r#"{"prompt":[]}"#, "empty_prompt", Some("prompt")),
        (r#"{"prompt":[[]]}"#, "empty_prompt", Some("prompt")),
        (r#"{"prompt":[512]}"#, "token_id_out_of_range", Some("prompt")),
        (r#"{"prompt":[18446744073709551615]}"#, "token_id_out_of_range", Some("prompt")),
        (r#"{"prompt":[18446744073709551616]}"#, "invalid_type", Some("prompt")),
        (r#"{"prompt":[-1]}"#, "invalid_type", Some("prompt")),
        (r#"{"prompt":[1.5]}"#, "invalid_type", Some("prompt")),
        (r#"{"prompt":[46]}"#, "unsupported_modality", Some("prompt")),
        (r#"{"prompt":"see <|tool>"}"#, "unsupported_modality", Some("prompt")),
        (r#"{"prompt":"x","max_tokens":0}"#, "invalid_value", Some("max_tokens")),
        (r#"{"prompt":"x","temperature":2.5}"#, "invalid_value", Some("temperature")),
        (r#"{"prompt":"x","temperature":-1}"#, "invalid_value", Some("temperature")),
        (r#"{"prompt":"x","top_p":1.5}"#, "invalid_value", Some("top_p")),
        (r#"{"prompt":"x","top_k":2.5}"#, "invalid_type", Some("top_k")),
        (r#"{"prompt":"x","seed":"lucky"}"#, "invalid_type", Some("seed")),
        (r#"{"prompt":"x","n":0}"#, "invalid_value", Some("n")),
        (r#"{"prompt":"x","best_of":3}"#, "unsupported_field", Some("best_of")),
        (r#"{"prompt":"x","logit_bias":{"999999999":-100}}"#, "token_id_out_of_range", Some("logit_bias")),
        (r#"{"prompt":"x","logit_bias":{"word":-100}}"#, "invalid_type", Some("logit_bias")),
        (r#"{"prompt":"x","logit_bias":{"5":-101}}"#, "invalid_value", Some("logit_bias")),
        (r#"{"prompt":"x","allowed_token_ids":[512]}"#, "token_id_out_of_range", Some("allowed_token_ids")),
        (r#"{"prompt":"x","stop_token_ids":[512]}"#, "token_id_out_of_range", Some("stop_token_ids")),
        (r#"{"prompt":"x","max_tokens":4,"min_tokens":5}"#, "invalid_value", Some("min_tokens")),
        (r#"{"prompt":"x","presence_penalty":3}"#, "invalid_value", Some("presence_penalty")),
        (r#"{"prompt":"x","echo":1}"#, "invalid_type", Some("echo")),
        (r#"{"prompt":"x","logprobs":21}"#, "invalid_value", Some("logprobs")),
        (r#"{"prompt":"x","logprobs":true}"#, "invalid_type", Some("logprobs")),
        (r#"{"prompt":"x","prompt_logprobs":-1}"#, "invalid_value", Some("prompt_logprobs")),
        (r#"{"prompt":"x","include_stop_str_in_output":"no"}"#, "invalid_type", Some("include_stop_str_in_output")),
        (r#"{"prompt":"x","dry_multiplier":0.8}"#, "unsupported_field", Some("dry_multiplier")),
        (r#"{"prompt":"x","temperature":1e400}"#, "invalid_type", Some("temperature")),
        (r#"{"prompt":"x","logit_bias":{"7":1,"7":-100}}"#, "duplicate_field", Some("logit_bias.7")),
        (r#"{"prompt":"x","metadata":{"a":[{"b":1,"b":2}]}}"#, "duplicate_field", Some("metadata.a[0].b")),
        (r#"{"prompt":"x","metadata":[]}"#, "invalid_type", Some("metadata")),
        (
            r#"{"prompt":"x","allowed_token_ids":[106,7],"stop_token_ids":[7],"min_tokens":2}"#,
            "invalid_value",
            Some("allowed_token_ids"),
        ),
        (r#"{"prompt":["x","x","x","x","x","x","x","x","x"],"n":128}"#, "too_many_prompts", Some("n")),
        (r#"{"prompt":"x","stream_options":{"include_usage":true}}"#, "invalid_value", Some("stream_options")),
    ] {
        let reply = server.client.send("POST", "/v1/completions", &[], body).await;
        assert_eq!((reply.status, reply.error_code().as_str()), (400, code), "{body}: {}", reply.text());
        assert_eq!(reply.json()["error"]["param"].as_str(), param, "{body}");
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    }
    assert_eq!(server.engine.seen().len(), 0, "the engine saw none of them");
    unharmed(&server).await;
}

#[tokio::test]
async fn refusals_of_too_much_say_what_there_is_too_much_of() {
    let server = server().await;
    for (body, words) in [
        (json!({"prompt": vec!["x"; 500]}), "the request has 500 prompts; the limit is 128"),
        (
            json!({"prompt": vec!["x"; 9], "n": 128}),
            "9 prompts of 128 choices each are 1152 requests; --max-waiting is",
        ),
        (json!({"prompt": "x".repeat(1 << 20)}), "prompt 0 has 1048576 bytes of text, at least "),
        (
            json!({"prompt": "x", "allowed_token_ids": [1, 106], "min_tokens": 3}),
            "each of the 2 allowed_token_ids ends the answer, and the first 3 tokens must not",
        ),
    ] {
        let reply = server.client.complete(body).await;
        assert_eq!(reply.status, 400);
        assert!(message(&reply).contains(words), "{}", message(&reply));
    }
    let duplicate = r#"{"messages":[{"role":"user","role":"system","content":"a"}]}"#;
    let reply = server.client.send("POST", "/v1/chat/completions", &[], duplicate).await;
    assert_eq!((reply.status, reply.error_code().as_str()), (400, "duplicate_field"));
    assert_eq!(reply.json()["error"]["param"], "messages[0].role");
    assert!(server.engine.seen().is_empty());
    unharmed(&server).await;
}

#[tokio::test]
async fn the_context_rule_holds_at_its_edges() {
    // B47 with a context of 64 (and a pool that holds it).
    let server = Setup { max_context: 64, ..Setup::default() }.start(|_| vec![431; 100]).await;
    let prompt = |n: usize| json!(vec![431; n]);
    let reply = server.client.complete(json!({"prompt": prompt(63)})).await;
    assert_eq!(reply.status, 200);
    let json = reply.json();
    assert_eq!(json["usage"], json!({"prompt_tokens": 63, "completion_tokens": 1, "total_tokens": 64}));
    assert_eq!(json["choices"][0]["finish_reason"], "length");
    let alone = json!({"prompt": prompt(64), "max_tokens": 0, "echo": true});
    assert_eq!(server.client.complete(alone).await.status, 200, "a prompt as long as the context, and nothing more");
    let alone = json!({"prompt": prompt(65), "max_tokens": 0, "echo": true});
    assert_eq!(server.client.complete(alone).await.error_code(), "context_length_exceeded");
    for (n, max_tokens) in [(63, json!(10)), (64, Value::Null), (65, Value::Null), (64, json!(1)), (1, json!(u64::MAX))]
    {
        let reply = server.client.complete(json!({"prompt": prompt(n), "max_tokens": max_tokens})).await;
        assert_eq!((reply.status, reply.error_code().as_str()), (400, "context_length_exceeded"));
        for number in [n.to_string(), "64".into(), max_tokens.as_u64().unwrap_or(1).to_string()] {
            assert!(message(&reply).contains(&number), "{}", message(&reply));
        }
    }
    unharmed(&server).await;
}

#[tokio::test]
async fn a_request_that_can_never_fit_the_pool_is_refused_with_the_numbers() {
    // B48: a pool of 48 tokens, a context of 64.
    let server = server().await;
    let prompt = vec![431; 40];
    assert_eq!(server.client.complete(json!({"prompt": prompt, "max_tokens": 9})).await.status, 200);
    let reply = server.client.complete(json!({"prompt": prompt, "max_tokens": 10})).await;
    assert_eq!((reply.status, reply.error_code().as_str()), (400, "kv_pool_exceeded"));
    for number in ["40", "10", "49", "48"] {
        assert!(message(&reply).contains(number), "{}", message(&reply));
    }
    unharmed(&server).await;
}

#[tokio::test]
async fn one_bad_prompt_of_a_list_refuses_all_before_any_device_work() {
    let server = server().await;
    let reply = server.client.complete(json!({"prompt": ["a", [5, 512], "b"]})).await;
    assert_eq!((reply.status, reply.error_code().as_str()), (400, "token_id_out_of_range"));
    assert!(message(&reply).contains("prompt 1") && message(&reply).contains("512"), "{}", message(&reply));
    assert_eq!(server.engine.seen().len(), 0);
    unharmed(&server).await;
}

#[tokio::test]
async fn a_full_queue_is_503_with_retry_after_and_the_numbers_before_tokenising() {
    // B93, reliability row 1: limit 4, one runs, four wait.
    let setup = Setup { max_running: 1, ..Setup::flags(&["--max-waiting", "4"]) };
    let server = setup.start(|_| ids("a")).await;
    server.engine.send(Command::Step(0));
    let client = server.client;
    let one = |n: usize| tokio::spawn(async move { client.complete(json!({"prompt": vec!["x"; n]})).await });
    let mut accepted = vec![one(1)];
    server.until("one runs", || server.engine.running() == 1).await;
    accepted.push(one(1));
    accepted.push(one(2));
    server.until("three wait", || server.app.engine.waiting() == 3).await;
    // Two more would pass the limit: all or none of a request.
    let reply = server.client.complete(json!({"prompt": ["x", "y"]})).await;
    assert_eq!((reply.status, reply.error_code().as_str()), (503, "queue_full"));
    assert_eq!(reply.header("retry-after"), Some("1"));
    for number in ["2 more", "limit of 4", "3 wait"] {
        assert!(message(&reply).contains(number), "{}", message(&reply));
    }
    accepted.push(one(1));
    server.until("four wait", || server.app.engine.waiting() == 4).await;
    // Refused before its ids are known: tokenised, this prompt would be a 400.
    let reply = server.client.complete(json!({"prompt": "<|tool>"})).await;
    assert_eq!((reply.status, reply.error_code().as_str()), (503, "queue_full"));
    // The refused left no trace; the accepted all end.
    assert_eq!(server.app.engine.waiting(), 4);
    server.engine.send(Command::Free);
    for accepted in accepted {
        assert_eq!(accepted.await.unwrap().status, 200);
    }
    assert_eq!(server.engine.seen().len(), 5);
    unharmed(&server).await;
}

#[tokio::test]
async fn more_prompts_than_can_ever_wait_are_400() {
    let server = Setup::flags(&["--max-waiting", "4"]).start(|_| ids("a")).await;
    let reply = server.client.complete(json!({"prompt": vec!["x"; 5]})).await;
    assert_eq!((reply.status, reply.error_code().as_str()), (400, "too_many_prompts"));
    assert!(message(&reply).contains('5') && message(&reply).contains('4'));
}

#[tokio::test]
async fn an_announced_body_over_the_limit_is_413_without_being_read() {
    let server = server().await;
    let mut socket = server.client.connect().await;
    socket.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 100000000\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("body_too_large") && answer.contains("8388608"), "{answer}");
    unharmed(&server).await;
}

#[tokio::test]
async fn a_chunked_body_is_413_once_it_passes_the_limit() {
    let server = server().await;
    let mut socket = server.client.connect().await;
    socket.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    let chunk = [b"100000\r\n".as_slice(), &vec![b' '; 1 << 20], b"\r\n"].concat();
    for _ in 0..8 {
        socket.write_all(&chunk).await.unwrap();
    }
    socket.write_all(b"1\r\n \r\n").await.unwrap();
    let mut head = [0; 12];
    socket.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 413");
    drop(socket);
    unharmed(&server).await;
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_408() {
    let server = Setup::flags(&["--body-timeout", "0.2"]).start(|_| ids("a")).await;
    let mut socket = server.client.connect().await;
    socket.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 10\r\n\r\n{").await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("0.2 s"), "{answer}");
    unharmed(&server).await;
}

#[tokio::test]
async fn unknown_routes_and_wrong_methods_have_the_same_shape() {
    let server = server().await;
    for (method, path, status, code) in [
        ("GET", "/", 404, "route_not_found"),
        ("POST", "/v1/nothing", 404, "route_not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("DELETE", "/health", 405, "method_not_allowed"),
    ] {
        let reply = server.client.send(method, path, &[], "").await;
        assert_eq!((reply.status, reply.error_code().as_str()), (status, code), "{method} {path}");
        assert!(reply.header("x-request-id").is_some());
    }
}

#[tokio::test]
async fn a_request_id_is_echoed_or_made() {
    let server = server().await;
    let body = json!({"prompt": "x"}).to_string();
    let (client, body) = (server.client, &body);
    let post =
        async move |id: &str| client.send("POST", "/v1/completions", &[("x-request-id", id)], body.clone()).await;
    let reply = post("abc-1").await;
    assert_eq!((reply.status, reply.header("x-request-id")), (200, Some("abc-1")));
    assert_eq!(reply.json()["id"], "cmpl-abc-1");
    let (a, b) = (server.client.get("/health").await, server.client.get("/health").await);
    assert_ne!(a.header("x-request-id").unwrap(), b.header("x-request-id").unwrap());
    for bad in ["", "has space", "é", &*"x".repeat(129).leak()] {
        let reply = post(bad).await;
        assert_eq!((reply.status, reply.error_code().as_str()), (400, "invalid_request_id"), "{bad:?}");
    }
}

#[tokio::test]
async fn a_request_id_that_is_still_live_is_409_and_the_first_is_unharmed() {
    // Reliability row 12.
    let server = server().await;
    server.engine.send(Command::Step(0));
    let client: Client = server.client;
    let post = move || async move {
        client.send("POST", "/v1/completions", &[("x-request-id", "same")], json!({"prompt": "x"}).to_string()).await
    };
    let first = tokio::spawn(post());
    server.until("the first runs", || server.engine.running() == 1).await;
    let second = post().await;
    assert_eq!((second.status, second.error_code().as_str()), (409, "duplicate_request_id"));
    server.engine.send(Command::Free);
    assert_eq!(first.await.unwrap().status, 200);
    server.until_quiet().await;
    assert_eq!(post().await.status, 200, "an ended id may come again");
}

#[test]
fn random_bodies_never_make_a_5xx_and_never_disturb_the_server() {
    // Reliability row 20, invariant 4 of the cases.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(server());
    let fragments = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"prompt\"",
        "\"max_tokens\"",
        "\"stop\"",
        "\"stream\"",
        "true",
        "null",
        "-1",
        "1e999",
        "0",
        "7",
        "\"a\"",
        "\"\\u0000\"",
        "\"\\ud83c\\udf0d\"",
        "\"\\ud83c\"",
        " ",
        "\u{feff}",
        "{\"prompt\":",
        "\"x\"}",
        "[[",
        "]]",
    ]);
    let json_like = prop::collection::vec(fragments, 0..14).prop_map(|v| v.concat().into_bytes());
    let bytes = prop_oneof![json_like, prop::collection::vec(any::<u8>(), 0..100)];
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(300));
    runner
        .run(&bytes, |body| {
            let reply = runtime.block_on(server.client.send("POST", "/v1/completions", &[], body));
            prop_assert!(reply.status == 200 || reply.status == 400, "{} {}", reply.status, reply.text());
            Ok(())
        })
        .unwrap();
    runtime.block_on(unharmed(&server));
}
