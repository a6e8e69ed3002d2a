//! The ways in which a freed block becomes free: at once, once other streams have passed the free, or in the driver's
//! own pool.
//!
//! Owns: which of these ways a block takes, and the steps that follow on a free. `free.rs` has the operations.

use super::core::Core;
use crate::error::{Error, Result};
use crate::heap::{Block, Kind};
use crate::ids::{BlockId, PoolIndex, StreamId};
use crate::streams::{self, Epochs, StreamContext};

/// An epoch of a stream ends once this part (1/n) of the reserved bytes was freed in it, but at least `LONG_EPOCH`
/// bytes. The limits keep events rare: each event costs a quarter of a microsecond.
const EPOCHS: u64 = 64;
const LONG_EPOCH: u64 = 8 << 20;

/// The way in which a block becomes free.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FreePath {
    /// The block is free at once.
    Now,
    /// The block is free once the streams that use it have passed the free.
    AfterStreams,
    /// The block goes into the driver's own pool.
    ToDriver,
    /// The block is a part of an allocation that grows, which is freed part by part.
    ByFeature,
}

impl Core {
    /// Frees the last part of an allocation that grows. The part was taken out of the table of live allocations.
    pub(super) fn free_part(&mut self, id: BlockId) -> Result<()> {
        let Block { address, size, pool, .. } = *self.heap.block(id);
        self.heap.end_part(id, true);
        let path = self.path_of_used(id);
        if let Err(error) = self.free_used(id, path) {
            // A part that could not be freed is still live.
            if self.heap.live(address) == Ok(id) {
                self.heap.end_part(id, false);
            }
            return Err(error);
        }
        self.freed(address, size, pool)
    }

    /// Takes the steps that follow every free.
    #[inline]
    pub(super) fn freed(&mut self, address: u64, size: u64, pool: PoolIndex) -> Result<()> {
        self.features.sharing.shares.end(address);
        if self.heap.is_release_due() {
            self.release_unkept();
        }
        if self.streams.low_water.is_reached(size, &self.heap) {
            self.consolidate();
        }
        if self.heap.knows_streams()
            && self.heap.count_freed(pool, size) > LONG_EPOCH.max(self.heap.reserved() / EPOCHS)
        {
            self.epoch_full(pool.large());
        }
        self.checked()
    }

    /// Returns the way to free a block that other streams use, that belongs to a private pool, or that guard mode
    /// watches.
    pub(super) fn path_of_used(&self, id: BlockId) -> FreePath {
        let Block { kind, pool, .. } = *self.heap.block(id);
        // Guarded memory is not of the driver's pool, and a private pool keeps its memory.
        let stays = kind == Kind::Guarded || self.capturing() || self.heap.is_private(pool.large());
        if self.rules.frees_to_driver && !stays { FreePath::ToDriver } else { FreePath::AfterStreams }
    }

    /// Frees a block that does not become free at once.
    pub(super) fn free_used(&mut self, id: BlockId, path: FreePath) -> Result<()> {
        let watched = self.begin_watched_free(id);
        if path != FreePath::ToDriver || !self.free_to_driver(id)? {
            self.free_after_streams(id)?;
        }
        if let Some(watched) = watched {
            self.end_watched_free(watched);
        }
        Ok(())
    }

    /// Frees a block once the streams that were named for it have passed the free. A spilled block also waits for its
    /// own stream.
    fn free_after_streams(&mut self, id: BlockId) -> Result<()> {
        let own = self.wait_for_own(id);
        let sleeps = self.heap.is_asleep(self.heap.block(id).pool);
        let freed = self.free_in_order(id);
        if sleeps {
            self.end_sleep_of_released();
        }
        if own && freed.is_err() {
            self.forget_own(id);
        }
        freed
    }

    /// Frees a block once the streams that were named for it have passed the free.
    fn free_in_order(&mut self, id: BlockId) -> Result<()> {
        let in_use = self.streams.recorded.has_uses(id);
        if in_use && !self.capturing() {
            let before = self.driver.busy_ns();
            let pending = match self.streams.recorded.record_events(&*self.driver, id) {
                // The block waits, like a block freed in a capture, until the host has memory for its events.
                Err(Error::HostMemory) => None,
                pending => pending.inspect_err(|_| self.heap.keep_live(id))?,
            };
            self.heap.journal_mut().stalled(self.driver.busy_ns().saturating_sub(before));
            if let Some(mut pending) = pending {
                if streams::are_safe_as_in_paddle(&self.config) {
                    self.timed(|_, context| {
                        let (streams, on) = context.on_streams();
                        streams.recorded.forget_passed(on.driver, &mut pending);
                    });
                }
                self.heap.freed_privately(id);
                self.heap.free_requested(id);
                self.streams.recorded.defer(&mut self.heap, pending);
                self.has_pre_work |= self.poll_due();
                return Ok(());
            }
        }
        self.heap.freed_privately(id);
        if in_use {
            self.heap.free_requested(id);
            self.timed(|_, context| {
                let (streams, on) = context.on_streams();
                streams.recorded.hold(on.heap, on.driver, id);
            });
            self.has_pre_work = true;
        } else {
            self.heap.clear_uses(id);
            self.heap.free_at_once(id);
        }
        Ok(())
    }

    /// Gives a block of no private pool back to the driver's pool. Returns `false` if the block cannot go back now.
    fn free_to_driver(&mut self, id: BlockId) -> Result<bool> {
        let freed = self.timed(|strategy, context| match strategy.stream_ordered() {
            Some(strategy) => strategy.free(context, id),
            None => Ok(false),
        });
        freed.inspect_err(|_| self.heap.keep_live(id))
    }

    /// Ends the epoch of a large pool's stream, because many bytes were freed in the epoch.
    #[cold]
    fn epoch_full(&mut self, large: PoolIndex) {
        self.heap.reset_freed(large);
        self.on_epochs("an epoch could not be ended", |epochs, on| epochs.end(on, large));
    }

    /// Ends the epoch of an external stream that is the current one at a free.
    #[cold]
    pub(super) fn end_external(&mut self, large: PoolIndex, current: StreamId) {
        if self.heap.is_external(current) && self.heap.pool(large).stream == current {
            self.on_epochs("an epoch could not be ended", |epochs, on| epochs.end_external(on, large));
        }
    }

    /// Makes idle the memory that the GPU has passed, so that ranges freed on different streams can merge. The call
    /// comes when live memory falls below its low-water mark, as at the end of a training step.
    #[cold]
    fn consolidate(&mut self) {
        self.on_epochs("freed memory could not be gathered", |epochs, on| epochs.gather_all(on));
        if self.heap.spilled() > 0 || self.heap.host_stock().bytes() > 0 {
            self.return_spilled();
        }
    }

    /// Runs `step` on the epochs of the streams, if memory freed on one stream may serve another. A failure is only
    /// logged, because the freed block is free in any case.
    fn on_epochs<T>(
        &mut self,
        failed: &'static str,
        step: impl FnOnce(&mut Epochs, &mut StreamContext<'_>) -> Result<T>,
    ) {
        if !self.rules.passes_memory_on {
            return;
        }
        let done = self.timed(|_, context| {
            let (streams, mut on) = context.on_streams();
            step(&mut streams.epochs, &mut on)
        });
        if let Err(error) = done {
            tracing::warn!(%error, "{failed}");
        }
    }
}
