//! The real binary over a real socket: the same tokens by every path, and what a client reads beside them.

use crate::process::{Client, Server, Setup, reference, request, until, wait};
use serde_json::{Value, json};

/// Prompts of ragged lengths over the windows (16), pages (16) and buckets of the checkpoint, with ragged answers.
fn ragged_requests() -> Vec<Value> {
    let prompt = |n: u32| (0..n).map(|i| if i == 0 { 2 } else { 3 + (i * 37 + n * 11) % 500 }).collect::<Vec<_>>();
    let sizes = [(1, 24), (4, 9), (70, 1), (15, 20), (16, 12), (17, 30), (33, 5), (48, 16)];
    let body = |(n, max_tokens)| {
        let ids = prompt(n);
        json!({
            "prompt": ids, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true, "return_token_ids": true,
        })
    };
    sizes.map(body).to_vec()
}

/// Answers one after the other: text, token ids and usage of each.
async fn solo(client: Client, bodies: &[Value]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for body in bodies {
        answers.push(whole(client, body.clone()).await);
    }
    answers
}

/// All at once.
async fn together(client: Client, bodies: &[Value]) -> Vec<Answer> {
    let tasks: Vec<_> = bodies.iter().cloned().map(|body| tokio::spawn(whole(client, body))).collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.expect("a task"));
    }
    answers
}

#[derive(Clone, Debug, PartialEq)]
struct Answer {
    text: String,
    token_ids: Vec<u64>,
    prompt_token_ids: Value,
    finish: String,
    usage: Value,
}

async fn whole(client: Client, body: Value) -> Answer {
    let reply = client.complete(body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let json = reply.json();
    let choice = &json["choices"][0];
    Answer {
        text: choice["text"].as_str().expect("text").to_owned(),
        token_ids: ids(&choice["token_ids"]),
        prompt_token_ids: choice["prompt_token_ids"].clone(),
        finish: choice["finish_reason"].as_str().expect("a word").to_owned(),
        usage: json["usage"].clone(),
    }
}

async fn streamed(client: Client, mut body: Value) -> Answer {
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let mut stream = client.open(body).await;
    assert_eq!(stream.status, 200);
    let mut events = stream.rest().await;
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let mut chunks: Vec<Value> = events.iter().map(|e| serde_json::from_str(e).expect("JSON")).collect();
    let usage = chunks.pop().expect("a chunk of usage")["usage"].clone();
    let choices: Vec<&Value> = chunks.iter().map(|c| &c["choices"][0]).collect();
    Answer {
        text: choices.iter().map(|c| c["text"].as_str().expect("text")).collect(),
        token_ids: choices.iter().flat_map(|c| ids(&c["token_ids"])).collect(),
        prompt_token_ids: choices[0]["prompt_token_ids"].clone(),
        finish: choices.last().expect("a chunk")["finish_reason"].as_str().expect("a word").to_owned(),
        usage,
    }
}

fn ids(list: &Value) -> Vec<u64> {
    list.as_array().unwrap_or_else(|| panic!("no list: {list}")).iter().map(|id| id.as_u64().expect("an id")).collect()
}

fn dense(flags: &[&str]) -> Server {
    serving("dense", flags)
}

fn serving(model: &str, flags: &[&str]) -> Server {
    Setup::serve(&[&["--max-running", "8"], flags].concat()).model(&reference(model)).start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streamed_and_whole_answers_are_equal() {
    let server = dense(&[]);
    for prompt in [json!("the quick brown fox"), json!(""), json!([2, 5, 9, 400]), json!("grün – 你好 🙂")] {
        let body = json!({"prompt": prompt, "max_tokens": 24, "return_token_ids": true});
        let answer = whole(server.client, body.clone()).await;
        assert_eq!(streamed(server.client, body).await, answer);
        let (prompt, generated) = (ids(&answer.prompt_token_ids).len(), answer.token_ids.len());
        assert_eq!(
            answer.usage,
            json!({"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated})
        );
        assert!(generated == 24 || answer.finish == "stop", "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_requests_at_once_each_get_their_solo_tokens() {
    for model in ["dense", "ple", "moe"] {
        eight_requests_at_once(&serving(model, &["--prefill-chunk", "32"])).await;
    }
}

async fn eight_requests_at_once(server: &Server) {
    let bodies = ragged_requests();
    let start = server.soft("graph_launches");
    let alone = solo(server.client, &bodies).await;
    let launches_alone = steps_since(server, start).await;
    let start = server.soft("graph_launches");
    let together = bodies.iter().enumerate().map(|(i, body)| {
        let (client, body) = (server.client, body.clone());
        tokio::spawn(async move { if i % 2 == 0 { streamed(client, body).await } else { whole(client, body).await } })
    });
    for ((request, alone), body) in together.collect::<Vec<_>>().into_iter().zip(&alone).zip(&bodies) {
        assert_eq!(&request.await.expect("an answer"), alone, "{body}");
    }
    // They did share steps.
    let launches_together = steps_since(server, start).await;
    assert!(launches_together * 10 < launches_alone * 6, "{launches_together} of {launches_alone}");
    assert_eq!(server.soft("armed_allocations") + server.soft("armed_captures") + server.soft("armed_module_loads"), 0);
}

/// Graph launches since a count, read when nothing runs.
async fn steps_since(server: &Server, start: u64) -> u64 {
    count(server, "graph_launches").await - start
}

/// A counter of the device when nothing runs.
async fn count(server: &Server, counter: &str) -> u64 {
    until("idle", || server.metric("gemma4_requests_running") == 0).await;
    server.soft(counter)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flags_that_change_the_path_and_the_spelling_of_the_config_leave_the_tokens() {
    let copy = tempfile::tempdir().expect("a folder");
    let renamed = copy.path().join("renamed");
    std::fs::create_dir(&renamed).expect("a folder");
    for file in ["model.safetensors", "tokenizer.json", "generation_config.json"] {
        std::fs::copy(reference("dense").join(file), renamed.join(file)).expect("a copy");
    }
    let spelling = reference("dense").join("config.hf-5.24-style.json");
    std::fs::copy(spelling, renamed.join("config.json")).expect("a copy");

    let bodies = ragged_requests();
    let default = dense(&[]);
    let start = default.soft("launches");
    let answers = solo(default.client, &bodies).await;
    assert_eq!(answers.len(), 8);
    let different: std::collections::HashSet<_> = answers.iter().flat_map(|a| &a.token_ids).collect();
    assert!(different.len() > 8, "the prompts tell paths apart: {different:?}");
    assert!(default.soft("graph_launches") > 0);
    // Launches outside of graphs are those of prompts.
    let prompt_launches = count(&default, "launches").await - start;
    drop(default);

    let no_graphs = dense(&["--no-graphs"]);
    assert_eq!(solo(no_graphs.client, &bodies).await, answers, "--no-graphs");
    assert_eq!(no_graphs.soft("graph_launches"), 0);
    drop(no_graphs);

    // Eight at once, in every combination of the step's switches.
    for flags in [
        &["--no-pipeline"][..],
        &["--no-fingerprint"],
        &["--no-tail", "--spin-us", "50"],
        &["--no-pipeline", "--no-fingerprint", "--no-tail", "--no-graphs", "--spin-us", "0"],
    ] {
        let switched = dense(flags);
        assert_eq!(together(switched.client, &bodies).await, answers, "{flags:?}");
    }

    let chunked = dense(&["--prefill-chunk", "7"]);
    let start = chunked.soft("launches");
    assert_eq!(solo(chunked.client, &bodies).await, answers, "--prefill-chunk 7");
    assert!(count(&chunked, "launches").await - start > 3 * prompt_launches, "33 chunks of 7 instead of 8 prompts");
    drop(chunked);

    let renamed = Setup::serve(&["--max-running", "8"]).model(&renamed).start();
    assert_eq!(solo(renamed.client, &bodies).await, answers, "config.hf-5.24-style.json");
    let models = renamed.client.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "renamed", "the folder's name");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_prompt_has_one_bos_and_token_ids_are_taken_as_they_are() {
    // B87
    let server = dense(&[]);
    let prompt_ids = async |prompt: Value| {
        let body = json!({"prompt": prompt, "max_tokens": 1, "return_token_ids": true});
        ids(&whole(server.client, body).await.prompt_token_ids)
    };
    assert_eq!(prompt_ids(json!("hello")).await, [2, 438, 435, 442, 442, 445]);
    assert_eq!(prompt_ids(json!("<bos>hello")).await, [2, 438, 435, 442, 442, 445]);
    assert_eq!(prompt_ids(json!("")).await, [2]);
    assert_eq!(prompt_ids(json!([438, 435])).await, [438, 435]);
    assert_eq!(prompt_ids(json!([2, 2])).await, [2, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_and_metrics_name_what_is_served() {
    let server =
        Setup::serve(&["--max-running", "8", "--served-model-name", "tiny"]).model(&reference("dense")).start();
    let models = server.client.get("/v1/models").await.json();
    assert_eq!(models["object"], "list");
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["object"]), (&json!("tiny"), &json!("model")));
    let wrong = server.client.complete(json!({"prompt": "a", "model": "gemma-4-12B"})).await;
    assert_eq!((wrong.status, wrong.error_code().as_str()), (404, "model_not_found"));
    assert!(wrong.text().contains("tiny"), "{}", wrong.text());

    let body = json!({"model": "tiny", "prompt": ["one", "two"], "max_tokens": 3, "ignore_eos": true});
    let reply = server.client.send("POST", "/v1/completions", &[("x-request-id", "abc")], body.to_string()).await;
    assert_eq!((reply.status, reply.header("x-request-id")), (200, Some("abc")));
    assert_eq!(reply.json()["choices"].as_array().map(Vec::len), Some(2));
    until("idle", || server.metric("gemma4_requests_running") == 0).await;
    for (name, value) in [
        ("gemma4_requests_waiting", 0),
        ("gemma4_kv_pages_free{family=\"sliding\"}", 16),
        ("gemma4_kv_pages_free{family=\"global\"}", 512),
        ("gemma4_requests_total{outcome=\"length\"}", 2),
        ("gemma4_requests_total{outcome=\"refused\"}", 1),
        ("gemma4_requests_total{outcome=\"aborted\"}", 0),
        ("gemma4_requests_aborted_total", 0),
        ("gemma4_device_info{kind=\"soft\"}", 1),
        ("gemma4_generated_tokens_total", 6),
        ("gemma4_time_to_first_token_seconds_count", 2),
        ("gemma4_time_to_first_token_seconds_bucket{le=\"+Inf\"}", 2),
        ("gemma4_inter_token_seconds_count", 4),
    ] {
        assert_eq!(server.metric(name), value, "{name}");
    }
    assert!(server.soft("calls") > 0);
}

#[test]
fn readiness_is_503_until_the_model_is_loaded() {
    // A stalled device never finishes loading.
    let server = Setup::serve(&[]).soft("STALL", "1").bound();
    let ready = request(server.address, "GET", "/health/ready", "").expect("an answer");
    assert_eq!(ready.status, 503);
    assert!(ready.text.contains("\"reason\":\"loading\""), "{}", ready.text);
    assert_eq!(request(server.address, "GET", "/health/live", "").expect("an answer").status, 200);
    assert_eq!(request(server.address, "GET", "/v1/models", "").expect("an answer").status, 503);
    let refused = request(server.address, "POST", "/v1/completions", r#"{"prompt":"a"}"#).expect("an answer");
    assert_eq!(refused.status, 503);
    assert!(refused.text.contains("\"code\":\"loading\""), "{}", refused.text);
    // Nothing to drain: SIGTERM ends it although the device is stuck.
    server.process.signal(crate::process::Signal::TERM);
    assert_eq!(server.exit().code, Some(0));

    let server = Setup::serve(&["--max-running", "1"]).start();
    wait("ready", || server.ready() == Some(200));
    let page = server.process.stdout.text();
    for words in ["max-running        1 sequences", "memory plan, bytes", "KV pool, global", "start-up", "capture"] {
        assert!(page.contains(words), "{words} in {page}");
    }
}
