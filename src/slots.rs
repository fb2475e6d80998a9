//! The two pinned readback slots: where a step's records land on the host.
//!
//! Life of a record: (1) the sampler writes it on the device, behind the row's token, with the step's number and the
//! generation of the row's slot; (2) the step's copy takes it to the pinned slot; (3) it is read once, behind the
//! copy's event, and must be of that step and of the generation its owner was launched with; (4) the engine settles it
//! against that owner, never against the current roster.
//!
//! Behind the records of a step stand the log-probabilities of its rows that asked ([`G4Logprobs`], each as long as
//! eleven records), in row order, so that one copy takes both; a step without such a row copies its records alone.
//!
//! Life of a slot: (1) free; (2) [`Readback::enqueue`] puts a copy of the step's records and an event behind its
//! kernels; (3) [`Readback::collect`] waits for the event (a bounded spin, then parking), frees the slot, copies the
//! records out and checks every one against the step and the owners it was launched with. Step n uses slot n mod 2, so
//! a third step can only be launched after the first is collected.

use std::time::{Duration, Instant};

use crate::device::{Context, DeviceSlice, DriverError, Event, PinnedBuffer, Stream};
use crate::limits::ROWS_MAX;
use crate::model::kernels::{G4Logprobs, G4Record};
use crate::request::RequestId;

/// Records that one row's log-probabilities are as long as.
pub const LOGPROBS_RECORDS: usize = size_of::<G4Logprobs>() / size_of::<G4Record>();
const _: () = assert!(LOGPROBS_RECORDS * size_of::<G4Record>() == size_of::<G4Logprobs>());
/// Records as long as all that one step can report: a decode step of as many rows as there can be, or a prompt chunk
/// every token of which is scored, and the token sampled behind it.
pub fn records_max(chunk_tokens: usize) -> usize {
    ROWS_MAX.max(chunk_tokens + 1) * (1 + LOGPROBS_RECORDS)
}

pub struct Readback {
    slots: [PinnedSlot; 2],
    /// How long to ask the event again and again before parking on it.
    spin: Duration,
}

/// How a wait for a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The step was done within the spin.
    Spin,
    /// The thread was parked.
    Park,
}

struct PinnedSlot {
    records: PinnedBuffer<G4Record>,
    copied: Event,
    /// Step whose records the slot holds or waits for; none: free.
    step: Option<u64>,
}

/// Owner of one row of a launched step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowOwner {
    pub slot: usize,
    pub generation: u32,
    pub id: RequestId,
    /// The row's slot asks for log-probabilities.
    pub wants_logprobs: bool,
}

/// A step's number as the device counts it: the low 32 bits. Two steps that could be confused are 2^32 apart.
pub fn device_step(step: u64) -> i32 {
    step as u32 as i32
}

/// A record that does not belong to the step it was collected for: wrong state, the engine stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "record {row} of step {step} says step {got_step} and generation {got_generation}, expected generation {generation}"
)]
pub struct RecordMismatch {
    pub row: usize,
    pub step: u64,
    pub generation: u32,
    pub got_step: i32,
    pub got_generation: u32,
}

impl Readback {
    /// `records_max`: most records a step reads back.
    pub fn new(context: &Context, spin: Duration, records_max: usize) -> Result<Self, DriverError> {
        let slot = || -> Result<PinnedSlot, DriverError> {
            let records = PinnedBuffer::new(context, records_max)?;
            Ok(PinnedSlot { records, copied: Event::new(context)?, step: None })
        };
        Ok(Readback { slots: [slot()?, slot()?], spin })
    }

    /// Enqueues the readback of `records` behind the step's kernels; a step without rows has only the event.
    pub fn enqueue(&mut self, s: &Stream, step: u64, records: DeviceSlice<G4Record>) -> Result<(), DriverError> {
        let slot = &mut self.slots[(step % 2) as usize];
        assert_eq!(slot.step, None, "step {step} meets an uncollected readback slot");
        if !records.is_empty() {
            s.download_pinned(&slot.records, 0, records)?;
        }
        slot.copied.record(s)?;
        slot.step = Some(step);
        Ok(())
    }

    /// Waits for a step and copies its records, one an owner in row order, in place of what `records` holds; it has
    /// room for them. No record is handed out unless all of them are the step's and their owners'.
    pub fn collect(
        &mut self,
        step: u64,
        owners: &[RowOwner],
        records: &mut Vec<G4Record>,
    ) -> Result<Waited, CollectError> {
        let slot = &mut self.slots[(step % 2) as usize];
        assert_eq!(slot.step, Some(step), "step {step} was not launched into this slot");
        let how = wait(&slot.copied, self.spin)?;
        slot.step = None;
        slot.records.copy_to(owners.len(), records);
        check(step, owners, records)?;
        Ok(how)
    }

    /// A record of a step that was just collected, by its place; unchecked.
    pub fn record(&self, step: u64, at: usize) -> G4Record {
        let slot = &self.slots[(step % 2) as usize];
        assert_eq!(slot.step, None, "step {step} is not collected, or its readback slot is in use again");
        slot.records.read(at)
    }

    /// The log-probabilities of a step that was just collected, by their place in records; the slot is untouched until
    /// the step after the next is launched. They must be of that step and of the generation their row had.
    pub fn logprobs(&self, step: u64, generation: u32, at: usize) -> Result<G4Logprobs, RecordMismatch> {
        let words: [G4Record; LOGPROBS_RECORDS] = std::array::from_fn(|i| self.record(step, at + i));
        let entry: G4Logprobs = bytemuck::cast(words);
        if entry.step != device_step(step) || entry.generation != generation {
            let (got_step, got_generation) = (entry.step, entry.generation);
            return Err(RecordMismatch { row: at, step, generation, got_step, got_generation });
        }
        Ok(entry)
    }
}

/// Whether every record is of this step and of the generation its owner was launched with. Nearly always all are: so
/// the differences are gathered without a branch a row, and only then is the row looked for.
fn check(step: u64, owners: &[RowOwner], records: &[G4Record]) -> Result<(), RecordMismatch> {
    let expected = device_step(step);
    let mut differences = 0;
    for (record, owner) in records.iter().zip(owners) {
        differences |= (record.step ^ expected) as u32 | (record.generation ^ owner.generation);
    }
    if differences == 0 {
        return Ok(());
    }
    let is_off =
        |(record, owner): (&G4Record, &RowOwner)| record.step != expected || record.generation != owner.generation;
    let row = records.iter().zip(owners).position(is_off).expect("a record differs");
    let (got_step, got_generation) = (records[row].step, records[row].generation);
    Err(RecordMismatch { row, step, generation: owners[row].generation, got_step, got_generation })
}

/// A bounded spin on the event, then a parking wait. A spin saves the wake-up of a parked thread (tens of
/// microseconds); past its bound it only burns a core.
fn wait(event: &Event, spin: Duration) -> Result<Waited, DriverError> {
    if !spin.is_zero() {
        let started = Instant::now();
        while started.elapsed() < spin {
            if event.is_done()? {
                return Ok(Waited::Spin);
            }
            std::hint::spin_loop();
        }
    }
    event.wait()?;
    Ok(Waited::Park)
}

/// Why a step could not be collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectError {
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Mismatch(#[from] RecordMismatch),
}
