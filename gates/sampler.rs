//! Gate: the sampler's kernels give the oracle's tokens, statuses and log-probabilities, bit for bit, on random
//! requests and logits.
//!
//! The seed is new each time and printed; `--seed N` replays it. `--full` samples more than twenty thousand rows. With
//! `--device cuda:0` it is the oracle of a GPU, too.

#[path = "../tests/sampler/cases.rs"]
#[allow(dead_code, reason = "the tests build requests of their own, too")]
mod cases;
mod common;
#[path = "../tests/sampler/parity.rs"]
mod parity;
#[path = "../tests/sampler/rig.rs"]
#[allow(dead_code, reason = "the tests look at more of a step")]
mod rig;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::Gate;
use parity::Met;

/// (vocabulary, rows, rows a step): blocks that are not full, many rows a step, and the model's own.
const PARTS: [(usize, usize, usize); 4] = [(257, 600, 60), (512, 504, 126), (20_000, 400, 16), (262_144, 48, 8)];
const PARTS_FULL: [(usize, usize, usize); 4] =
    [(257, 10_000, 126), (512, 8_000, 126), (20_000, 2_000, 32), (262_144, 400, 8)];

fn main() {
    let mut gate = Gate::start("sampler");
    let device = Gate::device();
    let seed = common::seed();
    let mut met = Vec::new();
    for (vocab, rows, width) in if gate.full { PARTS_FULL } else { PARTS } {
        // A difference panics with the request and both outcomes; the parts behind it still run.
        let part = catch_unwind(AssertUnwindSafe(|| parity::check(device, seed, vocab, rows, width)));
        gate.fact(
            part.is_ok(),
            &format!("vocabulary {vocab}: {rows} rows, {width} a step, as the oracle samples them"),
        );
        met.extend(part.ok());
    }
    let sum = |of: fn(&Met) -> usize| met.iter().map(of).sum();
    let met = Met {
        rows: sum(|m| m.rows),
        tokens: sum(|m| m.tokens),
        failures: sum(|m| m.failures),
        logprobs: sum(|m| m.logprobs),
        drawn: sum(|m| m.drawn),
        wide: sum(|m| m.wide),
    };
    println!("     {met:?}");
    gate.fact(met.is_enough(), "rows with a token, with a refusal, with log-probabilities, with a choice to make");
    gate.fact(met.wide > 0, "rows with more tokens to draw from than a block keeps");
    gate.finish();
}
