//! A fixed set of pages or slots, each free, owned by one owner, or in quarantine.
//!
//! Life of an entry: (1) [`Pool::take`] grants it to an owner; (2) [`Pool::retire`] ends that: while a launched step
//! may still read or write it, it waits in quarantine, stamped with the last such step; (3) [`Pool::collected`] with
//! that step or a later one makes it free. The same calls give the same entries: freed ones are granted again first,
//! and fresh ones ascending.

use std::collections::VecDeque;

use super::ids::{OwnerId, PoolId, StepNumber};

/// Entries of one kind. Every operation keeps owned + quarantined + free = all, and panics rather than grant twice.
pub struct Pool<I> {
    states: Vec<State>,
    /// Indices of free entries; the last is granted next.
    free: Vec<I>,
    quarantine: VecDeque<(StepNumber, Vec<I>)>,
    owned_count: usize,
    quarantined_count: usize,
    /// The latest step known to be over.
    collected: Option<StepNumber>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Owned(OwnerId),
    Quarantined,
}

impl<I: PoolId> Pool<I> {
    /// A pool of `count` free entries; panics above `i32::MAX`, which device tables cannot name.
    pub fn new(count: usize) -> Self {
        let count = u32::try_from(count).ok().filter(|&n| n <= i32::MAX as u32).expect("pool sizes fit i32");
        Pool {
            states: vec![State::Free; count as usize],
            free: (0..count).rev().map(I::from_index).collect(),
            quarantine: VecDeque::new(),
            owned_count: 0,
            quarantined_count: 0,
            collected: None,
        }
    }

    /// Grants `count` entries, or nothing when fewer are free.
    pub fn take(&mut self, owner: OwnerId, count: usize) -> Option<Vec<I>> {
        let rest = self.free.len().checked_sub(count)?;
        let taken: Vec<I> = self.free.drain(rest..).rev().collect();
        for &id in &taken {
            self.turn(id, State::Free, State::Owned(owner));
        }
        self.owned_count += count;
        self.check_sum();
        Some(taken)
    }

    /// Ends the owner's hold on its entries. They are free once step `last_step`, the last launched one that may touch
    /// them, is collected; at once when it is already, or when there is none.
    pub fn retire(&mut self, owner: OwnerId, ids: Vec<I>, last_step: Option<StepNumber>) {
        for &id in &ids {
            self.turn(id, State::Owned(owner), State::Quarantined);
        }
        self.owned_count -= ids.len();
        self.quarantined_count += ids.len();
        match last_step {
            Some(step) if self.collected.is_none_or(|collected| collected < step) => {
                self.quarantine.push_back((step, ids));
            }
            _ => self.set_free(ids),
        }
        self.check_sum();
    }

    /// Steps up to `step` are over on the device and read back. Panics when steps are collected out of order.
    pub fn collected(&mut self, step: StepNumber) {
        assert!(self.collected.is_none_or(|before| before <= step), "{step:?} collected after {:?}", self.collected);
        self.collected = Some(step);
        // In order of arrival; stamps nearly always ascend too, and the queue is as short as steps are in flight.
        for _ in 0..self.quarantine.len() {
            match self.quarantine.pop_front() {
                Some((until, ids)) if until <= step => self.set_free(ids),
                Some(waiting) => self.quarantine.push_back(waiting),
                None => break,
            }
        }
        self.check_sum();
    }

    /// All entries.
    pub fn count(&self) -> usize {
        self.states.len()
    }

    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    pub fn owned_count(&self) -> usize {
        self.owned_count
    }

    pub fn quarantined_count(&self) -> usize {
        self.quarantined_count
    }

    /// Recounts everything from the entries' states; for tests, in time linear in the pool.
    pub fn audit(&self) {
        let count = |of: fn(&State) -> bool| self.states.iter().filter(|state| of(state)).count();
        assert_eq!(count(|state| matches!(state, State::Owned(_))), self.owned_count);
        assert_eq!(count(|state| *state == State::Quarantined), self.quarantined_count);
        assert_eq!(count(|state| *state == State::Free), self.free.len());
        assert!(self.free.iter().all(|id| self.states[id.index()] == State::Free));
        let waiting = self.quarantine.iter().flat_map(|(_, ids)| ids);
        assert_eq!(waiting.clone().count(), self.quarantined_count);
        assert!(waiting.clone().all(|id| self.states[id.index()] == State::Quarantined));
    }

    fn set_free(&mut self, ids: Vec<I>) {
        self.quarantined_count -= ids.len();
        for id in ids.into_iter().rev() {
            self.turn(id, State::Quarantined, State::Free);
            self.free.push(id);
        }
    }

    fn turn(&mut self, id: I, from: State, to: State) {
        let state = &mut self.states[id.index()];
        assert_eq!(*state, from, "{id:?} is not what its holder says");
        *state = to;
    }

    fn check_sum(&self) {
        let sum = self.owned_count + self.quarantined_count + self.free.len();
        assert_eq!(sum, self.states.len(), "owned + quarantined + free must be the whole pool");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::PageId;

    const A: OwnerId = OwnerId(1);
    const B: OwnerId = OwnerId(2);

    fn indices(ids: &[PageId]) -> Vec<usize> {
        ids.iter().map(|id| id.index()).collect()
    }

    #[test]
    fn entries_are_granted_ascending_and_freed_ones_first() {
        let mut pool = Pool::<PageId>::new(6);
        let first = pool.take(A, 2).unwrap();
        let second = pool.take(B, 2).unwrap();
        assert_eq!((indices(&first), indices(&second)), (vec![0, 1], vec![2, 3]));
        pool.retire(A, first, None);
        assert_eq!(indices(&pool.take(B, 3).unwrap()), [0, 1, 4]);
        assert!(pool.take(B, 2).is_none());
        assert_eq!((pool.free_count(), pool.owned_count()), (1, 5));
        pool.audit();
    }

    #[test]
    fn a_retired_entry_waits_for_the_last_step_that_may_touch_it() {
        let mut pool = Pool::<PageId>::new(2);
        let ids = pool.take(A, 2).unwrap();
        pool.collected(StepNumber(6));
        pool.retire(A, ids, Some(StepNumber(8)));
        pool.collected(StepNumber(7));
        assert_eq!((pool.free_count(), pool.quarantined_count()), (0, 2));
        assert!(pool.take(B, 1).is_none());
        pool.collected(StepNumber(8));
        assert_eq!(pool.free_count(), 2);
        let ids = pool.take(B, 1).unwrap();
        pool.retire(B, ids, Some(StepNumber(8)));
        assert_eq!(pool.free_count(), 2);
        pool.audit();
    }

    #[test]
    #[should_panic(expected = "is not what its holder says")]
    fn an_entry_cannot_be_retired_by_another_owner() {
        let mut pool = Pool::<PageId>::new(2);
        let ids = pool.take(A, 1).unwrap();
        pool.retire(B, ids, None);
    }

    #[test]
    #[should_panic(expected = "is not what its holder says")]
    fn an_entry_cannot_be_retired_twice() {
        let mut pool = Pool::<PageId>::new(2);
        let ids = pool.take(A, 1).unwrap();
        pool.retire(A, ids.clone(), None);
        pool.retire(A, ids, None);
    }
}
