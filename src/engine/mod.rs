//! The engine thread: one synchronous loop that owns the device, the KV pages and the sequences.
//!
//! A step: receive submissions and cancellations; admit; plan; launch; collect; settle. The engine shares no lock with
//! the async side and never waits for a client: a token goes into a ring as long as the request's `max_tokens`.

pub mod handle;
pub mod runner;
pub mod start;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{DriverError, soft};
use crate::kv::{Family, PoolId, SlotId, StepNumber};
use crate::metrics;
use crate::model::kernels::bindings::{G4_TOKEN_MASKED, G4_TOKEN_NAN};
use crate::model::kernels::{G4Record, G4Slot};
use crate::request::{Cancel, Failure, RequestId, Terminal};
use crate::scheduler::{Plan, Scheduler};
use crate::slots::CollectError;
use handle::{EngineDoor, Ticket};
use runner::{InFlight, PromptChunk, RowOwner, Runner};

/// How long an idle engine sleeps before it looks at its state again; submissions wake it at once.
const IDLE_WAIT: Duration = Duration::from_millis(50);
/// Least time between two publications of gauges and device counters.
const GAUGE_INTERVAL: Duration = Duration::from_millis(20);

/// Why the engine stops serving. Whatever was in flight has been failed with this text.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error("wrong state: {0}")]
    Collect(CollectError),
    #[error("wrong state: {id} got record token {token} at step {step}")]
    BadState { id: RequestId, token: i32, step: i32 },
}

impl From<CollectError> for EngineError {
    fn from(error: CollectError) -> Self {
        match error {
            CollectError::Driver(error) => EngineError::Driver(error),
            error => EngineError::Collect(error),
        }
    }
}

/// A sequence the engine knows: waiting or running.
struct Sequence {
    ticket: Arc<Ticket>,
    running: bool,
}

pub struct Engine {
    runner: Runner,
    scheduler: Scheduler,
    door: EngineDoor,
    sequences: HashMap<RequestId, Sequence>,
    /// By slot, raised at each admission to it; every record carries it.
    generations: Vec<u32>,
    eos_ids: Vec<u32>,
    gauges_at: Option<Instant>,
    /// Rows of the last collected step.
    last_rows: Vec<RequestId>,
}

impl Engine {
    pub fn new(runner: Runner, door: EngineDoor) -> Self {
        let geometry = &runner.forward.geometry;
        Engine {
            scheduler: Scheduler::new(geometry.max_running, geometry.chunk_tokens, geometry.kv_shape()),
            generations: vec![0; geometry.max_running],
            eos_ids: runner.forward.config.eos_ids.clone(),
            sequences: HashMap::new(),
            gauges_at: None,
            last_rows: Vec::new(),
            runner,
            door,
        }
    }

    /// Serves until told to stop with nothing in flight, or until something fails. After a failure the device is not
    /// touched again: not even to give memory back.
    pub fn run(mut self) -> Result<(), EngineError> {
        match self.serve() {
            Ok(()) => Ok(()),
            Err(error) => {
                let report = soft::last_report();
                tracing::error!(%error, report, "the engine stops");
                self.door.die(&error.to_string());
                std::mem::forget(self.runner);
                Err(error)
            }
        }
    }

    fn serve(&mut self) -> Result<(), EngineError> {
        loop {
            if !self.step()? {
                self.publish_gauges(true);
                if self.door.stopping() && self.sequences.is_empty() {
                    return Ok(());
                }
                if let Some(ticket) = self.door.wait(IDLE_WAIT) {
                    self.accept(ticket);
                }
            }
        }
    }

    /// Who had a row in the last collected step, in row order; gates read their logits through [`Engine::runner`].
    pub fn last_rows(&self) -> &[RequestId] {
        &self.last_rows
    }

    pub fn runner(&mut self) -> &mut Runner {
        &mut self.runner
    }

    /// One step; false when there was nothing to do. [`Engine::run`] is the loop around it.
    pub fn step(&mut self) -> Result<bool, EngineError> {
        self.receive();
        self.admit()?;
        let Some((flight, ids)) = self.launch()? else { return Ok(false) };
        let records = self.collect(&flight)?;
        self.settle(&flight, &ids, &records)?;
        self.last_rows = ids;
        self.publish_gauges(false);
        Ok(true)
    }

    /// Takes submissions and ends what was cancelled.
    fn receive(&mut self) {
        while let Some(ticket) = self.door.try_next() {
            self.accept(ticket);
        }
        let cancelled: Vec<(RequestId, Cancel)> =
            self.sequences.iter().filter_map(|(&id, s)| Some((id, s.ticket.cancelled()?))).collect();
        for (id, why) in cancelled {
            let terminal = match why {
                Cancel::ClientGone | Cancel::StopString => Terminal::Cancelled,
                Cancel::DrainTimeout => Terminal::Failed(Failure::DrainTimeout),
            };
            self.end(id, terminal);
            self.door.step_done();
        }
    }

    /// Puts a submission into the queue. The door has checked that it can fit.
    fn accept(&mut self, ticket: Arc<Ticket>) {
        if ticket.is_finished() {
            return;
        }
        let request = &ticket.request;
        match self.scheduler.enqueue(ticket.id, request.prompt.len(), request.kv_tokens_max()) {
            Ok(()) => {
                self.sequences.insert(ticket.id, Sequence { ticket, running: false });
            }
            Err(shortage) => {
                ticket.finish(Terminal::Failed(Failure::Engine(shortage.to_string())));
                self.door.step_done();
            }
        }
    }

    /// Starts waiting sequences while slots and pages are free: uploads their page tables.
    fn admit(&mut self) -> Result<(), EngineError> {
        while let Some(admission) = self.scheduler.admit() {
            let pages = |ids: &[crate::kv::PageId]| ids.iter().map(|page| page.index() as u32).collect::<Vec<_>>();
            let slot = admission.slot.index();
            let (sliding, global) = (pages(admission.reservation.sliding()), pages(admission.reservation.global()));
            self.generations[slot] += 1;
            let sequence = self.sequences.get_mut(&admission.id).expect("an admitted sequence is known");
            sequence.running = true;
            sequence.ticket.leave_waiting();
            self.runner.grant_pages(slot, &sliding, &global)?;
        }
        Ok(())
    }

    /// Launches what the scheduler plans; the ids are those of the rows to collect.
    fn launch(&mut self) -> Result<Option<(InFlight, Vec<RequestId>)>, EngineError> {
        match self.scheduler.plan() {
            Plan::Idle => Ok(None),
            Plan::Prefill(chunk) => {
                let slot = chunk.slot.index();
                let ticket = &self.sequences[&chunk.id].ticket;
                let tokens = &ticket.request.prompt[chunk.start..chunk.start + chunk.len];
                let last = chunk.last.then(|| slot_state(ticket, self.generations[slot]));
                let flight = self.runner.launch_prompt(PromptChunk { slot, start: chunk.start, tokens, last })?;
                let ids = if chunk.last { vec![chunk.id] } else { Vec::new() };
                Ok(Some((flight, ids)))
            }
            Plan::Decode { roster_generation, rows, .. } => {
                let owner = |slot: SlotId| RowOwner { slot: slot.index(), generation: self.generations[slot.index()] };
                let owners = rows.iter().map(|row| owner(row.slot)).collect();
                let ids = rows.iter().map(|row| row.id).collect();
                Ok(Some((self.runner.launch_decode(roster_generation.0, owners)?, ids)))
            }
        }
    }

    /// Waits for the step; every record has been checked against its owner.
    fn collect(&mut self, flight: &InFlight) -> Result<Vec<G4Record>, EngineError> {
        let mut records = Vec::with_capacity(flight.rows.len());
        self.runner.collect(flight, |_, record| records.push(record))?;
        self.scheduler.collected(StepNumber(flight.step as u64));
        Ok(records)
    }

    /// Publishes tokens and terminals, then wakes the dispatcher once.
    fn settle(&mut self, flight: &InFlight, ids: &[RequestId], records: &[G4Record]) -> Result<(), EngineError> {
        for (&id, record) in ids.iter().zip(records) {
            if let Some(terminal) = self.settle_row(id, flight.step, record)? {
                self.end(id, terminal);
                // The step is collected: nothing in flight holds the slot or its pages.
                self.scheduler.collected(StepNumber(flight.step as u64));
            }
        }
        if !ids.is_empty() {
            self.door.step_done();
        }
        Ok(())
    }

    /// Publishes one row's token; the terminal if this was its last.
    fn settle_row(&self, id: RequestId, step: i32, record: &G4Record) -> Result<Option<Terminal>, EngineError> {
        let ticket = &self.sequences[&id].ticket;
        let output_index = ticket.published();
        let token = match record.token {
            token if token >= 0 => token as u32,
            G4_TOKEN_NAN => return Ok(Some(Terminal::Failed(Failure::NotANumber { output_index }))),
            G4_TOKEN_MASKED => return Ok(Some(Terminal::Failed(Failure::AllMasked { output_index }))),
            token => return Err(EngineError::BadState { id, token, step }),
        };
        ticket.publish(token);
        let request = &ticket.request;
        let is_eos = !request.ignore_eos && self.eos_ids.contains(&token);
        if is_eos || request.stop_token_ids.contains(&token) {
            return Ok(Some(Terminal::Stop));
        }
        Ok((output_index + 1 == request.max_tokens).then_some(Terminal::Length))
    }

    /// Takes a sequence out of every table and gives it its terminal.
    fn end(&mut self, id: RequestId, terminal: Terminal) {
        let Some(sequence) = self.sequences.remove(&id) else { return };
        let launched = self.runner.steps_launched();
        // Depth one: every launched step is collected here, and the stream orders later writes behind earlier reads.
        self.scheduler.cancel(id, (launched > 0 && sequence.running).then_some(StepNumber(launched as u64)));
        self.scheduler.collected(StepNumber(launched as u64));
        sequence.ticket.finish(terminal);
    }

    /// Gauges of the scheduler and, on the software device, its counters: now (idle), or when the interval is over.
    fn publish_gauges(&mut self, now: bool) {
        if !now && self.gauges_at.is_some_and(|at| at.elapsed() < GAUGE_INTERVAL) {
            return;
        }
        self.gauges_at = Some(Instant::now());
        let running = self.sequences.values().filter(|s| s.running).count();
        ::metrics::gauge!(metrics::REQUESTS_RUNNING).set(running as f64);
        for (family, label) in [(Family::Sliding, "sliding"), (Family::Global, "global")] {
            let free = self.scheduler.kv().pool(family).free_count();
            ::metrics::gauge!(metrics::KV_PAGES_FREE, "family" => label).set(free as f64);
        }
        for (name, value) in soft::counters() {
            ::metrics::gauge!(metrics::SOFT_DEVICE, "counter" => name).set(value as f64);
        }
    }
}

/// The slot's state when its prompt is in the cache: the sampler of that step gives the first token.
fn slot_state(ticket: &Ticket, generation: u32) -> G4Slot {
    let request = &ticket.request;
    let mut stop_ids = [-1; 16];
    for (place, &id) in stop_ids.iter_mut().zip(&request.stop_token_ids) {
        *place = id as i32;
    }
    G4Slot {
        live: 1,
        position: request.prompt.len() as i32,
        last_token: -1,
        output_index: 0,
        output_limit: request.max_tokens as i32,
        position_limit: request.kv_tokens_max() as i32,
        generation,
        ignore_eos: request.ignore_eos.into(),
        stop_count: request.stop_token_ids.len().min(16) as i32,
        stop_ids,
    }
}
