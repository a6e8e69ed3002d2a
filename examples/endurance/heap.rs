//! The host's memory, by who asked for it: the allocator under test, the simulated driver, or the program around them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Who is at work.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Program,
    Allocator,
    Driver,
}

/// Bytes held, by [`Part`]. What one part asks for it also gives back.
static HELD: [AtomicI64; 3] = [const { AtomicI64::new(0) }; 3];

thread_local! {
    static AT_WORK: Cell<Part> = const { Cell::new(Part::Program) };
}

/// Bytes that a part holds of the host's memory.
pub(crate) fn held_by(part: Part) -> i64 {
    HELD[part as usize].load(Relaxed)
}

/// Until it is dropped, another part is at work in this thread.
pub(crate) struct At(Part);

impl At {
    pub(crate) fn work(part: Part) -> Self {
        Self(AT_WORK.replace(part))
    }
}

impl Drop for At {
    fn drop(&mut self) {
        AT_WORK.set(self.0);
    }
}

/// The system's allocator, counted.
pub(crate) struct Counting;

fn count(bytes: i64) {
    let part = AT_WORK.try_with(Cell::get).unwrap_or(Part::Program);
    HELD[part as usize].fetch_add(bytes, Relaxed);
}

// SAFETY: every call goes to the system's allocator with the arguments as they came; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: `ptr` came from `alloc` with this layout, and the caller keeps `realloc`'s contract.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: `ptr` came from `alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}
