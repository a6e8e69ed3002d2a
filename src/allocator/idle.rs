//! Memory goes back to the driver while the program does not use the allocator.
//!
//! Owns: when a program counts as idle, and how long it must be idle before memory goes back.
//!
//! # Note: idleness
//!
//! **Rationale.** A server holds the memory that its streams needed at their peak, also at night. Other processes on
//! the device could use that memory; but taking it again costs time, which a busy program should not pay.
//!
//! **Approach.** A caller with a clock looks at the allocator about once a second. Where the program has allocated and
//! freed nothing since the last look, the time adds up, and memory goes back once this time is [`PRICE`] times as long
//! as the driver would need to give the memory again. So a program that resumes loses at most a thousandth of its idle
//! time. The first look after that time records an event on each stream, and a later look releases the memory that the
//! streams have passed by then. Neither the CPU nor the GPU waits.
//!
//! **Limitations.**
//! - A server that gets requests at shorter intervals than the required idle time never counts as idle.
//! - With other strategies than `stitch` no memory goes back: the other strategies cannot tell passed memory without a
//!   wait.

use super::core::Allocator;
use super::operations::{DeviceLending, Streams};
use crate::driver::in_relaxed_capture_mode;
use crate::error::Result;
use std::sync::Arc;
use std::time::Duration;

/// The idle time before memory goes back to the driver, as a multiple of the time that it takes to get the memory
/// again.
const PRICE: u32 = 1000;
/// The time in nanoseconds that a GiB of memory costs in the driver: its release, new chunks, and the views over them.
/// Recorded jobs with several streams take 2.4 to 8.1 ms for each GiB.
const NS_PER_GIB: u64 = 10_000_000;
const GIB: u64 = 1 << 30;

/// Gives an allocator's free memory back to the driver while the program does not use the allocator.
///
/// The type has no clock and no thread: call [`tick`](Self::tick) about once a second. The C library and the PyTorch
/// package make these calls, with the option [`idle_release_s`](crate::Config::idle_release_s).
///
/// ```
/// # use seamalloc::{Allocator, Config, IdleRelease, driver::{StreamId, sim::{SimConfig, SimGpu}}};
/// # use std::{sync::Arc, time::Duration};
/// # let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200")?)?);
/// let allocator = Allocator::new(gpu, Config::default())?;
/// let mut idle = IdleRelease::new(Duration::from_secs(5));
/// allocator.free(allocator.allocate(1 << 30, StreamId::DEFAULT)?)?;
/// for second in 0..12 {
///     idle.tick(&allocator, Duration::from_secs(second))?;
/// }
/// assert_eq!(allocator.reports().reserved(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct IdleRelease {
    after: Duration,
    /// The numbers of allocations and frees at the last call of [`Self::tick`].
    seen: Option<(u64, u64)>,
    /// The time at which the numbers in `seen` last changed.
    since: Duration,
    /// The number of calls of [`Self::tick`] in this idle time that tried to give memory back.
    looks: u32,
}

/// The most calls of [`IdleRelease::tick`] in one idle time that try to give memory back. The first call only records
/// events, and work on the GPU may still run at the second.
const MOST_LOOKS: u32 = 60;

impl IdleRelease {
    /// Creates an `IdleRelease` for which a program is idle when it has allocated and freed nothing for `after`, and
    /// for a thousand times as long as the driver would take to give the memory again (10 ms a GiB).
    #[must_use]
    pub fn new(after: Duration) -> Self {
        Self { after, seen: None, since: Duration::ZERO, looks: 0 }
    }

    /// Looks at the allocator at the time `now`, of any clock that does not go backwards, and gives memory back if the
    /// program is idle. Returns the bytes given back. The call may call the driver, without waiting for the GPU. With a
    /// headroom, the call also gives memory back for the headroom
    /// ([`DeviceLending::enforce_headroom`](crate::operations::DeviceLending::enforce_headroom)), even if the program
    /// is not idle.
    ///
    /// # Errors
    /// The errors of [`DeviceLending::release_passed`](crate::operations::DeviceLending::release_passed) and
    /// [`DeviceLending::enforce_headroom`](crate::operations::DeviceLending::enforce_headroom).
    pub fn tick(&mut self, allocator: &Allocator, now: Duration) -> Result<u64> {
        let kept = allocator.lending().tick_headroom()?;
        let stats = allocator.stats();
        let seen = (stats.allocation.all.allocated, stats.allocation.all.freed);
        if self.seen.replace(seen) != Some(seen) {
            (self.since, self.looks) = (now, 0);
            return Ok(kept);
        }
        let live = stats.allocated_bytes.all.current.saturating_sub(allocator.live_elsewhere());
        let free = stats.reserved_bytes.all.current.saturating_sub(live);
        let idle = now.saturating_sub(self.since);
        if free == 0 || self.looks >= MOST_LOOKS || idle < self.after.max(price(free)) {
            return Ok(kept);
        }
        self.looks += 1;
        let given = allocator.lending().release_passed()?;
        if given > 0 {
            tracing::info!(bytes = given, idle_s = idle.as_secs(), "memory of an idle program went back");
        }
        Ok(kept + given)
    }
}

/// Returns how long a program must be idle before `free` bytes of free memory go back to the driver.
fn price(free: u64) -> Duration {
    let ns = u128::from(free) * u128::from(NS_PER_GIB) / u128::from(GIB);
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)).saturating_mul(PRICE)
}

impl DeviceLending<'_> {
    /// Gives back to the driver all free memory that the GPU is known to have passed, without a wait of the CPU or the
    /// GPU. Returns the bytes given back. An event is recorded on each stream that freed memory since the last call, so
    /// that memory freed before this call can go back at the next call, if the GPU has passed the memory by then.
    /// Memory of private pools that were not released stays. During a stream capture, and with other strategies than
    /// `stitch`, nothing is given back.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver); memory given back before the failed call stays given back, and is
    /// accounted.
    pub fn release_passed(self) -> Result<u64> {
        let core = &mut *self.0.core.lock();
        if core.capturing() || !core.rules.abilities.tells_passed {
            return Ok(0);
        }
        let driver = Arc::clone(&core.driver);
        // A capture that the allocator does not know of may be under way on another thread.
        in_relaxed_capture_mode(&*driver, true, || core.release_passed(u64::MAX))
    }
}

impl Streams<'_> {
    /// Logs a warning (`tracing`, target `seamalloc::waits`) for each overdue wait: a stream got memory that was freed
    /// on another stream, still waits for that stream on the GPU, and was found waiting by a call of this method at
    /// least `at_least` ago. Returns the number of these waits. The call considers only waits for recent work (work of
    /// the present round): such waits may deadlock if ranks of a job wait for one another. Each pair of streams is
    /// reported once. Call this method every few seconds, as the C library does. During a stream capture no event is
    /// queried.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver): an event could not be queried.
    pub fn warn_of_pending_waits(self, at_least: Duration) -> Result<usize> {
        let overdue = {
            let core = &mut *self.0.core.lock();
            if core.capturing() || !core.streams.new_waits.has_pending() {
                return Ok(0);
            }
            let driver = Arc::clone(&core.driver);
            in_relaxed_capture_mode(&*driver, true, || core.streams.new_waits.overdue(&*driver, at_least))?
        };
        overdue.iter().for_each(|wait| wait.warn());
        Ok(overdue.len())
    }
}
