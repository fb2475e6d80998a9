//! The engine thread: one synchronous loop that owns the device, the KV pages and the sequences.
//!
//! A step: receive submissions and cancellations; admit; plan; launch; then collect and settle the step launched before
//! it, while it runs. The engine shares no lock with the async side and never waits for a client: a token goes into a
//! ring as long as the request's `max_tokens`.

mod counters;
pub mod handle;
mod logprobs;
pub mod runner;
mod settle;
pub mod start;

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{DriverError, nvtx, soft};
use crate::kv::{Family, PoolId, StepNumber};
use crate::limits::STOP_TOKEN_IDS_MAX;
use crate::model::kernels::{G4Record, G4Sampling, G4Slot};
use crate::request::{Cancel, Failure, RequestId, Terminal};
use crate::scheduler::{Chunk, Plan, RebuildCause, RosterGeneration, Row, Scheduler};
use crate::slots::CollectError;
use counters::{DrainCause, EngineCounters, StepKind};
use handle::{EngineDoor, Ticket};
use logprobs::row_owner;
use runner::{InFlight, PromptChunk, RowOwner, Runner};
use settle::{Flight, Lane, Running, StopFilter};

/// Ways to run a step that give the same bytes, for A/B in one binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Launch a step before the one in front of it is collected.
    pub pipeline: bool,
    /// Upload the row index only when the roster's generation is new.
    pub fingerprint: bool,
    /// Let the device advance positions; otherwise the host uploads them before every decode step.
    pub tail: bool,
}

impl Default for Switches {
    fn default() -> Self {
        Switches { pipeline: true, fingerprint: true, tail: true }
    }
}

/// How long an idle engine sleeps before it looks at its state again; submissions wake it at once.
const IDLE_WAIT: Duration = Duration::from_millis(50);
/// Least time between two publications of gauges.
const GAUGE_INTERVAL: Duration = Duration::from_millis(20);

/// Why the engine stops serving. Whatever was in flight has been failed with this text.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error("wrong state: {0}")]
    Collect(CollectError),
    #[error("wrong state: {id} got record token {token} at step {step}")]
    BadState { id: RequestId, token: i32, step: u64 },
}

impl From<CollectError> for EngineError {
    fn from(error: CollectError) -> Self {
        match error {
            CollectError::Driver(error) => EngineError::Driver(error),
            error => EngineError::Collect(error),
        }
    }
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
    waiting: HashMap<RequestId, Arc<Ticket>>,
    /// By slot.
    running: Vec<Option<Running>>,
    /// By slot, of the sequence that has it; every record carries it. No two admissions to any slots share one, so a
    /// record that comes from another row's slot is told, too. 0 is padding's.
    generations: Vec<u32>,
    last_generation: u32,
    /// 1, or 0 where the host writes the records ([`Engine::with_one_generation`]).
    generation_step: u32,
    eos_ids: Vec<u32>,
    switches: Switches,
    in_flight: VecDeque<Flight>,
    /// Grants and ends so far; a flight keeps the count it was launched at. Between two equal values no slot or page
    /// changed hands.
    changes: u64,
    /// Last collected step.
    collected: u64,
    records: Vec<G4Record>,
    /// The rows of the roster last launched, what settling a row of it needs, and its generation.
    roster_rows: Rc<[RowOwner]>,
    roster_lanes: Rc<[Lane]>,
    roster: Option<RosterGeneration>,
    /// Decode steps launched for `roster_rows` that their `tokens_launched` does not count yet, and how many there can
    /// be until one of them has launched its last token: so a regular step touches no row when it is launched.
    roster_steps: u32,
    roster_steps_max: u32,
    /// What a step without records has.
    no_rows: Rc<[RowOwner]>,
    no_lanes: Rc<[Lane]>,
    /// A request was cancelled before its ticket was taken from the queue.
    cancel_news: bool,
    counters: EngineCounters,
    /// Sequences or pages changed hands since the gauges were published.
    gauges_stale: bool,
    gauges_at: Option<Instant>,
    /// Rows of the last collected step.
    last_rows: Rc<[RowOwner]>,
    /// Since when the step that is collected next has had the device, for the step time.
    step_began: Option<Instant>,
}

impl Engine {
    pub fn new(runner: Runner, door: EngineDoor, switches: Switches) -> Self {
        let geometry = &runner.forward.geometry;
        assert_eq!(runner.has_tail(), switches.tail, "the tail is part of what the runner captured");
        let no_rows: Rc<[RowOwner]> = Rc::new([]);
        let no_lanes: Rc<[Lane]> = Rc::new([]);
        Engine {
            scheduler: Scheduler::new(geometry.max_running, geometry.chunk_tokens, geometry.kv_shape()),
            generations: vec![0; geometry.max_running],
            last_generation: 0,
            generation_step: 1,
            eos_ids: runner.forward.config.eos_ids.clone(),
            waiting: HashMap::new(),
            running: (0..geometry.max_running).map(|_| None).collect(),
            switches,
            in_flight: VecDeque::with_capacity(DEPTH),
            changes: 0,
            collected: runner.steps_launched(),
            records: Vec::with_capacity(geometry.max_running),
            roster_rows: no_rows.clone(),
            roster_lanes: no_lanes.clone(),
            roster: None,
            last_rows: no_rows.clone(),
            no_rows,
            no_lanes,
            roster_steps: 0,
            roster_steps_max: u32::MAX,
            cancel_news: false,
            counters: EngineCounters::new(),
            gauges_stale: true,
            gauges_at: None,
            step_began: None,
            runner,
            door,
        }
    }

    /// Every sequence has generation 1: for `bench-step`, which writes the records of steps whose rows it does not
    /// know.
    pub fn with_one_generation(self) -> Self {
        Engine { generation_step: 0, ..self }
    }

    /// Serves until told to stop with nothing in flight, or until something fails. After a failure the device is not
    /// touched again: not even to give memory back, which would wait for the step in flight before anybody is told. A
    /// panic is such a failure.
    pub fn run(mut self) -> Result<(), EngineError> {
        let served = catch_unwind(AssertUnwindSafe(|| self.serve()));
        let why = match &served {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("the engine thread panicked: {}", panic_text(panic.as_ref())),
        };
        let report = soft::last_report();
        tracing::error!(error = why, report, "the engine stops");
        self.door.die(&why);
        std::mem::forget(self.runner);
        served.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn serve(&mut self) -> Result<(), EngineError> {
        loop {
            if !self.step()? {
                self.publish_gauges(true);
                if self.door.stopping() && self.is_empty() {
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
    pub fn last_rows(&self) -> impl Iterator<Item = RequestId> {
        self.last_rows.iter().map(|owner| owner.id)
    }

    pub fn runner(&mut self) -> &mut Runner {
        &mut self.runner
    }

    /// Counts steps from `step` on, with nothing in flight: tests of the 32-bit counter's wrap.
    pub fn count_from(&mut self, step: u64) -> Result<(), EngineError> {
        assert!(self.in_flight.is_empty());
        self.collected = step;
        Ok(self.runner.count_from(step)?)
    }

    /// Changes how steps run; with nothing in flight (A/B). Whether there is a tail is part of the captured graphs.
    pub fn set_switches(&mut self, switches: Switches) {
        assert!(self.in_flight.is_empty(), "{} steps are in flight", self.in_flight.len());
        assert_eq!(self.switches.tail, switches.tail);
        self.switches = switches;
    }

    /// What is waiting, running and free; for gates.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// One step; false when there was nothing to do. [`Engine::run`] is the loop around it. Not inlined: instructions
    /// are counted by this name (scripts/bench_step.py).
    #[inline(never)]
    pub fn step(&mut self) -> Result<bool, EngineError> {
        self.receive();
        self.admit();
        let launched = self.launch()?;
        let stay = if launched && self.switches.pipeline { DEPTH - 1 } else { 0 };
        let drains = !launched && !self.in_flight.is_empty();
        while self.in_flight.len() > stay {
            self.collect()?;
        }
        if drains {
            self.counters.drained(DrainCause::Idle);
        }
        self.counters.traffic(&self.runner.context.traffic(), self.runner.bucket_launches());
        if self.gauges_stale {
            self.publish_gauges(false);
        }
        Ok(launched || drains)
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.iter().all(Option::is_none)
    }

    /// Takes submissions and ends what was cancelled.
    fn receive(&mut self) {
        while let Some(ticket) = self.door.try_next() {
            self.accept(ticket);
        }
        if self.door.cancel_news() || self.cancel_news {
            self.cancel_news = false;
            self.end_cancelled();
        }
    }

    fn end_cancelled(&mut self) {
        let waiting = self.waiting.iter().map(|(&id, ticket)| (id, ticket));
        let running = self.running.iter().flatten().map(|running| (running.id, &running.ticket));
        let cancelled: Vec<(RequestId, Cancel)> =
            waiting.chain(running).filter_map(|(id, ticket)| Some((id, ticket.cancelled()?))).collect();
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
                self.cancel_news |= ticket.cancelled().is_some();
                self.waiting.insert(ticket.id, ticket);
            }
            Err(shortage) => {
                ticket.finish(Terminal::Failed(Failure::Engine(shortage.to_string())));
                self.door.step_done();
            }
        }
    }

    /// Gives slots and pages to waiting sequences while both are free. The device hears of it with the first chunk.
    fn admit(&mut self) {
        while let Some(admission) = self.scheduler.admit() {
            let (id, slot) = (admission.id, admission.slot.index());
            let ticket = self.waiting.remove(&id).expect("an admitted sequence waited");
            ticket.leave_waiting();
            // A wrap takes 2^32 requests: one that runs until then has left no record of its number behind.
            self.last_generation = self.last_generation.wrapping_add(self.generation_step).max(1);
            self.generations[slot] = self.last_generation;
            let tokens_max = ticket.request.max_tokens;
            let stops = StopFilter::new(&ticket.request, &self.eos_ids);
            let running = Running { id, ticket, stops, tokens_launched: 0, tokens_max };
            assert!(self.running[slot].replace(running).is_none(), "slot {slot} was granted while it was held");
            self.changes += 1;
            self.gauges_stale = true;
        }
    }

    /// Launches what the scheduler plans; false when it plans nothing.
    fn launch(&mut self) -> Result<bool, EngineError> {
        let planning = nvtx::range(c"plan");
        let plan = self.scheduler.plan();
        drop(planning);
        let (step, lanes) = match plan {
            Plan::Idle => {
                // Keeps no ticket alive while nothing runs; whatever comes next has its lanes made anew.
                (self.roster, self.roster_lanes) = (None, self.no_lanes.clone());
                return Ok(false);
            }
            Plan::Prefill(chunk) => self.launch_chunk(chunk)?,
            Plan::Decode { roster_generation, rows, cause, .. } => {
                let is_new = self.roster != Some(roster_generation);
                if is_new || !self.switches.fingerprint {
                    let owner = |row: &Row| row_owner(&self.running, &self.generations, row.slot.index(), row.id);
                    let rows: Rc<[RowOwner]> = rows.iter().map(owner).collect();
                    self.count_roster_steps();
                    self.roster_lanes = rows.iter().map(|owner| self.lane(owner)).collect();
                    self.roster_rows = rows;
                    self.roster = Some(roster_generation);
                    self.roster_steps_max = self.steps_until_exhausted();
                }
                if !self.switches.fingerprint {
                    self.runner.forget_roster();
                }
                let (step, rebuilt) = self.runner.launch_decode(roster_generation.0, self.roster_rows.clone())?;
                self.counters.step(if rebuilt { StepKind::Rebuild } else { StepKind::Regular });
                if rebuilt {
                    self.counters.rebuilt(if is_new { cause } else { RebuildCause::Forced });
                }
                self.roster_steps += 1;
                if self.roster_steps == self.roster_steps_max {
                    self.count_roster_steps();
                    self.exhaust();
                    self.roster_steps_max = self.steps_until_exhausted();
                }
                (step, self.roster_lanes.clone())
            }
        };
        if self.in_flight.is_empty() {
            self.step_began = Some(Instant::now());
        }
        self.in_flight.push_back(Flight { step, lanes, changes: self.changes });
        Ok(true)
    }

    fn launch_chunk(&mut self, chunk: Chunk) -> Result<(InFlight, Rc<[Lane]>), EngineError> {
        let slot = chunk.slot.index();
        let (generation, vocab) = (self.generations[slot], self.runner.forward.config.vocab);
        let ticket = &self.running[slot].as_ref().expect("a prefilling sequence runs").ticket;
        let owner = row_owner(&self.running, &self.generations, slot, chunk.id);
        let (rows, lanes): (Rc<[RowOwner]>, Rc<[Lane]>) = match chunk.last {
            true => (Rc::new([owner]), Rc::new([self.lane(&owner)])),
            false => (self.no_rows.clone(), self.no_lanes.clone()),
        };
        self.counters.step(StepKind::Prefill);
        let request = &ticket.request;
        let packed = chunk.last.then(|| request.sampling.pack(vocab, slot, &request.prompt));
        let end = chunk.start + chunk.len;
        let behind = || &request.prompt[chunk.start + 1..request.prompt.len().min(end + 1)];
        let prompt = PromptChunk {
            slot,
            start: chunk.start,
            tokens: &request.prompt[chunk.start..end],
            scored: request.sampling.prompt_logprobs.map(|_| (owner, behind())),
            every_row: request.sampling.prompt_logprobs.is_some(),
            pages: (chunk.start == 0).then(|| self.scheduler.reservation(chunk.id)),
            last: packed.as_ref().map(|packed| slot_state(ticket, generation, packed.sampling)),
            sampling: packed,
        };
        let flight = self.runner.launch_prompt(prompt, rows)?;
        if chunk.last {
            let running = self.running[slot].as_mut().expect("a prefilling sequence runs");
            running.tokens_launched = 1;
            if running.tokens_max == 1 {
                self.scheduler.exhaust(chunk.id);
            }
        }
        Ok((flight, lanes))
    }

    /// Adds the steps launched for the roster to each of its sequences.
    fn count_roster_steps(&mut self) {
        for owner in self.roster_rows.iter() {
            if let Some(running) = self.running[owner.slot].as_mut().filter(|running| running.id == owner.id) {
                running.tokens_launched += self.roster_steps;
            }
        }
        self.roster_steps = 0;
    }

    /// Takes the sequences out of the roster whose last token's step is launched.
    fn exhaust(&mut self) {
        for owner in self.roster_rows.iter() {
            if let Some(running) = self.running(owner)
                && running.tokens_launched == running.tokens_max
            {
                self.scheduler.exhaust(owner.id);
            }
        }
    }

    /// Steps until the first sequence of the roster has launched its last token.
    fn steps_until_exhausted(&self) -> u32 {
        let left = self.roster_rows.iter().filter_map(|owner| {
            let running = self.running(owner)?;
            Some(running.tokens_max - running.tokens_launched)
        });
        left.filter(|&left| left > 0).min().unwrap_or(u32::MAX)
    }

    /// Takes a sequence out of every table and gives it its terminal. Its slot and pages stay in quarantine until the
    /// last launched step is collected.
    fn end(&mut self, id: RequestId, terminal: Terminal) {
        let is_it = |running: &Option<Running>| running.as_ref().is_some_and(|running| running.id == id);
        let ticket = match self.waiting.remove(&id) {
            Some(ticket) => {
                self.scheduler.cancel(id, None);
                ticket
            }
            None => {
                let Some(running) = self.running.iter_mut().find(|r| is_it(r)).and_then(Option::take) else { return };
                let launched = self.runner.steps_launched();
                self.scheduler.cancel(id, (launched > 0).then_some(StepNumber(launched)));
                self.scheduler.collected(StepNumber(self.collected));
                running.ticket
            }
        };
        self.changes += 1;
        self.gauges_stale = true;
        ticket.finish(terminal);
    }

    /// Gauges of the scheduler: now (idle), or when the interval is over. They change with rosters, not with steps.
    fn publish_gauges(&mut self, now: bool) {
        if !now && self.gauges_at.is_some_and(|at| at.elapsed() < GAUGE_INTERVAL) {
            return;
        }
        self.gauges_at = Some(Instant::now());
        self.gauges_stale = false;
        let kv = self.scheduler.kv();
        let free = [Family::Sliding, Family::Global].map(|family| kv.pool(family).free_count());
        self.counters.gauges(self.running.iter().flatten().count(), free);
    }
}

/// What a panic said.
fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a word")
}

/// The slot's state when its prompt is in the cache: the sampler of that step gives the first token.
fn slot_state(ticket: &Ticket, generation: u32, sampling: G4Sampling) -> G4Slot {
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
        sampling,
    }
}
