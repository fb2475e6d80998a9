//! The model runner: launches steps on the device and collects them. It knows slots and rows, not requests.
//!
//! A decode step is the decode graph, the sampler graph and one readback of 16 bytes a row, and 176 more in rows that
//! ask for log-probabilities. A prompt chunk runs the
//! same kernels eagerly; the last chunk of a prompt samples the first output token and uses a readback slot like a
//! decode step.

use std::rc::Rc;
use std::time::Duration;

use crate::device::{Context, DeviceBuffer, DriverError, Stream, nvtx};
use crate::graph::BucketGraphs;
use crate::kv::Reservation;
use crate::model::forward::{Forward, HiddenTap, Mode, OutputRows, Rows};
use crate::model::kernels::{G4Logprobs, G4Record, G4Slot, expert_rows_many};
use crate::sampler::overlays::{OverlayPart, Overlays};
use crate::sampler::params::PackedSampling;
use crate::sampler::prompt::{SCORES_AT, score_places};
use crate::sampler::{SampleRows, Sampler};
use crate::scheduler::buckets;
pub use crate::slots::RowOwner;
use crate::slots::{CollectError, LOGPROBS_RECORDS, Readback, Waited, device_step, records_max};
use crate::step::{PromptUpload, StepState, StepTables};

/// Everything on the device, and the one stream it runs on. Lives on the engine thread.
pub struct Runner {
    // Declared before what they point at, so that they are dropped first.
    graphs: Vec<BucketGraphs>,
    /// Captured graphs are replayed; off only for A/B.
    replays: bool,
    tap: Option<HiddenTap>,
    readback: Readback,
    sampler: Sampler,
    tables: StepTables,
    pub forward: Forward,
    pub stream: Stream,
    pub context: Context,
    buckets: Vec<usize>,
    /// Steps launched; the device's counter holds the low 32 bits of it after its tail.
    step: u64,
    /// Roster the device's row index was built for, and how many of its rows ask for log-probabilities.
    roster: Option<u64>,
    logprob_rows: usize,
    /// Whether the device advances positions and the step's number itself.
    has_tail: bool,
    /// By slot, the position its next decode step feeds: the mirror of what was launched. Read without the tail only.
    positions: Vec<i32>,
    bucket_launches: u64,
}

/// A launched step: its number and who its rows belonged to. Collection uses this list, never the current roster; it is
/// shared by the steps of one roster.
#[derive(Clone, Debug)]
pub struct InFlight {
    pub step: u64,
    pub rows: Rc<[RowOwner]>,
    /// Where the log-probabilities of the rows that ask begin in the readback, in records; 0: no row asks.
    logprobs_at: usize,
    /// A prompt chunk whose tokens are scored.
    pub scored: Option<ScoredChunk>,
}

/// The scored tokens of a prompt chunk: `count` from position `first` of the owner's prompt on.
#[derive(Clone, Copy, Debug)]
pub struct ScoredChunk {
    pub owner: RowOwner,
    pub first: usize,
    pub count: usize,
}

impl InFlight {
    pub fn has_logprobs(&self) -> bool {
        self.logprobs_at > 0
    }
}

/// One chunk of a prompt.
pub struct PromptChunk<'a> {
    pub slot: usize,
    pub start: usize,
    pub tokens: &'a [u32],
    /// Whose tokens behind those of the chunk are scored, and which: one for each but the prompt's last.
    pub scored: Option<(RowOwner, &'a [u32])>,
    /// Whether logits or hidden states of every position are read afterwards, not of the prompt's last alone.
    pub every_row: bool,
    /// The slot's pages, with the first chunk; none: they were granted by hand.
    pub pages: Option<&'a Reservation>,
    /// The slot's state for decoding when this is the prompt's last chunk: then the first token is sampled.
    pub last: Option<G4Slot>,
    /// With `last`: what else the slot holds of its request; none: nothing its flags ask for.
    pub sampling: Option<PackedSampling>,
}

impl Runner {
    /// Allocates what a step needs; nothing is captured yet.
    pub fn new(context: Context, stream: Stream, forward: Forward, spin: Duration) -> Result<Self, DriverError> {
        let g = forward.geometry.clone();
        Ok(Runner {
            graphs: Vec::new(),
            replays: true,
            tap: None,
            readback: Readback::new(&context, spin, records_max(g.chunk_tokens))?,
            sampler: Sampler::new(&context, &stream, &forward.config, &g)?,
            tables: StepTables::new(&context, &stream, &g, Overlays::upload_words(forward.config.vocab))?,
            buckets: buckets(g.max_running).to_vec(),
            forward,
            stream,
            context,
            step: 0,
            roster: None,
            logprob_rows: 0,
            has_tail: true,
            positions: vec![0; g.max_running],
            bucket_launches: 0,
        })
    }

    /// Copies the residual stream of every layer on each step from now on (`score --hidden`); before any capture.
    pub fn tap_hidden(&mut self) -> Result<(), DriverError> {
        assert!(self.graphs.is_empty(), "the tap must be part of the captured graphs");
        let rows = self.forward.geometry.rows_max();
        self.tap = Some(HiddenTap::new(&self.context, &self.forward.config, rows)?);
        Ok(())
    }

    pub fn tap(&self) -> Option<&HiddenTap> {
        self.tap.as_ref()
    }

    /// Leaves the tail kernel out: the host uploads positions before every decode step. Before any capture.
    pub fn without_tail(&mut self) {
        assert!(self.graphs.is_empty(), "the tail is part of the captured graphs");
        self.has_tail = false;
    }

    pub fn has_tail(&self) -> bool {
        self.has_tail
    }

    /// Launches every kernel once outside of capture: lazy loading inside a capture fails or synchronises. `progress`
    /// hears each pass through the layers.
    pub fn warm_up(&mut self, mut progress: impl FnMut()) -> Result<(), DriverError> {
        // Rows for which the tiled product is taken, and large tiles of experts.
        let experts = self.forward.config.experts.map_or(0, |of| expert_rows_many(of.count, of.top));
        let rows = self.forward.geometry.chunk_tokens.min(experts.max(129));
        for count in [1, rows] {
            // Slot -1: every row is padding, nothing is written to the cache.
            let rows = self.tables.padding_prompt(&self.stream, &self.forward.kernels, count)?;
            let mode = Mode::Prompt { slot: 0, start: 0, tokens: count, output: OutputRows::All };
            self.forward.run(&self.stream, rows, mode, None)?;
            progress();
        }
        for bucket in self.buckets.clone() {
            self.decode_kernels(&self.stream, bucket)?;
            self.sampler_kernels(&self.stream, bucket)?;
            progress();
        }
        self.stream.fill(self.tables.step.all(), 0)?;
        self.stream.synchronize()
    }

    /// Captures both graphs of every bucket; `progress` hears each bucket.
    pub fn capture(&mut self, mut progress: impl FnMut(usize)) -> Result<(), DriverError> {
        for bucket in self.buckets.clone() {
            let graphs = BucketGraphs::capture(
                &self.stream,
                bucket,
                |s| self.decode_kernels(s, bucket),
                |s| self.sampler_kernels(s, bucket),
            )?;
            self.graphs.push(graphs);
            progress(bucket);
        }
        self.stream.synchronize()
    }

    /// Whether steps replay captured graphs, or launch kernels one by one although they were captured (A/B).
    pub fn replay_graphs(&mut self, on: bool) {
        self.replays = on;
    }

    /// Steps launched so far.
    pub fn steps_launched(&self) -> u64 {
        self.step
    }

    /// Counts steps from `step` on, with none in flight: tests of the 32-bit counter's wrap.
    pub fn count_from(&mut self, step: u64) -> Result<(), DriverError> {
        self.step = step;
        self.stream.upload(self.tables.step.all(), &[device_step(step)])
    }

    /// Nodes of all captured graphs.
    pub fn graph_nodes(&self) -> usize {
        self.graphs.iter().map(|g| g.nodes).sum()
    }

    /// Grants pages to a slot by hand (`score`, `bench`).
    pub fn grant_pages(&mut self, slot: usize, sliding: &[u32], global: &[u32]) -> Result<(), DriverError> {
        self.tables.set_pages(&self.stream, &self.forward.cache, slot, sliding, global)
    }

    /// Uploads a slot's state by hand (`score`, `bench`, which feed tokens of their own).
    pub fn set_slot(&mut self, slot: usize, state: G4Slot) -> Result<(), DriverError> {
        self.positions[slot] = state.position;
        self.tables.set_slot(&self.stream, slot, state)
    }

    /// Overwrites the row index that the device has; tests of records that come from another slot.
    pub fn set_rows(&self, slots: &[i32]) -> Result<(), DriverError> {
        self.stream.upload(self.tables.row_slot().slice(0..slots.len()), slots)
    }

    /// Launches one chunk. With `last` the step has one row to collect, whose owner is the one of `rows`; otherwise
    /// none.
    pub fn launch_prompt(
        &mut self,
        chunk: PromptChunk,
        rows: impl Into<Rc<[RowOwner]>>,
    ) -> Result<InFlight, DriverError> {
        let owners = rows.into();
        assert_eq!(owners.len(), usize::from(chunk.last.is_some()));
        let (s, step) = (&self.stream, self.step + 1);
        let packed = chunk.sampling.as_ref();
        let overlays: Vec<OverlayPart> =
            packed.into_iter().flat_map(|packed| self.sampler.overlays.parts(chunk.slot, packed)).collect();
        let upload = PromptUpload {
            slot: chunk.slot,
            start: chunk.start,
            tokens: chunk.tokens,
            scored: chunk.scored.map_or(&[], |(_, tokens)| tokens),
            pages: chunk.pages,
            state: chunk.last,
            overlays: &overlays,
            sets_step: !self.has_tail,
        };
        let kernels = &self.forward.kernels;
        let staging = nvtx::range(c"stage");
        let rows = self.tables.upload_prompt(s, kernels, &self.forward.cache, step, &upload)?;
        if let Some(packed) = packed {
            self.sampler.overlays.clear_counts(s, chunk.slot, packed)?;
        }
        drop(staging);
        let _launching = nvtx::range(c"launch");
        let output = match chunk.last {
            _ if chunk.every_row => OutputRows::All,
            Some(_) => OutputRows::Last,
            None => OutputRows::None,
        };
        let mode = Mode::Prompt { slot: chunk.slot, start: chunk.start, tokens: rows.count, output };
        self.forward.run(s, rows, mode, self.tap.as_ref())?;
        if self.has_tail {
            kernels.tail(s, rows.slot, self.tables.slots.all(), self.tables.step.all(), 0)?;
        }
        self.step = step;
        let scored = self.score_chunk(&chunk)?;
        let (s, kernels) = (&self.stream, &self.forward.kernels);
        if let Some(state) = chunk.last {
            self.positions[chunk.slot] = state.position;
            self.forward.logits(s, rows.count - 1, 1, self.sampler.logits(1))?;
            let slot = rows.slot.slice(0..1);
            let sample = SampleRows { count: 1, slot, row_slot: slot, status: None };
            self.sampler.run(s, kernels, &self.tables, sample)?;
        }
        let logprob_rows = owners.iter().filter(|owner| owner.wants_logprobs).count();
        self.enqueue_readback(owners, 1, logprob_rows, scored)
    }

    /// Enqueues the scores of a chunk that wants them: logits of all its positions, a tile at a time, in the buffers
    /// of a decode step.
    fn score_chunk(&self, chunk: &PromptChunk) -> Result<Option<ScoredChunk>, DriverError> {
        let Some((owner, tokens)) = chunk.scored.filter(|(_, tokens)| !tokens.is_empty()) else { return Ok(None) };
        let (s, f, sampler, count) = (&self.stream, &self.forward, &self.sampler, tokens.len());
        let tokens = self.tables.scored(chunk.tokens.len(), count);
        for first in (0..count).step_by(sampler.tile()) {
            let end = count.min(first + sampler.tile());
            f.logits(s, first, end - first, sampler.logits(end - first))?;
            sampler.score(s, &f.kernels, &self.tables, first, tokens.slice(first..end))?;
        }
        Ok(Some(ScoredChunk { owner, first: chunk.start + 1, count }))
    }

    /// Launches one decode step. Something is uploaded only when the roster's generation is new, or without the tail:
    /// a rebuild, which the second value tells.
    pub fn launch_decode(
        &mut self,
        roster: u64,
        rows: impl Into<Rc<[RowOwner]>>,
    ) -> Result<(InFlight, bool), DriverError> {
        let rows = rows.into();
        let rebuild = self.stage(roster, &rows)?;
        let _launching = nvtx::range(c"launch");
        let bucket = *self.buckets.iter().find(|&&b| b >= rows.len()).expect("a bucket holds max_running rows");
        self.launch_bucket(bucket)?;
        self.step += 1;
        if !self.has_tail {
            rows.iter().for_each(|row| self.positions[row.slot] += 1);
        }
        Ok((self.enqueue_readback(rows, bucket, self.logprob_rows, None)?, rebuild))
    }

    /// Enqueues the one copy of what the step reports, behind its kernels, which ran over `count` rows: records, and
    /// the log-probabilities of the rows that ask behind them.
    fn enqueue_readback(
        &mut self,
        rows: Rc<[RowOwner]>,
        count: usize,
        logprob_rows: usize,
        scored: Option<ScoredChunk>,
    ) -> Result<InFlight, DriverError> {
        let (len, logprobs_at) = match logprob_rows {
            0 => (rows.len(), 0),
            asking => (count + asking * LOGPROBS_RECORDS, count),
        };
        let len = scored.map_or(len, |scored| SCORES_AT + scored.count * (1 + LOGPROBS_RECORDS));
        self.readback.enqueue(&self.stream, self.step, self.sampler.records.slice(0..len))?;
        Ok(InFlight { step: self.step, rows, logprobs_at, scored })
    }

    /// Uploads what the device lacks for the next decode step; false when it lacks nothing.
    fn stage(&mut self, roster: u64, rows: &[RowOwner]) -> Result<bool, DriverError> {
        let _staging = nvtx::range(c"stage");
        let (s, step) = (&self.stream, self.step + 1);
        if !self.has_tail {
            let positions = &self.positions;
            let rows = rows.iter().map(|row| (row.slot, positions[row.slot]));
            self.tables.upload_positions(s, step, rows)?;
        } else if self.roster != Some(roster) {
            self.tables.upload_rows(s, step, rows.iter().map(|row| row.slot))?;
        } else {
            return Ok(false);
        }
        self.roster = Some(roster);
        self.logprob_rows = rows.iter().filter(|row| row.wants_logprobs).count();
        Ok(true)
    }

    /// The state the next decode step of a roster would begin with, read back; nothing is launched. For tests, with no
    /// step in flight.
    pub fn state_before(&mut self, roster: u64, rows: &[RowOwner]) -> Result<StepState, DriverError> {
        self.stage(roster, rows)?;
        let (s, f) = (&self.stream, &self.forward);
        if !self.has_tail {
            self.tables.place_positions(s, &f.kernels, rows.len())?;
        }
        self.tables.begin(s, &f.kernels, &f.cache, &f.geometry, rows.len())?;
        let state = self.tables.read(s, rows.len())?;
        self.tables.collected(self.step + 1);
        Ok(state)
    }

    /// Every slot's state, read back behind what is enqueued. For tests.
    pub fn slots(&self) -> Result<Vec<G4Slot>, DriverError> {
        self.stream.download(self.tables.slots.all())
    }

    /// Writes the records by hand, in stream order: `bench-step`, whose device skips its kernels.
    pub fn write_records(&mut self, records: &[G4Record]) -> Result<(), DriverError> {
        self.stream.upload(self.sampler.records.slice(0..records.len()), records)
    }

    /// Makes the next decode step a rebuild whatever its roster.
    pub fn forget_roster(&mut self) {
        self.roster = None;
    }

    /// Bucket replays so far: each is one decode graph and one sampler graph.
    pub fn bucket_launches(&self) -> u64 {
        self.bucket_launches
    }

    /// Launches a decode step of a bucket in which every row is padding (gates).
    pub fn launch_padding(&mut self, bucket: usize) -> Result<InFlight, DriverError> {
        self.forget_roster();
        self.stage(0, &[])?;
        self.forget_roster();
        self.launch_bucket(bucket)?;
        self.step += 1;
        self.readback.enqueue(&self.stream, self.step, self.sampler.records.slice(0..0))?;
        Ok(InFlight { step: self.step, rows: Rc::new([]), logprobs_at: 0, scored: None })
    }

    /// Waits for a step and copies its records into `records`, in row order.
    pub fn collect(&mut self, flight: &InFlight, records: &mut Vec<G4Record>) -> Result<Waited, CollectError> {
        let _collecting = nvtx::range(c"collect");
        self.context.take_dropped()?;
        let how = self.readback.collect(flight.step, &flight.rows, records)?;
        self.tables.collected(flight.step);
        Ok(how)
    }

    /// Log-probabilities of the `index`-th row that asked, of a step just collected.
    pub fn logprobs(&self, flight: &InFlight, index: usize, generation: u32) -> Result<G4Logprobs, CollectError> {
        let at = flight.logprobs_at + index * LOGPROBS_RECORDS;
        Ok(self.readback.logprobs(flight.step, generation, at)?)
    }

    /// Record and log-probabilities of a scored token of a prompt chunk just collected; their slots belong to nobody
    /// and have no generation.
    pub fn score(
        &self,
        flight: &InFlight,
        scored: &ScoredChunk,
        row: usize,
    ) -> Result<(G4Record, G4Logprobs), CollectError> {
        let (record, entry) = score_places(row, scored.count, self.sampler.tile());
        let record = self.readback.record(flight.step, record);
        if record.token < 0 {
            return Ok((record, bytemuck::Zeroable::zeroed()));
        }
        Ok((record, self.readback.logprobs(flight.step, 0, entry)?))
    }

    /// Logits `[rows][vocab]` of the last step, copied to the host (`score`).
    pub fn read_logits(&mut self, rows: usize) -> Result<Vec<f32>, DriverError> {
        self.stream.download(self.sampler.logits(rows))
    }

    /// Logits of rows `[first, first + count)` of the last prompt chunk into `out`, at most 128 rows (`score`).
    pub fn prompt_logits(
        &mut self,
        first: usize,
        count: usize,
        out: &DeviceBuffer<f32>,
    ) -> Result<Vec<f32>, DriverError> {
        let out = out.slice(0..count * self.forward.config.vocab);
        self.forward.logits(&self.stream, first, count, out)?;
        self.stream.download(out)
    }

    /// Replays the bucket's graphs, or launches their kernels one by one where nothing was captured.
    fn launch_bucket(&mut self, bucket: usize) -> Result<(), DriverError> {
        match self.graphs.iter().find(|g| self.replays && g.bucket == bucket) {
            Some(graphs) => {
                self.bucket_launches += 1;
                graphs.launch(&self.stream)
            }
            None => {
                self.decode_kernels(&self.stream, bucket)?;
                self.sampler_kernels(&self.stream, bucket)
            }
        }
    }

    fn decode_kernels(&self, s: &Stream, bucket: usize) -> Result<(), DriverError> {
        let f = &self.forward;
        if !self.has_tail {
            self.tables.place_positions(s, &f.kernels, bucket)?;
        }
        self.tables.begin(s, &f.kernels, &f.cache, &f.geometry, bucket)?;
        let (rows, mode): (Rows, Mode) = self.tables.decode_rows(bucket);
        f.run(s, rows, mode, self.tap.as_ref())?;
        f.logits(s, 0, bucket, self.sampler.logits(bucket))?;
        if self.has_tail {
            f.kernels.tail(s, rows.slot, self.tables.slots.all(), self.tables.step.all(), bucket)?;
        }
        Ok(())
    }

    fn sampler_kernels(&self, s: &Stream, bucket: usize) -> Result<(), DriverError> {
        let sample = SampleRows {
            count: bucket,
            slot: self.tables.slot.all(),
            row_slot: self.tables.row_slot(),
            status: Some(self.tables.status.all()),
        };
        self.sampler.run(s, &self.forward.kernels, &self.tables, sample)
    }
}
