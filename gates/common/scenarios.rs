//! What the tracer gate lets an engine live through, by name.

use gemma4_serve::model::plan::PlanOptions;
use gemma4_serve::request::GenerateRequest;
use gemma4_serve::sampling::{LogprobsMode, SamplingParams};

use crate::oracle::Oracle;
use crate::rig::{Handle, Rig};
use crate::serve::Random;
use crate::tracer_model::WINDOW;

type Scenario = (&'static str, &'static [fn() -> PlanOptions], fn(&mut Rig, &mut Random));

pub const SCENARIOS: &[Scenario] = &[
    ("a stop id at every step index", &[narrow], stops_at_every_index),
    ("the length limit at every step index", &[narrow], limits_at_every_index),
    ("an abort at every step index", &[narrow], aborts_at_every_index),
    ("two late aborts, in either pinned slot or in both", &[narrow], two_late_aborts),
    ("an idle refill whose length exactly fits the old one", &[narrow], idle_refill_that_fits),
    ("a roster that shrinks and grows at one boundary", &[narrow], shrinks_and_grows),
    ("a page freed by an abort and granted at once", &[tight], freed_page_granted_at_once),
    ("pools so small that pages are recycled at once", &[tight, single], recycled_at_once),
    (
        "window and page borders, chunks of 1, 7, 16, 48, 200",
        &[chunk_1, chunk_7, chunk_16, chunk_48, chunk_200],
        borders,
    ),
    ("1 to 40 rows, every bucket up and down", &[wide], every_width),
];

const CONTEXT: usize = 256;

fn options(max_running: usize, kv_pages: usize, prefill_chunk: usize) -> PlanOptions {
    let max_context = Some(CONTEXT);
    PlanOptions { max_running, max_context, kv_pages: Some(kv_pages), prefill_chunk, ..PlanOptions::default() }
}

fn narrow() -> PlanOptions {
    options(5, 64, 24)
}
fn wide() -> PlanOptions {
    options(40, 320, 48)
}
/// One long sequence, or a few short ones.
fn tight() -> PlanOptions {
    options(4, 16, 32)
}
fn single() -> PlanOptions {
    options(1, 16, 16)
}
fn chunk_1() -> PlanOptions {
    options(3, 48, 1)
}
fn chunk_7() -> PlanOptions {
    options(3, 48, 7)
}
fn chunk_16() -> PlanOptions {
    options(3, 48, 16)
}
fn chunk_48() -> PlanOptions {
    options(3, 48, 48)
}
fn chunk_200() -> PlanOptions {
    options(3, 48, 200)
}

/// Engines of random size; pools from "one sequence" to "plenty".
pub fn random_options(random: &mut Random) -> PlanOptions {
    let pages = [16, 17, 24, 40, 160][random.below(5)];
    options([1, 2, 3, 4, 7, 12, 40][random.below(7)], pages, [1, 5, 16, 17, 48, 200][random.below(6)])
}

pub fn prompt(random: &mut Random, length: usize) -> Vec<u32> {
    (0..length).map(|_| random.below(512) as u32).collect()
}

fn request(random: &mut Random, length: usize, max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        prompt: prompt(random, length),
        max_tokens: max_tokens as u32,
        ignore_eos: true,
        stop_token_ids: Vec::new(),
        sampling: Default::default(),
    }
}

/// Every kind of row that the sampler knows, half of them asking for log-probabilities, a few for those of the prompt.
pub fn sampling(random: &mut Random) -> SamplingParams {
    let mut p = SamplingParams { seed: random.next(), ..SamplingParams::greedy() };
    // At 0.2 a fifth of the draws are the tracer's own token, so a row drawn from a wrong prefix shows.
    p.temperature = [0.0, 0.2, 0.2, 1.0][random.below(4)];
    match random.below(6) {
        0 => (p.top_k, p.top_p) = (64, 0.95),
        1 => p.top_p = 0.5,
        2 => (p.min_p, p.xtc_probability, p.xtc_threshold) = (0.5, 0.5, 0.001),
        3 => (p.repetition_penalty, p.frequency_penalty, p.presence_penalty) = (1.2, 0.5, -0.3),
        4 => {
            let word = |i: usize| prompt(random, 1 + i % 2);
            p.bad_words = (0..40).map(word).collect();
        }
        _ => {}
    }
    if random.below(3) == 0 {
        let mut ids = prompt(random, 8);
        ids.sort_unstable();
        ids.dedup();
        p.logit_bias = ids.into_iter().map(|id| (id, 1.5)).collect();
    }
    if random.below(4) == 0 {
        p.allowed_token_ids = Some(prompt(random, 100));
    }
    if random.below(2) == 0 {
        p.logprobs = Some([0, 1, 5, 20][random.below(4)]);
        p.logprobs_mode = [LogprobsMode::Raw, LogprobsMode::Processed][random.below(2)];
    }
    if random.below(6) == 0 {
        p.prompt_logprobs = Some([0, 3, 20][random.below(3)]);
    }
    p
}

/// Lengths around the borders of page and window.
fn border_length(random: &mut Random) -> usize {
    const LENGTHS: [usize; 14] = [1, 2, 3, 14, 15, 16, 17, 18, 31, 32, 33, 47, 48, 65];
    LENGTHS[random.below(LENGTHS.len())]
}

/// A request that stops by an id at output index `index` (or at an earlier equal token).
fn stopping(oracle: &Oracle, random: &mut Random, length: usize, index: usize) -> GenerateRequest {
    let mut request = request(random, length, index + 8);
    request.stop_token_ids = vec![oracle.answer(&request).tokens[index]];
    request
}

fn stops_at_every_index(rig: &mut Rig, random: &mut Random) {
    for index in 0..24 {
        let oracle = rig.oracle();
        let beside = request(random, 9, 30);
        rig.submit(beside);
        // Two that stop together, and one that stops a step later in the place where they were.
        let length = border_length(random);
        for index in [index, index, index + 1] {
            let stopping = stopping(oracle, random, length, index);
            rig.submit(stopping);
        }
        rig.rest();
    }
}

fn limits_at_every_index(rig: &mut Rig, random: &mut Random) {
    for max_tokens in 1..24 {
        for more in [0, 0, 1, 20] {
            let request = request(random, 1 + max_tokens, max_tokens + more);
            rig.submit(request);
        }
        rig.rest();
    }
}

fn aborts_at_every_index(rig: &mut Rig, random: &mut Random) {
    for index in 0..24 {
        let beside = request(random, 5, 40);
        rig.submit(beside);
        let victim = request(random, 20, 40);
        let victim = rig.submit(victim);
        rig.steps(index);
        rig.abort(victim, index % 2 == 1);
        let heir = request(random, 20, 10);
        rig.submit(heir);
        rig.rest();
    }
}

fn two_late_aborts(rig: &mut Rig, random: &mut Random) {
    for distance in 0..3 {
        for (first, second) in [(0, 1), (0, 3), (3, 0), (2, 1)] {
            let rows = decoding(rig, random, 4);
            rig.abort(rows[first], false);
            rig.steps(distance);
            rig.abort(rows[second], true);
            let heir = request(random, 3, 12);
            rig.submit(heir);
            rig.rest();
        }
    }
}

/// That many requests, each past its first token.
fn decoding(rig: &mut Rig, random: &mut Random, count: usize) -> Vec<Handle> {
    let rows: Vec<Handle> = (0..count)
        .map(|row| {
            let request = request(random, 4 + 5 * row, 40);
            rig.submit(request)
        })
        .collect();
    while rows.iter().any(|&row| rig.count(row) == 0) && rig.step() {}
    rows
}

/// The newcomer stands at the very position, in the very slot and bucket where the old one would have gone on.
fn idle_refill_that_fits(rig: &mut Rig, random: &mut Random) {
    for rows in 1..4 {
        for length in [7, WINDOW - 4, 29] {
            for (grown, max_tokens) in [(0, 5), (4, 5), (5, 5), (5, 1), (6, 5)] {
                for length in [length, length + grown] {
                    for _ in 0..rows {
                        let request = request(random, length, max_tokens);
                        rig.submit(request);
                    }
                    rig.rest();
                }
            }
        }
    }
}

/// One leaves by abort, limit or stop id while another's prompt ends, for every offset between the two.
fn shrinks_and_grows(rig: &mut Rig, random: &mut Random) {
    for offset in 0..6 {
        for way in 0..3 {
            let rows = decoding(rig, random, 3);
            let oracle = rig.oracle();
            let newcomer = request(random, 30, 12);
            let leaver = match way {
                1 => request(random, 3, 2 + offset),
                2 => stopping(oracle, random, 3, 1 + offset),
                _ => request(random, 3, 20),
            };
            rig.submit(leaver);
            rig.steps(2);
            rig.submit(newcomer);
            rig.steps(offset);
            if way == 0 {
                rig.abort(rows[offset % 3], offset % 2 == 0);
            }
            rig.rest();
        }
    }
}

fn freed_page_granted_at_once(rig: &mut Rig, random: &mut Random) {
    for steps in 1..14 {
        // The first takes 15 of 16 pages; the heir waits for them beside a row that decodes on the last page.
        let victim = request(random, 100, 130);
        let victim = rig.submit(victim);
        let beside = request(random, 2, 14);
        rig.submit(beside);
        let heir = request(random, 90, 20);
        rig.submit(heir);
        rig.steps(steps);
        rig.abort(victim, steps % 2 == 0);
        let last = request(random, 40, 3);
        rig.submit(last);
        rig.rest();
    }
}

fn recycled_at_once(rig: &mut Rig, random: &mut Random) {
    for _ in 0..30 {
        let length = border_length(random);
        let max_tokens = 1 + random.below(30);
        let request = request(random, length, max_tokens);
        rig.submit(request);
    }
    rig.rest();
}

fn borders(rig: &mut Rig, random: &mut Random) {
    for length in [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 97, 200] {
        let request = request(random, length, 18);
        rig.submit(request);
    }
    rig.rest();
}

fn every_width(rig: &mut Rig, random: &mut Random) {
    // One prompt chunk between two decode steps: the roster grows row by row, and shrinks as ragged limits end.
    for row in 0..40 {
        let length = 1 + random.below(40);
        let max_tokens = 50 + (row * 7) % 40;
        let request = request(random, length, max_tokens);
        rig.submit(request);
    }
    rig.rest();
}

/// The model-based test of the slots: requests, greedy and sampled in every way, come, stop, reach limits, are aborted
/// or lose their clients, at random steps.
pub fn random_trace(rig: &mut Rig, random: &mut Random) {
    let oracle = rig.oracle();
    let mut left = 10 + random.below(20);
    let (arrivals, aborts) = (1 + random.below(4), 2 + random.below(20));
    while left > 0 && !rig.dead {
        for _ in 0..random.below(arrivals + 1) {
            if left == 0 {
                break;
            }
            left -= 1;
            let length = border_length(random);
            let mut request = match random.below(3) {
                0 => {
                    let index = random.below(20);
                    stopping(oracle, random, length, index)
                }
                _ => {
                    let max_tokens = 1 + random.below(40);
                    request(random, length, max_tokens)
                }
            };
            request.ignore_eos = random.below(2) == 0;
            if random.below(2) == 0 {
                request.sampling = sampling(random);
                request.sampling.min_tokens = (random.below(12) as u32).min(request.max_tokens);
            }
            rig.submit(request);
        }
        if random.below(aborts) == 0
            && let Some(any) = rig.any(random)
        {
            rig.abort(any, random.below(2) == 0);
        }
        // Now and then the engine comes to rest before more arrives.
        if random.below(12) == 0 {
            rig.rest();
        }
        rig.step();
    }
}
