//! The state of the step on the device: what the tail makes of one step is what the host would upload for the next.
//!
//! Two runners on the tracer kernels live through one trace of admissions, decode steps, stops by id and by length, and
//! aborts, over page borders of both families. One advances its state by itself; the other has no tail and is rebuilt
//! from the host's mirror before every step. Before each decode step both must hold the same bytes: row index, tokens,
//! positions, work lists, and every field of every live slot; and their records must be equal.

use std::cell::RefCell;
use std::time::Duration;

use gemma4_serve::device::soft::SoftImage;
use gemma4_serve::device::{DeviceChoice, DeviceKind, soft};
use gemma4_serve::engine::runner::{InFlight, PromptChunk, RowOwner, Runner};
use gemma4_serve::engine::start::{build_runner, load_device};
use gemma4_serve::images::TRACER_KERNELS;
use gemma4_serve::kv::{KvAccounts, PoolId, Reservation};
use gemma4_serve::model::kernels::{G4Record, G4Slot, KernelImage};
use gemma4_serve::model::plan::PlanOptions;
use gemma4_serve::request::RequestId;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

#[allow(dead_code, reason = "the gate also asks for the window")]
#[path = "../gates/common/tracer_model.rs"]
mod tracer_model;

const SLOTS: usize = 5;
const CONTEXT: usize = 96;
const CHUNK: usize = 24;

#[derive(Clone, Debug)]
enum Action {
    /// A prompt of this length, in chunks, that stops after so many tokens or, with a stop id, perhaps before.
    Admit { prompt: usize, limit: usize, stop_id: Option<i32> },
    /// So many decode steps, the last of them launched before the one in front of it is collected.
    Decode(usize),
    /// The row leaves between two steps.
    Abort(prop::sample::Index),
}

fn action() -> impl Strategy<Value = Action> {
    let admit = (1..60usize, 1..36usize, prop::option::of(0..512i32))
        .prop_map(|(prompt, limit, stop_id)| Action::Admit { prompt, limit, stop_id });
    prop_oneof![
        3 => admit,
        5 => (1..20usize).prop_map(Action::Decode),
        1 => any::<prop::sample::Index>().prop_map(Action::Abort),
    ]
}

/// A sequence with a row.
struct Row {
    slot: usize,
    generation: u32,
    pages: Reservation,
}

/// Both runners and who holds what, on the host.
struct Pair {
    runners: [Runner; 2],
    kv: KvAccounts,
    rows: Vec<Row>,
    free_slots: Vec<usize>,
    generation: u32,
    roster: u64,
}

impl Pair {
    fn new() -> Self {
        let device = load_device(DeviceChoice::Soft).expect("the software device loads");
        let image = KernelImage::Soft(SoftImage::load(TRACER_KERNELS).expect("the tracer image loads"));
        soft::set("sms", 1);
        soft::set("workers", 1);
        let runners = [true, false].map(|has_tail| runner(device, image, has_tail));
        let kv = KvAccounts::new(runners[0].forward.geometry.kv_shape());
        let free_slots = (0..SLOTS).collect();
        Pair { runners, kv, rows: Vec::new(), free_slots, generation: 0, roster: 0 }
    }

    fn owners(&self) -> Vec<RowOwner> {
        let owner = |row: &Row| RowOwner {
            slot: row.slot,
            generation: row.generation,
            id: RequestId(0),
            wants_logprobs: false,
        };
        self.rows.iter().map(owner).collect()
    }

    /// Runs a prompt on both; the sequence gets a row unless its first token stopped it.
    fn admit(&mut self, prompt: usize, limit: usize, stop_id: Option<i32>) {
        let Some(&slot) = self.free_slots.first() else { return };
        let Ok(pages) = self.kv.reserve(prompt + limit - 1) else { return };
        self.free_slots.remove(0);
        self.generation += 1;
        let mut stop_ids = [-1; 16];
        stop_ids[0] = stop_id.unwrap_or(-1);
        let state = G4Slot {
            output_limit: limit as i32,
            position_limit: (prompt + limit - 1) as i32,
            last_token: -1,
            stop_count: i32::from(stop_id.is_some()),
            stop_ids,
            ..G4Slot::unstoppable(prompt, 0, 0, self.generation)
        };
        let tokens: Vec<u32> = (0..prompt).map(|i| (i * 31 + self.generation as usize * 7) as u32 % 512).collect();
        let owner = RowOwner { slot, generation: self.generation, id: RequestId(0), wants_logprobs: false };
        let mut records = Vec::new();
        for runner in &mut self.runners {
            for (index, tokens) in tokens.chunks(CHUNK).enumerate() {
                let (start, is_last) = (index * CHUNK, index == (prompt - 1) / CHUNK);
                let pages = (index == 0).then_some(&pages);
                let last = is_last.then_some(state);
                let chunk =
                    PromptChunk { slot, start, tokens, scored: None, every_row: false, pages, last, sampling: None };
                let rows = if is_last { vec![owner] } else { Vec::new() };
                let flight = runner.launch_prompt(chunk, rows).expect("a launch");
                records.extend(collect(runner, &flight));
            }
        }
        let [first, second] = records[..] else { panic!("one record a runner") };
        assert_eq!(first, second, "the prompts' records");
        self.rows.push(Row { slot, generation: self.generation, pages });
        self.roster += 1;
        if stopped(&state, first, 1) {
            self.leave(self.rows.len() - 1);
        }
    }

    fn leave(&mut self, row: usize) {
        let row = self.rows.remove(row);
        self.free_slots.push(row.slot);
        self.kv.release(row.pages, None);
        self.roster += 1;
    }

    /// Compares both states, then launches a step on both.
    fn launch(&mut self, compare: bool) -> [InFlight; 2] {
        let owners = self.owners();
        let roster = self.roster;
        if compare {
            let [tail, rebuilt] =
                self.runners.each_mut().map(|runner| runner.state_before(roster, &owners).expect("a state"));
            assert_eq!(tail, rebuilt, "what the tail made, and what a rebuild uploads");
        }
        self.runners.each_mut().map(|runner| runner.launch_decode(roster, owners.clone()).expect("a launch").0)
    }

    /// Collects a step from both; the device stops rows by itself, the host learns it here.
    fn settle(&mut self, flights: [InFlight; 2]) {
        let mut both = self.runners.iter_mut().zip(&flights).map(|(runner, flight)| collect(runner, flight));
        let (first, second) = (both.next().expect("two"), both.next().expect("two"));
        drop(both);
        assert_eq!(first, second, "the records of one step");
        let slots = self.runners[0].slots().expect("slots");
        let dead = |row: &Row| slots[row.slot].generation == row.generation && slots[row.slot].live == 0;
        while let Some(row) = self.rows.iter().position(dead) {
            self.leave(row);
        }
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Admit { prompt, limit, stop_id } => self.admit(prompt, limit.min(CONTEXT - prompt), stop_id),
            Action::Abort(index) if !self.rows.is_empty() => self.leave(index.index(self.rows.len())),
            Action::Decode(steps) => {
                for _ in 1..steps {
                    if self.rows.is_empty() {
                        return;
                    }
                    let flights = self.launch(true);
                    self.settle(flights);
                }
                if !self.rows.is_empty() {
                    let front = self.launch(true);
                    // Rows that stopped in front are launched once more: they must be padding on both.
                    let behind = self.launch(false);
                    self.settle(front);
                    self.settle(behind);
                }
            }
            Action::Abort(_) => {}
        }
    }
}

/// Whether the record of a prompt's last chunk ends its sequence.
fn stopped(state: &G4Slot, record: (i32, i32, u32), output_index: i32) -> bool {
    output_index >= state.output_limit || state.stop_ids[..state.stop_count as usize].contains(&record.0)
}

fn runner(device: DeviceKind, image: KernelImage, has_tail: bool) -> Runner {
    let options = PlanOptions {
        max_running: SLOTS,
        max_context: Some(CONTEXT),
        kv_pages: Some(24),
        prefill_chunk: CHUNK,
        ..PlanOptions::default()
    };
    let checkpoint = tracer_model::checkpoint();
    let (mut runner, _) =
        build_runner(&checkpoint, device, image, &options, Duration::ZERO, &mut |_, _| {}).expect("a runner");
    if !has_tail {
        runner.without_tail();
    }
    runner.warm_up(|| {}).expect("a warm-up");
    runner.capture(|_| {}).expect("a capture");
    runner
}

/// Token, step and generation of each record.
fn collect(runner: &mut Runner, flight: &InFlight) -> Vec<(i32, i32, u32)> {
    let mut records = Vec::new();
    runner.collect(flight, &mut records).expect("records of this step");
    records.iter().map(|record: &G4Record| (record.token, record.step, record.generation)).collect()
}

/// A pair costs two start-ups, so traces share one; each leaves it at rest. A failed trace leaves none behind for the
/// next, shrunk one.
#[derive(Default)]
struct Shared(RefCell<Option<Pair>>);

impl Shared {
    fn run(&self, trace: impl FnOnce(&mut Pair)) {
        let mut pair = self.0.borrow_mut().take().unwrap_or_else(Pair::new);
        trace(&mut pair);
        while !pair.rows.is_empty() {
            pair.leave(0);
        }
        *self.0.borrow_mut() = Some(pair);
    }
}

/// One test, on one thread: what is opened on a thread is closed on it before it ends.
#[test]
fn what_the_tail_makes_of_a_step_is_what_a_rebuild_uploads_for_the_next() {
    let shared = Shared::default();
    pages_of_the_reservation_are_what_the_step_reads(&shared);
    steps_go_on_where_the_devices_counter_wraps(&shared);
    let traces = prop::collection::vec(action(), 1..40);
    let mut runner = TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) });
    let run = |actions: Vec<Action>| {
        shared.run(|pair| actions.iter().for_each(|action| pair.act(action)));
        Ok(())
    };
    if let Err(failure) = runner.run(&traces, run) {
        panic!("{failure}");
    }
}

/// A 32-bit counter at 200 steps a second wraps its sign after 124 days, and itself after 248.
fn steps_go_on_where_the_devices_counter_wraps(shared: &Shared) {
    for wrap in [1u64 << 31, 1 << 32, 3 << 32] {
        shared.run(|pair| {
            for runner in &mut pair.runners {
                runner.count_from(wrap - 6).expect("a count");
            }
            pair.admit(5, 30, None);
            pair.act(&Action::Decode(9));
            assert!(pair.runners.iter().all(|runner| runner.steps_launched() > wrap));
            assert_eq!(pair.rows.len(), 1, "it decodes on");
        });
    }
}

fn pages_of_the_reservation_are_what_the_step_reads(shared: &Shared) {
    shared.run(|pair| {
        pair.admit(40, 20, None);
        let sliding = pair.rows[0].pages.sliding().iter().map(|page| page.device()).collect::<Vec<_>>();
        let slot = pair.rows[0].slot;
        for runner in &pair.runners {
            let cache = &runner.forward.cache;
            let row = cache.geometry().ring_pages;
            let table = cache.sliding_table.slice(slot * row..(slot + 1) * row);
            assert_eq!(runner.stream.download(table).expect("a download"), sliding);
        }
    });
}
