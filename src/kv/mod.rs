//! Who holds which page of the KV cache, in two families that are never one number: sliding layers need a ring of the
//! last W tokens, global layers need every token. Pure: no device, no clock.

mod accounts;
mod ids;
mod pool;

pub use accounts::{Family, KvAccounts, KvShape, Reservation, Shortage};
pub use ids::{OwnerId, PageId, PoolId, SlotId, StepNumber};
pub use pool::Pool;
