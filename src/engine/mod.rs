//! The engine thread: one synchronous loop that owns the device, the KV pages and the sequences.
//!
//! A step: receive submissions and cancellations; admit; plan; launch; then collect and settle the step launched before
//! it, while it runs. The engine shares no lock with the async side and never waits for a client: a token goes into a
//! ring as long as the request's `max_tokens`.

mod counters;
pub mod handle;
pub mod runner;
pub mod start;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{DriverError, soft};
use crate::kv::{Family, PoolId, StepNumber};
use crate::limits::STOP_TOKEN_IDS_MAX;
use crate::metrics;
use crate::model::kernels::bindings::{G4_TOKEN_MASKED, G4_TOKEN_NAN, G4_TOKEN_NONE};
use crate::model::kernels::{G4Record, G4Slot};
use crate::request::{Cancel, Failure, RequestId, Terminal};
use crate::scheduler::{Plan, RebuildCause, Row, Scheduler};
use crate::slots::CollectError;
use counters::{DrainCause, EngineCounters, StepKind};
use handle::{EngineDoor, Ticket};
use runner::{InFlight, PromptChunk, RowOwner, Runner};

/// Ways to run a step that give the same bytes, for A/B in one binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Launch a step before the one in front of it is collected.
    pub pipeline: bool,
    /// Upload the row index only when the roster's generation is new.
    pub fingerprint: bool,
}

impl Default for Switches {
    fn default() -> Self {
        Switches { pipeline: true, fingerprint: true }
    }
}

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
    /// Output tokens whose steps were launched. At `max_tokens` the sequence leaves the roster: the length limit is
    /// the one stop the host knows ahead, so no step is launched for it in vain.
    tokens_launched: u32,
}

/// Steps in flight at most: the one that runs, and the one launched before it that is being collected.
const DEPTH: usize = 2;

/// The engine thread's state.
///
/// Life of a step: (1) planned from the roster; (2) launched with an immutable list of its rows' owners; (3) in flight
/// while the next step is launched behind it; (4) collected: its records are checked against that list, never against
/// the current roster; (5) settled: tokens and terminals are published. A row whose request ended meanwhile is
/// discarded; one that the device itself stopped was padding.
pub struct Engine {
    runner: Runner,
    scheduler: Scheduler,
    door: EngineDoor,
    sequences: HashMap<RequestId, Sequence>,
    /// By slot, raised at each admission to it; every record carries it.
    generations: Vec<u32>,
    eos_ids: Vec<u32>,
    switches: Switches,
    in_flight: VecDeque<InFlight>,
    /// Last collected step.
    collected: i32,
    records: Vec<G4Record>,
    /// Row lists of collected steps, used again.
    spare_rows: Vec<Vec<RowOwner>>,
    counters: EngineCounters,
    gauges_at: Option<Instant>,
    /// Rows of the last collected step.
    last_rows: Vec<RequestId>,
}

impl Engine {
    pub fn new(runner: Runner, door: EngineDoor, switches: Switches) -> Self {
        let geometry = &runner.forward.geometry;
        Engine {
            scheduler: Scheduler::new(geometry.max_running, geometry.chunk_tokens, geometry.kv_shape()),
            generations: vec![0; geometry.max_running],
            eos_ids: runner.forward.config.eos_ids.clone(),
            sequences: HashMap::new(),
            switches,
            in_flight: VecDeque::with_capacity(DEPTH),
            collected: 0,
            records: Vec::with_capacity(geometry.max_running),
            spare_rows: (0..DEPTH + 1).map(|_| Vec::with_capacity(geometry.max_running)).collect(),
            counters: EngineCounters::new(),
            gauges_at: None,
            last_rows: Vec::with_capacity(geometry.max_running),
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

    /// Who had a row in the last collected step, in row order; gates read their logits through [`Engine::runner`],
    /// which holds those of the last launched step: the same one without pipelining.
    pub fn last_rows(&self) -> &[RequestId] {
        &self.last_rows
    }

    pub fn runner(&mut self) -> &mut Runner {
        &mut self.runner
    }

    /// Changes how steps run; with nothing in flight (A/B).
    pub fn set_switches(&mut self, switches: Switches) {
        assert!(self.in_flight.is_empty(), "{} steps are in flight", self.in_flight.len());
        self.switches = switches;
    }

    /// What is waiting, running and free; for gates.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// One step; false when there was nothing to do. [`Engine::run`] is the loop around it.
    pub fn step(&mut self) -> Result<bool, EngineError> {
        self.receive();
        self.admit()?;
        let launched = self.launch()?;
        let stay = if launched && self.switches.pipeline { DEPTH - 1 } else { 0 };
        let drains = !launched && !self.in_flight.is_empty();
        while self.in_flight.len() > stay {
            self.collect()?;
        }
        if drains {
            self.counters.drained(DrainCause::Idle);
        }
        self.publish_gauges(false);
        Ok(launched || drains)
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
                self.sequences.insert(ticket.id, Sequence { ticket, running: false, tokens_launched: 0 });
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

    /// Launches what the scheduler plans; false when it plans nothing.
    fn launch(&mut self) -> Result<bool, EngineError> {
        let mut rows = self.spare_rows.pop().unwrap_or_default();
        rows.clear();
        let flight = match self.scheduler.plan() {
            Plan::Idle => {
                self.spare_rows.push(rows);
                return Ok(false);
            }
            Plan::Prefill(chunk) => {
                let slot = chunk.slot.index();
                let ticket = &self.sequences[&chunk.id].ticket;
                let tokens = &ticket.request.prompt[chunk.start..chunk.start + chunk.len];
                let last = chunk.last.then(|| slot_state(ticket, self.generations[slot]));
                if chunk.last {
                    rows.push(RowOwner { slot, generation: self.generations[slot], id: chunk.id });
                }
                self.counters.step(StepKind::Prefill);
                let chunk = PromptChunk { slot, start: chunk.start, tokens, last };
                self.runner.launch_prompt(chunk, rows)?
            }
            Plan::Decode { roster_generation, rows: roster, cause, .. } => {
                let generation = |slot: usize| self.generations[slot];
                let owner = |row: &Row| {
                    let slot = row.slot.index();
                    RowOwner { slot, generation: generation(slot), id: row.id }
                };
                rows.extend(roster.iter().map(owner));
                if !self.switches.fingerprint {
                    self.runner.forget_roster();
                }
                let (flight, rebuilt) = self.runner.launch_decode(roster_generation.0, rows)?;
                self.counters.step(if rebuilt { StepKind::Rebuild } else { StepKind::Regular });
                if rebuilt {
                    self.counters.rebuilt(if self.switches.fingerprint { cause } else { RebuildCause::Forced });
                }
                flight
            }
        };
        for row in &flight.rows {
            let sequence = self.sequences.get_mut(&row.id).expect("a planned sequence is known");
            sequence.tokens_launched += 1;
            if sequence.tokens_launched == sequence.ticket.request.max_tokens {
                self.scheduler.exhaust(row.id);
            }
        }
        self.in_flight.push_back(flight);
        Ok(true)
    }

    /// Waits for the oldest step in flight, checks its records against its owners, publishes tokens and terminals, and
    /// wakes the dispatcher once.
    fn collect(&mut self) -> Result<(), EngineError> {
        let Some(flight) = self.in_flight.pop_front() else { return Ok(()) };
        self.records.clear();
        let records = &mut self.records;
        let how = self.runner.collect(&flight, |_, record| records.push(record))?;
        self.counters.waited(how);
        self.assert_quarantine(&flight);
        self.collected = flight.step;
        self.scheduler.collected(StepNumber(flight.step as u64));
        self.last_rows.clear();
        for (index, owner) in flight.rows.iter().enumerate() {
            let record = self.records[index];
            self.last_rows.push(owner.id);
            if let Some(terminal) = self.settle_row(owner.id, flight.step, &record)? {
                self.end(owner.id, terminal);
            }
        }
        if !flight.rows.is_empty() {
            self.door.step_done();
        }
        self.spare_rows.push(flight.rows);
        Ok(())
    }

    /// Step rule 5, from the reader's end: no slot of the step was granted again, and what its ended rows held is not
    /// free. One stream keeps the order of device work, so a breach would show in no token until something beside the
    /// stream reads pages.
    fn assert_quarantine(&self, flight: &InFlight) {
        let granted_again = |owner: &&RowOwner| self.generations[owner.slot] != owner.generation;
        let reused = flight.rows.iter().find(granted_again);
        assert!(reused.is_none(), "a slot was granted again before step {} was collected: {reused:?}", flight.step);
        if flight.rows.iter().any(|owner| !self.sequences.contains_key(&owner.id)) {
            let kv = self.scheduler.kv();
            let pages = [Family::Sliding, Family::Global].map(|family| kv.pool(family).quarantined_count());
            let slots = self.scheduler.slots().quarantined_count();
            assert!(slots > 0 && !pages.contains(&0), "step {} has ended rows whose pages are free", flight.step);
        }
    }

    /// Publishes one row's token; the terminal if this was its last.
    fn settle_row(&self, id: RequestId, step: i32, record: &G4Record) -> Result<Option<Terminal>, EngineError> {
        let Some(sequence) = self.sequences.get(&id) else {
            // Ended while this step was in flight: by the device (then the row was padding), or by the host, too late
            // for this one row.
            if record.token != G4_TOKEN_NONE {
                self.counters.wasted_row_step();
            }
            return Ok(None);
        };
        let ticket = &sequence.ticket;
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

    /// Takes a sequence out of every table and gives it its terminal. Its slot and pages stay in quarantine until the
    /// last launched step is collected.
    fn end(&mut self, id: RequestId, terminal: Terminal) {
        let Some(sequence) = self.sequences.remove(&id) else { return };
        let launched = self.runner.steps_launched();
        self.scheduler.cancel(id, (launched > 0 && sequence.running).then_some(StepNumber(launched as u64)));
        self.scheduler.collected(StepNumber(self.collected as u64));
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
        self.counters.traffic(&self.runner.context.traffic(), self.runner.bucket_launches());
        for (name, value) in soft::counters() {
            ::metrics::gauge!(metrics::SOFT_DEVICE, "counter" => name).set(value as f64);
        }
    }
}

/// The slot's state when its prompt is in the cache: the sampler of that step gives the first token.
fn slot_state(ticket: &Ticket, generation: u32) -> G4Slot {
    let request = &ticket.request;
    let mut stop_ids = [-1; STOP_TOKEN_IDS_MAX];
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
        stop_count: request.stop_token_ids.len().min(STOP_TOKEN_IDS_MAX) as i32,
        stop_ids,
    }
}
