//! A host that runs out of memory: the n-th allocation of a thread fails, alone or with all that follow.
//!
//! It counts what the library allocates. Inside of driver calls, and in what a program passes to the library (observers,
//! callbacks), nothing is counted and nothing fails.

use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Call, Driver, DriverResult, ForwardingDriver, HostBuffer};
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;

/// With this variable set, each allocation that fails prints its place: the last one printed is that of an abort.
const BACKTRACE: &str = "HOST_MEMORY_BACKTRACE";

/// How allocations fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// One, and the next one succeeds.
    Once,
    /// One, and all that follow until [`disarm`].
    FromThenOn,
}

thread_local! {
    /// The allocation that fails, counted from 1, and the mode. `None` while nothing is counted.
    static PLAN: Cell<Option<(u64, Mode)>> = const { Cell::new(None) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static FAILED: Cell<u64> = const { Cell::new(0) };
    /// How deep the thread is in code that is not the library's.
    static OUTSIDE: Cell<u32> = const { Cell::new(0) };
}

/// From now on, allocations of this thread are counted, and the `nth` fails.
pub(crate) fn arm(nth: u64, mode: Mode) {
    COUNT.set(0);
    FAILED.set(0);
    PLAN.set(Some((nth, mode)));
}

/// The host has memory again. Returns how many allocations failed.
pub(crate) fn disarm() -> u64 {
    PLAN.set(None);
    FAILED.get()
}

fn fails() -> bool {
    let Some((nth, mode)) = PLAN.get().filter(|_| OUTSIDE.get() == 0) else { return false };
    COUNT.set(COUNT.get() + 1);
    let fails = COUNT.get() == nth || (COUNT.get() > nth && mode == Mode::FromThenOn);
    if fails {
        FAILED.set(FAILED.get() + 1);
        outside(|| {
            if std::env::var_os(BACKTRACE).is_some() {
                eprintln!("allocation {} failed:\n{}", COUNT.get(), Backtrace::force_capture());
            }
        });
    }
    fails
}

struct ShortHost;

// SAFETY: every call goes to the system's allocator with the arguments as they came, or answers NULL, as any may.
unsafe impl GlobalAlloc for ShortHost {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails() {
            return ptr::null_mut();
        }
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    // In the system's allocator neither of these touches every page, as the ways by `alloc` do.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if fails() {
            return ptr::null_mut();
        }
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if fails() {
            return ptr::null_mut();
        }
        // SAFETY: the caller keeps `realloc`'s contract, and `ptr` came from the system's allocator with this layout.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static GLOBAL: ShortHost = ShortHost;

/// Runs code that is not the library's.
pub(crate) fn outside<T>(run: impl FnOnce() -> T) -> T {
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            OUTSIDE.set(OUTSIDE.get() - 1);
        }
    }
    OUTSIDE.set(OUTSIDE.get() + 1);
    let _back = Back;
    run()
}

/// The simulated GPU, whose own allocations do not count.
pub(crate) struct Apart(pub(crate) Arc<SimGpu>);

impl ForwardingDriver for Apart {
    fn inner(&self) -> &dyn Driver {
        &*self.0
    }

    /// The bytes are the device's; what is done with them is not.
    fn host_bytes(
        &self,
        buffer: HostBuffer,
        offset: u64,
        size: u64,
        with: &mut dyn FnMut(&mut [u8]),
    ) -> DriverResult<()> {
        let mut bytes = outside(|| {
            let mut bytes = Vec::new();
            self.inner().host_bytes(buffer, offset, size, &mut |found| bytes = found.to_vec()).map(|()| bytes)
        })?;
        with(&mut bytes);
        outside(|| self.inner().host_bytes(buffer, offset, size, &mut |found| found.copy_from_slice(&bytes)))
    }

    fn make_call<T>(&self, _: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        outside(|| make(self.inner()))
    }
}
