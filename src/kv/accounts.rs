//! Reservations over both families: a sequence gets the pages of its worst case at admission, or nothing.

use std::fmt;

use super::ids::{OwnerId, PageId, StepNumber};
use super::pool::Pool;

/// Sizes of the two pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Sliding pages in all.
    pub sliding_pages: usize,
    /// Sliding pages of one sequence, whatever its length.
    pub ring_pages: usize,
    /// Global pages in all.
    pub global_pages: usize,
    /// Tokens of a global page.
    pub page_tokens_global: usize,
}

/// The two pools and who holds what.
pub struct KvAccounts {
    shape: KvShape,
    sliding: Pool<PageId>,
    global: Pool<PageId>,
    next_owner: u64,
}

/// The pages of one sequence, until it is given back by [`KvAccounts::release`]. Dropping it instead loses the pages.
#[must_use = "pages are given back by KvAccounts::release only"]
#[derive(Debug, PartialEq, Eq)]
pub struct Reservation {
    owner: OwnerId,
    sliding: Vec<PageId>,
    global: Vec<PageId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Sliding,
    Global,
}

/// Why nothing was reserved: the first family that lacks pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted_count} {family} pages are needed, {free_count} of {pool_count} are free")]
pub struct Shortage {
    pub family: Family,
    pub wanted_count: usize,
    pub free_count: usize,
    pub pool_count: usize,
}

impl KvAccounts {
    pub fn new(shape: KvShape) -> Self {
        assert!(shape.page_tokens_global > 0);
        let KvShape { sliding_pages, global_pages, .. } = shape;
        KvAccounts { shape, sliding: Pool::new(sliding_pages), global: Pool::new(global_pages), next_owner: 0 }
    }

    /// Reserves a ring and the global pages of `kv_tokens_max` tokens, from both families or from neither.
    pub fn reserve(&mut self, kv_tokens_max: usize) -> Result<Reservation, Shortage> {
        self.shortage(kv_tokens_max, |pool| pool.free_count())?;
        let owner = OwnerId(self.next_owner);
        self.next_owner += 1;
        let sliding = self.sliding.take(owner, self.shape.ring_pages).expect("counted above");
        let global = self.global.take(owner, self.global_pages_for(kv_tokens_max)).expect("counted above");
        Ok(Reservation { owner, sliding, global })
    }

    /// Whether a sequence of `kv_tokens_max` tokens fits the empty pools; if not, it never will.
    pub fn could_ever_fit(&self, kv_tokens_max: usize) -> Result<(), Shortage> {
        self.shortage(kv_tokens_max, |pool| pool.count())
    }

    /// Gives the pages back. They can be granted again once `last_step`, the last launched step that may touch them, is
    /// collected; at once when no step was launched.
    pub fn release(&mut self, reservation: Reservation, last_step: Option<StepNumber>) {
        self.sliding.retire(reservation.owner, reservation.sliding, last_step);
        self.global.retire(reservation.owner, reservation.global, last_step);
    }

    /// Steps up to `step` have been collected.
    pub fn collected(&mut self, step: StepNumber) {
        self.sliding.collected(step);
        self.global.collected(step);
    }

    pub fn global_pages_for(&self, kv_tokens_max: usize) -> usize {
        kv_tokens_max.div_ceil(self.shape.page_tokens_global)
    }

    /// Counts for metrics.
    pub fn pool(&self, family: Family) -> &Pool<PageId> {
        match family {
            Family::Sliding => &self.sliding,
            Family::Global => &self.global,
        }
    }

    /// Recounts both pools; for tests.
    pub fn audit(&self) {
        self.sliding.audit();
        self.global.audit();
    }

    fn shortage(&self, kv_tokens_max: usize, available: impl Fn(&Pool<PageId>) -> usize) -> Result<(), Shortage> {
        let wanted = [
            (Family::Sliding, &self.sliding, self.shape.ring_pages),
            (Family::Global, &self.global, self.global_pages_for(kv_tokens_max)),
        ];
        for (family, pool, wanted_count) in wanted {
            if wanted_count > available(pool) {
                let (free_count, pool_count) = (pool.free_count(), pool.count());
                return Err(Shortage { family, wanted_count, free_count, pool_count });
            }
        }
        Ok(())
    }
}

impl Reservation {
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// The ring: position p stands in page `(p / page_tokens) % ring.len()` of it.
    pub fn sliding(&self) -> &[PageId] {
        &self.sliding
    }

    /// Position p stands in page `p / page_tokens` of it.
    pub fn global(&self) -> &[PageId] {
        &self.global
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Family::Sliding => "sliding",
            Family::Global => "global",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn accounts() -> KvAccounts {
        KvAccounts::new(KvShape { sliding_pages: 9, ring_pages: 2, global_pages: 20, page_tokens_global: 16 })
    }

    #[test]
    fn a_shortage_in_one_family_takes_nothing_from_the_other() {
        let mut kv = accounts();
        let held = kv.reserve(19 * 16).unwrap();
        let shortage = kv.reserve(17).unwrap_err();
        assert_eq!(shortage, Shortage { family: Family::Global, wanted_count: 2, free_count: 1, pool_count: 20 });
        assert_eq!(shortage.to_string(), "2 global pages are needed, 1 of 20 are free");
        assert_eq!((kv.pool(Family::Sliding).free_count(), kv.pool(Family::Global).free_count()), (7, 1));
        kv.release(held, None);
        let rings: Vec<_> = (0..4).map(|_| kv.reserve(1).unwrap()).collect();
        assert_eq!(kv.reserve(1).unwrap_err().family, Family::Sliding);
        assert_eq!(kv.pool(Family::Global).free_count(), 16);
        rings.into_iter().for_each(|ring| kv.release(ring, None));
        assert!(kv.could_ever_fit(20 * 16).is_ok());
        assert_eq!(kv.could_ever_fit(20 * 16 + 1).unwrap_err().wanted_count, 21);
        kv.audit();
    }

    #[derive(Clone, Debug)]
    enum Action {
        Reserve(usize),
        Release(prop::sample::Index),
        Launch,
        Collect,
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            4 => (1usize..200).prop_map(Action::Reserve),
            3 => any::<prop::sample::Index>().prop_map(Action::Release),
            2 => Just(Action::Launch),
            2 => Just(Action::Collect),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(600))]

        #[test]
        fn no_page_is_held_twice_nor_granted_while_a_step_may_touch_it(
            actions in prop::collection::vec(action(), 1..120)
        ) {
            let mut kv = accounts();
            let mut held: Vec<Reservation> = Vec::new();
            // Pages of released reservations and the step that frees them.
            let mut released: Vec<(StepNumber, Vec<PageId>, Vec<PageId>)> = Vec::new();
            let (mut launched, mut collected) = (0, 0);
            for action in actions {
                match action {
                    Action::Reserve(tokens) => {
                        let free = |kv: &KvAccounts| [Family::Sliding, Family::Global].map(|f| kv.pool(f).free_count());
                        let before = free(&kv);
                        match kv.reserve(tokens) {
                            Ok(reservation) => {
                                prop_assert_eq!(reservation.sliding().len(), 2);
                                prop_assert_eq!(reservation.global().len(), tokens.div_ceil(16));
                                held.push(reservation);
                            }
                            Err(shortage) => {
                                prop_assert!(shortage.wanted_count > shortage.free_count);
                                prop_assert_eq!(free(&kv), before);
                            }
                        }
                    }
                    Action::Release(index) if !held.is_empty() => {
                        let reservation = held.swap_remove(index.index(held.len()));
                        let (sliding, global) = (reservation.sliding().to_vec(), reservation.global().to_vec());
                        released.push((StepNumber(launched), sliding, global));
                        kv.release(reservation, Some(StepNumber(launched)));
                    }
                    Action::Launch => launched += 1,
                    Action::Collect if collected < launched => {
                        collected += 1;
                        kv.collected(StepNumber(collected));
                    }
                    _ => {}
                }
                kv.audit();
                if collected > 0 {
                    released.retain(|(until, ..)| until.0 > collected);
                }
                let waiting = released.iter().map(|(_, sliding, global)| (&sliding[..], &global[..]));
                let all: Vec<_> = held.iter().map(|r| (r.sliding(), r.global())).chain(waiting).collect();
                let sliding: Vec<PageId> = all.iter().flat_map(|(sliding, _)| *sliding).copied().collect();
                let global: Vec<PageId> = all.iter().flat_map(|(_, global)| *global).copied().collect();
                for (ids, family) in [(sliding, Family::Sliding), (global, Family::Global)] {
                    prop_assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
                    prop_assert_eq!(ids.len() + kv.pool(family).free_count(), kv.pool(family).count());
                }
            }
        }
    }
}
