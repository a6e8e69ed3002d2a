//! The steps before a request that is no plain hit: live memory that a failed call left unmapped is mapped again, and
//! frees that other streams have passed are completed.

use super::core::Core;
use crate::error::Result;
use crate::strategy::Goal;

impl Core {
    /// Frees blocks that other streams have passed, unless a capture forbids to query events.
    pub(super) fn poll(&mut self) -> Result<()> {
        if self.capturing() {
            return Ok(());
        }
        if self.streams.recorded.waiting() == 0 {
            // During a wait, the last streams that used a spilled block may have passed it, so its memory can go back
            // now.
            return if self.heap.has_passed_spilled() { self.drop_spilled() } else { Ok(()) };
        }
        let polled = self.timed(|_, context| context.poll_recorded());
        if self.heap.is_release_due() {
            self.release_unkept();
        }
        if self.heap.spilled() > 0 {
            self.drop_spilled()?;
        }
        self.end_sleep_of_released();
        polled
    }

    /// Returns whether the next request should query the events of other streams, even if it is a hit.
    pub(super) fn poll_due(&self) -> bool {
        let recorded = &self.streams.recorded;
        recorded.is_due() || (self.rules.polls_first && recorded.waiting() > 0)
    }

    /// Gives back to the driver the segments that the layout does not keep. A segment that cannot go now stays free,
    /// and goes at the next call.
    #[cold]
    pub(super) fn release_unkept(&mut self) {
        self.heap.clear_release_due();
        if self.capturing() {
            return;
        }
        if let Err(error) = self.timed(|strategy, context| strategy.release(context, Goal::Unkept)) {
            tracing::warn!(%error, "a free segment could not be given back; it is kept");
        }
    }

    /// Maps the live memory again that a failed call left unmapped.
    pub(super) fn make_whole(&mut self) -> Result<()> {
        Ok(if self.rollback.is_whole() { Ok(()) } else { self.timed(|_, context| context.retry_rollback()) }?)
    }
}
