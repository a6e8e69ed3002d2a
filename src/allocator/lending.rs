//! Memory that one process gives back so that another process on the device can take it.
//!
//! Owns: the choice of the lender ([`Lender`]), which reaches other processes, and which memory is given back when they
//! ask. `borrowing.rs` asks them for memory.
//!
//! # Note: no lock is held during a wait for another process
//!
//! **Asking** is done without the allocator's lock. So while a request waits for other processes, other threads of its
//! process allocate and free. Its process also gives memory back when it is asked itself: two processes that ask each
//! other both get their answers.
//!
//! **Giving** waits neither for the GPU nor for another process, with the strategies that tell which memory the GPU has
//! passed. The lock is held as long as the driver takes to release.

use super::core::Allocator;
use super::operations::DeviceLending;
use crate::driver::in_relaxed_capture_mode;
use crate::error::Result;
use crate::features::lending::Lender;
use crate::report::lending::LendableBytes;
use std::sync::Arc;

impl Allocator {
    /// Returns the bytes that are live but not held: the bytes of sleeping tags, and of spilled memory.
    pub(super) fn live_elsewhere(&self) -> u64 {
        let heap = &self.core.lock().heap;
        heap.live_asleep() + heap.live_spilled()
    }
}

impl DeviceLending<'_> {
    /// Sets the lender that asks other processes for memory before a request is refused; with `None` no process is
    /// asked. A request that is under way at the change may still ask the previous lender.
    pub fn set_lender(self, lender: Option<Arc<dyn Lender>>) {
        let before = std::mem::replace(&mut self.0.core.lock().features.lending.lender, lender);
        // The lender is a value of the program: dropping it may call the allocator.
        drop(before);
    }

    /// Returns how many bytes the allocator holds, and could give back. Makes no driver call.
    #[must_use]
    pub fn lendable(self) -> LendableBytes {
        let stats = self.0.stats();
        let elsewhere = self.0.live_elsewhere();
        let held = stats.reserved_bytes.all.current;
        // Memory that sleeps or is spilled is live, and not held.
        let live = stats.active_bytes.all.current.saturating_sub(elsewhere).min(held);
        LendableBytes { held, live, free: held - live }
    }

    /// Gives free memory back to the driver because another process needs it: `bytes` and hardly more, as by
    /// [`Allocator::trim`](crate::Allocator::trim). Returns the bytes given back.
    ///
    /// With the strategy `stitch` only memory that the GPU is known to have passed goes back, without a wait: an event
    /// is recorded on each stream that freed memory since the last call, so that memory freed before this call can go
    /// back at the next call. With other strategies the CPU may wait for the GPU. During a stream capture no memory
    /// goes back.
    ///
    /// # Errors
    /// The errors of [`Allocator::trim`](crate::Allocator::trim).
    pub fn lend(self, bytes: u64) -> Result<u64> {
        let core = &mut *self.0.core.lock();
        if core.capturing() || bytes == 0 {
            return Ok(0);
        }
        let driver = Arc::clone(&core.driver);
        // A capture that the allocator does not know of may be under way on another thread.
        in_relaxed_capture_mode(&*driver, true, || {
            if core.rules.abilities.tells_passed {
                return core.release_passed(bytes);
            }
            let down_to = core.heap.reserved().saturating_sub(bytes);
            core.trim(down_to)
        })
    }
}
