//! Asks other processes on the device for memory, and gives memory back when they ask.
//!
//! Owns: how many bytes a request lacks, and how the request is tried again after each answer. `lending.rs` has the
//! public operations, and `features/lending.rs` how much to ask for.

use super::core::Core;
use super::search::Search;
use crate::backing;
use crate::error::Result;
use crate::features::lending::{Asking, call};
use crate::heap::{GRANULE, Request, ViewUsage};
use crate::ids::BlockId;
use crate::limits::Increase;
use crate::report::lending::Lent;
use crate::strategy::{Assumption, Goal, Means, OWN_SEGMENTS_ESTIMATES};
use parking_lot::MutexGuard;
use std::time::Duration;

/// Asks other processes for the memory that a request lacks, if they may be asked, and tries the request after each
/// answer.
pub(super) fn borrow(search: &mut Search<'_, '_>) -> Result<Option<BlockId>> {
    if search.core.features.lending.lender.is_none() {
        return Ok(None);
    }
    let mut asking = Asking::new();
    while let Some(missing) = search.core.missing_for(&search.prepared.request, search.refused) {
        let Some(lent) = ask_others(&mut asking, search.core, missing) else { break };
        // Other threads may have freed memory meanwhile, so after the last answer all means are tried, even if no
        // process has given memory.
        let means = if lent.given > 0 || !lent.again { search.core.last_means() } else { Means::Cheap };
        if let Some(id) = search.retry(means)? {
            return Ok(Some(id));
        }
    }
    search.core.features.lending.told = asking.told();
    Ok(None)
}

/// Asks other processes for `missing` bytes; the lock is not held meanwhile. The caller then tries the request again,
/// whatever the answer. Returns `None` if there is no lender, or if the last answer has come.
pub(super) fn ask_others(asking: &mut Asking, core: &mut MutexGuard<'_, Core>, missing: u64) -> Option<Lent> {
    let lender = core.features.lending.lender.clone().filter(|_| !asking.is_over())?;
    let longest = Duration::from_millis(core.config.broker_wait_ms);
    let shortage = asking.shortage(missing, core.heap.reserved());
    let lent = MutexGuard::unlocked(core, || call(lender, &shortage));
    Some(asking.note(&lent, longest))
}

impl Core {
    /// Returns the bytes that the device lacks for a request; `None` if more bytes would not help, because a limit
    /// forbids growth or because the request's pool has a source of its own.
    fn missing_for(&mut self, request: &Request, refused: Option<ViewUsage>) -> Option<u64> {
        if self.heap.has_source(request.pool) {
            return None;
        }
        let segmented = self.heap.is_segmented(request.pool);
        let strategy = if segmented { OWN_SEGMENTS_ESTIMATES } else { self.strategy.estimates() };
        let assumption = if refused.is_some() { Assumption::NoMoreViews } else { Assumption::AsIs };
        let free = self.driver.memory_info().map_or(0, |info| info.free);
        let present = self.present(free);
        let growth = strategy.growth_needed(&present, request, assumption);
        self.missing_of_device(growth)
    }

    /// Returns the bytes that the device lacks for a growth by `growth` bytes; `None` if more bytes would not help.
    pub(super) fn missing_of_device(&self, growth: u64) -> Option<u64> {
        let limited = !self.limits.allows(self.heap.reserved(), Increase::of(growth));
        let info = self.driver.memory_info().ok().filter(|info| !limited && growth <= info.total)?;
        Some(self.limits.missing(self.heap.reserved(), info.free, growth).max(GRANULE))
    }

    /// Gives back free memory that the GPU has passed, without a wait: `enough` bytes and hardly more. Returns the
    /// bytes given back.
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
