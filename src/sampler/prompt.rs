//! Log-probabilities of a prompt's tokens, by the sampler's own two kernels: a position of the prompt is a row whose
//! token is forced, so a prompt token's are, bit for bit, those that decoding gives behind the same prefix.
//!
//! The rows of a prompt chunk are scored in tiles of as many as have logits at once. Each row of a tile has a slot of
//! its own, which belongs to no request: it is greedy, asks for as many tokens as there can be, and is forced to the
//! token that follows. The entries are cut to what was asked on the host.

use super::Sampler;
use crate::device::{Context, DeviceBuffer, DeviceSlice, DriverError, Stream};
use crate::model::kernels::bindings::{G4_LOGPROBS_MAX, G4_SAMPLING_LOGPROBS};
use crate::model::kernels::{G4SampleParams, G4Sampling, G4Slot, Kernels};
use crate::slots::LOGPROBS_RECORDS;
use crate::step::StepTables;

pub struct PromptRows {
    /// `[tile]`
    slots: DeviceBuffer<G4Slot>,
    /// `[tile]`: 0, 1, 2, ...
    index: DeviceBuffer<i32>,
}

/// Where a prompt chunk's scores begin, in records: behind the token sampled after its last one and its own.
pub const SCORES_AT: usize = 1 + LOGPROBS_RECORDS;

/// Places, in records, of the record and the log-probabilities of scored row `row` of `count`, `tile` at a time.
pub fn score_places(row: usize, count: usize, tile: usize) -> (usize, usize) {
    let (first, within) = (row / tile * tile, row % tile);
    let begin = SCORES_AT + first * (1 + LOGPROBS_RECORDS);
    let rows = tile.min(count - first);
    (begin + within, begin + rows + within * LOGPROBS_RECORDS)
}

impl PromptRows {
    pub fn new(context: &Context, stream: &Stream, tile: usize) -> Result<Self, DriverError> {
        let rows = PromptRows { slots: DeviceBuffer::new(context, tile)?, index: DeviceBuffer::new(context, tile)? };
        let sampling = G4Sampling {
            top_p: 1.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            logprobs: G4_LOGPROBS_MAX as i32,
            flags: G4_SAMPLING_LOGPROBS,
            ..bytemuck::Zeroable::zeroed()
        };
        let slot = G4Slot { sampling, ..G4Slot::unstoppable(0, 0, i32::MAX as usize, 0) };
        stream.upload(rows.slots.all(), &vec![slot; tile])?;
        stream.upload(rows.index.all(), &(0..tile as i32).collect::<Vec<_>>())?;
        Ok(rows)
    }
}

impl Sampler {
    /// Rows that are scored together.
    pub fn tile(&self) -> usize {
        self.prompt.index.len()
    }

    /// Enqueues the scores of one tile of a prompt chunk, whose logits stand where a step's do: `tokens` are those that
    /// follow rows `[first, first + tokens.len())` of the chunk. Consumes them.
    pub fn score(
        &self,
        s: &Stream,
        kernels: &Kernels,
        tables: &StepTables,
        first: usize,
        tokens: DeviceSlice<i32>,
    ) -> Result<(), DriverError> {
        let tile = self.tile();
        assert!(tokens.len() <= tile && first.is_multiple_of(tile));
        let begin = SCORES_AT + first * (1 + LOGPROBS_RECORDS);
        let params = G4SampleParams {
            slot: self.prompt.index.ptr(),
            row_slot: self.prompt.index.ptr(),
            slots: self.prompt.slots.ptr(),
            forced: tokens.ptr(),
            ..self.row_params(tables, tokens.len(), begin)
        };
        kernels.sample(s, &params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_of_scores_tile_the_readback_without_gaps() {
        for (count, tile) in [(1, 1), (7, 1), (1, 8), (8, 8), (9, 8), (100, 16)] {
            let mut taken = vec![false; SCORES_AT + count * (1 + LOGPROBS_RECORDS)];
            let mut take = |at: usize| assert!(!std::mem::replace(&mut taken[at], true), "{at} of {count}/{tile}");
            for row in 0..count {
                let (record, entry) = score_places(row, count, tile);
                take(record);
                (entry..entry + LOGPROBS_RECORDS).for_each(&mut take);
            }
            assert!(taken[SCORES_AT..].iter().all(|&taken| taken) && taken[..SCORES_AT].iter().all(|&taken| !taken));
        }
    }
}
