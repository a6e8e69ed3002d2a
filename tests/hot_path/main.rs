//! The host's resources that operations take: a hit allocates nothing and calls nobody, and tables stop growing. The checks of the feature
//! `paranoid` allocate, so these tests are left out with it.

#![cfg(not(feature = "paranoid"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic fails the test")]

mod endurance;
mod hits;

#[path = "../../examples/endurance/heap.rs"]
mod heap;
#[path = "../../examples/endurance/process.rs"]
mod process;
#[path = "../../examples/endurance/program.rs"]
mod program;

#[path = "../common/instrumented.rs"]
mod instrumented;
#[path = "../common/random.rs"]
mod random;
#[path = "../common/simulated.rs"]
mod simulated;

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

thread_local! {
    /// How often this thread has allocated.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The allocator of the example `endurance`, which counts bytes by who holds them; and allocations of each thread.
struct Counting;

fn count() {
    // A thread that ends may have no counter any more.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every call goes to the allocator below with the arguments as they came; the counter does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { heap::Counting.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { heap::Counting.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `realloc`'s contract, and `ptr` came from the allocator below.
        unsafe { heap::Counting.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract, and `ptr` came from the allocator below.
        unsafe { heap::Counting.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;
