//! What a slot lays over its logits beside its parameters: tables that only some requests read, one of each a slot, at
//! fixed addresses. A request's come in the upload of its last prompt chunk; counts, and the output's tail that bad
//! words are matched with, belong to the device from then on.

use crate::device::{Context, DeviceBuffer, DeviceSlice, DriverError, Stream};
use crate::model::kernels::bindings::G4_BIAS_MAX;
use crate::model::kernels::{G4Bias, G4Words};

use super::params::PackedSampling;

pub struct Overlays {
    /// `[slots][mask_words]`
    pub(super) mask: DeviceBuffer<u32>,
    /// `[slots][G4_BIAS_MAX]`
    pub(super) bias: DeviceBuffer<G4Bias>,
    /// `[slots]`
    pub(super) words: DeviceBuffer<G4Words>,
    /// `[slots][vocab]` times each token was output.
    pub(super) counts: DeviceBuffer<u16>,
    /// `[slots][mask_words]`
    pub(super) prompt_bits: DeviceBuffer<u32>,
    vocab: usize,
}

/// One overlay's words and where they go.
pub type OverlayPart<'a> = (DeviceSlice<i32>, &'a [i32]);

impl Overlays {
    pub fn new(context: &Context, slots: usize, vocab: usize) -> Result<Self, DriverError> {
        let mask_words = vocab.div_ceil(32);
        Ok(Overlays {
            mask: DeviceBuffer::new(context, slots * mask_words)?,
            bias: DeviceBuffer::new(context, slots * G4_BIAS_MAX as usize)?,
            words: DeviceBuffer::new(context, slots)?,
            counts: DeviceBuffer::new(context, slots * vocab)?,
            prompt_bits: DeviceBuffer::new(context, slots * mask_words)?,
            vocab,
        })
    }

    /// Bytes a slot.
    pub fn slot_bytes(vocab: usize) -> usize {
        let lists = G4_BIAS_MAX as usize * size_of::<G4Bias>() + size_of::<G4Words>();
        vocab * size_of::<u16>() + 2 * 4 * vocab.div_ceil(32) + lists
    }

    /// Words of all overlays of a slot: what an upload must have room for.
    pub fn upload_words(vocab: usize) -> usize {
        2 * vocab.div_ceil(32) + (G4_BIAS_MAX as usize * size_of::<G4Bias>() + size_of::<G4Words>()) / 4
    }

    /// What a slot's request brings.
    pub fn parts<'a>(&self, slot: usize, packed: &'a PackedSampling) -> impl Iterator<Item = OverlayPart<'a>> {
        let row = |buffer: &DeviceBuffer<u32>, len: usize| {
            let width = self.vocab.div_ceil(32);
            buffer.slice(slot * width..slot * width + len).cast::<i32>()
        };
        let mask = packed.mask.as_ref().map(|m| (row(&self.mask, m.len()), bytemuck::cast_slice(m)));
        let bits = packed.prompt_bits.as_ref().map(|m| (row(&self.prompt_bits, m.len()), bytemuck::cast_slice(m)));
        let first = slot * G4_BIAS_MAX as usize;
        let bias = &packed.bias;
        let bias = (!bias.is_empty())
            .then(|| (self.bias.slice(first..first + bias.len()).cast::<i32>(), bytemuck::cast_slice(bias)));
        let words = packed.words.as_ref().map(|words| {
            let words: &[i32] = bytemuck::cast_slice(std::slice::from_ref(&**words));
            (self.words.slice(slot..slot + 1).cast::<i32>(), words)
        });
        [mask, bits, bias, words].into_iter().flatten()
    }

    /// Enqueues zeros for the counts of a slot whose request has penalties.
    pub fn clear_counts(&self, s: &Stream, slot: usize, packed: &PackedSampling) -> Result<(), DriverError> {
        if packed.prompt_bits.is_none() {
            return Ok(());
        }
        s.fill(self.counts.slice(slot * self.vocab..(slot + 1) * self.vocab), 0)
    }
}
