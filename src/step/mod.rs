//! The step's state on the device: slots, the row index, what the first node makes of them, and the pinned staging that
//! feeds them.
//!
//! Life of a slot: (1) admission takes it and its pages, on the host alone; (2) the first prompt chunk's upload brings
//! its page-table rows; (3) the last chunk's upload brings the slot, live, with a generation of its own; (4) from then
//! on position, last token, output index and live belong to the device; (5) when its sequence ends, slot and pages are
//! quarantined until the last launched step that holds them is collected.
//!
//! A step uploads once or not at all. A prompt chunk's upload holds its rows and, in the same copy, what
//! [`Kernels::scatter`] takes to its place: page-table rows, the slot. A rebuild's upload is the row index. A regular
//! step has none. Without the tail kernel every decode step's upload also holds positions and the step's number, from
//! the host's mirror of what was launched, which the decode graph's first node takes to their places.

use std::mem::offset_of;

use crate::device::{Context, DeviceBuffer, DeviceSlice, DriverError, PinnedBuffer, Stream};
use crate::kv::{PageId, PoolId, Reservation};
use crate::limits::ROWS_MAX;
use crate::model::cache::KvCache;
use crate::model::forward::{Mode, Rows};
use crate::model::kernels::bindings::G4_SCATTER_RUNS;
use crate::model::kernels::{G4Slot, Kernels, ScatterRun, StepBegin};
use crate::model::plan::Geometry;
use crate::slots::device_step;

/// Words of a slot, and the place of its position among them.
const SLOT_WORDS: usize = size_of::<G4Slot>() / 4;
const POSITION_WORD: usize = offset_of!(G4Slot, position) / 4;
/// Row index, positions, step number.
const ROW_WORDS: usize = 2 * ROWS_MAX + 1;

/// Device arrays at fixed addresses; captured kernels hold their pointers.
pub struct StepTables {
    /// `[slots]`
    pub slots: DeviceBuffer<G4Slot>,
    /// `[ROW_WORDS]`: the row index of decode steps; without the tail also positions by row and the step's number.
    row_upload: DeviceBuffer<i32>,
    /// Made by `g4_step_begin`, `[ROWS_MAX]` each.
    token: DeviceBuffer<i32>,
    position: DeviceBuffer<i32>,
    pub slot: DeviceBuffer<i32>,
    pub status: DeviceBuffer<i32>,
    sliding_item_begin: DeviceBuffer<i32>,
    global_item_begin: DeviceBuffer<i32>,
    /// The device's step counter, the low 32 bits of the host's.
    pub step: DeviceBuffer<i32>,
    /// A prompt chunk's upload: token | position | slot with the chunk's own length as stride, tokens to score, then
    /// page-table rows, the slot's state, its overlays and the step's number as far as the chunk brings them.
    prompt_upload: DeviceBuffer<i32>,
    staging: [Staging; 2],
}

/// Pinned memory that one step's upload is copied from.
///
/// Life of a staging buffer: (1) free; (2) step n fills buffer n mod 2 and enqueues the one copy from it; (3) it is
/// untouched until step n is collected, which frees it.
struct Staging {
    words: PinnedBuffer<i32>,
    /// The step that is copied from it; none: free.
    step: Option<u64>,
}

/// What a prompt chunk brings.
pub struct PromptUpload<'a> {
    pub slot: usize,
    pub start: usize,
    pub tokens: &'a [u32],
    /// What follows each of the first of them, where its log-probability is wanted; at most as many.
    pub scored: &'a [u32],
    /// With the first chunk: the pages of the slot.
    pub pages: Option<&'a Reservation>,
    /// With the last chunk: the slot's state for decoding.
    pub state: Option<G4Slot>,
    /// With the last chunk: what else its request brings, each part with its place.
    pub overlays: &'a [(DeviceSlice<i32>, &'a [i32])],
    /// Where no tail kernel counts the steps.
    pub sets_step: bool,
}

/// What step_begin made of a roster, and the slots it names: for tests of the step's state.
#[derive(Debug, PartialEq, Eq)]
pub struct StepState {
    pub row_slot: Vec<i32>,
    pub token: Vec<i32>,
    pub position: Vec<i32>,
    pub slot: Vec<i32>,
    pub status: Vec<i32>,
    pub sliding_item_begin: Vec<i32>,
    pub global_item_begin: Vec<i32>,
    /// Bytes of the live slots, in row order.
    pub live_slots: Vec<u8>,
}

impl StepTables {
    /// `overlay_words`: most words of a request's overlays.
    pub fn new(context: &Context, stream: &Stream, g: &Geometry, overlay_words: usize) -> Result<Self, DriverError> {
        let rows = |n: usize| DeviceBuffer::<i32>::new(context, n);
        let prompt_words = 4 * g.chunk_tokens + g.ring_pages + g.global_table_pages + SLOT_WORDS + overlay_words + 1;
        let staging = || -> Result<Staging, DriverError> {
            Ok(Staging { words: PinnedBuffer::new(context, prompt_words.max(ROW_WORDS))?, step: None })
        };
        let tables = StepTables {
            slots: DeviceBuffer::new(context, g.max_running)?,
            row_upload: rows(ROW_WORDS)?,
            token: rows(ROWS_MAX)?,
            position: rows(ROWS_MAX)?,
            slot: rows(ROWS_MAX)?,
            status: rows(ROWS_MAX)?,
            sliding_item_begin: rows(ROWS_MAX + 1)?,
            global_item_begin: rows(ROWS_MAX + 1)?,
            step: rows(1)?,
            prompt_upload: rows(prompt_words)?,
            staging: [staging()?, staging()?],
        };
        stream.fill(tables.slots.all(), 0)?;
        stream.fill(tables.row_upload.all(), 0xff)?;
        stream.fill(tables.step.all(), 0)?;
        Ok(tables)
    }

    /// The row index of decode steps.
    pub fn row_slot(&self) -> DeviceSlice<i32> {
        self.row_upload.slice(0..ROWS_MAX)
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
            row_slot: self.row_slot(),
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

    /// Enqueues the node that stands for the tail where there is none: uploaded positions into the slots, and the
    /// step's number.
    pub fn place_positions(&self, s: &Stream, kernels: &Kernels, rows: usize) -> Result<(), DriverError> {
        let words = self.slots.all().cast::<i32>();
        let positions = ScatterRun {
            dst: words.slice(POSITION_WORD..words.len()),
            index: Some(self.row_slot()),
            first: ROWS_MAX,
            count: rows,
            stride: SLOT_WORDS,
        };
        let step = run_to(self.step.all(), ROW_WORDS - 1, 1);
        kernels.scatter(s, self.row_upload.all(), &[positions, step])
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

    /// Enqueues step `step`'s row index, for it and the decode steps that follow; rows past `slots` become padding.
    pub fn upload_rows(
        &mut self,
        s: &Stream,
        step: u64,
        slots: impl Iterator<Item = usize>,
    ) -> Result<(), DriverError> {
        let target = self.row_slot();
        let words = self.stage(step);
        write_rows(words, slots);
        s.upload_pinned(target, words, 0)
    }

    /// As [`StepTables::upload_rows`], with the position of each row and the step's number.
    pub fn upload_positions(
        &mut self,
        s: &Stream,
        step: u64,
        rows: impl Iterator<Item = (usize, i32)> + Clone,
    ) -> Result<(), DriverError> {
        let target = self.row_upload.all();
        let words = self.stage(step);
        write_rows(words, rows.clone().map(|(slot, _)| slot));
        for (row, (_, position)) in rows.enumerate() {
            words.write(ROWS_MAX + row, position);
        }
        words.write(ROW_WORDS - 1, device_step(step));
        s.upload_pinned(target, words, 0)
    }

    /// Enqueues all that step `step`'s prompt chunk brings, in one copy, and takes it to its places.
    pub fn upload_prompt(
        &mut self,
        s: &Stream,
        kernels: &Kernels,
        cache: &KvCache,
        step: u64,
        prompt: &PromptUpload,
    ) -> Result<Rows, DriverError> {
        let (count, slot) = (prompt.tokens.len(), prompt.slot);
        let mut runs = [NO_RUN; G4_SCATTER_RUNS as usize];
        let mut used = 0;
        assert!(prompt.scored.len() <= count);
        let mut first = 3 * count + prompt.scored.len();
        let mut run = |dst: DeviceSlice<i32>| {
            runs[used] = run_to(dst, first, dst.len());
            used += 1;
            let at = first;
            first += dst.len();
            at
        };
        let g = cache.geometry();
        let pages = prompt.pages.map(|reservation| {
            let row = |table: &DeviceBuffer<i32>, pages: usize| table.slice(slot * pages..(slot + 1) * pages);
            let sliding = run(row(&cache.sliding_table, g.ring_pages));
            (reservation, sliding, run(row(&cache.global_table, g.global_table_pages)))
        });
        let state = prompt.state.map(|state| (state, run(self.slots.slice(slot..slot + 1).cast())));
        let first_overlay = prompt.overlays.iter().map(|(place, words)| {
            assert_eq!(place.len(), words.len());
            run(*place)
        });
        let first_overlay = first_overlay.reduce(|first, _| first);
        let number = prompt.sets_step.then(|| run(self.step.all()));
        let target = self.prompt_upload.slice(0..first);

        let words = self.stage(step);
        for (i, &token) in prompt.tokens.iter().enumerate() {
            words.write(i, token as i32);
            words.write(count + i, (prompt.start + i) as i32);
            words.write(2 * count + i, slot as i32);
        }
        for (i, &token) in prompt.scored.iter().enumerate() {
            words.write(3 * count + i, token as i32);
        }
        if let Some((reservation, sliding, global)) = pages {
            write_pages(words, sliding, reservation.sliding(), g.ring_pages);
            write_pages(words, global, reservation.global(), g.global_table_pages);
        }
        if let Some((state, at)) = state {
            let state: &[i32] = bytemuck::cast_slice(std::slice::from_ref(&state));
            state.iter().enumerate().for_each(|(i, &word)| words.write(at + i, word));
        }
        if let Some(at) = first_overlay {
            let overlays = prompt.overlays.iter().flat_map(|(_, words)| words.iter());
            overlays.enumerate().for_each(|(i, &word)| words.write(at + i, word));
        }
        if let Some(at) = number {
            words.write(at, device_step(step));
        }
        s.upload_pinned(target, words, 0)?;
        if used > 0 {
            kernels.scatter(s, target, &runs[..used])?;
        }
        let part = |i: usize| target.slice(i * count..(i + 1) * count);
        Ok(Rows { count, token: part(0), position: part(1), slot: part(2) })
    }

    /// The tokens to score that the last prompt chunk's upload of `count` tokens brought.
    pub fn scored(&self, count: usize, scored: usize) -> DeviceSlice<i32> {
        self.prompt_upload.slice(3 * count..3 * count + scored)
    }

    /// Step `step` is collected, so its copy has run.
    pub fn collected(&mut self, step: u64) {
        let staging = &mut self.staging[(step % 2) as usize];
        if staging.step == Some(step) {
            staging.step = None;
        }
    }

    /// Rows of a chunk of padding, for a first launch of every kernel: nothing is written to the cache.
    pub fn padding_prompt(&self, s: &Stream, kernels: &Kernels, count: usize) -> Result<Rows, DriverError> {
        s.fill(self.prompt_upload.all(), 0)?;
        let part = |i: usize| self.prompt_upload.slice(i * count..(i + 1) * count);
        s.fill(part(2), 0xff)?;
        kernels.scatter(s, self.prompt_upload.all(), &[])?;
        Ok(Rows { count, token: part(0), position: part(1), slot: part(2) })
    }

    /// Writes a slot by hand, outside of any step (`score`, `bench`).
    pub fn set_slot(&self, s: &Stream, slot: usize, state: G4Slot) -> Result<(), DriverError> {
        s.upload(self.slots.slice(slot..slot + 1), &[state])
    }

    /// Writes page-table rows by hand, outside of any step; entries past the given pages become -1.
    pub fn set_pages(
        &self,
        s: &Stream,
        cache: &KvCache,
        slot: usize,
        sliding: &[u32],
        global: &[u32],
    ) -> Result<(), DriverError> {
        let g = cache.geometry();
        for (table, pages, row) in
            [(&cache.sliding_table, sliding, g.ring_pages), (&cache.global_table, global, g.global_table_pages)]
        {
            assert!(pages.len() <= row, "{} pages in a row of {row}", pages.len());
            let mut words = vec![-1; row];
            words.iter_mut().zip(pages).for_each(|(word, &page)| *word = page as i32);
            s.upload(table.slice(slot * row..(slot + 1) * row), &words)?;
        }
        Ok(())
    }

    /// Waits, and reads what the first node made of `rows` rows.
    pub fn read(&self, s: &Stream, rows: usize) -> Result<StepState, DriverError> {
        let read = |buffer: DeviceSlice<i32>, count: usize| s.download(buffer.slice(0..count));
        let slot = read(self.slot.all(), rows)?;
        let slots = s.download(self.slots.all())?;
        let live = slot.iter().filter_map(|&slot| usize::try_from(slot).ok());
        Ok(StepState {
            row_slot: read(self.row_slot(), rows)?,
            token: read(self.token.all(), rows)?,
            position: read(self.position.all(), rows)?,
            status: read(self.status.all(), rows)?,
            sliding_item_begin: read(self.sliding_item_begin.all(), rows + 1)?,
            global_item_begin: read(self.global_item_begin.all(), rows + 1)?,
            live_slots: live.flat_map(|slot| bytemuck::bytes_of(&slots[slot]).to_vec()).collect(),
            slot,
        })
    }

    /// The staging buffer of a step. One that is still in use means that a step was launched before the one two
    /// before it was collected, or that a step uploads twice.
    fn stage(&mut self, step: u64) -> &mut PinnedBuffer<i32> {
        let staging = &mut self.staging[(step % 2) as usize];
        assert_eq!(staging.step, None, "step {step} meets a staging buffer in use");
        staging.step = Some(step);
        &mut staging.words
    }
}

const NO_RUN: ScatterRun = ScatterRun { dst: DeviceSlice::EMPTY, index: None, first: 0, count: 0, stride: 1 };

/// `count` words from `first` on, side by side.
fn run_to(dst: DeviceSlice<i32>, first: usize, count: usize) -> ScatterRun {
    ScatterRun { dst, index: None, first, count, stride: 1 }
}

fn write_rows(words: &mut PinnedBuffer<i32>, mut slots: impl Iterator<Item = usize>) {
    for row in 0..ROWS_MAX {
        words.write(row, slots.next().map_or(-1, |slot| slot as i32));
    }
}

fn write_pages(words: &mut PinnedBuffer<i32>, at: usize, pages: &[PageId], row: usize) {
    assert!(pages.len() <= row, "{} pages in a row of {row}", pages.len());
    for i in 0..row {
        words.write(at + i, pages.get(i).map_or(-1, |page| page.device()));
    }
}
