//! The step's state on the device: slots, the row index, what the first node makes of them, and the pinned staging that
//! feeds them.
//!
//! Life of a slot: (1) admission writes its page-table rows; (2) the last prompt chunk's step uploads the slot, live,
//! with a generation of its own; (3) from then on position, last token, output index and live belong to the device;
//! (4) when its sequence ends, slot and pages are quarantined until the last launched step that holds them is
//! collected.
//!
//! Life of a staging buffer: (1) the host waits for the event of the step that used it last; (2) fills it; (3) enqueues
//! one copy; (4) records the event.

use crate::device::{Context, DeviceBuffer, DriverError, Event, PinnedBuffer, Stream};
use crate::limits::ROWS_MAX;
use crate::model::cache::KvCache;
use crate::model::forward::{Mode, Rows};
use crate::model::kernels::{G4Slot, Kernels, StepBegin};
use crate::model::plan::Geometry;

/// Device arrays at fixed addresses; captured kernels hold their pointers.
pub struct StepTables {
    /// `[slots]`
    pub slots: DeviceBuffer<G4Slot>,
    /// `[ROWS_MAX]` the row index of decode steps.
    pub row_slot: DeviceBuffer<i32>,
    /// Made by `g4_step_begin`, `[ROWS_MAX]` each.
    token: DeviceBuffer<i32>,
    position: DeviceBuffer<i32>,
    pub slot: DeviceBuffer<i32>,
    pub status: DeviceBuffer<i32>,
    sliding_item_begin: DeviceBuffer<i32>,
    global_item_begin: DeviceBuffer<i32>,
    /// The device's step counter.
    pub step: DeviceBuffer<i32>,
    /// A prompt chunk's token | position | slot, packed with the chunk's own length as stride.
    prompt: DeviceBuffer<i32>,
    staging: [Staging; 2],
    turn: usize,
}

struct Staging {
    words: PinnedBuffer<i32>,
    slot: PinnedBuffer<G4Slot>,
    copied: Event,
}

impl StepTables {
    pub fn new(context: &Context, stream: &Stream, g: &Geometry) -> Result<Self, DriverError> {
        let rows = |n: usize| DeviceBuffer::<i32>::new(context, n);
        let words = (3 * g.chunk_tokens).max(ROWS_MAX).max(g.global_table_pages + g.ring_pages);
        let staging = || -> Result<Staging, DriverError> {
            let copied = Event::new(context)?;
            copied.record(stream)?;
            Ok(Staging { words: PinnedBuffer::new(context, words)?, slot: PinnedBuffer::new(context, 1)?, copied })
        };
        let tables = StepTables {
            slots: DeviceBuffer::new(context, g.max_running)?,
            row_slot: rows(ROWS_MAX)?,
            token: rows(ROWS_MAX)?,
            position: rows(ROWS_MAX)?,
            slot: rows(ROWS_MAX)?,
            status: rows(ROWS_MAX)?,
            sliding_item_begin: rows(ROWS_MAX + 1)?,
            global_item_begin: rows(ROWS_MAX + 1)?,
            step: rows(1)?,
            prompt: rows(3 * g.chunk_tokens)?,
            staging: [staging()?, staging()?],
            turn: 0,
        };
        stream.fill(tables.slots.all(), 0)?;
        stream.fill(tables.row_slot.all(), 0xff)?;
        stream.fill(tables.step.all(), 0)?;
        Ok(tables)
    }

    /// Enqueues the first node of a decode step of `rows` rows.
    pub fn begin(
        &self,
        s: &Stream,
        kernels: &Kernels,
        cache: &KvCache,
        g: &Geometry,
        rows: usize,
    ) -> Result<(), DriverError> {
        let begin = StepBegin {
            row_slot: self.row_slot.all(),
            slots: self.slots.all(),
            sliding_table: cache.sliding_table.all(),
            global_table: cache.global_table.all(),
            token: self.token.all(),
            position: self.position.all(),
            slot: self.slot.all(),
            status: self.status.all(),
            sliding_item_begin: self.sliding_item_begin.all(),
            global_item_begin: self.global_item_begin.all(),
            rows,
            sliding_pages: g.ring_pages,
            global_pages: g.global_table_pages,
            page_tokens_sliding: g.page_tokens_sliding,
            page_tokens_global: g.page_tokens_global,
            window: g.window,
            segment_sliding: g.segment_sliding,
            segment_global: g.segment_global,
        };
        kernels.step_begin(s, &begin)
    }

    /// The decode rows as the forward pass reads them.
    pub fn decode_rows(&self, count: usize) -> (Rows, Mode) {
        let rows = Rows { count, token: self.token.all(), position: self.position.all(), slot: self.slot.all() };
        let mode = Mode::Decode {
            sliding_item_begin: self.sliding_item_begin.all(),
            global_item_begin: self.global_item_begin.all(),
        };
        (rows, mode)
    }

    /// Enqueues the row index of the decode steps that follow; rows past `slots` become padding.
    pub fn upload_rows(&mut self, s: &Stream, slots: impl Iterator<Item = usize>) -> Result<(), DriverError> {
        let target = self.row_slot.all();
        let staging = self.next_staging()?;
        let mut slots = slots.map(|slot| slot as i32);
        for row in 0..ROWS_MAX {
            staging.words.write(row, slots.next().unwrap_or(-1));
        }
        s.upload_pinned(target, &staging.words, 0)?;
        staging.copied.record(s)
    }

    /// Enqueues the page-table rows of a slot; entries past the granted pages become -1.
    pub fn upload_pages(
        &mut self,
        s: &Stream,
        cache: &KvCache,
        slot: usize,
        sliding: &[u32],
        global: &[u32],
    ) -> Result<(), DriverError> {
        let row = |table: &DeviceBuffer<i32>, pages: usize| table.slice(slot * pages..(slot + 1) * pages);
        let g = cache.geometry();
        let (sliding_pages, global_pages) = (g.ring_pages, g.global_table_pages);
        assert!(sliding.len() <= sliding_pages && global.len() <= global_pages);
        let sliding_row = row(&cache.sliding_table, sliding_pages);
        let global_row = row(&cache.global_table, global_pages);
        let staging = self.next_staging()?;
        for i in 0..sliding_pages {
            staging.words.write(i, sliding.get(i).map_or(-1, |&page| page as i32));
        }
        for i in 0..global_pages {
            staging.words.write(sliding_pages + i, global.get(i).map_or(-1, |&page| page as i32));
        }
        s.upload_pinned(sliding_row, &staging.words, 0)?;
        s.upload_pinned(global_row, &staging.words, sliding_pages)?;
        staging.copied.record(s)
    }

    /// Enqueues the state of a slot that is not live on the device.
    pub fn upload_slot(&mut self, s: &Stream, slot: usize, state: G4Slot) -> Result<(), DriverError> {
        let target = self.slots.slice(slot..slot + 1);
        let staging = self.next_staging()?;
        staging.slot.write(0, state);
        s.upload_pinned(target, &staging.slot, 0)?;
        staging.copied.record(s)
    }

    /// Enqueues a prompt chunk's rows: `tokens` at positions from `start` of the sequence in `slot`.
    pub fn upload_prompt(
        &mut self,
        s: &Stream,
        slot: usize,
        start: usize,
        tokens: &[u32],
    ) -> Result<Rows, DriverError> {
        let count = tokens.len();
        let target = self.prompt.slice(0..3 * count);
        let staging = self.next_staging()?;
        for (i, &token) in tokens.iter().enumerate() {
            staging.words.write(i, token as i32);
            staging.words.write(count + i, (start + i) as i32);
            staging.words.write(2 * count + i, slot as i32);
        }
        s.upload_pinned(target, &staging.words, 0)?;
        staging.copied.record(s)?;
        let part = |i: usize| target.slice(i * count..(i + 1) * count);
        Ok(Rows { count, token: part(0), position: part(1), slot: part(2) })
    }

    /// The other staging buffer, once its last copy has run.
    fn next_staging(&mut self) -> Result<&mut Staging, DriverError> {
        self.turn = 1 - self.turn;
        let staging = &mut self.staging[self.turn];
        staging.copied.wait()?;
        Ok(staging)
    }
}
