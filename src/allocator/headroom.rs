//! Free memory goes back to the driver when other users of the device need memory.
//!
//! Owns: how much memory goes back, and the order of the steps. `features/headroom.rs` decides when.
//!
//! # Note: headroom
//!
//! **Rationale.** NCCL, cuBLAS and other processes take memory of the device when they need it, and fail if the device
//! has none, while a caching allocator may have gigabytes free. A limit on the memory held does not help, because it
//! does not count the memory of these other users.
//!
//! **Approach.** One option does two things. Memory does not grow into the headroom: `AllocatorContext::allows` asks
//! the device before each growth, and a refusal is handled as at a limit. And when other users take memory of the
//! headroom, free memory goes back until the headroom is whole again. The allocator looks at the device at misses,
//! never at hits: at most once in 10 ms, or once in 256 misses if these come faster. The look comes after the request
//! is served, so that the request first takes the free memory that it needs. Only memory that the GPU has passed goes
//! back, and the allocator does not wait for the GPU (`cudaFree` itself does wait). A look that finds too little free
//! on the device, and no memory to give back, doubles the pause before the next look, up to 64 times the first pause.
//!
//! A soft headroom, the default, refuses no growth. Every ten seconds a miss looks at the device. If less than the
//! headroom is free, the memory goes back that was unused since the last look: the bytes held beyond the most that were
//! in use. A job with steps of less than ten seconds does not need this memory again, so the cost is one driver call.
//!
//! **Limitations.**
//! - A program without misses never looks at the device.
//!   [`DeviceLending::enforce_headroom`](crate::operations::DeviceLending::enforce_headroom) looks at any time.
//! - Between the look and the growth, other users may take memory too: the headroom is not reserved.
//! - During a capture nothing goes back.

use super::core::Core;
use super::operations::DeviceLending;
use crate::backing;
use crate::driver::in_relaxed_capture_mode;
use crate::error::Result;
use crate::strategy::Goal;
use std::sync::Arc;

/// The part (1/n) of the memory held that may be unused because of fragmentation. At their peaks, steps of recorded
/// jobs use 99.3% or more of the memory held.
const FRAGMENTED: u64 = 128;

impl DeviceLending<'_> {
    /// Asks how much of the device is free, and gives free memory back until the headroom
    /// ([`Config::headroom`](crate::Config::headroom), a soft one too) is free again. Returns the bytes given back.
    /// Some misses do the same; with a soft headroom they give back only memory that was unused for ten seconds. A
    /// program without misses calls this method before other programs need memory, or from time to time.
    ///
    /// The call gives back the missing bytes, as far as the GPU has passed them, from memory that is free for every
    /// stream and from memory of single streams. An event is recorded on each stream that freed memory since the last
    /// call, so that a later call can give back the rest. With `stitch`, `expandable` and `malloc-async` the CPU does
    /// not wait; strategies of plain memory call `cudaFree`, which waits. Memory of private pools stays. During a
    /// stream capture, and without a headroom, the call does nothing.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver): the driver did not report the device's free memory, or a call failed.
    /// Memory given back before the error stays given back, and is accounted.
    /// [`Error::HostMemory`](crate::Error::HostMemory).
    ///
    /// ```
    /// # use seamalloc::{Allocator, Config, driver::{prelude::*, StreamId, sim::{SimConfig, SimGpu}}};
    /// # use std::sync::Arc;
    /// let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=10GiB")?)?);
    /// let allocator = Allocator::new(gpu.clone(), Config::parse("headroom:4GiB")?)?;
    /// allocator.free(allocator.allocate(6 << 30, StreamId::DEFAULT)?)?;
    /// // Another process takes memory.
    /// gpu.malloc(1 << 30)?;
    /// assert!(allocator.lending().enforce_headroom()? >= 1 << 30, "whole chunks");
    /// assert!(gpu.memory_info()?.free >= 4 << 30);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enforce_headroom(self) -> Result<u64> {
        self.0.core.lock().enforce_headroom()
    }

    /// Gives memory back for the headroom, if a look at the device's free memory is due. With a headroom that is not
    /// soft, a look is always due. Returns the bytes given back.
    pub(super) fn tick_headroom(self) -> Result<u64> {
        let core = &mut *self.0.core.lock();
        if !core.config.headroom.is_soft {
            return core.enforce_headroom();
        }
        let before = core.heap.reserved();
        core.yield_at_miss();
        Ok(before.saturating_sub(core.heap.reserved()))
    }
}

impl Core {
    /// Gives memory back until the headroom is free, as far as memory can go back. Returns the bytes given back.
    fn enforce_headroom(&mut self) -> Result<u64> {
        if self.config.headroom.bytes == 0 || self.capturing() { Ok(0) } else { self.keep_headroom(u64::MAX) }
    }

    /// Gives memory back after a miss, if a look at the device's free memory is due. A failure is only logged, since
    /// the request itself is over.
    #[cold]
    pub(super) fn yield_at_miss(&mut self) {
        let (now, is_soft) = (self.driver.clock_ns(), self.config.headroom.is_soft);
        // With a soft headroom nothing is released that would make the CPU wait.
        let due = match is_soft {
            true => self.rules.abilities.tells_passed && self.features.headroom.due_softly(now),
            false => self.features.headroom.due(now),
        };
        if !due || self.capturing() {
            return;
        }
        let unused = if is_soft { self.unused_since_last_look() } else { u64::MAX };
        if let Err(error) = self.keep_headroom(unused) {
            tracing::warn!(%error, "memory that others need could not be given back");
        }
    }

    /// Returns the bytes held beyond the most that were in use since the last look at the device's free memory, less an
    /// allowance for fragmentation.
    fn unused_since_last_look(&mut self) -> u64 {
        let (held, used) = (self.heap.reserved(), self.heap.journal_mut().most_used_since_last_look());
        held.saturating_sub(used).saturating_sub(held / FRAGMENTED)
    }

    /// Gives memory back until the headroom is free or nothing more can go back, but hardly more than `most` bytes.
    fn keep_headroom(&mut self, most: u64) -> Result<u64> {
        self.heap.journal_mut().looked_for_headroom();
        // The next look at the device is not due at once, whatever the result of this look.
        self.features.headroom.done(self.driver.clock_ns(), true);
        let free = self.timed(|_, context| context.driver().memory_info())?.free;
        let missing = self.config.headroom.bytes.saturating_sub(free).min(most);
        if missing == 0 {
            self.features.headroom.done(self.driver.clock_ns(), false);
            return Ok(0);
        }
        self.heap.journal_mut().headroom_was_short();
        self.drain_guard();
        let before = self.heap.reserved();
        let down_to = before.saturating_sub(missing);
        let driver = Arc::clone(&self.driver);
        // A capture that the allocator does not know of may be under way on another thread.
        let released = in_relaxed_capture_mode(&*driver, true, || {
            self.timed(|strategy, context| {
                context.poll_recorded()?;
                backing::drop_spilled(context)?;
                strategy.release(context, Goal::Towards { down_to })
            })
        });
        let given = before.saturating_sub(self.heap.reserved());
        if given > 0 {
            self.heap.journal_mut().released_for_headroom(given);
            self.features.headroom.done(self.driver.clock_ns(), false);
            tracing::info!(bytes = given, missing, free, "memory went back: others need the device's");
        }
        released?;
        self.checked()?;
        Ok(given)
    }
}
