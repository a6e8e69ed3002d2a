//! Host memory, by who asked for it: the allocator under test, the simulated driver, or the program around them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Who is at work.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Program,
    Allocator,
    Driver,
}

/// Bytes held, by [`Part`]: what it asked for and nobody has given back, whoever that is. A driver's error is dropped by the
/// allocator, for example.
static HELD: [AtomicI64; 3] = [const { AtomicI64::new(0) }; 3];

thread_local! {
    static AT_WORK: Cell<Part> = const { Cell::new(Part::Program) };
}

/// Bytes that a part holds of host memory.
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

/// The system's allocator, counted. The part that asked stands in front of each allocation.
pub(crate) struct Counting;

/// Bytes in front of an allocation: as many as keep it aligned. The last of them is the part.
fn front(layout: Layout) -> usize {
    layout.align().max(align_of::<u128>())
}

/// Returns the layout that is asked of the system for an allocation of `size` bytes.
fn whole(layout: Layout, size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(front(layout))?, front(layout)).ok()
}

fn count(part: u8, bytes: i64) {
    if let Some(held) = HELD.get(usize::from(part)) {
        held.fetch_add(bytes, Relaxed);
    }
}

/// Notes who asked, and returns the allocation itself.
///
/// # Safety
/// `start` is NULL, or leads to memory of [`whole`] for this layout.
unsafe fn begin(start: *mut u8, layout: Layout) -> *mut u8 {
    if start.is_null() {
        return start;
    }
    let part = AT_WORK.try_with(Cell::get).unwrap_or(Part::Program) as u8;
    count(part, layout.size() as i64);
    // SAFETY: there are `front` bytes before the allocation.
    unsafe {
        start.add(front(layout) - 1).write(part);
        start.add(front(layout))
    }
}

// SAFETY: every call goes to the system's allocator for as many bytes more as stand in front, in a multiple of the alignment;
// counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(whole) = whole(layout, layout.size()) else { return ptr::null_mut() };
        // SAFETY: the size is not 0, and the memory is of that layout.
        unsafe { begin(System.alloc(whole), layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(whole) = whole(layout, layout.size()) else { return ptr::null_mut() };
        // SAFETY: the size is not 0, and the memory is of that layout.
        unsafe { begin(System.alloc_zeroed(whole), layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (Some(before), Some(_)) = (whole(layout, layout.size()), whole(layout, size)) else {
            return ptr::null_mut();
        };
        // SAFETY: `ptr` came from `alloc` with this layout, so that the part stands before it; its size with what stands in front
        // is a layout's, as was just seen.
        unsafe {
            let part = ptr.sub(1).read();
            let moved = System.realloc(ptr.sub(front(layout)), before, size + front(layout));
            if moved.is_null() {
                return moved;
            }
            count(part, size as i64 - layout.size() as i64);
            moved.add(front(layout))
        }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        let Some(whole) = whole(layout, layout.size()) else { return };
        // SAFETY: `ptr` came from `alloc` with this layout, so that the part stands before it.
        unsafe {
            count(ptr.sub(1).read(), -(layout.size() as i64));
            System.dealloc(ptr.sub(front(layout)), whole);
        }
    }
}
