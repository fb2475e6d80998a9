//! Log-probabilities over a real socket: a request's are the same bytes whatever runs beside it, and cost the others
//! nothing.

use crate::process::{Client, Server, Setup, reference, until};
use serde_json::{Value, json};

fn dense(flags: &[&str]) -> Server {
    Setup::serve(&[&["--max-running", "16"], flags].concat()).model(&reference("dense")).start()
}

fn body(seed: u64, fields: Value) -> Value {
    let mut body = json!({
        "prompt": [2, 5, 9, 11 + seed % 7], "max_tokens": 12 + seed % 5, "ignore_eos": true, "return_token_ids": true,
        "temperature": 1.0, "top_k": 64, "top_p": 0.95, "seed": seed, "logprobs": 3,
    });
    fields.as_object().expect("fields").iter().for_each(|(name, value)| body[name] = value.clone());
    body
}

/// Rows that ask for log-probabilities of several counts beside rows that do not, of every kind.
fn mixed() -> Vec<Value> {
    vec![
        body(1, json!({})),
        body(2, json!({"logprobs": null})),
        body(3, json!({"logprobs": 0, "temperature": 0})),
        body(4, json!({"logprobs": 20, "repetition_penalty": 1.5, "presence_penalty": 1})),
        body(5, json!({"logprobs": null, "frequency_penalty": 2})),
        body(6, json!({"logprobs": 5, "logit_bias": {"7": 9}, "top_k": 0})),
        body(7, json!({"logprobs": 2, "allowed_token_ids": [7, 8, 9], "typical_p": 0.4})),
        body(8, json!({"logprobs": 1, "xtc_probability": 0.5, "xtc_threshold": 0.02, "top_p": 1})),
        body(1, json!({})),
    ]
}

/// Choices without their text's surroundings: all that a request's tokens say.
async fn choices(client: Client, body: Value) -> Value {
    let reply = client.complete(body.clone()).await;
    assert_eq!(reply.status, 200, "{body}: {}", reply.text());
    reply.json()["choices"].clone()
}

async fn together(client: Client, bodies: &[Value]) -> Vec<Value> {
    let tasks: Vec<_> = bodies.iter().cloned().map(|body| tokio::spawn(choices(client, body))).collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.expect("a task"));
    }
    answers
}

fn floats(list: &Value) -> Vec<f64> {
    list.as_array().expect("a list").iter().map(|value| value.as_f64().expect("a finite number")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b53_logprobs_are_the_same_alone_and_in_any_batch_and_way_of_stepping() {
    let server = dense(&[]);
    let bodies = mixed();
    let mut want = Vec::new();
    for body in &bodies {
        want.push(choices(server.client, body.clone()).await);
    }
    assert_eq!(want[0], want[8], "two equal requests");
    for (body, answer) in bodies.iter().zip(&want) {
        let (asked, lists) = (body["logprobs"].as_u64(), &answer[0]["logprobs"]);
        let Some(asked) = asked else {
            assert_eq!(*lists, Value::Null);
            continue;
        };
        let own = floats(&lists["token_logprobs"]);
        assert_eq!(own.len() as u64, body["max_tokens"].as_u64().expect("a number"));
        for (i, &own) in own.iter().enumerate() {
            let top = lists["top_logprobs"][i].as_object().expect("an object");
            let values: Vec<f64> = top.values().map(|value| value.as_f64().expect("a number")).collect();
            assert!((asked.max(1)..=asked + 1).contains(&(top.len() as u64)), "{top:?}");
            assert!(values.contains(&own) && values.iter().map(|v| v.exp()).sum::<f64>() < 1.0 + 1e-5, "{top:?}");
        }
    }
    // Greedy rows choose the likeliest token.
    let greedy = &want[2][0]["logprobs"];
    assert!(greedy["top_logprobs"].as_array().expect("a list").iter().all(|top| top.as_object().unwrap().len() == 1));
    for _ in 0..2 {
        assert_eq!(together(server.client, &bodies).await, want);
    }
    for flags in [&["--no-pipeline"][..], &["--no-graphs"], &["--no-tail", "--no-fingerprint"]] {
        let server = dense(flags);
        assert_eq!(together(server.client, &bodies).await, want, "{flags:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b51_processed_logprobs_are_of_what_is_drawn_from_and_finite() {
    let raw = dense(&[]);
    let processed = dense(&["--logprobs-mode", "processed"]);
    assert!(processed.process.stdout.text().contains("logprobs-mode      processed\n"));
    let narrow = body(3, json!({"allowed_token_ids": [7], "logprobs": 5}));
    let (r, p) = (choices(raw.client, narrow.clone()).await, choices(processed.client, narrow).await);
    assert_eq!(r[0]["token_ids"], p[0]["token_ids"]);
    assert!(floats(&p[0]["logprobs"]["token_logprobs"]).iter().all(|&logprob| logprob == 0.0), "one token is left");
    assert!(floats(&r[0]["logprobs"]["token_logprobs"]).iter().all(|&logprob| logprob < 0.0));
    let tops = |answer: &Value| -> Vec<usize> {
        let tops = answer[0]["logprobs"]["top_logprobs"].as_array().expect("a list");
        tops.iter().map(|top| top.as_object().expect("an object").len()).collect()
    };
    assert!(tops(&p).iter().all(|&count| count == 1) && tops(&r).iter().all(|&count| count >= 5));
    // B51's own: a nucleus of a hundredth.
    let tight = body(4, json!({"top_p": 0.01, "logprobs": 5}));
    for server in [&raw, &processed] {
        let answer = choices(server.client, tight.clone()).await;
        assert!(floats(&answer[0]["logprobs"]["token_logprobs"]).iter().all(|logprob| logprob.is_finite()));
    }
    // Alone and together here too.
    let bodies = mixed();
    let mut want = Vec::new();
    for body in &bodies {
        want.push(choices(processed.client, body.clone()).await);
    }
    assert_eq!(together(processed.client, &bodies).await, want);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t004_2_a_logprob_or_penalised_row_costs_no_launch_no_copy_and_no_drain() {
    let server = dense(&[]);
    let counts = ["graph_launches", "copies_d2h"];
    let idle = || until("idle", || server.metric("gemma4_requests_running") == 0);
    let mut drains = Vec::new();
    for fields in [
        json!({"logprobs": null}),
        json!({}),
        json!({"logprobs": 20, "temperature": 0}),
        json!({"logprobs": 1, "frequency_penalty": 1, "logit_bias": {"9": 3}}),
    ] {
        for rows in [1u64, 8] {
            idle().await;
            let drained = || server.metric("gemma4_pipeline_drains_total{cause=\"idle\"}");
            let (before, drains_before) = (counts.map(|name| server.soft(name)), drained());
            let bodies: Vec<Value> = (0..rows)
                .map(|seed| {
                    let mut body = body(seed, fields.clone());
                    body["max_tokens"] = json!(24);
                    body
                })
                .collect();
            together(server.client, &bodies).await;
            idle().await;
            let after = counts.map(|name| server.soft(name));
            let (launches, copies) = (after[0] - before[0], after[1] - before[1]);
            // A copy a decode step, and one a prompt: its first token.
            assert_eq!((launches % 2, copies), (0, launches / 2 + rows), "{fields}, {rows} rows");
            drains.push((rows, drained() - drains_before));
        }
    }
    // The pipeline is emptied when nothing is left to launch, and then alone.
    assert!(drains.iter().all(|&(rows, count)| count >= 1 && count <= rows), "{drains:?}");
}

/// Log-probabilities of a prompt's tokens as `prompt_logprobs` has them: of a position, by id.
async fn prompt_entries(client: Client, ids: &[u64], fields: Value) -> Vec<Value> {
    let mut body = json!({"prompt": ids, "max_tokens": 1, "ignore_eos": true, "temperature": 0, "prompt_logprobs": 20});
    fields.as_object().expect("fields").iter().for_each(|(name, value)| body[name] = value.clone());
    choices(client, body).await[0]["prompt_logprobs"].as_array().expect("a list").clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_tokens_logprobs_are_bit_for_bit_those_that_decoding_gives_behind_the_same_prefix() {
    // Chunks of 8 with tiles of 4 rows, of 5 with tiles of 16, and the prompt in one piece.
    let servers = [
        Setup::serve(&["--max-running", "4", "--prefill-chunk", "8"]).model(&reference("dense")).start(),
        dense(&["--prefill-chunk", "5"]),
        dense(&["--logprobs-mode", "processed"]),
    ];
    let body = json!({
        "prompt": [2, 5, 9, 11], "max_tokens": 40, "ignore_eos": true, "return_token_ids": true, "temperature": 1,
        "seed": 5, "logprobs": 20, "top_p": 0.99,
    });
    let answer = choices(servers[0].client, body).await;
    let lists = &answer[0]["logprobs"];
    let mut ids = vec![2, 5, 9, 11];
    ids.extend(answer[0]["token_ids"].as_array().expect("ids").iter().filter_map(Value::as_u64));
    let mut seen = Vec::new();
    for server in &servers {
        let entries = prompt_entries(server.client, &ids, json!({})).await;
        assert_eq!((entries.len(), &entries[0]), (ids.len(), &Value::Null));
        for (i, entry) in entries.iter().enumerate().skip(4) {
            let own = &entry[ids[i].to_string()];
            assert_eq!(own["logprob"], lists["token_logprobs"][i - 4], "position {i}");
            // The same likeliest tokens with the same numbers: JSON prints a float so that it comes back whole.
            let by_name = lists["top_logprobs"][i - 4].as_object().expect("an object");
            let entry = entry.as_object().expect("an object");
            assert_eq!(entry.len(), by_name.len());
            for other in entry.values() {
                let name = other["decoded_token"].as_str().expect("a name");
                assert_eq!(Some(&other["logprob"]), by_name.get(name), "position {i}, {name}");
            }
        }
        seen.push(entries);
    }
    assert!(seen.iter().all(|entries| *entries == seen[0]), "any chunks, any tiles, either mode");
    // Beside others, and fewer of them, and by way of an echo.
    let neighbours: Vec<_> = mixed().into_iter().map(|body| tokio::spawn(choices(servers[1].client, body))).collect();
    let three =
        prompt_entries(servers[1].client, &ids, json!({"prompt_logprobs": 3, "echo": true, "logprobs": 0})).await;
    for neighbour in neighbours {
        neighbour.await.expect("an answer");
    }
    for (some, all) in three.iter().zip(&seen[0]).skip(1) {
        let (some, all) = (some.as_object().expect("an object"), all.as_object().expect("an object"));
        assert!((3..=4).contains(&some.len()) && some.iter().all(|(id, entry)| all[id] == *entry), "{some:?} {all:?}");
    }
    let echo = json!({"prompt": ids, "max_tokens": 0, "echo": true, "logprobs": 0});
    let echoed = choices(servers[1].client, echo).await;
    let own = |i: usize| seen[0][i][ids[i].to_string()]["logprob"].clone();
    let want: Vec<Value> = std::iter::once(Value::Null).chain((1..ids.len()).map(own)).collect();
    assert_eq!(echoed[0]["logprobs"]["token_logprobs"], json!(want));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scored_prompt_costs_one_copy_a_chunk_and_nothing_is_allocated_for_it() {
    let server = Setup::serve(&["--max-running", "4", "--prefill-chunk", "8"]).model(&reference("dense")).start();
    let idle = || until("idle", || server.metric("gemma4_requests_running") == 0);
    idle().await;
    let ids: Vec<u64> = (0..30).map(|i| 3 + i * 5).collect();
    let counts = ["copies_d2h", "allocations"];
    let mut seen = Vec::new();
    for fields in [json!({"prompt_logprobs": null}), json!({})] {
        let before = counts.map(|name| server.soft(name));
        let body = json!({"prompt": ids, "max_tokens": 5, "ignore_eos": true, "prompt_logprobs": 20});
        let mut body = body;
        fields.as_object().expect("fields").iter().for_each(|(name, value)| body[name] = value.clone());
        choices(server.client, body).await;
        idle().await;
        let after = counts.map(|name| server.soft(name));
        seen.push([after[0] - before[0], after[1] - before[1]]);
    }
    // The prompt's last chunk and four decode steps; scored, each of four chunks has its own.
    assert_eq!(seen, [[5, 0], [8, 0]]);
}
