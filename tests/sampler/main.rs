//! The sampler's kernels on the software device against the oracle (`src/sampler/oracle.rs`). Tests carry the ids of
//! the rows they stand for (`t000_4_...`).

mod cases;
mod overlays;
mod parity;
mod rig;
mod rules;
