pub mod handle;
pub mod start;
