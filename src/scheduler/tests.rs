//! Random traces against a plain model of what a scheduler owes its sequences.

use std::collections::{HashMap, HashSet, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::kv::{Family, KvShape, PageId, PoolId, SlotId, StepNumber};
use crate::request::RequestId;

const PAGE: usize = 16;

fn shape(max_running: usize, global_pages: usize) -> KvShape {
    KvShape { sliding_pages: max_running * 2, ring_pages: 2, global_pages, page_tokens_global: PAGE }
}

fn decode_ids(plan: Plan) -> Vec<u64> {
    match plan {
        Plan::Decode { rows, .. } => rows.iter().map(|row| row.id.0).collect(),
        other => panic!("expected a decode step, got {other:?}"),
    }
}

fn chunk(plan: Plan) -> (u64, usize, usize, bool) {
    match plan {
        Plan::Prefill(Chunk { id, start, len, last, .. }) => (id.0, start, len, last),
        other => panic!("expected a chunk, got {other:?}"),
    }
}

#[test]
fn prompt_chunks_and_decode_steps_alternate() {
    let mut scheduler = Scheduler::new(4, 8, shape(4, 100));
    scheduler.enqueue(RequestId(1), 5, 20).unwrap();
    scheduler.enqueue(RequestId(2), 20, 30).unwrap();
    assert_eq!(scheduler.admit().unwrap().id, RequestId(1));
    assert_eq!(scheduler.admit().unwrap().id, RequestId(2));
    assert!(scheduler.admit().is_none());
    assert_eq!(chunk(scheduler.plan()), (1, 0, 5, true));
    assert_eq!(decode_ids(scheduler.plan()), [1]);
    assert_eq!(chunk(scheduler.plan()), (2, 0, 8, false));
    assert_eq!(decode_ids(scheduler.plan()), [1]);
    assert_eq!(chunk(scheduler.plan()), (2, 8, 8, false));
    assert_eq!(decode_ids(scheduler.plan()), [1]);
    assert_eq!(chunk(scheduler.plan()), (2, 16, 4, true));
    assert_eq!(decode_ids(scheduler.plan()), [1, 2]);
    assert_eq!(decode_ids(scheduler.plan()), [1, 2]);
    scheduler.finish(RequestId(1), Some(StepNumber(9)));
    scheduler.finish(RequestId(2), Some(StepNumber(9)));
    assert_eq!(scheduler.plan(), Plan::Idle);
    assert!(scheduler.is_empty());
}

#[test]
fn nobody_overtakes_the_head_of_the_queue() {
    let mut scheduler = Scheduler::new(4, 8, shape(4, 10));
    scheduler.enqueue(RequestId(1), 8, 8 * PAGE).unwrap();
    scheduler.enqueue(RequestId(2), 8, 3 * PAGE).unwrap();
    scheduler.enqueue(RequestId(3), 8, PAGE).unwrap();
    assert_eq!(scheduler.admit().unwrap().id, RequestId(1));
    assert!(scheduler.admit().is_none(), "2 needs 3 pages of 2; 3 would fit but must wait");
    assert!(scheduler.cancel(RequestId(2), None));
    assert_eq!(scheduler.admit().unwrap().id, RequestId(3));
    assert!(!scheduler.cancel(RequestId(2), None));
}

#[test]
fn a_sequence_beyond_the_whole_pool_is_refused_with_its_numbers() {
    let mut scheduler = Scheduler::new(2, 8, shape(2, 10));
    let shortage = scheduler.enqueue(RequestId(1), 8, 10 * PAGE + 1).unwrap_err();
    assert_eq!((shortage.family, shortage.wanted_count, shortage.pool_count), (Family::Global, 11, 10));
    assert!(scheduler.is_empty());
}

#[test]
fn a_slot_is_free_only_when_the_last_step_that_holds_it_is_collected() {
    let mut scheduler = Scheduler::new(1, 8, shape(1, 10));
    for id in 1..=2 {
        scheduler.enqueue(RequestId(id), 8, 8).unwrap();
    }
    scheduler.admit().unwrap();
    scheduler.plan();
    scheduler.finish(RequestId(1), Some(StepNumber(2)));
    assert!(scheduler.admit().is_none());
    scheduler.collected(StepNumber(1));
    assert!(scheduler.admit().is_none());
    scheduler.collected(StepNumber(2));
    assert_eq!(scheduler.admit().unwrap().id, RequestId(2));
}

#[test]
#[should_panic(expected = "does not run")]
fn a_waiting_sequence_cannot_finish() {
    let mut scheduler = Scheduler::new(1, 8, shape(1, 10));
    scheduler.enqueue(RequestId(1), 8, 8).unwrap();
    scheduler.finish(RequestId(1), None);
}

#[derive(Clone, Debug)]
enum Action {
    Enqueue { prompt: usize, output: usize },
    Admit,
    Step,
    Collect,
    Finish(prop::sample::Index),
    Cancel(prop::sample::Index),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1usize..60, 0usize..60).prop_map(|(prompt, output)| Action::Enqueue { prompt, output }),
        4 => Just(Action::Admit),
        8 => Just(Action::Step),
        6 => Just(Action::Collect),
        2 => any::<prop::sample::Index>().prop_map(Action::Finish),
        1 => any::<prop::sample::Index>().prop_map(Action::Cancel),
    ]
}

/// A sequence as the trace knows it.
struct Known {
    prompt: usize,
    kv_tokens: usize,
    done: usize,
    slot: SlotId,
    sliding: Vec<PageId>,
    global: Vec<PageId>,
    decodes_missed: usize,
}

/// The plain model: what was asked for, and what may be held at any time.
struct Model {
    scheduler: Scheduler,
    chunk: usize,
    max_running: usize,
    /// Enqueued and not admitted, in order.
    waiting: VecDeque<(u64, usize, usize)>,
    running: HashMap<u64, Known>,
    /// Slots and pages of those that ended, until the step is collected.
    ended: Vec<(u64, Known)>,
    launched: u64,
    collected: u64,
    next_id: u64,
    roster: (RosterGeneration, Vec<Row>),
    /// Whether the last step launched was a chunk.
    after_chunk: bool,
}

impl Model {
    fn new(max_running: usize, chunk: usize, pages: usize) -> Self {
        Model {
            scheduler: Scheduler::new(max_running, chunk, shape(max_running, pages)),
            chunk,
            max_running,
            waiting: VecDeque::new(),
            running: HashMap::new(),
            ended: Vec::new(),
            launched: 0,
            collected: 0,
            next_id: 1,
            roster: (RosterGeneration::default(), Vec::new()),
            after_chunk: false,
        }
    }

    fn run(&mut self, action: &Action) {
        match action {
            Action::Enqueue { prompt, output } => self.enqueue(*prompt, prompt + output),
            Action::Admit => drop(self.admit()),
            Action::Step => self.step(),
            Action::Collect => self.collect(),
            Action::Finish(index) => {
                let mut ids: Vec<u64> = self.running.keys().copied().collect();
                ids.sort_unstable();
                if !ids.is_empty() {
                    let id = ids[index.index(ids.len())];
                    self.scheduler.finish(RequestId(id), self.last_step());
                    self.end(id);
                }
            }
            Action::Cancel(index) if self.next_id > 1 => {
                let id = 1 + index.index(self.next_id as usize - 1) as u64;
                let known = self.running.contains_key(&id) || self.waiting.iter().any(|&(other, ..)| other == id);
                assert_eq!(self.scheduler.cancel(RequestId(id), self.last_step()), known);
                self.waiting.retain(|&(other, ..)| other != id);
                self.end(id);
            }
            Action::Cancel(_) => {}
        }
        self.check();
    }

    fn enqueue(&mut self, prompt: usize, kv_tokens: usize) {
        let feasible = kv_tokens.div_ceil(PAGE) <= self.scheduler.kv().pool(Family::Global).count();
        assert_eq!(self.scheduler.enqueue(RequestId(self.next_id), prompt, kv_tokens).is_ok(), feasible);
        if feasible {
            self.waiting.push_back((self.next_id, prompt, kv_tokens));
        }
        self.next_id += 1;
    }

    /// Admission is first come first served, and happens whenever the head of the queue fits.
    fn admit(&mut self) -> bool {
        let free = |family| self.scheduler.kv().pool(family).free_count();
        let fits = self.waiting.front().is_some_and(|&(_, _, kv_tokens)| {
            self.scheduler.slots().free_count() > 0
                && free(Family::Sliding) >= 2
                && free(Family::Global) >= kv_tokens.div_ceil(PAGE)
        });
        let admitted = self.scheduler.admit();
        assert_eq!(admitted.is_some(), fits);
        let Some(Admission { id, slot, reservation }) = admitted else { return false };
        let (head, prompt, kv_tokens) = self.waiting.pop_front().unwrap();
        assert_eq!(id.0, head);
        let (sliding, global) = (reservation.sliding().to_vec(), reservation.global().to_vec());
        assert!(global.len() * PAGE >= kv_tokens && sliding.len() == 2);
        let known = Known { prompt, kv_tokens, done: 0, slot, sliding, global, decodes_missed: 0 };
        self.running.insert(head, known);
        true
    }

    fn step(&mut self) {
        let prefilling = self.running.values().any(|known| known.done < known.prompt);
        let decoding: HashSet<u64> =
            self.running.iter().filter(|(_, known)| known.done == known.prompt).map(|(&id, _)| id).collect();
        match self.scheduler.plan() {
            Plan::Idle => assert!(!prefilling && decoding.is_empty()),
            Plan::Prefill(chunk) => {
                assert!(!self.after_chunk || decoding.is_empty(), "two chunks in a row while rows decode");
                let oldest =
                    self.running.iter().filter(|(_, known)| known.done < known.prompt).map(|(&id, _)| id).min();
                assert_eq!(Some(chunk.id.0), oldest);
                let known = self.running.get_mut(&chunk.id.0).unwrap();
                let len = self.chunk.min(known.prompt - known.done);
                let last = known.done + len == known.prompt;
                assert_eq!((chunk.slot, chunk.start, chunk.len, chunk.last), (known.slot, known.done, len, last));
                known.done += len;
                for id in &decoding {
                    let known = self.running.get_mut(id).unwrap();
                    known.decodes_missed += 1;
                    assert!(known.decodes_missed <= 1, "a decoding row waited for two chunks");
                }
                self.after_chunk = true;
                self.launched += 1;
            }
            Plan::Decode { roster_generation, rows, bucket, .. } => {
                assert!(self.after_chunk || !prefilling, "two decode steps in a row while a prompt waits");
                let ids: HashSet<u64> = rows.iter().map(|row| row.id.0).collect();
                assert_eq!(ids, decoding);
                assert_eq!(rows.len(), decoding.len());
                assert!(rows.iter().all(|row| row.slot == self.running[&row.id.0].slot));
                assert!(bucket >= rows.len() && buckets(self.max_running).contains(&bucket));
                assert!(crate::limits::BUCKETS.iter().all(|&other| other < rows.len() || other >= bucket));
                let (generation, before) = &self.roster;
                assert_eq!(*generation == roster_generation, before == rows, "the generation is the roster's identity");
                assert!(roster_generation >= *generation);
                let moved = before
                    .iter()
                    .enumerate()
                    .filter(|(index, row)| ids.contains(&row.id.0) && rows.get(*index) != Some(row));
                let left = before.iter().filter(|row| !ids.contains(&row.id.0)).count();
                assert!(moved.count() <= left, "more rows moved than left");
                self.roster = (roster_generation, rows.to_vec());
                for id in decoding {
                    self.running.get_mut(&id).unwrap().decodes_missed = 0;
                }
                self.after_chunk = false;
                self.launched += 1;
            }
        }
    }

    fn collect(&mut self) {
        if self.collected < self.launched {
            self.collected += 1;
            self.scheduler.collected(StepNumber(self.collected));
            self.ended.retain(|(until, _)| *until > self.collected);
        }
    }

    fn last_step(&self) -> Option<StepNumber> {
        (self.launched > 0).then_some(StepNumber(self.launched))
    }

    fn end(&mut self, id: u64) {
        if let Some(known) = self.running.remove(&id)
            && self.launched > self.collected
        {
            self.ended.push((self.launched, known));
        }
    }

    /// Slots and pages are held once, and everything that nobody holds is free.
    fn check(&self) {
        let scheduler = &self.scheduler;
        scheduler.kv().audit();
        scheduler.slots().audit();
        let holders: Vec<&Known> = self.running.values().chain(self.ended.iter().map(|(_, known)| known)).collect();
        let distinct = |ids: Vec<usize>, pool: (usize, usize)| {
            assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len(), "held twice");
            assert_eq!(ids.len() + pool.0, pool.1, "held + free is everything");
        };
        let pool = |family| (scheduler.kv().pool(family).free_count(), scheduler.kv().pool(family).count());
        distinct(
            holders.iter().map(|known| known.slot.index()).collect(),
            (scheduler.slots().free_count(), self.max_running),
        );
        distinct(holders.iter().flat_map(|known| &known.sliding).map(|id| id.index()).collect(), pool(Family::Sliding));
        distinct(holders.iter().flat_map(|known| &known.global).map(|id| id.index()).collect(), pool(Family::Global));
        assert!(holders.iter().all(|known| known.global.len() == known.kv_tokens.div_ceil(PAGE)));
        assert_eq!(scheduler.waiting_count(), self.waiting.len());
        assert_eq!(scheduler.prefilling_count() + scheduler.decoding_count(), self.running.len());
    }

    /// Ends what runs, again and again: everything that waits gets its turn.
    fn drain(&mut self) {
        while !self.scheduler.is_empty() {
            let running: Vec<u64> = self.running.keys().copied().collect();
            for id in running {
                self.scheduler.finish(RequestId(id), self.last_step());
                self.end(id);
            }
            while self.collected < self.launched {
                self.collect();
            }
            let admitted = std::iter::repeat_with(|| self.admit()).take_while(|&admitted| admitted).count();
            assert!(admitted > 0 || self.waiting.is_empty(), "a feasible sequence is admitted when nothing runs");
            self.step();
            self.check();
        }
        assert_eq!(self.scheduler.plan(), Plan::Idle);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn every_trace_keeps_order_slots_pages_and_the_decode_gap(
        max_running in 1usize..=9,
        chunk in 1usize..=40,
        pages in 1usize..=24,
        actions in prop::collection::vec(action(), 1..250),
    ) {
        let mut model = Model::new(max_running, chunk, pages);
        for action in &actions {
            model.run(action);
        }
        model.drain();
    }
}
