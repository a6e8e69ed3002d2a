//! A child process that was forked from one with allocators: its calls return errors and touch nothing.
//!
//! Owns: one word that every call checks first. The word is not 0 in a forked child, where the GPU's state belongs to
//! the parent and locks may be held by threads that do not exist, and while a callback runs under the lock of an
//! allocator: the filter or the source of a private pool, an observer.

use crate::status::{Failure, Outcome, Status};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bit that says that this process is a forked child.
const FORKED: usize = 1;
/// The number that each running callback adds to `ATTENTION`.
const CALLBACK: usize = 2;

static ATTENTION: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Admits a call, or returns an error. Takes no lock, and makes no system call.
#[inline]
pub(crate) fn admit() -> Outcome<()> {
    if ATTENTION.load(Ordering::Relaxed) == 0 { Ok(()) } else { admit_with_care() }
}

#[cold]
fn admit_with_care() -> Outcome<()> {
    if is_child() {
        let text = "this process was forked from one that uses seamalloc: the memory, and the CUDA context, are the \
                    parent's; start processes that use the GPU with exec (PyTorch: start method `spawn`)";
        return Err(Failure::new(Status::Forked, text));
    }
    if IN_CALLBACK.try_with(Cell::get).unwrap_or(false) {
        let text = "filters and sources of private pools, and observers, run under the allocator's lock, and may call \
                    nothing of seamalloc";
        return Err(Failure::new(Status::Reentrant, text));
    }
    Ok(())
}

/// Returns whether this process was forked from one that had called [`notice_forks`].
pub(crate) fn is_child() -> bool {
    ATTENTION.load(Ordering::Relaxed) & FORKED != 0
}

/// Makes the calls of children that are forked from now on fail. The function is called before the first allocator is
/// created. A child that was forked earlier has no memory of its parent to protect, and may use the library.
pub(crate) fn notice_forks() -> Outcome<()> {
    static REGISTERED: OnceLock<i32> = OnceLock::new();
    match REGISTERED.get_or_init(register_once) {
        0 => Ok(()),
        code => Err(Failure::new(Status::Internal, format_args!("pthread_atfork failed with {code}"))),
    }
}

#[cfg(unix)]
fn register_once() -> i32 {
    extern "C" fn in_child() {
        ATTENTION.fetch_or(FORKED, Ordering::Relaxed);
    }
    // SAFETY: the function lives as long as the library, for which libc registers it. It changes one word, which a
    // handler in a child may do.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) }
}

#[cfg(not(unix))]
fn register_once() -> i32 {
    0
}

/// Runs the filter or the source of a private pool, or an observer. Calls of the library from this callback, on this
/// thread, are refused.
pub(crate) fn in_callback<T>(callback: impl FnOnce() -> T) -> T {
    /// The guard that ends a callback. The field says whether another callback was already running on this thread.
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            let _ = IN_CALLBACK.try_with(|inside| inside.set(self.0));
            ATTENTION.fetch_sub(CALLBACK, Ordering::Relaxed);
        }
    }
    ATTENTION.fetch_add(CALLBACK, Ordering::Relaxed);
    let _leave = Leave(IN_CALLBACK.try_with(|inside| inside.replace(true)).unwrap_or(false));
    callback()
}
