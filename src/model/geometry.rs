//! Sizes everything on the device is cut to, resolved once at start from the flags and the model.

use super::config::LayerKind;

/// Resolved sizes. All counts are positive; the memory plan and the allocations read the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Slots, and sequences that run at a time.
    pub slots: usize,
    /// Tokens a sequence may have, prompt and output together.
    pub context_max: usize,
    /// Tokens of one prompt chunk at most.
    pub prefill_chunk: usize,
    /// Rows of the largest decode bucket.
    pub bucket_max: usize,
    pub sliding: FamilyGeometry,
    pub global: FamilyGeometry,
    /// Keys in (q - window, q] for sliding layers.
    pub window: usize,
}

/// One KV family's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyGeometry {
    pub page_tokens: usize,
    /// Pages of the pool, shared by all slots.
    pub pages: usize,
    /// Entries of a slot's page-table row: the ring (sliding), or the longest context (global).
    pub table_pages: usize,
    /// Keys of an attention segment.
    pub segment: usize,
    /// Segments of all rows of one decode step together, at most: what the partial sums are sized for.
    pub segments_max: usize,
}

impl Geometry {
    pub fn family(&self, kind: LayerKind) -> &FamilyGeometry {
        match kind {
            LayerKind::Sliding => &self.sliding,
            LayerKind::Global => &self.global,
        }
    }

    /// Rows the activation buffers hold.
    pub fn rows_max(&self) -> usize {
        self.prefill_chunk.max(self.bucket_max)
    }

    /// Pages of the sliding chunk scratch: a chunk that starts anywhere in a page.
    pub fn scratch_pages(&self) -> usize {
        (self.prefill_chunk + self.sliding.page_tokens - 1).div_ceil(self.sliding.page_tokens) + 1
    }
}
