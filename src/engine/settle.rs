//! Settling: a collected step's records become tokens in rings, and terminals.
//!
//! Nearly every row of every step goes on: its token is published and nothing else happens. That path touches a row's
//! record, its [`Lane`] and its ring, decides nothing that only the slow path can decide, and hands every other row to
//! [`Engine::settle_row`]. Its cost a row is held by the gate `step_cost`.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::handle::Ticket;
use super::runner::{InFlight, RowOwner};
use super::{Engine, EngineError};
use crate::device::nvtx;
use crate::kv::{Family, StepNumber};
use crate::metrics::STEP_SECONDS;
use crate::model::kernels::G4Record;
use crate::model::kernels::bindings::{G4_TOKEN_MASKED, G4_TOKEN_NAN, G4_TOKEN_NONE};
use crate::request::{Failure, GenerateRequest, RequestId, Terminal};

/// A sequence that holds a slot.
pub(super) struct Running {
    pub(super) id: RequestId,
    pub(super) ticket: Arc<Ticket>,
    pub(super) stops: StopFilter,
    /// Output tokens whose steps were launched. At `max_tokens` the sequence leaves the roster: the length limit is
    /// the one stop the host knows ahead, so no step is launched for it in vain.
    pub(super) tokens_launched: u32,
    pub(super) tokens_max: u32,
}

/// Which tokens may end a sequence: bit `id % 64` of every EOS or stop id that applies to it. A token whose bit is
/// clear is none of them; one whose bit is set is looked up, which happens to few tokens, as requests have few ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StopFilter(u64);

impl StopFilter {
    pub(super) fn new(request: &GenerateRequest, eos_ids: &[u32]) -> Self {
        let eos_ids = if request.ignore_eos { &[] } else { eos_ids };
        let ids = eos_ids.iter().chain(&request.stop_token_ids);
        StopFilter(ids.fold(0, |bits, id| bits | 1 << (id % u64::BITS)))
    }

    #[inline]
    fn may_stop(self, token: u32) -> bool {
        self.0 >> (token % u64::BITS) & 1 != 0
    }
}

/// What settling one row of a roster needs, side by side: made with the roster, shared by its steps.
pub(super) struct Lane {
    owner: RowOwner,
    ticket: Arc<Ticket>,
    stops: StopFilter,
}

impl Lane {
    /// Publishes the token of a row that goes on; false, and nothing done, for any other: a status instead of a token,
    /// a token that may be a stop id or fills the ring, or a request that has ended since the launch. Ending a sequence
    /// sets its ticket's terminal, so an owner without one still holds its slot.
    #[inline]
    fn goes_on(&self, record: &G4Record) -> bool {
        record.token >= 0
            && !self.stops.may_stop(record.token as u32)
            && !self.ticket.is_finished()
            && self.ticket.publish_unless_last(record.token as u32)
    }
}

/// A launched step and what collecting it needs.
pub(super) struct Flight {
    pub(super) step: InFlight,
    /// One a row of the step.
    pub(super) lanes: Rc<[Lane]>,
    /// The value of [`Engine::changes`] at the launch.
    pub(super) changes: u64,
}

impl Engine {
    /// The lane of a row about to be launched.
    pub(super) fn lane(&self, owner: &RowOwner) -> Lane {
        let running = self.running(owner).expect("a row is launched for a sequence that runs");
        Lane { owner: *owner, ticket: running.ticket.clone(), stops: running.stops }
    }

    /// Waits for the oldest step in flight, checks its records against its owners, publishes tokens and terminals, and
    /// wakes the dispatcher once.
    pub(super) fn collect(&mut self) -> Result<(), EngineError> {
        let Some(Flight { step: flight, lanes, changes }) = self.in_flight.pop_front() else { return Ok(()) };
        let how = self.runner.collect(&flight, &mut self.records)?;
        self.counters.waited(how);
        let now = Instant::now();
        if let Some(began) = self.step_began.replace(now) {
            STEP_SECONDS.record(now - began);
        }
        if changes != self.changes {
            self.assert_quarantine(&flight);
        }
        self.collected = flight.step;
        self.scheduler.collected(StepNumber(flight.step));
        let _settling = nvtx::range(c"settle");
        assert_eq!(lanes.len(), self.records.len(), "step {} was launched with other lanes than rows", flight.step);
        let records = std::mem::take(&mut self.records);
        if flight.has_logprobs() || flight.scored.is_some() {
            self.publish_logprobs(&flight, &records)?;
        }
        for (lane, record) in lanes.iter().zip(&records) {
            if !lane.goes_on(record)
                && let Some(terminal) = self.settle_row(&lane.owner, flight.step, record)?
            {
                self.end(lane.owner.id, terminal);
            }
        }
        self.records = records;
        if !flight.rows.is_empty() {
            self.door.step_done();
        }
        self.last_rows = flight.rows;
        Ok(())
    }

    /// The owner's sequence, unless it has ended.
    pub(super) fn running(&self, owner: &RowOwner) -> Option<&Running> {
        self.running[owner.slot].as_ref().filter(|running| running.id == owner.id)
    }

    /// Step rule 5, from the reader's end, where slots or pages changed hands since the launch: no slot of the step was
    /// granted again, and what its ended rows held is not free. One stream keeps the order of device work, so a breach
    /// would show in no token until something beside the stream reads pages.
    fn assert_quarantine(&self, flight: &InFlight) {
        let mut has_ended = false;
        for owner in flight.rows.iter() {
            let is_reused = self.generations[owner.slot] != owner.generation;
            assert!(!is_reused, "a slot was granted again before step {} was collected: {owner:?}", flight.step);
            has_ended |= self.running(owner).is_none();
        }
        if has_ended {
            let kv = self.scheduler.kv();
            let pages = [Family::Sliding, Family::Global].map(|family| kv.pool(family).quarantined_count());
            let slots = self.scheduler.slots().quarantined_count();
            assert!(slots > 0 && !pages.contains(&0), "step {} has ended rows whose pages are free", flight.step);
        }
    }

    /// Settles one row, whatever it is: publishes its token; the terminal if this was its last.
    #[inline(never)]
    fn settle_row(&self, owner: &RowOwner, step: u64, record: &G4Record) -> Result<Option<Terminal>, EngineError> {
        let Some(running) = self.running(owner) else {
            // Ended while this step was in flight: by the device (then the row was padding), or by the host, too late
            // for this one row.
            if record.token != G4_TOKEN_NONE {
                self.counters.wasted_row_step();
            }
            return Ok(None);
        };
        let ticket = &running.ticket;
        let output_index = ticket.published();
        let token = match record.token {
            token if token >= 0 => token as u32,
            G4_TOKEN_NAN => return Ok(Some(Terminal::Failed(Failure::NotANumber { output_index }))),
            G4_TOKEN_MASKED => return Ok(Some(Terminal::Failed(Failure::AllMasked { output_index }))),
            token => return Err(EngineError::BadState { id: owner.id, token, step }),
        };
        ticket.publish(token);
        let request = &ticket.request;
        let is_eos = !request.ignore_eos && self.eos_ids.contains(&token);
        if is_eos || request.stop_token_ids.contains(&token) {
            return Ok(Some(Terminal::Stop));
        }
        Ok((output_index + 1 == running.tokens_max).then_some(Terminal::Length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(ignore_eos: bool, stop_token_ids: &[u32]) -> GenerateRequest {
        let stop_token_ids = stop_token_ids.to_vec();
        GenerateRequest { prompt: vec![2], max_tokens: 4, ignore_eos, stop_token_ids, sampling: Default::default() }
    }

    #[test]
    fn no_stop_id_passes_the_filter() {
        let eos_ids = [1, 106, 262_143];
        let stop_ids = [0, 63, 64, 127, 50_000, u32::MAX];
        let both = StopFilter::new(&request(false, &stop_ids), &eos_ids);
        assert!(eos_ids.iter().chain(&stop_ids).all(|&id| both.may_stop(id)));
        let without_eos = StopFilter::new(&request(true, &stop_ids), &eos_ids);
        assert!(stop_ids.iter().all(|&id| without_eos.may_stop(id)) && !without_eos.may_stop(106));
    }

    #[test]
    fn a_request_without_stop_ids_looks_no_token_up() {
        let filter = StopFilter::new(&request(true, &[]), &[1, 106]);
        assert!((0..1024).all(|token| !filter.may_stop(token)));
        let few = StopFilter::new(&request(false, &[]), &[1, 106]);
        assert_eq!((0..1024).filter(|&token| few.may_stop(token)).count(), 2 * 1024 / 64);
    }
}
