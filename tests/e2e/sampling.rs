//! Sampled requests over a real socket: the same request gives the same bytes whatever runs beside it.

use crate::process::{Client, Server, Setup, reference, until};
use gemma4_serve::model::safetensors::{TensorInfo, TensorOut, read_header, write};
use serde_json::{Value, json};

fn dense(flags: &[&str]) -> Server {
    Setup::serve(&[&["--max-running", "16"], flags].concat()).model(&reference("dense")).start()
}

/// A sampled request of the published defaults.
fn sampled(seed: u64) -> Value {
    json!({
        "prompt": [2, 5, 9, 11 + seed % 7], "max_tokens": 20 + seed % 5, "ignore_eos": true, "return_token_ids": true,
        "temperature": 1.0, "top_k": 64, "top_p": 0.95, "seed": seed,
    })
}

/// Every kind of row that the sampler knows, seeded.
fn mixed() -> Vec<Value> {
    let with = |seed: u64, fields: Value| {
        let mut body = sampled(seed);
        fields.as_object().expect("fields").iter().for_each(|(name, value)| body[name] = value.clone());
        body
    };
    vec![
        sampled(1),
        with(2, json!({"top_k": 0, "top_p": 1})),
        with(3, json!({"top_k": -1, "top_p": 0.9, "temperature": 1.7})),
        with(4, json!({"temperature": 0})),
        with(5, json!({"min_p": 0.2, "top_k": 0, "top_p": 1})),
        with(6, json!({"typical_p": 0.3})),
        with(7, json!({"xtc_probability": 0.5, "xtc_threshold": 0.05})),
        with(8, json!({"top_p": 0})),
        sampled(1),
        with(u64::MAX, json!({"temperature": 0.3})),
    ]
}

/// A checkpoint's files in a folder of their own, to be changed.
fn copy_of(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    for file in std::fs::read_dir(reference(name)).expect("the checkpoint") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("a copy");
    }
    copy
}

/// The dense checkpoint with a head of its own and an embedding in which one token is not a number: whoever feeds it
/// has rows of NaN from then on.
fn poisoned(token: usize) -> tempfile::TempDir {
    const EMBED: &str = "model.language_model.embed_tokens.weight";
    let copy = copy_of("dense");
    let path = copy.path().join("model.safetensors");
    let file = std::fs::read(&path).expect("the tensors");
    let mut tensors = read_header(&file).expect("a header");
    let mut bytes: Vec<Vec<u8>> = tensors.iter().map(|tensor| file[tensor.bytes.clone()].to_vec()).collect();
    let embed = tensors.iter().position(|tensor| tensor.name == EMBED).expect("the embedding");
    let (dtype, shape) = (tensors[embed].dtype, tensors[embed].shape.clone());
    bytes.push(bytes[embed].clone());
    tensors.push(TensorInfo { name: "lm_head.weight".into(), dtype, shape: shape.clone(), bytes: 0..0 });
    let row = 2 * shape[1];
    bytes[embed][token * row..(token + 1) * row].chunks_mut(2).for_each(|bf16| bf16.copy_from_slice(&[0xc0, 0x7f]));
    let out: Vec<TensorOut> = tensors
        .iter()
        .zip(&bytes)
        .map(|(t, bytes)| TensorOut { name: &t.name, dtype: t.dtype, shape: &t.shape, bytes })
        .collect();
    write(&mut std::fs::File::create(&path).expect("a file"), &out).expect("a write");
    copy
}

/// Token ids of every choice, by index.
async fn tokens(client: Client, body: Value) -> Vec<Value> {
    let reply = client.complete(body.clone()).await;
    assert_eq!(reply.status, 200, "{body}: {}", reply.text());
    let json = reply.json();
    let choices = json["choices"].as_array().expect("choices");
    assert!(choices.iter().enumerate().all(|(i, choice)| choice["index"] == json!(i)), "{json}");
    choices.iter().map(|choice| choice["token_ids"].clone()).collect()
}

async fn alone(client: Client, bodies: &[Value]) -> Vec<Vec<Value>> {
    let mut answers = Vec::new();
    for body in bodies {
        answers.push(tokens(client, body.clone()).await);
    }
    answers
}

async fn together(client: Client, bodies: &[Value]) -> Vec<Vec<Value>> {
    let tasks: Vec<_> = bodies.iter().cloned().map(|body| tokio::spawn(tokens(client, body))).collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.expect("a task"));
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t000_6_b57_a_seeded_request_gives_the_same_bytes_alone_and_in_any_batch() {
    let server = dense(&[]);
    let bodies = mixed();
    let want = alone(server.client, &bodies).await;
    assert_eq!(want[0], want[8], "two equal requests");
    let distinct: std::collections::HashSet<String> = want.iter().map(|w| w[0].to_string()).collect();
    assert!(distinct.len() >= 7, "{want:?}");
    // Together, with unseeded neighbours of every kind that come and go.
    for round in 0..3 {
        let neighbours: Vec<_> = (0..4)
            .map(|i| {
                let mut body = sampled(i);
                body.as_object_mut().expect("an object").remove("seed");
                body["max_tokens"] = json!(3 + 5 * round);
                tokio::spawn(tokens(server.client, body))
            })
            .collect();
        assert_eq!(together(server.client, &bodies).await, want, "round {round}");
        for neighbour in neighbours {
            neighbour.await.expect("an answer");
        }
    }
    for flags in [&["--no-pipeline"][..], &["--no-graphs"], &["--no-tail", "--no-fingerprint"]] {
        let server = dense(flags);
        assert_eq!(together(server.client, &bodies).await, want, "{flags:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b39_b40_n_choices_differ_replay_and_are_counted_once_by_their_prompt() {
    let server = dense(&[]);
    let mut body = sampled(42);
    body["n"] = json!(4);
    let four = tokens(server.client, body.clone()).await;
    assert_eq!(four.len(), 4);
    assert!((0..4).all(|i| (0..i).all(|j| four[i] != four[j])), "{four:?}");
    assert_eq!(tokens(server.client, body.clone()).await, four, "a replay");
    assert_eq!(tokens(server.client, sampled(42)).await[0], four[0], "the first choice is the request with n = 1");
    let reply = server.client.complete(body.clone()).await.json();
    let generated: usize = four.iter().map(|ids| ids.as_array().expect("ids").len()).sum();
    assert_eq!(
        reply["usage"],
        json!({"prompt_tokens": 4, "completion_tokens": generated, "total_tokens": 4 + generated})
    );
    // Two prompts, choices prompt by prompt; greedy choices are equal and allowed.
    body["prompt"] = json!([[2, 5, 9, 11], [2, 7]]);
    body["n"] = json!(2);
    assert_eq!(tokens(server.client, body.clone()).await.len(), 4);
    body["temperature"] = json!(0);
    let greedy = tokens(server.client, body).await;
    assert!(greedy[0] == greedy[1] && greedy[2] == greedy[3], "{greedy:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t000_9_requests_without_a_seed_differ_and_silent_ones_take_the_models_defaults() {
    let server = dense(&[]);
    let mut body = sampled(0);
    body["seed"] = Value::Null;
    let (first, second) = (tokens(server.client, body.clone()).await, tokens(server.client, body).await);
    assert_ne!(first, second, "two salts");
    // The checkpoint says do_sample: false.
    let silent = json!({"prompt": [2, 5, 9], "max_tokens": 20, "ignore_eos": true, "return_token_ids": true});
    let mut greedy = silent.clone();
    greedy["temperature"] = json!(0);
    assert_eq!(tokens(server.client, silent).await, tokens(server.client, greedy).await);

    // One that publishes sampling: a silent request is sampled with those values.
    let copy = copy_of("dense");
    let path = copy.path().join("generation_config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("the file")).expect("JSON");
    for (name, value) in [("do_sample", json!(true)), ("temperature", json!(1.5)), ("top_k", json!(3))] {
        config[name] = value;
    }
    std::fs::write(&path, config.to_string()).expect("a write");
    let sampling = Setup::serve(&[]).model(copy.path()).start();
    let seeded =
        json!({"prompt": [2, 5, 9], "max_tokens": 20, "ignore_eos": true, "return_token_ids": true, "seed": 3});
    let mut said = seeded.clone();
    (said["temperature"], said["top_k"], said["top_p"]) = (json!(1.5), json!(3), json!(1));
    let silent = tokens(sampling.client, seeded).await;
    assert_eq!(silent, tokens(sampling.client, said.clone()).await);
    assert_eq!(silent, tokens(server.client, said).await, "what is said wins over any checkpoint");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t004_2_sampled_rows_ride_the_pipeline_two_graph_launches_and_one_copy_a_step() {
    let server = dense(&[]);
    let counts = ["graph_launches", "copies_d2h"];
    let quiet = || until("idle", || server.metric("gemma4_requests_running") == 0);
    let mut per_step = Vec::new();
    for temperature in [0.0, 1.0] {
        quiet().await;
        let before = counts.map(|name| server.soft(name));
        let bodies: Vec<Value> = (0..8)
            .map(|seed| {
                let mut body = sampled(seed);
                (body["temperature"], body["max_tokens"], body["top_p"]) = (json!(temperature), json!(24), json!(0.8));
                body
            })
            .collect();
        together(server.client, &bodies).await;
        quiet().await;
        let after = counts.map(|name| server.soft(name));
        per_step.push((after[0] - before[0], after[1] - before[1]));
    }
    // Arrivals vary, so steps do; a sampled row costs neither a launch nor a copy more than a greedy one.
    for &(launches, copies) in &per_step {
        assert!(launches % 2 == 0 && copies >= launches / 2 && copies <= launches / 2 + 8, "{per_step:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b62_a_row_that_turns_nan_fails_its_request_alone_with_an_error_event() {
    const BAD: u64 = 77;
    let copy = poisoned(BAD as usize);
    // A small pool: what a failed request leaves in its pages is granted again at once.
    let flags = ["--max-running", "8", "--max-context", "64", "--kv-pages", "24"];
    let server = Setup::serve(&flags).model(copy.path()).start();
    let client = server.client;
    let good: Vec<Value> = (0..6).map(|seed| sampled(100 + seed)).collect();
    let want = alone(client, &good).await;
    let failed = || server.metric("gemma4_requests_total{outcome=\"failed\"}");
    for round in 0..3u64 {
        let before = failed();
        let neighbours = tokio::spawn({
            let good = good.clone();
            async move { together(client, &good).await }
        });
        // NaN in the prompt: nothing is generated, so the failure has a status.
        let mut body = sampled(round);
        body["prompt"] = json!([2, 5, BAD, 9]);
        let reply = client.complete(body.clone()).await;
        assert_eq!((reply.status, reply.error_code().as_str()), (500, "not_a_number"), "{}", reply.text());
        // NaN in the middle: a penalty ends 7's lead after a while, and the bad token's first turn is fed.
        let mut body = sampled(round);
        body["stream"] = json!(true);
        (body["allowed_token_ids"], body["logit_bias"]) = (json!([7, BAD]), json!({"7": 40}));
        (body["frequency_penalty"], body["temperature"], body["logprobs"]) = (json!(2), json!(0), json!(2));
        body["max_tokens"] = json!(60);
        let mut stream = client.open(body).await;
        let events = stream.rest().await;
        let (last, chunks) = events.split_last().expect("events");
        assert!(last.contains("\"code\":\"not_a_number\"") && !events.contains(&"[DONE]".to_owned()), "{events:?}");
        let tokens: Vec<Value> = chunks
            .iter()
            .map(|chunk| serde_json::from_str::<Value>(chunk).expect("JSON"))
            .flat_map(|chunk| chunk["choices"][0]["token_ids"].as_array().expect("ids").clone())
            .collect();
        assert!(tokens.len() > 1 && tokens.iter().rposition(|t| *t == json!(BAD)) == Some(tokens.len() - 1));
        assert_eq!(neighbours.await.expect("neighbours"), want, "round {round}");
        assert_eq!(failed() - before, 2);
    }
    assert_eq!(together(client, &good).await, want, "on pages that held NaN");
    assert_eq!(server.ready(), Some(200));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b56_64_clients_each_force_their_own_token_through_logit_bias() {
    let server = Setup::serve(&["--max-running", "24"]).model(&reference("dense")).start();
    let client = server.client;
    let tasks: Vec<_> = (0..64u64)
        .map(|i| {
            tokio::spawn(async move {
                let (token, length) = (3 + 7 * i, 1 + (i * 37) % 23);
                // Half are greedy, half sampled; both must give the forced token every time.
                let body = json!({
                    "prompt": [2, 5 + i], "max_tokens": length, "ignore_eos": true, "return_token_ids": true,
                    "temperature": (i % 2) as f64, "seed": i, "logit_bias": {token.to_string(): 100},
                });
                if i % 5 == 4 {
                    // Goes away after its first event, so rows leave in the middle of others' runs.
                    let mut stream = body.clone();
                    (stream["stream"], stream["max_tokens"]) = (json!(true), json!(200));
                    let mut stream = client.open(stream).await;
                    stream.event().await;
                    return;
                }
                let want = json!(vec![token; length as usize]);
                assert_eq!(tokens(client, body).await, [want], "client {i}");
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a client");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b55_overlays_are_a_rows_own_whatever_came_before_and_runs_beside() {
    let server = dense(&[]);
    let with = |seed: u64, fields: Value| {
        let mut body = sampled(seed);
        fields.as_object().expect("fields").iter().for_each(|(name, value)| body[name] = value.clone());
        body
    };
    let allowed: Vec<u32> = (100..130).collect();
    let bodies = vec![
        with(1, json!({"repetition_penalty": 1.5})),
        with(2, json!({"frequency_penalty": 2, "presence_penalty": -1})),
        with(3, json!({"presence_penalty": 2, "temperature": 0})),
        with(4, json!({"allowed_token_ids": allowed})),
        with(5, json!({"logit_bias": {"7": 4, "9": -100, "400": 3.5}})),
        with(6, json!({"bad_words": ["the", "of a"], "temperature": 1.5})),
        with(7, json!({"frequency_penalty": 2, "allowed_token_ids": [7, 8, 9, 10], "temperature": 0})),
        sampled(8),
    ];
    let want = alone(server.client, &bodies).await;
    let ids =
        |answer: &Value| -> Vec<u64> { answer.as_array().expect("ids").iter().filter_map(Value::as_u64).collect() };
    assert!(ids(&want[3][0]).iter().all(|id| (100..130).contains(id)), "{want:?}");
    assert!(!ids(&want[4][0]).contains(&9));
    // A frequency penalty of 2 makes four tokens take turns.
    assert!((7..=10).all(|id| ids(&want[6][0]).contains(&id)), "{:?}", want[6]);
    for round in 0..3 {
        let mut order: Vec<usize> = (0..bodies.len()).collect();
        order.rotate_left(3 * round + 1);
        let shuffled: Vec<Value> = order.iter().map(|&i| bodies[i].clone()).collect();
        let got = together(server.client, &shuffled).await;
        for (&i, got) in order.iter().zip(&got) {
            assert_eq!(got, &want[i], "round {round}, {}", bodies[i]);
        }
    }
    for flags in [&["--no-pipeline", "--no-graphs"][..], &["--no-tail"]] {
        assert_eq!(together(dense(flags).client, &bodies).await, want, "{flags:?}");
    }
    // Same request without a penalty differs: the penalties did something.
    assert_ne!(tokens(server.client, with(3, json!({"temperature": 0}))).await, want[2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn min_tokens_stop_token_ids_and_bad_words_hold_over_the_wire() {
    let server = dense(&[]);
    let body = json!({"prompt": [2, 5, 9], "max_tokens": 30, "return_token_ids": true, "temperature": 0});
    let with = |fields: Value| {
        let mut body = body.clone();
        fields.as_object().expect("fields").iter().for_each(|(name, value)| body[name] = value.clone());
        body
    };
    let plain = tokens(server.client, with(json!({"ignore_eos": true}))).await;
    let plain: Vec<u64> = plain[0].as_array().expect("ids").iter().filter_map(Value::as_u64).collect();
    // A token of the run as stop id: the answer ends with its first occurrence.
    let stop = plain[4];
    let first = plain.iter().position(|&id| id == stop).expect("it is there");
    let stopped = tokens(server.client, with(json!({"ignore_eos": true, "stop_token_ids": [stop]}))).await;
    assert_eq!(stopped, [json!(plain[..=first])]);
    // With min_tokens it cannot come before the eighth.
    let fields = json!({"ignore_eos": true, "stop_token_ids": [stop], "min_tokens": 8});
    let later = tokens(server.client, with(fields)).await;
    let later: Vec<u64> = later[0].as_array().expect("ids").iter().filter_map(Value::as_u64).collect();
    assert!(later.len() > 8 && !later[..8].contains(&stop), "{later:?}");
    // EOS forced by bias comes exactly when it may.
    for min_tokens in [0usize, 1, 5] {
        let fields = json!({"min_tokens": min_tokens, "logit_bias": {"1": 100}});
        let ended = tokens(server.client, with(fields)).await;
        let ended = ended[0].as_array().expect("ids").len();
        assert_eq!(ended, min_tokens + 1, "min_tokens {min_tokens}");
    }
}
