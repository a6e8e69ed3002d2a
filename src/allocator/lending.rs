//! Memory goes from process to process on one device.
//!
//! Owns: when others are asked, how often a request is tried again, and what is given back when others ask. How they are reached is
//! the lender's matter ([`Lender`]).
//!
//! # Note: nobody holds a lock while it waits for another process
//!
//! **Asking** is done without the allocator's lock. So while a request waits for others, other threads of its process allocate
//! and free, and its process gives memory back when it is asked itself: two processes that ask each other both get their answers.
//!
//! **Giving** waits neither for the GPU nor for anybody, with the strategies that tell which memory the GPU has passed.
//! The lock is held as long as the driver takes to release.

use super::allocate::Found;
use super::core::{Allocator, Core};
use super::lender::Lender;
use super::operations::DeviceLending;
use super::prepared::{Order, Prepared};
use crate::backing;
use crate::config::Increase;
use crate::driver::in_relaxed_capture_mode;
use crate::error::Result;
use crate::heap::{GRANULE, Request, ViewUsage};
use crate::report::lending::{LendableBytes, Lending, Lent, Shortage};
use crate::strategy::{Assumption, Goal, Means, OWN_SEGMENTS_ESTIMATES};
use parking_lot::MutexGuard;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// In bytes: what is asked for beyond what is missing, for each time that it did not suffice. The driver was seen to refuse some
/// memory that it calls free.
const MORE_EACH_TIME: u64 = 32 << 20;
/// At least this part (1/n) of what is held is asked for. A process that grows asks every now and then so, and not for each block: before
/// it asks, its own memory has gone back, and the CPU has waited for the GPU.
const AHEAD: u64 = 8;
/// So often more is asked for.
const TIMES_MORE: u64 = 8;

impl Allocator {
    /// Returns the bytes that are live and not held: of tags that sleep, and of spilled memory.
    pub(super) fn live_elsewhere(&self) -> u64 {
        let heap = &self.core.lock().heap;
        heap.live_asleep() + heap.live_spilled()
    }

    /// Asks others for what a request lacks, and tries it again after each answer.
    pub(super) fn borrow_memory(
        &self,
        core: &mut MutexGuard<'_, Core>,
        order: &Order,
        mut prepared: Prepared,
        mut refused: Option<ViewUsage>,
    ) -> Result<(Prepared, Found)> {
        let mut asking = Asking::new();
        while let Some(missing) = core.missing_for(&prepared.request, refused) {
            let Some(lent) = asking.ask(core, missing) else { break };
            // Others may have freed memory of this process meanwhile, which its own means get at.
            let means = if lent.given > 0 || !lent.again { core.last_means() } else { Means::Cheap };
            match core.retry(order, &mut prepared, means)? {
                Ok(id) => return Ok((prepared, Ok(id))),
                Err(still) => refused = still,
            }
        }
        core.lending = asking.told;
        Ok((prepared, Err(refused)))
    }
}

impl DeviceLending<'_> {
    /// Sets who asks other processes for memory before a request is refused; `None` asks nobody. A request during which it is
    /// replaced may still ask the one before.
    pub fn set_lender(self, lender: Option<Arc<dyn Lender>>) {
        let before = std::mem::replace(&mut self.0.core.lock().lender, lender);
        // It is the program's, and dropping it may call anything.
        drop(before);
    }

    /// Returns what the allocator holds, and could give back. Makes no driver call.
    #[must_use]
    pub fn lendable(self) -> LendableBytes {
        let stats = self.0.stats();
        let elsewhere = self.0.live_elsewhere();
        let held = stats.reserved_bytes.all.current;
        // What sleeps or is spilled is live, and not held.
        let live = stats.active_bytes.all.current.saturating_sub(elsewhere).min(held);
        LendableBytes { held, live, free: held - live }
    }

    /// Gives free memory back to the driver because another process needs it: `bytes` and hardly more, as [`Allocator::trim`](crate::Allocator::trim). Returns
    /// the bytes given back.
    ///
    /// With the strategy `stitch` only memory goes that the GPU is known to have passed, and nothing is waited
    /// for: an event is recorded on each stream that freed memory since the last call, so that what was freed before this call
    /// can go at the next one. With other strategies the CPU may wait for the GPU. During a stream capture nothing goes.
    ///
    /// # Errors
    /// As [`Allocator::trim`](crate::Allocator::trim).
    pub fn lend(self, bytes: u64) -> Result<u64> {
        let core = &mut *self.0.core.lock();
        if core.capturing() || bytes == 0 {
            return Ok(0);
        }
        let driver = Arc::clone(&core.driver);
        // A capture of which nobody told the allocator may be under way on another thread.
        in_relaxed_capture_mode(&*driver, true, || {
            if core.config.strategy.joins_free_memory() {
                return core.release_passed(bytes);
            }
            let down_to = core.heap.reserved().saturating_sub(bytes);
            core.trim(down_to)
        })
    }
}

/// The questions of one request, and their bound: what is asked after each answer is tried once more, and the last answer is the
/// one that says so, or that comes when the time is over which a request may wait for others.
pub(super) struct Asking {
    since: Instant,
    told: Option<Lending>,
    over: bool,
}

impl Asking {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), told: None, over: false }
    }

    /// Asks others for bytes, without the lock. The request is to be tried again then, whatever the answer. Returns `None` if there
    /// is nobody to ask, or no more to be asked.
    pub(super) fn ask(&mut self, core: &mut MutexGuard<'_, Core>, missing: u64) -> Option<Lent> {
        let lender = core.lender.clone().filter(|_| !self.over)?;
        let longest = Duration::from_millis(core.config.broker_wait_ms);
        let told = self.told.get_or_insert(Lending { missing, ..Lending::default() });
        let more = MORE_EACH_TIME.saturating_mul(u64::from(told.rounds).min(TIMES_MORE));
        let held = core.heap.reserved();
        let wanted = missing.saturating_add(more).max(held / AHEAD);
        let shortage = Shortage { missing, wanted, held, since: self.since };
        let answer = MutexGuard::unlocked(core, || {
            catch_unwind(AssertUnwindSafe(|| {
                let answer = lender.ask(&shortage);
                drop(lender);
                answer
            }))
        });
        let lent = answer.unwrap_or_else(|_| {
            tracing::error!("a panic while other processes were asked for memory");
            Lent::default()
        });
        told.add(&lent, self.since);
        let again = lent.again && self.since.elapsed() < longest;
        self.over = !again;
        Some(Lent { again, ..lent })
    }

    /// Returns what is to be said of it in a report.
    pub(super) fn told(self) -> Option<Lending> {
        self.told
    }
}

impl Core {
    /// Returns the bytes that the device lacks for a request; `None` if more of them would not help: because a limit forbids
    /// growth, or because the memory is not the device's.
    fn missing_for(&mut self, request: &Request, refused: Option<ViewUsage>) -> Option<u64> {
        if self.heap.has_source(request.pool) {
            return None;
        }
        let segmented = self.heap.is_segmented(request.pool);
        let strategy = if segmented { OWN_SEGMENTS_ESTIMATES } else { self.strategy.estimates() };
        let assumption = if refused.is_some() { Assumption::NoMoreViews } else { Assumption::AsIs };
        let growth = strategy.growth_needed(&self.heap, &self.config, request, assumption);
        self.missing_of_device(growth)
    }

    /// Does the same for growth by these bytes.
    pub(super) fn missing_of_device(&self, growth: u64) -> Option<u64> {
        let limited = !self.limits.allows(self.heap.reserved(), Increase::of(growth));
        let info = self.driver.memory_info().ok().filter(|info| !limited && growth <= info.total)?;
        Some(self.limits.missing(self.heap.reserved(), info.free, growth).max(GRANULE))
    }

    /// Gives free memory back that the GPU has passed, without a wait: so many bytes and hardly more. Returns the bytes given back.
    pub(super) fn release_passed(&mut self, enough: u64) -> Result<u64> {
        let before = self.heap.reserved();
        self.drain_guard();
        self.timed(|strategy, context| {
            context.poll_recorded()?;
            backing::drop_spilled(context)?;
            strategy.release(context, Goal::Passed { enough })
        })?;
        self.checked()?;
        Ok(before.saturating_sub(self.heap.reserved()))
    }
}
