//! Calls of the C library: every function, with arguments that are right, stale, NULL, of another allocator, or nothing at all.
//!
//! What the header asks of a caller is kept: pointers are NULL or lead to as much memory as is said, texts end. All else may be
//! wrong. Whatever is called, no function answers that a rule of the library is broken, an error comes with its text, and at the
//! end every allocator passes its own check.
//!
//! ```text
//! attack       several threads at once, callbacks that call back, and every option
//! arguments    what a call is given, made of an input's bytes
//! callbacks    the program's functions that the library calls
//! calls        the functions there are
//! ```

#![allow(unsafe_code, reason = "the functions are C's")]

mod arguments;
mod attack;
mod callbacks;
mod calls;

use arbitrary::Unstructured;
use arguments::Arguments;
pub use attack::{Reached, attack};
use seamalloc_c_library::allocator::{
    seam_check, seam_create, seam_destroy, seam_empty_cache, seam_free, seam_set_memory_fraction,
};
use seamalloc_c_library::ids::Pool;
use seamalloc_c_library::pluggable::{seam_plugged, seam_plugged_devices, seamalloc_free};
use seamalloc_c_library::pools::{seam_pool_end, seam_pool_release};
use seamalloc_c_library::recording::seam_record_new;
use seamalloc_c_library::status::{Status, seam_last_error, seam_last_error_text};
use std::ffi::{CStr, c_int, c_void};
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Calls of an input at most.
const MAX_CALLS: usize = 200;

/// The second numbers of the pools that PyTorch's hooks are called with.
const POOLS: RangeInclusive<u64> = 1..=4;

/// The library has one last error a thread, but one set of plugged allocators and defaults a process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static ENVIRONMENT: Once = Once::new();

/// Makes the calls.
///
/// # Panics
/// An answer is wrong.
pub fn run(data: &[u8]) {
    let _alone = begin();
    let mut arguments = Arguments::new(Unstructured::new(data));
    arguments.create();
    for _ in 0..MAX_CALLS {
        let Some((name, answer)) = calls::make(&mut arguments) else { break };
        if let Some(status) = answer {
            check(name, status);
        }
        arguments.learn();
    }
    end(arguments);
}

/// Waits until nobody else calls the library, and prepares it.
fn begin() -> MutexGuard<'static, ()> {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: before the first call of the library, in a process whose other threads ask Rust for the environment, which locks it.
    ENVIRONMENT.call_once(|| unsafe { std::env::set_var("SEAMALLOC_DEVICE", "sim:h200,capacity=1GiB") });
    callbacks::take_messages();
    alone
}

/// An answer is no broken rule, and an error is told.
fn check(name: &str, status: Status) {
    assert!(status != Status::Internal, "{name}: {}", last_text());
    if status != Status::Ok {
        assert!(
            seam_last_error() == status,
            "{name} answers {status:?}, and the last error is {:?}",
            seam_last_error()
        );
        assert!(!last_text().is_empty(), "{name} fails with {status:?} and says nothing");
    }
}

fn last_text() -> String {
    // SAFETY: the text is the library's, and valid until the next call that fails.
    unsafe { CStr::from_ptr(seam_last_error_text()) }.to_string_lossy().into_owned()
}

/// Every allocator is whole, can be freed what it handed out, and is refused once it is destroyed.
fn end(arguments: Arguments<'_>) {
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

/// An allocator on a small simulated device.
fn create(device: &CStr, options: &CStr) -> Option<u64> {
    let mut allocator = 0;
    // SAFETY: texts that end, and a place to write to.
    let status = unsafe { seam_create(device.as_ptr(), options.as_ptr(), &mut allocator) };
    check("seam_create", status);
    (status == Status::Ok).then_some(allocator)
}
