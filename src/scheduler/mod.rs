//! Which sequence runs next, and in which row. Pure: no device, no clock.

mod buckets;

pub use buckets::{bucket_for, buckets};
