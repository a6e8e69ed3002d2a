//! Other processes on the device are asked for memory, and what goes back where they ask.
//!
//! Owns: how much is asked for, and how often. `lending.rs` has the public operations.

use super::core::Core;
use super::search::Search;
use crate::backing;
use crate::config::Increase;
use crate::error::Result;
use crate::heap::{GRANULE, Request, ViewUsage};
use crate::ids::BlockId;
use crate::report::lending::{Lending, Lent, Shortage};
use crate::strategy::{Assumption, Goal, Means, OWN_SEGMENTS_ESTIMATES};
use parking_lot::MutexGuard;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// In bytes: what is asked for beyond what is missing, for each time that it did not suffice. The driver was seen to refuse some
/// memory that it calls free.
const MORE_EACH_TIME: u64 = 32 << 20;
/// At least this part (1/n) of what is held is asked for. A process that grows asks every now and then so, and not for each block: before
/// it asks, its own memory has gone back, and the CPU has waited for the GPU.
const AHEAD: u64 = 8;
/// So often more is asked for.
const TIMES_MORE: u64 = 8;

/// Asks other processes for what a request lacks, if they may be asked, and tries it again after each answer.
pub(super) fn borrow(search: &mut Search<'_, '_>) -> Result<Option<BlockId>> {
    if search.core.features.lending.lender.is_none() {
        return Ok(None);
    }
    let mut asking = Asking::new();
    while let Some(missing) = search.core.missing_for(&search.prepared.request, search.refused) {
        let Some(lent) = asking.ask(search.core, missing) else { break };
        // Others may have freed memory of this process meanwhile, which its own means get at.
        let means = if lent.given > 0 || !lent.again { search.core.last_means() } else { Means::Cheap };
        if let Some(id) = search.retry(means)? {
            return Ok(Some(id));
        }
    }
    search.core.features.lending.told = asking.told;
    Ok(None)
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
        let lender = core.features.lending.lender.clone().filter(|_| !self.over)?;
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
