//! The rows of the decode step and their order.

use crate::kv::SlotId;
use crate::request::RequestId;

/// One row of a decode step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub slot: SlotId,
    pub id: RequestId,
}

/// Identity of a roster: equal generations have equal rows in equal order. 0 is the empty roster of the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RosterGeneration(pub u64);

/// Why a roster differs from the one before it, and so why the device's row index is uploaded again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RebuildCause {
    /// Sequences came.
    #[default]
    Joined,
    /// Sequences left.
    Left,
    /// Both at one boundary.
    Replaced,
    /// Not a change: the fingerprint is switched off.
    Forced,
}

impl RebuildCause {
    pub const ALL: [RebuildCause; 4] = [Self::Joined, Self::Left, Self::Replaced, Self::Forced];

    /// Label of the counter.
    pub fn word(self) -> &'static str {
        match self {
            Self::Joined => "joined",
            Self::Left => "left",
            Self::Replaced => "replaced",
            Self::Forced => "forced",
        }
    }
}

/// Decoding sequences in row order. Rows move as little as possible: when the roster is settled, the places of those
/// that left are filled from the lowest by newcomers in their order, then by the last rows; newcomers beyond that are
/// appended. A row that neither left nor was the last stays where it is.
#[derive(Default)]
pub struct Roster {
    rows: Vec<Row>,
    /// Indices into `rows` of those that left since the roster was settled, unordered.
    vacant: Vec<usize>,
    /// Those that came since the roster was settled.
    joining: Vec<Row>,
    generation: RosterGeneration,
    /// What made this generation.
    cause: RebuildCause,
}

impl Roster {
    pub fn join(&mut self, row: Row) {
        debug_assert!(!self.contains(row.id));
        self.joining.push(row);
    }

    /// Takes a sequence out; false if it has no row.
    pub fn leave(&mut self, id: RequestId) -> bool {
        if let Some(index) = self.joining.iter().position(|row| row.id == id) {
            self.joining.remove(index);
            return true;
        }
        match self.rows.iter().enumerate().position(|(index, row)| row.id == id && !self.vacant.contains(&index)) {
            Some(index) => {
                self.vacant.push(index);
                true
            }
            None => false,
        }
    }

    /// Sequences that have a row or will have one.
    pub fn count(&self) -> usize {
        self.rows.len() - self.vacant.len() + self.joining.len()
    }

    /// Applies what happened since the last call; a change raises the generation. Returns it, what made it, and the
    /// rows.
    pub fn settle(&mut self) -> (RosterGeneration, RebuildCause, &[Row]) {
        if !self.vacant.is_empty() || !self.joining.is_empty() {
            self.generation.0 += 1;
            self.cause = match (self.joining.is_empty(), self.vacant.is_empty()) {
                (false, true) => RebuildCause::Joined,
                (true, _) => RebuildCause::Left,
                (false, false) => RebuildCause::Replaced,
            };
            // Highest first, so that the lowest is at the end and no vacancy beyond a filled one moves.
            self.vacant.sort_unstable_by(|a, b| b.cmp(a));
            let newcomers = self.joining.len().min(self.vacant.len());
            for row in self.joining.drain(..newcomers) {
                let index = self.vacant.pop().expect("as many vacancies as newcomers");
                self.rows[index] = row;
            }
            // The last row fills the highest vacancy first; with a vacancy at the end this only shortens the roster.
            for index in self.vacant.drain(..) {
                self.rows.swap_remove(index);
            }
            self.rows.append(&mut self.joining);
        }
        (self.generation, self.cause, &self.rows)
    }

    fn contains(&self, id: RequestId) -> bool {
        let present = |(index, row): (usize, &Row)| row.id == id && !self.vacant.contains(&index);
        self.joining.iter().any(|row| row.id == id) || self.rows.iter().enumerate().any(present)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::PoolId;

    fn row(id: u64) -> Row {
        Row { slot: SlotId::from_index(id as u32), id: RequestId(id) }
    }

    fn roster(ids: impl IntoIterator<Item = u64>) -> Roster {
        let mut roster = Roster::default();
        ids.into_iter().for_each(|id| roster.join(row(id)));
        roster.settle();
        roster
    }

    fn ids(roster: &mut Roster) -> Vec<u64> {
        roster.settle().2.iter().map(|row| row.id.0).collect()
    }

    #[test]
    fn a_newcomer_takes_the_place_of_one_that_left() {
        let mut roster = roster(0..5);
        roster.leave(RequestId(3));
        roster.leave(RequestId(1));
        roster.join(row(7));
        assert_eq!(ids(&mut roster), [0, 7, 2, 4]);
        roster.join(row(8));
        assert_eq!(ids(&mut roster), [0, 7, 2, 4, 8]);
    }

    #[test]
    fn the_last_row_fills_a_place_that_nobody_takes() {
        let mut roster = roster(0..5);
        roster.leave(RequestId(0));
        assert_eq!(ids(&mut roster), [4, 1, 2, 3]);
        roster.leave(RequestId(3));
        assert_eq!(ids(&mut roster), [4, 1, 2]);
        roster.leave(RequestId(4));
        roster.leave(RequestId(2));
        assert_eq!(ids(&mut roster), [1]);
    }

    #[test]
    fn a_generation_says_what_made_it() {
        let mut roster = roster(0..2);
        assert_eq!(roster.settle().1, RebuildCause::Joined);
        roster.leave(RequestId(0));
        assert_eq!(roster.settle().1, RebuildCause::Left);
        roster.leave(RequestId(1));
        roster.join(row(5));
        assert_eq!(roster.settle().1, RebuildCause::Replaced);
        assert_eq!(roster.settle().1, RebuildCause::Replaced, "until the next change");
    }

    #[test]
    fn the_generation_is_raised_by_every_change_and_by_nothing_else() {
        let mut roster = roster(0..3);
        let before = roster.settle().0;
        assert_eq!(roster.settle().0, before);
        roster.join(row(9));
        assert!(roster.leave(RequestId(9)));
        assert!(!roster.leave(RequestId(9)));
        assert_eq!((roster.settle().0, roster.count()), (before, 3));
        roster.leave(RequestId(2));
        assert!(roster.settle().0 > before);
    }
}
