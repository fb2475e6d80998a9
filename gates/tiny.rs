//! Gate: the embedded model answers.
//!
//! Held-out tasks go to the server as ids, many at a time, at temperature 0. Of the answers at least 90 % are right, of
//! every family 80 %, of tool calls 95 %; and each is, token for token, what transformers answers, except from where
//! its own f32 and bf16 runs differ or where its f32 run has the two largest logits less than 0.5 apart. Then the chat
//! route is asked in words.

mod common;
#[path = "../tests/support/process.rs"]
mod process;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::Gate;
use process::{Client, Server, Setup};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// Made by scripts/train_tiny/held_out.py.
#[derive(Deserialize)]
struct Sample {
    family: String,
    /// The output begins with a thought, which may be another one.
    thinking: bool,
    prompt: Vec<u32>,
    /// The right output.
    output: Vec<u32>,
    /// What transformers answers in f32.
    hf: Vec<u32>,
    /// From this token on its bf16 run answers something else.
    free_from: usize,
    /// Tokens whose two largest logits are close.
    close: Vec<usize>,
}

const CHANNEL_END: u32 = 101;
/// Right answers in percent, of a family at least.
const FAMILY_MIN: usize = 80;
const TOOLS_MIN: usize = 95;
const ALL_MIN: usize = 90;
const TOOLS: [&str; 3] = ["tool_call", "tool_answer", "tool_none"];
/// Requests at a time: several buckets, and rows that come and go.
const TOGETHER: usize = 24;

fn main() {
    let mut gate = Gate::start("tiny");
    let samples: Vec<Sample> =
        serde_json::from_slice(include_bytes!("../tests/data/tiny_held_out.json")).expect("the samples");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = Setup::serve(&["--max-running", "32"]).start();
    let answers = runtime.block_on(ask(server.client, &samples));
    right_answers(&mut gate, &samples, &answers);
    as_transformers(&mut gate, &samples, &answers);
    runtime.block_on(in_words(&mut gate, &server));
    // The gate's end skips destructors, and the server would outlive it.
    drop(server);
    gate.finish();
}

async fn ask(client: Client, samples: &[Sample]) -> Vec<Vec<u32>> {
    let places = Arc::new(Semaphore::new(TOGETHER));
    let tasks: Vec<_> = samples
        .iter()
        .map(|sample| {
            let places = places.clone();
            let body = json!({
                "prompt": sample.prompt, "max_tokens": sample.hf.len().max(sample.output.len()), "temperature": 0,
                "return_token_ids": true,
            });
            tokio::spawn(async move {
                let _place = places.acquire().await;
                let reply = client.complete(body).await;
                assert_eq!(reply.status, 200, "{}", reply.text());
                let ids = reply.json()["choices"][0]["token_ids"].clone();
                serde_json::from_value::<Vec<u32>>(ids).expect("token ids")
            })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.expect("an answer"));
    }
    answers
}

/// What counts of an output: what follows the thought.
fn answer(sample: &Sample, ids: &[u32]) -> Option<Vec<u32>> {
    match sample.thinking {
        false => Some(ids.to_vec()),
        true => ids.iter().position(|&id| id == CHANNEL_END).map(|end| ids[end + 1..].to_vec()),
    }
}

fn right_answers(gate: &mut Gate, samples: &[Sample], answers: &[Vec<u32>]) {
    // Family: right answers, samples.
    let mut table: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (sample, ids) in samples.iter().zip(answers) {
        let (right, of) = table.entry(&sample.family).or_default();
        *right += usize::from(answer(sample, ids) == answer(sample, &sample.output));
        *of += 1;
    }
    for (family, &(right, of)) in &table {
        let least = match *family {
            family if TOOLS.contains(&family) => TOOLS_MIN,
            _ => FAMILY_MIN,
        };
        gate.fact(right * 100 >= least * of, &format!("{family}: {right} of {of} right (at least {least} %)"));
    }
    let (right, of) = table.values().fold((0, 0), |(a, b), (right, of)| (a + right, b + of));
    gate.fact(right * 100 >= ALL_MIN * of, &format!("all families: {right} of {of} right (at least {ALL_MIN} %)"));
}

fn as_transformers(gate: &mut Gate, samples: &[Sample], answers: &[Vec<u32>]) {
    let (mut equal, mut excused, mut wrong) = (0, 0, Vec::new());
    for (sample, ids) in samples.iter().zip(answers) {
        // A right output longer than transformers' own may be asked further than it went.
        let length = sample.hf.len().min(ids.len()).max(1);
        match (0..length).find(|&i| ids.get(i) != sample.hf.get(i)) {
            None => equal += 1,
            Some(place) if place >= sample.free_from || sample.close.contains(&place) => excused += 1,
            Some(place) => wrong.push(format!("{} at token {place}", sample.family)),
        }
    }
    let text = format!("{equal} answers are those of transformers, {excused} differ where it is of two minds");
    gate.fact(wrong.is_empty(), &format!("{text}, {} elsewhere: {wrong:?}", wrong.len()));
    gate.fact(equal * 10 >= samples.len() * 9, &format!("{equal} of {} are the same in every token", samples.len()));
}

/// The chat route, as a newcomer meets it.
async fn in_words(gate: &mut Gate, server: &Server) {
    for (question, answer) in
        [("What is the capital of France?", "Paris"), ("Repeat: apple tree", "apple tree"), ("What is 7 + 5?", "12")]
    {
        let body = json!({"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 64});
        let reply = server.client.send("POST", "/v1/chat/completions", &[], body.to_string()).await;
        let json: Value = reply.json();
        let said = json["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
        gate.fact(said.contains(answer), &format!("{question:?} is answered with {said:?}"));
    }
}
