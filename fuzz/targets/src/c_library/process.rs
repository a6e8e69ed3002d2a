//! The library before the first call of an input and after the last: there is one a process.

use super::arguments::Arguments;
use super::callbacks::take_messages;
use super::check::check;
use seamalloc_c_library::allocator::{seam_check, seam_destroy, seam_empty_cache, seam_free, seam_set_memory_fraction};
use seamalloc_c_library::ids::Pool;
use seamalloc_c_library::pluggable::{seam_plugged, seam_plugged_devices, seamalloc_free};
use seamalloc_c_library::pools::{seam_pool_end, seam_pool_release};
use seamalloc_c_library::recording::seam_record_new;
use seamalloc_c_library::status::Status;
use std::ffi::{c_int, c_void};
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// The second numbers of the pools that PyTorch's hooks are called with.
const POOLS: RangeInclusive<u64> = 1..=4;

/// The library has one last error a thread, but one set of plugged allocators and defaults a process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static ENVIRONMENT: Once = Once::new();

/// Waits until nobody else calls the library, and prepares it.
pub(super) fn begin() -> MutexGuard<'static, ()> {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: before the first call of the library, in a process whose other threads ask Rust for the environment, which locks it.
    ENVIRONMENT.call_once(|| unsafe { std::env::set_var("SEAMALLOC_DEVICE", "sim:h200,capacity=1GiB") });
    take_messages();
    alone
}

/// Every allocator is whole, can be freed what it handed out, and is refused once it is destroyed.
pub(super) fn end(arguments: Arguments<'_>) {
    for &allocator in &arguments.allocators {
        check("seam_check", seam_check(allocator));
    }
    for &(allocator, address) in &arguments.blocks {
        // It may have been freed by a call, or with its allocator.
        check("seam_free", seam_free(allocator, address));
    }
    for &allocator in &arguments.allocators {
        check("seam_check", seam_check(allocator));
        check("seam_destroy", seam_destroy(allocator));
        assert!(seam_check(allocator) == Status::InvalidHandle, "a handle that was destroyed");
    }
    end_plugged(&arguments.plugged);
    check("seam_record_new", seam_record_new(0));
}

/// The allocators behind `seamalloc_malloc` stay for the whole process: they are left as they were.
fn end_plugged(blocks: &[(c_int, *mut c_void)]) {
    for &(device, address) in blocks {
        seamalloc_free(address, 0, device, ptr::null_mut());
    }
    let mut opened = 0u64;
    // SAFETY: a place to write to.
    check("seam_plugged_devices", unsafe { seam_plugged_devices(&mut opened) });
    for device in (0..64).filter(|device| opened & (1 << device) != 0) {
        let mut allocator = 0;
        // SAFETY: a place to write to.
        check("seam_plugged", unsafe { seam_plugged(device, &mut allocator) });
        for second in POOLS {
            let pool = Pool { first: 0, second };
            seam_pool_end(allocator, pool);
            while seam_pool_release(allocator, pool) == Status::Ok {}
        }
        check("seam_set_memory_fraction", seam_set_memory_fraction(allocator, 1.0));
        // SAFETY: the number of bytes is not asked for.
        check("seam_empty_cache", unsafe { seam_empty_cache(allocator, ptr::null_mut()) });
        check("seam_check", seam_check(allocator));
    }
}
