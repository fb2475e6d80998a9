//! A checkpoint before it runs: what is read, what is refused, what memory it will want. One program, since linking
//! costs more than running.

use gemma4_serve::alloc::CountingAllocator;

mod config;
mod damage;
#[path = "../support/folder.rs"]
mod folder;
mod loading;
mod plan;
mod plan_table;
mod synthetic;
mod weight_formats;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
