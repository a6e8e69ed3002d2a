//! A hit makes no driver call and allocates nothing. The checks of the feature `paranoid` allocate.

#![cfg(not(feature = "paranoid"))]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod simulated;

use seamalloc::driver::{Driver, StreamId};
use seamalloc::{Allocator, Config, StrategyKind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator with the arguments as they came; the counter does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Allocates and frees many sizes on some streams, leaving nothing live.
fn step(allocator: &Allocator, live: &mut Vec<u64>, streams: u64) {
    for round in 0..2000u64 {
        let size = (round * 7919 % 4001) * 1021 + 1;
        live.push(allocator.allocate(size, StreamId(round % streams)).unwrap());
        if round % 3 == 0 {
            let at = (round * 31) as usize % live.len();
            allocator.free(live.swap_remove(at)).unwrap();
        }
    }
    for address in live.drain(..) {
        allocator.free(address).unwrap();
    }
}

#[test]
fn a_hit_allocates_nothing_and_calls_nobody() {
    for kind in StrategyKind::ALL {
        let (gpu, allocator) = simulated::on("sim:h200", Config::with_strategy(kind));
        // Between streams, stitched memory flows by events; on one, a stitched block is found again without any call.
        let streams = if kind == StrategyKind::Stitch { 1 } else { 2 };
        let mut live = Vec::with_capacity(4000);
        for _ in 0..8 {
            step(&allocator, &mut live, streams);
        }
        let calls = gpu.call_stats();
        let allocations = ALLOCATIONS.get();
        assert!(allocations > 0, "the counter counts");
        step(&allocator, &mut live, streams);
        assert_eq!(ALLOCATIONS.get(), allocations, "{kind}: the host's memory");
        assert_eq!(gpu.call_stats(), calls, "{kind}: the driver");
    }
}
