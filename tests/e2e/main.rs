//! The real binary as people run it. One program, since linking costs more than running.

mod bench;
mod clients;
mod exits;
#[path = "../support/folder.rs"]
mod folder;
mod inspect;
mod logprobs;
#[path = "../support/process.rs"]
mod process;
mod sampling;
mod serving;
mod shutdown;
mod start;
