//! Gate: the embedded model answers, and so do its siblings.
//!
//! Held-out tasks go to the server as ids, many at a time, at temperature 0. Of the answers at least 90 % are right, of
//! every family 80 %, of tool calls 95 % (of a sibling, what its training reached); and each is, token for token, what
//! transformers answers, except from where its own f32 and bf16 runs differ or where its f32 run has the two largest
//! logits less than 0.5 apart. Then the embedded model is asked in words, on the chat route.

mod common;
#[path = "../tests/support/process.rs"]
mod process;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use common::Gate;
use process::{Client, Server, Setup};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
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
/// Right answers in percent: of all, of every family, of those with tools.
struct Bounds {
    all: usize,
    family: usize,
    tools: usize,
}
/// A model on which equal bytes mean something.
const GAP_MIN: f64 = 2.0;
const TOOLS: [&str; 3] = ["tool_call", "tool_answer", "tool_none"];
/// Folders below models/, and what their trainings reached.
const SIBLINGS: [(&str, Bounds); 2] =
    [("tiny-ple", Bounds { all: 90, family: 70, tools: 90 }), ("tiny-moe", Bounds { all: 90, family: 70, tools: 80 })];
/// Requests at a time: several buckets, and rows that come and go.
const TOGETHER: usize = 24;

fn main() {
    let mut gate = Gate::start("tiny");
    let runtime = Runtime::new().expect("a runtime");
    let serve = || Setup::serve(&["--max-running", "32"]);
    let embedded = serve().start();
    let bounds = Bounds { all: 90, family: 80, tools: 95 };
    held_out(&mut gate, &runtime, &embedded, "tiny", &bounds);
    runtime.block_on(in_words(&mut gate, &embedded));
    // The gate's end skips destructors, and the server would outlive it.
    drop(embedded);
    for (name, bounds) in SIBLINGS {
        let server = serve().model(&Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name)).start();
        held_out(&mut gate, &runtime, &server, name, &bounds);
    }
    gate.finish();
}

fn held_out(gate: &mut Gate, runtime: &Runtime, server: &Server, name: &str, bounds: &Bounds) {
    let file = format!("{}/tests/data/{}_held_out.json", env!("CARGO_MANIFEST_DIR"), name.replace('-', "_"));
    let samples = std::fs::read(&file).unwrap_or_else(|e| panic!("{file}: {e}"));
    let samples: Vec<Sample> = serde_json::from_slice(&samples).expect("the samples");
    let answers = runtime.block_on(ask(server.client, &samples));
    right_answers(gate, name, &samples, &answers, bounds);
    as_transformers(gate, name, &samples, &answers);
    let mut gaps: Vec<f64> = answers.iter().flat_map(|answer| answer.gaps.iter().copied()).collect();
    gaps.sort_by(f64::total_cmp);
    let median = gaps.get(gaps.len() / 2).copied().unwrap_or_default();
    let text = format!("{name}: the median of {} gaps between the two largest logits is {median:.2}", gaps.len());
    gate.fact(median >= GAP_MIN && gaps.len() > samples.len(), &format!("{text} (at least {GAP_MIN})"));
}

/// What the model wrote, and how far apart the two largest logits were at each token.
struct Answer {
    ids: Vec<u32>,
    gaps: Vec<f64>,
}

async fn ask(client: Client, samples: &[Sample]) -> Vec<Answer> {
    let places = Arc::new(Semaphore::new(TOGETHER));
    let tasks: Vec<_> = samples
        .iter()
        .map(|sample| {
            let places = places.clone();
            let body = json!({
                "prompt": sample.prompt, "max_tokens": sample.hf.len().max(sample.output.len()), "temperature": 0,
                "return_token_ids": true, "logprobs": 2,
            });
            tokio::spawn(async move {
                let _place = places.acquire().await;
                let reply = client.complete(body).await;
                assert_eq!(reply.status, 200, "{}", reply.text());
                let choice = reply.json()["choices"][0].clone();
                let ids = serde_json::from_value::<Vec<u32>>(choice["token_ids"].clone()).expect("token ids");
                let best = choice["logprobs"]["top_logprobs"].as_array().expect("two alternatives a token").clone();
                Answer { ids, gaps: best.iter().filter_map(gap).collect() }
            })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.expect("an answer"));
    }
    answers
}

/// Between the two likeliest tokens, unless both have the same text. A difference of log-probabilities is one of
/// logits.
fn gap(best: &Value) -> Option<f64> {
    let of: Vec<f64> = best.as_object()?.values().filter_map(Value::as_f64).collect();
    (of.len() == 2).then(|| (of[0] - of[1]).abs())
}

/// What counts of an output: what follows the thought.
fn answer(sample: &Sample, ids: &[u32]) -> Option<Vec<u32>> {
    match sample.thinking {
        false => Some(ids.to_vec()),
        true => ids.iter().position(|&id| id == CHANNEL_END).map(|end| ids[end + 1..].to_vec()),
    }
}

fn right_answers(gate: &mut Gate, name: &str, samples: &[Sample], answers: &[Answer], bounds: &Bounds) {
    // Family: right answers, samples.
    let mut table: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (sample, Answer { ids, .. }) in samples.iter().zip(answers) {
        let (right, of) = table.entry(&sample.family).or_default();
        *right += usize::from(answer(sample, ids) == answer(sample, &sample.output));
        *of += 1;
    }
    for (family, &(right, of)) in &table {
        let least = if TOOLS.contains(family) { bounds.tools } else { bounds.family };
        gate.fact(right * 100 >= least * of, &format!("{name}, {family}: {right} of {of} right (at least {least} %)"));
    }
    let (right, of) = table.values().fold((0, 0), |(a, b), (right, of)| (a + right, b + of));
    let least = bounds.all;
    gate.fact(right * 100 >= least * of, &format!("{name}, all: {right} of {of} right (at least {least} %)"));
}

fn as_transformers(gate: &mut Gate, name: &str, samples: &[Sample], answers: &[Answer]) {
    let (mut equal, mut excused, mut wrong) = (0, 0, Vec::new());
    for (sample, Answer { ids, .. }) in samples.iter().zip(answers) {
        // A right output longer than transformers' own may be asked further than it went.
        let length = sample.hf.len().min(ids.len()).max(1);
        match (0..length).find(|&i| ids.get(i) != sample.hf.get(i)) {
            None => equal += 1,
            Some(place) if place >= sample.free_from || sample.close.contains(&place) => excused += 1,
            Some(place) => wrong.push(format!("{} at token {place}", sample.family)),
        }
    }
    let text = format!("{name}: {equal} answers are those of transformers, {excused} differ where it is of two minds");
    gate.fact(wrong.is_empty(), &format!("{text}, {} elsewhere: {wrong:?}", wrong.len()));
    gate.fact(
        equal * 10 >= samples.len() * 9,
        &format!("{name}: {equal} of {} are the same in every token", samples.len()),
    );
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
