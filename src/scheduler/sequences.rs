//! The scheduler: three queues and the choice between a prompt chunk and a decode step.

use std::collections::{HashMap, VecDeque};

use super::buckets::bucket_for;
use super::roster::{RebuildCause, Roster, RosterGeneration, Row};
use crate::kv::{KvAccounts, KvShape, Pool, Reservation, Shortage, SlotId, StepNumber};
use crate::limits::ROWS_MAX;
use crate::request::RequestId;

/// Owns the sequences, their slots and their KV pages; decides what the next step is.
pub struct Scheduler {
    prefill_chunk: usize,
    slots: Pool<SlotId>,
    kv: KvAccounts,
    sequences: HashMap<RequestId, Sequence>,
    /// First come first.
    waiting: VecDeque<RequestId>,
    /// In the order of admission; the first one's prompt runs.
    prefilling: VecDeque<RequestId>,
    roster: Roster,
    planned_prefill: bool,
}

/// A sequence that starts to run: what the device's tables must be given before its first chunk.
#[derive(Debug, PartialEq, Eq)]
pub struct Admission<'a> {
    pub id: RequestId,
    pub slot: SlotId,
    pub reservation: &'a Reservation,
}

/// What to launch next.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan<'a> {
    /// A part of one prompt.
    Prefill(Chunk),
    /// One token of every row. `bucket` is the smallest that holds the rows; rows beyond them are padding.
    /// `cause` is what made this generation of the roster.
    Decode { roster_generation: RosterGeneration, rows: &'a [Row], bucket: usize, cause: RebuildCause },
    /// Nothing runs.
    Idle,
}

/// Positions `start .. start + len` of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub id: RequestId,
    pub slot: SlotId,
    pub start: usize,
    pub len: usize,
    /// The chunk ends the prompt: its last position gives the first output token, and the sequence decodes from the
    /// next plan on.
    pub last: bool,
}

struct Sequence {
    prompt_tokens: usize,
    kv_tokens_max: usize,
    /// Prompt tokens already planned.
    planned_tokens: usize,
    /// None while waiting.
    held: Option<Held>,
}

/// What a running sequence holds.
struct Held {
    slot: SlotId,
    reservation: Reservation,
}

impl Scheduler {
    /// `max_running` slots (1 to [`ROWS_MAX`]), prompts in chunks of `prefill_chunk` tokens (at least 1).
    pub fn new(max_running: usize, prefill_chunk: usize, kv: KvShape) -> Self {
        assert!((1..=ROWS_MAX).contains(&max_running) && prefill_chunk >= 1);
        Scheduler {
            prefill_chunk,
            slots: Pool::new(max_running),
            kv: KvAccounts::new(kv),
            sequences: HashMap::new(),
            waiting: VecDeque::new(),
            prefilling: VecDeque::new(),
            roster: Roster::default(),
            planned_prefill: false,
        }
    }

    /// Puts a sequence at the end of the queue. `kv_tokens_max` (at least `prompt_tokens`, at least 1) is what its
    /// cache holds in the worst case. Refused when that exceeds the whole pools. Panics on an id that is already here.
    pub fn enqueue(&mut self, id: RequestId, prompt_tokens: usize, kv_tokens_max: usize) -> Result<(), Shortage> {
        assert!(
            prompt_tokens >= 1 && kv_tokens_max >= prompt_tokens,
            "{id}: {prompt_tokens} of {kv_tokens_max} tokens"
        );
        self.kv.could_ever_fit(kv_tokens_max)?;
        let sequence = Sequence { prompt_tokens, kv_tokens_max, planned_tokens: 0, held: None };
        assert!(self.sequences.insert(id, sequence).is_none(), "{id} is scheduled already");
        self.waiting.push_back(id);
        Ok(())
    }

    /// Starts the sequence at the head of the queue if a slot and its pages are free. Nobody overtakes it: a later one
    /// that would fit waits too, so that a long one cannot starve.
    pub fn admit(&mut self) -> Option<Admission<'_>> {
        let &id = self.waiting.front()?;
        if self.slots.free_count() == 0 {
            return None;
        }
        let sequence = self.sequences.get_mut(&id).expect("a waiting sequence is known");
        let reservation = self.kv.reserve(sequence.kv_tokens_max).ok()?;
        let slot = self.slots.take(reservation.owner(), 1).expect("counted above")[0];
        self.waiting.pop_front();
        self.prefilling.push_back(id);
        let held = sequence.held.insert(Held { slot, reservation });
        Some(Admission { id, slot, reservation: &held.reservation })
    }

    /// The next step, taken as launched: the chunk it returns is not planned again. Prompt chunks and decode steps
    /// alternate while both are possible, so a decoding row waits one chunk at most between its tokens.
    pub fn plan(&mut self) -> Plan<'_> {
        let decoding = self.roster.count() > 0;
        self.planned_prefill = match self.prefilling.front() {
            Some(&id) if !decoding || !self.planned_prefill => {
                self.planned_prefill = true;
                return Plan::Prefill(self.plan_chunk(id));
            }
            _ => false,
        };
        if !decoding {
            return Plan::Idle;
        }
        let (roster_generation, cause, rows) = self.roster.settle();
        Plan::Decode { roster_generation, rows, bucket: bucket_for(rows.len()), cause }
    }

    /// The pages of a running sequence. Panics on one that does not run.
    pub fn reservation(&self, id: RequestId) -> &Reservation {
        let held = self.sequences.get(&id).and_then(|sequence| sequence.held.as_ref());
        &held.unwrap_or_else(|| panic!("{id} does not run")).reservation
    }

    /// Takes a decoding sequence out of the roster whose last token's step is launched. It keeps its slot and pages
    /// until it is finished.
    pub fn exhaust(&mut self, id: RequestId) {
        assert!(self.roster.leave(id), "{id} has no row");
    }

    /// Ends a running sequence. `last_step` is the last launched step, which may touch its slot and pages still; none
    /// when nothing was ever launched. Panics on a sequence that does not run.
    pub fn finish(&mut self, id: RequestId, last_step: Option<StepNumber>) {
        let runs = self.sequences.get(&id).is_some_and(|sequence| sequence.held.is_some());
        assert!(runs, "{id} does not run");
        self.remove(id, last_step);
    }

    /// Ends a sequence in any state, as [`Scheduler::finish`] does; false when it is not here.
    pub fn cancel(&mut self, id: RequestId, last_step: Option<StepNumber>) -> bool {
        let known = self.sequences.contains_key(&id);
        if known {
            self.remove(id, last_step);
        }
        known
    }

    /// Steps up to `step` have been collected: what they alone held back is free.
    pub fn collected(&mut self, step: StepNumber) {
        self.slots.collected(step);
        self.kv.collected(step);
    }

    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    pub fn prefilling_count(&self) -> usize {
        self.prefilling.len()
    }

    pub fn decoding_count(&self) -> usize {
        self.roster.count()
    }

    /// Whether no sequence is here in any state.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    pub fn kv(&self) -> &KvAccounts {
        &self.kv
    }

    pub fn slots(&self) -> &Pool<SlotId> {
        &self.slots
    }

    fn plan_chunk(&mut self, id: RequestId) -> Chunk {
        let sequence = self.sequences.get_mut(&id).expect("a prefilling sequence is known");
        let slot = sequence.held.as_ref().expect("a prefilling sequence holds a slot").slot;
        let start = sequence.planned_tokens;
        let len = self.prefill_chunk.min(sequence.prompt_tokens - start);
        sequence.planned_tokens += len;
        let last = sequence.planned_tokens == sequence.prompt_tokens;
        if last {
            self.prefilling.pop_front();
            self.roster.join(Row { slot, id });
        }
        Chunk { id, slot, start, len, last }
    }

    fn remove(&mut self, id: RequestId, last_step: Option<StepNumber>) {
        let sequence = self.sequences.remove(&id).expect("checked by the caller");
        let Some(Held { slot, reservation }) = sequence.held else {
            self.waiting.retain(|&other| other != id);
            return;
        };
        if !self.roster.leave(id) {
            self.prefilling.retain(|&other| other != id);
        }
        self.slots.retire(reservation.owner(), vec![slot], last_step);
        self.kv.release(reservation, last_step);
    }
}
