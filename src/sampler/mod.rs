//! The sampler: from logits to tokens, slot state and records, on the device. Its two kernels are the nodes of the
//! sampler graph, whatever the rows ask for: a row finds its parameters in its slot.
//!
//! [`oracle`] defines what is right, [`params`] is what a slot holds of a request, [`overlays`] the tables beside it.

pub mod math;
pub mod oracle;
pub mod overlays;
pub mod params;
pub mod philox;
pub mod prompt;

use crate::device::{Context, DeviceBuffer, DeviceSlice, DriverError, Stream};
use crate::limits::{EOS_IDS_MAX, ROWS_MAX};
use crate::model::config::ModelConfig;
use crate::model::kernels::bindings::{G4_EOS_IDS, G4_SAMPLE_GROUP};
use crate::model::kernels::{G4Logprobs, G4Record, G4SampleParams, Kernels};
use crate::model::plan::Geometry;
use crate::slots::{LOGPROBS_RECORDS, records_max};
use crate::step::StepTables;
use overlays::Overlays;
use prompt::PromptRows;

const _: () = assert!(EOS_IDS_MAX == G4_EOS_IDS as usize);

/// Buffers of the sampler, at fixed addresses.
pub struct Sampler {
    /// `[bucket_max][vocab]` f32
    logits: DeviceBuffer<f32>,
    /// `[bucket_max][groups]`
    group_max: DeviceBuffer<u32>,
    group_sum: DeviceBuffer<f32>,
    /// The same of the raw logits, in rows that ask for their log-probabilities.
    raw_max: DeviceBuffer<u32>,
    raw_sum: DeviceBuffer<f32>,
    /// `[slots]`, the door of what is decided elsewhere; -1: nothing.
    forced: DeviceBuffer<i32>,
    suppressed: DeviceBuffer<i32>,
    pub overlays: Overlays,
    /// What a step reports, copied to a pinned slot after it: a record a row, then, as if they were records, the
    /// log-probabilities of the rows that ask.
    pub records: DeviceBuffer<G4Record>,
    prompt: PromptRows,
    vocab: usize,
    eos: [i32; EOS_IDS_MAX],
    eos_count: usize,
}

/// Whose logits are sampled.
#[derive(Clone, Copy)]
pub struct SampleRows {
    pub count: usize,
    /// Effective slot of each row.
    pub slot: DeviceSlice<i32>,
    /// Slot as the host gave it.
    pub row_slot: DeviceSlice<i32>,
    /// Status made by the step's first node; none: every row is good.
    pub status: Option<DeviceSlice<i32>>,
}

impl Sampler {
    pub fn new(context: &Context, stream: &Stream, config: &ModelConfig, g: &Geometry) -> Result<Self, DriverError> {
        let groups = g.decode_rows * config.vocab.div_ceil(G4_SAMPLE_GROUP as usize);
        let suppressed: Vec<i32> =
            config.suppressed_ids.iter().filter(|&&id| (id as usize) < config.vocab).map(|&id| id as i32).collect();
        let mut eos = [-1; EOS_IDS_MAX];
        for (place, &id) in eos.iter_mut().zip(&config.eos_ids) {
            *place = id as i32;
        }
        let sampler = Sampler {
            logits: DeviceBuffer::new(context, g.decode_rows * config.vocab)?,
            group_max: DeviceBuffer::new(context, groups)?,
            group_sum: DeviceBuffer::new(context, groups)?,
            raw_max: DeviceBuffer::new(context, groups)?,
            raw_sum: DeviceBuffer::new(context, groups)?,
            forced: DeviceBuffer::new(context, g.max_running)?,
            suppressed: DeviceBuffer::new(context, suppressed.len())?,
            overlays: Overlays::new(context, g.max_running, config.vocab)?,
            records: DeviceBuffer::new(context, records_max(g.chunk_tokens))?,
            prompt: PromptRows::new(context, stream, g.decode_rows)?,
            vocab: config.vocab,
            eos,
            eos_count: config.eos_ids.len().min(EOS_IDS_MAX),
        };
        stream.upload(sampler.suppressed.all(), &suppressed)?;
        stream.fill(sampler.forced.all(), 0xff)?;
        stream.fill(sampler.records.all(), 0xff)?;
        stream.synchronize()?;
        Ok(sampler)
    }

    /// Logits of the first `rows` rows of the step.
    pub fn logits(&self, rows: usize) -> DeviceSlice<f32> {
        self.logits.slice(0..rows * self.vocab)
    }

    /// Enqueues the choice of tokens, stop detection, the slots' advance and the records.
    pub fn run(&self, s: &Stream, kernels: &Kernels, tables: &StepTables, rows: SampleRows) -> Result<(), DriverError> {
        let n = rows.count;
        assert!(rows.slot.len() >= n && rows.row_slot.len() >= n && n <= ROWS_MAX);
        assert!(self.logits.len() >= n * self.vocab && self.forced.len() == tables.slots.len());
        kernels.sample(
            s,
            &G4SampleParams {
                slot: rows.slot.ptr(),
                status: rows.status.map_or(std::ptr::null(), |status| status.ptr().cast_const()),
                row_slot: rows.row_slot.ptr(),
                slots: tables.slots.ptr(),
                mask: self.overlays.mask.ptr(),
                bias: self.overlays.bias.ptr(),
                words: self.overlays.words.ptr(),
                forced: self.forced.ptr(),
                counts: self.overlays.counts.ptr(),
                prompt_bits: self.overlays.prompt_bits.ptr(),
                suppressed: self.suppressed.ptr(),
                suppressed_count: self.suppressed.len() as i32,
                eos_count: self.eos_count as i32,
                eos_ids: self.eos,
                ..self.row_params(tables, n, 0)
            },
        )
    }

    /// What `rows` rows need whoever they belong to; they report from record `first` on.
    fn row_params(&self, tables: &StepTables, rows: usize, first: usize) -> G4SampleParams {
        let records = self.records.slice(first..first + rows * (1 + LOGPROBS_RECORDS));
        G4SampleParams {
            logits: self.logits.ptr(),
            step: tables.step.ptr(),
            group_max: self.group_max.ptr(),
            group_sum: self.group_sum.ptr(),
            raw_max: self.raw_max.ptr(),
            raw_sum: self.raw_sum.ptr(),
            records: records.ptr(),
            logprobs: records.slice(rows..records.len()).cast::<G4Logprobs>().ptr(),
            rows: rows as i32,
            vocab: self.vocab as i32,
            groups: self.vocab.div_ceil(G4_SAMPLE_GROUP as usize) as i32,
            mask_words: self.vocab.div_ceil(32) as i32,
            ..bytemuck::Zeroable::zeroed()
        }
    }
}
