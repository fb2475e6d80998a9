//! Which sequence runs next, and in which row. Pure: no device, no clock.
//!
//! Life of a sequence: (1) [`Scheduler::enqueue`]: it waits, first come first served; (2) [`Scheduler::admit`]: it
//! holds a slot and all the KV pages it can ever need, and is prefilling; (3) [`Scheduler::plan`] runs its prompt
//! chunk by chunk; with the last chunk it is decoding and gets a row, which [`Scheduler::exhaust`] takes back once
//! its last token's step is launched; (4) [`Scheduler::finish`] or [`Scheduler::cancel`]: slot and pages go to
//! quarantine; (5) [`Scheduler::collected`] with the last step that may touch them frees both.

mod buckets;
mod roster;
mod sequences;

pub use buckets::{bucket_for, buckets};
pub use roster::{RebuildCause, RosterGeneration, Row};
pub use sequences::{Admission, Chunk, Plan, Scheduler};

#[cfg(test)]
mod tests;
