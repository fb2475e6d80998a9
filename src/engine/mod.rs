//! The engine thread.

pub mod handle;
pub mod runner;
pub mod start;
