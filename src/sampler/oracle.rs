//! The definition of right: the whole chain of the sampler in plain code, one row at a time.
//!
//! The kernels (`csrc/kernels/sample_groups.cu`, `sample_rows.cu`) give its tokens bit for bit on the same logits.
//! Order: suppressed ids, allowed ids, minimum length, bad words, bias, repetition, frequency and presence, forced
//! token, greedy decision, temperature, min-p, top-k, top-p, typical, XTC, draw. Divisions are IEEE, in f32; sets keep
//! ties together; masses are integers ([`math::mass`]), so no sum has an order, except the sums of groups.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::math::{self, exp, key_of, ln};
use super::philox::{Draw, Purpose, uniform};
use crate::sampling::{LogprobsMode, SamplingParams};

/// Logits of a group; the float sums of the sampler are over groups.
pub const GROUP: usize = 256;

/// One row: its logits and everything its token depends on.
#[derive(Clone, Copy, Debug)]
pub struct OracleRow<'a> {
    pub logits: &'a [f32],
    pub params: &'a SamplingParams,
    /// Prompt and output so far, for penalties and bad words; the output's length is the output index.
    pub prompt: &'a [u32],
    pub output: &'a [u32],
    /// The model's: never drawn.
    pub suppressed: &'a [u32],
    pub eos_ids: &'a [u32],
    /// The request's own.
    pub stop_ids: &'a [u32],
    /// A token that someone outside the sampler has decided on.
    pub forced: Option<u32>,
}

/// What became of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Token {
        token: u32,
        /// Tokens that could have been drawn, ascending; of a forced or greedy row the token alone.
        kept: Vec<u32>,
        logprobs: Option<Logprobs>,
    },
    /// A logit is NaN or plus infinity.
    NotANumber,
    /// No token is legal.
    AllMasked,
}

/// By the raw logits, or over what was left to draw from (`SamplingParams::logprobs_mode`).
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    pub of_token: f32,
    /// Candidates that are not below the token, minus infinities aside.
    pub rank: usize,
    /// Most likely first, lowest id on ties.
    pub top: Vec<(u32, f32)>,
}

/// Samples a row.
pub fn sample(row: &OracleRow) -> Outcome {
    let z = processed(row);
    if row.logits.iter().chain(&z).any(|&z| z.is_nan() || z == f32::INFINITY) {
        return Outcome::NotANumber;
    }
    if z.iter().all(|&z| z == f32::NEG_INFINITY) {
        return Outcome::AllMasked;
    }
    let is_greedy = row.params.is_greedy(z.len());
    let (token, kept) = match row.forced {
        Some(token) => (token, vec![token]),
        None if is_greedy => {
            let token = argmax(z.iter().copied().enumerate().map(|(id, z)| (id as u32, z)));
            (token, vec![token])
        }
        None => draw(row, &z),
    };
    let logprobs = row.params.logprobs.map(|count| match row.params.logprobs_mode {
        LogprobsMode::Raw => logprobs(row.logits, lse(row.logits), token, count as usize),
        LogprobsMode::Processed => {
            let mut y: Vec<f32> = z.iter().map(|z| if is_greedy { *z } else { z / row.params.temperature }).collect();
            let is_whole = row.forced.is_some() || is_greedy || !is_filtered(row.params, y.len());
            let lse = if is_whole { lse(&y) } else { keep_only(&mut y, &kept) };
            logprobs(&y, lse, token, count as usize)
        }
    });
    Outcome::Token { token, kept, logprobs }
}

/// Logits after all that happens before the greedy decision.
fn processed(row: &OracleRow) -> Vec<f32> {
    let params = row.params;
    let mut z = row.logits.to_vec();
    for id in banned(row) {
        if let Some(z) = z.get_mut(id as usize) {
            *z = f32::NEG_INFINITY;
        }
    }
    if let Some(allowed) = &params.allowed_token_ids {
        let allowed: HashSet<u32> = allowed.iter().copied().collect();
        z.iter_mut().enumerate().filter(|(id, _)| !allowed.contains(&(*id as u32))).for_each(|(_, z)| {
            *z = f32::NEG_INFINITY;
        });
    }
    for &(id, bias) in &params.logit_bias {
        z[id as usize] += bias;
    }
    if params.has_penalties() {
        let mut counts: HashMap<u32, u32> = HashMap::new();
        row.output.iter().for_each(|&id| *counts.entry(id).or_default() += 1);
        let seen: HashSet<u32> = row.prompt.iter().chain(row.output).copied().collect();
        for id in seen {
            let z = &mut z[id as usize];
            *z = if *z > 0.0 { *z / params.repetition_penalty } else { *z * params.repetition_penalty };
        }
        for (id, count) in counts {
            let z = &mut z[id as usize];
            *z = (*z - count as f32 * params.frequency_penalty) - params.presence_penalty;
        }
    }
    z
}

/// Ids that are not legal at this output index, the allowed list aside.
fn banned(row: &OracleRow) -> Vec<u32> {
    let mut banned = row.suppressed.to_vec();
    if row.output.len() < row.params.min_tokens as usize {
        banned.extend(row.eos_ids.iter().chain(row.stop_ids));
    }
    for word in &row.params.bad_words {
        let (last, before) = word.split_last().expect("a bad word has a token");
        if row.output.ends_with(before) {
            banned.push(*last);
        }
    }
    banned
}

/// The id of the greatest value; the lowest of several. Minus infinity competes: noise can be that.
fn argmax(values: impl Iterator<Item = (u32, f32)>) -> u32 {
    values.max_by_key(|&(id, value)| (key_of(value), Reverse(id))).expect("a row has legal tokens").0
}

fn draw(row: &OracleRow, z: &[f32]) -> (u32, Vec<u32>) {
    let params = row.params;
    let draw = Draw { seed: params.seed, output_index: row.output.len() as u32, choice: params.choice };
    let y: Vec<f32> = z.iter().map(|z| z / params.temperature).collect();
    let best = y.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let legal: Vec<u32> = (0..y.len() as u32).filter(|&id| z[id as usize] > f32::NEG_INFINITY).collect();
    if !is_filtered(params, y.len()) {
        return (draw_plain(&draw, &y), legal);
    }
    let kept = filtered(params, &draw, &y, best, legal);
    (draw_among(&draw, &y, &kept), kept)
}

/// One of `kept` by the greatest noisy logit; y are logits over temperature.
pub fn draw_among(draw: &Draw, y: &[f32], kept: &[u32]) -> u32 {
    argmax(kept.iter().map(|&id| (id, y[id as usize] + draw.noise(Purpose::TokenNoise, id))))
}

fn is_filtered(p: &SamplingParams, vocab: usize) -> bool {
    top_k_of(p, vocab).is_some() || p.top_p < 1.0 || p.min_p > 0.0 || p.typical_p < 1.0 || has_xtc(p)
}

fn top_k_of(p: &SamplingParams, vocab: usize) -> Option<usize> {
    (p.top_k > 0 && (p.top_k as usize) < vocab).then_some(p.top_k as usize)
}

fn has_xtc(p: &SamplingParams) -> bool {
    p.xtc_probability > 0.0 && p.xtc_threshold <= 0.5
}

/// A group by the noisy logarithm of its sum, then a token of the group by its noisy logit: the distribution of one
/// noisy maximum over the row, for a hundredth of the draws.
fn draw_plain(draw: &Draw, y: &[f32]) -> u32 {
    let groups = y.chunks(GROUP).enumerate().map(|(g, group)| (g, group_max(group), group));
    let legal = groups.filter(|(_, top, _)| *top > f32::NEG_INFINITY);
    let group = argmax(legal.map(|(g, top, group)| {
        let value = top + ln(group_sum(group, top));
        (g as u32, value + draw.noise(Purpose::GroupNoise, g as u32))
    })) as usize;
    let ids = (group * GROUP)..y.len().min((group + 1) * GROUP);
    let legal = ids.filter(|&id| y[id] > f32::NEG_INFINITY);
    argmax(legal.map(|id| (id as u32, y[id] + draw.noise(Purpose::TokenNoise, id as u32))))
}

fn group_max(group: &[f32]) -> f32 {
    group.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Sum of exp(y - top): lane t of 32 adds elements 4t to 4t + 3 and 128 + 4t to 128 + 4t + 3, then a tree.
pub fn group_sum(group: &[f32], top: f32) -> f32 {
    let term = |i: usize| group.get(i).map_or(0.0, |&y| exp(y - top));
    let mut lanes: Vec<f32> = (0..32)
        .map(|t| (0..8).map(|j| term(j / 4 * 128 + 4 * t + j % 4)).fold(0.0, |sum: f32, term| sum + term))
        .collect();
    fold_tree(&mut lanes)
}

fn fold_tree(lanes: &mut [f32]) -> f32 {
    let mut stride = lanes.len() / 2;
    while stride > 0 {
        for i in 0..stride {
            lanes[i] += lanes[i + stride];
        }
        stride /= 2;
    }
    lanes[0]
}

/// Sum of exp(y - best) over a row: groups 0, 256, ... ascending in lane 0 of 256, and so on, then a tree.
pub fn row_sum(y: &[f32], best: f32) -> f32 {
    let mut lanes = [0.0f32; 256];
    for (g, group) in y.chunks(GROUP).enumerate() {
        let top = group_max(group);
        lanes[g % 256] += if top > f32::NEG_INFINITY { group_sum(group, top) * exp(top - best) } else { 0.0 };
    }
    fold_tree(&mut lanes)
}

/// What min-p, top-k, top-p, typical and XTC leave of `legal`, ascending.
fn filtered(p: &SamplingParams, draw: &Draw, y: &[f32], best: f32, legal: Vec<u32>) -> Vec<u32> {
    let value = |id: &u32| y[*id as usize];
    let mass = |id: &u32| math::mass(best - value(id));
    let total = |kept: &[u32]| kept.iter().map(mass).sum::<u64>();
    let mut kept = legal;
    if p.min_p > 0.0 {
        let least = best + ln(p.min_p);
        kept.retain(|id| value(id) >= least);
    }
    if let Some(k) = top_k_of(p, y.len()) {
        keep_first(&mut kept, |id| key_of(value(id)), |_| 1, k as u64);
    }
    if p.top_p < 1.0 {
        // Of a row nothing was taken from, the mass is known without visiting it.
        let whole = top_k_of(p, y.len()).is_none() && p.min_p <= 0.0;
        let total = if whole { math::mass_of_sum(row_sum(y, best)) } else { total(&kept) };
        keep_first(&mut kept, |id| key_of(value(id)), mass, math::mass_share(p.top_p, total));
    }
    if p.typical_p < 1.0 {
        let all = total(&kept);
        let moment: u64 = kept.iter().map(|id| math::mass_distance(best - value(id))).sum();
        let mean = moment as f32 / all as f32;
        // |-ln p - H|: the logarithm of the total cancels.
        let near = |id: &u32| key_of(-((best - value(id)) - mean).abs());
        keep_first(&mut kept, near, mass, math::mass_share(p.typical_p, all));
    }
    if has_xtc(p) && uniform(draw.word(Purpose::XtcGate, 0)) < p.xtc_probability {
        let least = math::mass_share(p.xtc_threshold, total(&kept));
        let likely: Vec<u32> = kept.iter().copied().filter(|id| mass(id) >= least).collect();
        if likely.len() >= 2 {
            let last = likely.iter().map(|id| key_of(value(id))).min().expect("two are left");
            kept.retain(|id| key_of(value(id)) <= last);
        }
    }
    kept
}

/// Keeps those before which, greatest key first, weighs less than `target`; ties are kept or dropped together.
fn keep_first(kept: &mut Vec<u32>, key: impl Fn(&u32) -> u32, weight: impl Fn(&u32) -> u64, target: u64) {
    let mut ranked: Vec<(u32, u64)> = kept.iter().map(|id| (key(id), weight(id))).collect();
    ranked.sort_unstable_by_key(|&(key, _)| Reverse(key));
    let (mut before, mut least) = (0, 0);
    for ties in ranked.chunk_by(|a, b| a.0 == b.0) {
        if before >= target {
            break;
        }
        least = ties[0].0;
        before += ties.iter().map(|&(_, weight)| weight).sum::<u64>();
    }
    kept.retain(|id| key(id) >= least);
}

/// Logarithm of the sum of exponentials of a row.
fn lse(values: &[f32]) -> f32 {
    let best = group_max(values);
    best + ln(row_sum(values, best))
}

/// Leaves `kept` alone in a row; the logarithm of their sum, by masses relative to the row's best.
fn keep_only(y: &mut [f32], kept: &[u32]) -> f32 {
    let best = group_max(y);
    let total: u64 = kept.iter().map(|&id| math::mass(best - y[id as usize])).sum();
    for (id, y) in y.iter_mut().enumerate() {
        if kept.binary_search(&(id as u32)).is_err() {
            *y = f32::NEG_INFINITY;
        }
    }
    best + ln(math::sum_of_mass(total))
}

fn logprobs(logits: &[f32], lse: f32, token: u32, count: usize) -> Logprobs {
    let chosen = logits[token as usize];
    let mut top: Vec<u32> = (0..logits.len() as u32).filter(|&id| logits[id as usize] > f32::NEG_INFINITY).collect();
    top.sort_unstable_by_key(|&id| (Reverse(key_of(logits[id as usize])), id));
    top.truncate(count);
    Logprobs {
        of_token: chosen - lse,
        rank: logits.iter().filter(|&&z| z >= chosen && z > f32::NEG_INFINITY).count(),
        top: top.into_iter().map(|id| (id, logits[id as usize] - lse)).collect(),
    }
}
