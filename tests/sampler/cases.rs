//! Random rows for the sampler: every shape of logits, every mix of parameters.

use gemma4_serve::sampling::{LogprobsMode, SamplingParams};

use crate::rig::{Model, Request};

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Sum of twelve uniforms: near enough to normal.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    pub fn ids(&mut self, count: usize, vocab: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(vocab) as u32).collect()
    }
}

pub const SHAPES: [&str; 10] = [
    "scattered",
    "clustered",
    "peaked",
    "flat",
    "constant",
    "bf16 ties",
    "integers",
    "NaN",
    "all masked",
    "five legal",
];

pub fn logits(r: &mut Random, vocab: usize, shape: &str) -> Vec<f32> {
    let mut z: Vec<f32> = (0..vocab).map(|_| r.normal()).collect();
    match shape {
        "scattered" => (0..vocab / 80 + 3).for_each(|_| {
            let id = r.below(vocab);
            z[id] += 12.0 * r.unit();
        }),
        "clustered" => {
            // Likely ids stand together, as those of real vocabularies do.
            let start = r.below(vocab);
            let count = (vocab / 90).max(8);
            (0..count).for_each(|i| z[(start + i) % vocab] += 9.0 + 3.0 * r.unit());
        }
        "peaked" => (0..6).for_each(|i| {
            let id = r.below(vocab);
            z[id] = 24.0 - i as f32;
        }),
        "flat" => z.iter_mut().for_each(|z| *z *= 0.2),
        "constant" => z.fill(r.of(&[-3.0, 0.0, -0.0, 7.25])),
        "bf16 ties" => z.iter_mut().for_each(|z| *z = f32::from_bits((4.0 * *z).to_bits() & 0xffff_0000)),
        "integers" => z.iter_mut().for_each(|z| *z = (3.0 * *z).round()),
        "NaN" => {
            let id = r.below(vocab);
            z[id] = r.of(&[f32::NAN, -f32::NAN, f32::INFINITY]);
        }
        "all masked" => z.fill(f32::NEG_INFINITY),
        "five legal" => {
            z.fill(f32::NEG_INFINITY);
            (0..5).for_each(|_| {
                let id = r.below(vocab);
                z[id] = r.normal() * 3.0;
            });
        }
        _ => unreachable!("{shape}"),
    }
    z
}

/// Every parameter is on often enough that pairs of them meet.
pub fn params(r: &mut Random, vocab: usize) -> SamplingParams {
    let mut p = SamplingParams {
        temperature: r.of(&[0.0, 1e-6, 1e-5, 1.1e-5, 0.3, 0.7, 0.7, 1.0, 1.0, 1.0, 1.0, 1.3, 2.0]),
        seed: r.next(),
        ..SamplingParams::greedy()
    };
    if r.one_in(3) {
        // The published defaults.
        (p.temperature, p.top_k, p.top_p) = (1.0, 64, 0.95);
    } else {
        p.top_k = r.of(&[0, 0, 0, 1, 2, 20, 64, 256, 300, vocab as u32]);
        p.top_p = r.of(&[1e-6, 0.3, 0.6, 0.9, 0.95, 0.999, 0.999_999_9, 1.0, 1.0, 1.0]);
        p.min_p = r.of(&[0.0, 0.0, 0.0, 1e-30, 0.02, 0.1, 0.3, 1.0]);
        p.typical_p = r.of(&[1.0, 1.0, 1.0, 1.0, 0.2, 0.9]);
        p.xtc_probability = r.of(&[0.0, 0.0, 0.0, 0.5, 1.0]);
        p.xtc_threshold = r.of(&[0.0, 0.001, 0.05, 0.1, 0.3, 0.6]);
    }
    if r.one_in(4) {
        p.choice = r.below(5) as u16;
    }
    if r.one_in(3) {
        p.logprobs = Some(r.of(&[0, 1, 5, 20]));
        p.logprobs_mode = r.of(&[LogprobsMode::Raw, LogprobsMode::Processed]);
    }
    if r.one_in(3) {
        p.repetition_penalty = r.of(&[0.5, 1.0, 1.1, 2.0]);
        p.frequency_penalty = r.of(&[-2.0, 0.0, 0.3, 2.0]);
        p.presence_penalty = r.of(&[-2.0, 0.0, 0.5, 2.0]);
    }
    if r.one_in(4) {
        let mut ids = r.ids(1 + r.0 as usize % 40, vocab);
        ids.sort_unstable();
        ids.dedup();
        p.logit_bias = ids.into_iter().map(|id| (id, r.of(&[-100.0, -1.5, 0.0, 2.0, 100.0]))).collect();
    }
    if r.one_in(6) {
        let count = 1 + r.below(40);
        p.allowed_token_ids = Some(r.ids(count, vocab));
    }
    if r.one_in(6) {
        p.min_tokens = r.below(6) as u32;
    }
    p
}

/// A request with a history in which its penalties and bad words find something.
pub fn request(r: &mut Random, vocab: usize) -> Request {
    let mut request = Request::new(params(r, vocab));
    let few = r.ids(12, vocab);
    let history = |r: &mut Random, count: usize| (0..count).map(|_| r.of(&few)).collect::<Vec<u32>>();
    let (prompt, output) = (r.below(20), r.of(&[0, 1, 2, 5, 5, 30]));
    request.prompt = history(r, prompt);
    request.output = history(r, output);
    if r.one_in(3) {
        request.stop_ids = history(r, 3);
    }
    if r.one_in(4) {
        for _ in 0..1 + r.below(20) {
            let length = 1 + r.below(4);
            let mut word = history(r, length);
            if r.one_in(2) && request.output.len() >= length {
                word = request.output[request.output.len() + 1 - length..].to_vec();
                word.push(r.of(&few));
            }
            request.params.bad_words.push(word);
        }
    }
    request
}

pub fn model(r: &mut Random, vocab: usize) -> Model {
    Model { suppressed: r.ids(2, vocab), eos_ids: r.ids(3, vocab) }
}
