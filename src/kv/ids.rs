//! Indices and numbers that must not be mixed up.

use std::fmt;

/// A page of one family's pool, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(u32);

/// What a running sequence owns on the device, from 0 to `--max-running` - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(u32);

/// Whoever holds entries of a pool; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(pub u64);

/// Number of a launched step, ascending from the start of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepNumber(pub u64);

/// An index that a [`super::Pool`] hands out.
pub trait PoolId: Copy + Eq + fmt::Debug {
    fn from_index(index: u32) -> Self;
    fn index(self) -> usize;
    /// As the device's tables hold it: 32 bits signed, where -1 means none.
    fn device(self) -> i32 {
        i32::try_from(self.index()).expect("pool sizes fit i32")
    }
}

impl PoolId for PageId {
    fn from_index(index: u32) -> Self {
        PageId(index)
    }
    fn index(self) -> usize {
        self.0 as usize
    }
}

impl PoolId for SlotId {
    fn from_index(index: u32) -> Self {
        SlotId(index)
    }
    fn index(self) -> usize {
        self.0 as usize
    }
}
