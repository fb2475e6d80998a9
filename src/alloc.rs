//! An allocator that counts: the system's own, and two counters a thread.
//!
//! The binary installs it so that `bench-step` can say how often a decode step allocates; a gate so that it can refuse
//! one that does; tests of damaged files so that they see what a lie made the reader allocate. It costs two
//! thread-local additions an allocation.
//!
//! Fenced unsafe: the trait is unsafe to implement; every call is handed to the system's allocator as it came.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

/// `#[global_allocator]` of a program whose allocations are to be counted.
pub struct CountingAllocator;

/// Allocations of the calling thread so far, growing ones included; 0 for ever in a program without the allocator.
pub fn allocations() -> u64 {
    COUNT.with(Cell::get)
}

/// Bytes asked for by the calling thread so far, freed ones included; a growing allocation counts at its new size.
pub fn allocated_bytes() -> u64 {
    BYTES.with(Cell::get)
}

fn count(bytes: usize) {
    // A thread that ends may allocate after its counters are gone.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
    let _ = BYTES.try_with(|sum| sum.set(sum.get().wrapping_add(bytes as u64)));
}

// SAFETY: memory comes from and goes to `System`, with the layouts it was asked for; counting touches no memory of it.
unsafe impl GlobalAlloc for CountingAllocator {
    // SAFETY: the caller's contract is that of `System`.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the caller's contract is that of `System`.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: the caller's contract is that of `System`.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller's contract; the memory came from `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    // SAFETY: the caller's contract is that of `System`.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract; the memory came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
