//! The sampler: from logits to tokens, slot state and records, on the device. Greedy, with suppressed ids; its kernels
//! are the nodes of the sampler graph.

pub mod math;
pub mod oracle;
pub mod params;
pub mod philox;

use crate::device::{Context, DeviceBuffer, DeviceSlice, DriverError, Stream};
use crate::limits::{EOS_IDS_MAX, ROWS_MAX};
use crate::model::config::ModelConfig;
use crate::model::kernels::bindings::{G4_ARGMAX_TILE, G4_EOS_IDS, G4PickParams};
use crate::model::kernels::{G4Record, Kernels};
use crate::model::plan::Geometry;
use crate::step::StepTables;

const _: () = assert!(EOS_IDS_MAX == G4_EOS_IDS as usize);

/// Buffers of the sampler, at fixed addresses.
pub struct Sampler {
    /// `[bucket_max][vocab]` f32
    logits: DeviceBuffer<f32>,
    tile_best: DeviceBuffer<f32>,
    tile_id: DeviceBuffer<i32>,
    suppressed: DeviceBuffer<i32>,
    /// `[ROWS_MAX]`, copied to a pinned slot after each step.
    pub records: DeviceBuffer<G4Record>,
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
        let tiles = config.vocab.div_ceil(G4_ARGMAX_TILE as usize);
        let suppressed: Vec<i32> =
            config.suppressed_ids.iter().filter(|&&id| (id as usize) < config.vocab).map(|&id| id as i32).collect();
        let mut eos = [-1; EOS_IDS_MAX];
        for (place, &id) in eos.iter_mut().zip(&config.eos_ids) {
            *place = id as i32;
        }
        let sampler = Sampler {
            logits: DeviceBuffer::new(context, g.decode_rows * config.vocab)?,
            tile_best: DeviceBuffer::new(context, g.decode_rows * tiles)?,
            tile_id: DeviceBuffer::new(context, g.decode_rows * tiles)?,
            suppressed: DeviceBuffer::new(context, suppressed.len())?,
            records: DeviceBuffer::new(context, ROWS_MAX)?,
            vocab: config.vocab,
            eos,
            eos_count: config.eos_ids.len().min(EOS_IDS_MAX),
        };
        stream.upload(sampler.suppressed.all(), &suppressed)?;
        stream.fill(sampler.records.all(), 0xff)?;
        stream.synchronize()?;
        Ok(sampler)
    }

    /// Logits of the first `rows` rows of the step.
    pub fn logits(&self, rows: usize) -> DeviceSlice<f32> {
        self.logits.slice(0..rows * self.vocab)
    }

    /// Enqueues argmax, stop detection, the slots' advance and the records.
    pub fn run(&self, s: &Stream, kernels: &Kernels, tables: &StepTables, rows: SampleRows) -> Result<(), DriverError> {
        let n = rows.count;
        let (best, id) = (self.tile_best.all(), self.tile_id.all());
        kernels.argmax(s, self.logits.all(), self.suppressed.all(), best, id, n, self.vocab)?;
        assert!(rows.slot.len() >= n && rows.row_slot.len() >= n && n <= ROWS_MAX);
        let pick = G4PickParams {
            tile_best: self.tile_best.ptr(),
            tile_id: self.tile_id.ptr(),
            slot: rows.slot.ptr(),
            status: rows.status.map_or(std::ptr::null(), |status| status.ptr().cast_const()),
            row_slot: rows.row_slot.ptr(),
            step: tables.step.ptr(),
            slots: tables.slots.ptr(),
            records: self.records.ptr(),
            rows: n as i32,
            tiles: self.vocab.div_ceil(G4_ARGMAX_TILE as usize) as i32,
            eos_count: self.eos_count as i32,
            eos_ids: self.eos,
        };
        kernels.pick(s, &pick)
    }
}
