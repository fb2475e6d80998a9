//! How a slot holds what a request asks of the sampler.
//!
//! [`SamplingParams::pack`] makes of a request's values what its slot
//! carries on the device: one [`G4Sampling`], in which what is off reads as off, and the overlays that only some
//! requests have. Nothing else of a request's sampling exists anywhere: rows find it through their slot.

use crate::model::kernels::bindings::{
    G4_BAD_WORD_IDS_MAX, G4_BAD_WORD_TOKENS_MAX, G4_BAD_WORDS_MAX, G4_BIAS_MAX, G4_LOGPROBS_MAX, G4_SAMPLING_BIAS,
    G4_SAMPLING_LOGPROBS, G4_SAMPLING_MASK, G4_SAMPLING_PENALTIES, G4_SAMPLING_PROCESSED, G4_SAMPLING_SUMS,
    G4_SAMPLING_WORDS,
};
use crate::model::kernels::{G4Bias, G4Sampling, G4Words};
use crate::sampling::{LogprobsMode, SamplingParams};

impl SamplingParams {
    /// What slot `slot` holds of these. Its penalty table has its own number: half a megabyte a slot, and no request
    /// waits for one.
    pub fn pack(&self, vocab: usize, slot: usize, prompt: &[u32]) -> PackedSampling {
        let (bias, words) = (self.bias(), self.words());
        let prompt_bits = self.has_penalties().then(|| mask_of(prompt, vocab));
        let mask = self.allowed_token_ids.as_ref().map(|ids| mask_of(ids, vocab));
        let is_processed = self.logprobs.is_some() && self.logprobs_mode == LogprobsMode::Processed;
        let mut flags = 0;
        for (is_on, flag) in [
            (self.needs_sums(vocab) || is_processed, G4_SAMPLING_SUMS),
            (self.logprobs.is_some(), G4_SAMPLING_LOGPROBS),
            (mask.is_some(), G4_SAMPLING_MASK),
            (!bias.is_empty(), G4_SAMPLING_BIAS),
            (prompt_bits.is_some(), G4_SAMPLING_PENALTIES),
            (words.is_some(), G4_SAMPLING_WORDS),
            (is_processed, G4_SAMPLING_PROCESSED),
        ] {
            flags |= if is_on { flag } else { 0 };
        }
        let has_xtc = self.xtc_threshold <= 0.5;
        let sampling = G4Sampling {
            temperature: if self.is_greedy(vocab) { 0.0 } else { self.temperature },
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            xtc_probability: if has_xtc { self.xtc_probability } else { 0.0 },
            xtc_threshold: self.xtc_threshold,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            top_k: if self.top_k as usize >= vocab { 0 } else { self.top_k as i32 },
            min_tokens: self.min_tokens.min(i32::MAX as u32) as i32,
            logprobs: self.logprobs.unwrap_or(0).min(G4_LOGPROBS_MAX) as i32,
            penalty_table: slot as i32,
            bias_count: bias.len() as i32,
            flags,
            choice: self.choice.into(),
            seed: [self.seed as u32, (self.seed >> 32) as u32],
        };
        PackedSampling { sampling, bias, words, mask, prompt_bits }
    }

    /// Sums of groups serve the plain draw, and top-p of the whole row.
    fn needs_sums(&self, vocab: usize) -> bool {
        let has_k = self.top_k > 0 && (self.top_k as usize) < vocab;
        let narrowed = has_k || self.min_p > 0.0;
        !self.is_greedy(vocab) && !narrowed
    }

    /// Biases and bans, ascending by id, one an id.
    fn bias(&self) -> Vec<G4Bias> {
        let banned = self.bad_words.iter().filter(|word| word.len() == 1).map(|word| (word[0], f32::NEG_INFINITY));
        let mut entries: Vec<(u32, f32)> = self.logit_bias.iter().copied().chain(banned).collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        entries.dedup_by_key(|entry| entry.0); // the lower value stays: a ban, if there is one
        assert!(entries.len() <= G4_BIAS_MAX as usize);
        entries.into_iter().map(|(id, value)| G4Bias { id: id as i32, value }).collect()
    }

    /// Bad words of several tokens.
    fn words(&self) -> Option<Box<G4Words>> {
        let long: Vec<&Vec<u32>> = self.bad_words.iter().filter(|word| word.len() > 1).collect();
        if long.is_empty() {
            return None;
        }
        assert!(long.len() <= G4_BAD_WORDS_MAX as usize);
        let mut words: Box<G4Words> = Box::new(bytemuck::Zeroable::zeroed());
        words.count = long.len() as i32;
        words.tail = [-1; G4_BAD_WORD_TOKENS_MAX as usize];
        let mut at = 0;
        for (index, word) in long.into_iter().enumerate() {
            assert!(word.len() <= G4_BAD_WORD_TOKENS_MAX as usize && at + word.len() <= G4_BAD_WORD_IDS_MAX as usize);
            for &id in word {
                words.ids[at] = id as i32;
                at += 1;
            }
            words.begin[index + 1] = at as i32;
        }
        Some(words)
    }
}

/// What a slot carries on the device.
pub struct PackedSampling {
    pub sampling: G4Sampling,
    /// At most [`G4_BIAS_MAX`], the slot's sparse overlay.
    pub bias: Vec<G4Bias>,
    pub words: Option<Box<G4Words>>,
    /// One bit an id that is allowed.
    pub mask: Option<Vec<u32>>,
    /// One bit an id of the prompt; with it the slot's counts start at zero.
    pub prompt_bits: Option<Vec<u32>>,
}

/// One bit an id, set for `ids`; ids past the vocabulary are left out.
pub fn mask_of(ids: &[u32], vocab: usize) -> Vec<u32> {
    let mut mask = vec![0; vocab.div_ceil(32)];
    for &id in ids.iter().filter(|&&id| (id as usize) < vocab) {
        mask[id as usize / 32] |= 1 << (id % 32);
    }
    mask
}
