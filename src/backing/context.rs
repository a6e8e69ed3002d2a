//! What a strategy works on, and why it may fail.
//!
//! Owns: [`StrategyContext`], and the steps that are no single file's: waiting for the device, memory of other streams, and
//! calls that captures forbid.

use super::rollback::PendingRollback;
use crate::config::{Config, Increase, Limits};
use crate::driver::{Driver, DriverError, DriverResult, in_relaxed_capture_mode};
use crate::error::Error;
use crate::heap::{Heap, Request, ViewUsage};
use crate::streams::{StreamContext, Streams};

/// All that a strategy may touch.
pub(crate) struct StrategyContext<'a> {
    pub(crate) heap: &'a mut Heap,
    pub(crate) streams: &'a mut Streams,
    pub(crate) rollback: &'a mut PendingRollback,
    pub(crate) driver: &'a dyn Driver,
    pub(crate) config: &'a Config,
    pub(crate) limits: Limits,
}

/// Why a miss could not be met.
#[derive(Debug)]
pub(crate) enum Miss {
    /// Too little memory, after all was tried.
    OutOfMemory {
        /// What views would have taken with the one that the bounds forbade, all others dropped that could be. `None` where
        /// the request wanted no view, or got it.
        refused: Option<ViewUsage>,
    },
    /// Something else went wrong.
    Failed(Error),
}

impl Miss {
    /// Too little memory, and no view was refused.
    pub(crate) const OUT_OF_MEMORY: Self = Self::OutOfMemory { refused: None };
}

impl From<DriverError> for Miss {
    fn from(error: DriverError) -> Self {
        if error.is_out_of_memory() { Self::OUT_OF_MEMORY } else { Self::Failed(error.into()) }
    }
}

impl From<Error> for Miss {
    fn from(error: Error) -> Self {
        match error {
            Error::Driver(error) => error.into(),
            error => Self::Failed(error),
        }
    }
}

impl StrategyContext<'_> {
    /// Whether a stream may be being captured: until that is over, nothing may be waited for, asked for or freed that a
    /// capture forbids.
    pub(crate) fn capturing(&self) -> bool {
        self.heap.private().capturing()
    }

    /// What is known of streams, and what that works on.
    pub(crate) fn on_streams(&mut self) -> (&mut Streams, StreamContext<'_>) {
        let context = StreamContext { heap: self.heap, driver: self.driver, sharing: self.config.sharing };
        (self.streams, context)
    }

    /// Whether so much more memory keeps within the limits.
    pub(crate) fn allows(&self, more: Increase) -> bool {
        self.limits.allows(self.heap.reserved(), more)
    }

    /// Returns the bytes by which memory could grow as things are; 0 where the driver does not say.
    pub(crate) fn room(&self) -> u64 {
        self.driver.memory_info().map_or(0, |info| info.free).min(self.limits.room(self.heap.reserved()))
    }

    /// Tries to undo what earlier failed calls have left behind.
    pub(crate) fn retry_rollback(&mut self) -> DriverResult<()> {
        self.rollback.retry(self.heap, self.driver)
    }

    /// The CPU waits for the device, and streams that nobody named: neither unmap nor release waits for the GPU.
    pub(crate) fn wait_for_all(&mut self) -> DriverResult<()> {
        self.driver.synchronize()?;
        let (streams, mut on) = self.on_streams();
        streams.epochs.all_passed(&mut on);
        Ok(())
    }

    /// The CPU waits for every freed block that other streams use, and frees it.
    pub(crate) fn wait_for_recorded_streams(&mut self) -> DriverResult<()> {
        self.heap.counters_mut().num_sync_all_streams += 1;
        self.streams.recorded.synchronize(self.heap, self.driver)
    }

    /// What every stream has passed belongs to all.
    pub(crate) fn gather(&mut self, request: &Request) -> DriverResult<bool> {
        let (streams, mut on) = self.on_streams();
        streams.epochs.gather(&mut on, request.pool.large())
    }

    /// Ends every open epoch and notes what the GPU has passed.
    pub(crate) fn advance_epochs(&mut self) -> DriverResult<()> {
        let (streams, mut on) = self.on_streams();
        streams.epochs.advance(&mut on)
    }

    /// Hands the request memory of other streams, behind GPU-side waits. Returns whether any came.
    pub(crate) fn wait_for_others(&mut self, request: &Request, missing: u64) -> Result<bool, Miss> {
        let (streams, mut on) = self.on_streams();
        Ok(streams.epochs.wait_for(&mut on, request, missing)?)
    }

    /// Makes calls that captures forbid so that none is harmed.
    pub(crate) fn allowed_in_captures<T>(&self, calls: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        in_relaxed_capture_mode(self.driver, self.capturing(), calls)
    }
}
