//! The kernels give the oracle's tokens, statuses and log-probabilities, bit for bit, on the same logits. The gate
//! `sampler` does the same with new seeds, more rows, and on a GPU.

use gemma4_serve::device::DeviceKind;
use gemma4_serve::sampler::oracle::{self, Outcome};

use crate::cases::{self, Random, SHAPES};
use crate::rig::{Rig, outcome_of};

/// Samples random rows, `width` a step; every row of every step against the oracle. Returns what kinds of rows were
/// met.
pub fn check(kind: DeviceKind, seed: u64, vocab: usize, rows: usize, width: usize) -> Met {
    let mut r = Random(seed);
    let model = cases::model(&mut r, vocab);
    let mut rig = Rig::new(kind, vocab, width + 2, model);
    let mut met = Met::default();
    for batch in 0..rows.div_ceil(width) {
        check_batch(&mut rig, &mut r, width, &mut met, &format!("seed {seed}, vocabulary {vocab}, batch {batch}"));
    }
    met
}

/// So that a check which compares nothing of interest is noticed.
#[derive(Debug, Default)]
pub struct Met {
    pub rows: usize,
    pub tokens: usize,
    pub failures: usize,
    pub logprobs: usize,
    /// Rows with more than one token to draw from, and with more than a block keeps.
    pub drawn: usize,
    pub wide: usize,
}

fn check_batch(rig: &mut Rig, r: &mut Random, width: usize, met: &mut Met, what: &str) {
    let vocab = rig.vocab;
    // Rows meet slots in a random order; two slots stay out, and one row is padding.
    let mut order: Vec<i32> = (0..rig.slots as i32).collect();
    (1..order.len()).rev().for_each(|i| order.swap(i, r.below(i + 1)));
    order.truncate(width);
    let padding = if width > 1 { r.below(width) } else { usize::MAX };
    let (mut requests, mut all, mut shapes, mut forced) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (row, slot) in order.iter_mut().enumerate() {
        let shape = r.of(&SHAPES);
        let request = cases::request(r, vocab);
        rig.admit(*slot as usize, &request, 1000 + row as u32);
        forced.push(r.one_in(20).then(|| r.below(vocab) as u32));
        if let Some(token) = forced[row] {
            rig.force(*slot as usize, token);
        }
        all.extend(cases::logits(r, vocab, shape));
        requests.push(request);
        shapes.push(shape);
        if row == padding {
            rig.force(*slot as usize, u32::MAX); // nobody consumes it
            *slot = -1;
        }
    }
    let sampled = rig.step(&order, &all);
    let states = rig.slot_states();
    for (row, got) in sampled.iter().enumerate() {
        assert_eq!(got.record.step, rig.steps());
        if order[row] < 0 {
            assert_eq!((got.record.token, got.record.generation), (-1, 0), "{what}: padding");
            continue;
        }
        let request = &requests[row];
        let logits = &all[row * vocab..(row + 1) * vocab];
        let want = oracle::sample(&rig.oracle_row(request, logits, forced[row]));
        let kept = if let Outcome::Token { kept, .. } = &want { kept.clone() } else { Vec::new() };
        met.note(&want);
        let have = outcome_of(got, &request.params, kept);
        assert_eq!(have, want, "{what}, row {row}, {} logits, {request:?}", shapes[row]);
        assert_eq!(got.record.generation, 1000 + row as u32);
        let (state, count) = (&states[order[row] as usize], request.output.len() as i32);
        match want {
            Outcome::Token { token, .. } => {
                assert_eq!((state.last_token, state.output_index), (token as i32, count + 1), "{what}, row {row}");
                assert_eq!(state.live, i32::from(!request.stop_ids.contains(&token)), "{what}, row {row}");
            }
            _ => assert_eq!((state.live, state.output_index), (0, count), "{what}, row {row}"),
        }
    }
}

impl Met {
    fn note(&mut self, outcome: &Outcome) {
        self.rows += 1;
        match outcome {
            Outcome::Token { kept, logprobs, .. } => {
                self.tokens += 1;
                self.logprobs += usize::from(logprobs.is_some());
                self.drawn += usize::from(kept.len() > 1);
                self.wide += usize::from(kept.len() > 4096);
            }
            _ => self.failures += 1,
        }
    }

    pub fn is_enough(&self) -> bool {
        self.tokens > self.rows / 2 && self.failures > 0 && self.logprobs > 0 && self.drawn > self.rows / 5
    }
}
