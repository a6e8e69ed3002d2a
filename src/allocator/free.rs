//! Frees: a block becomes free at once, or when other streams have passed.
//!
//! Owns: the order of steps in a free.

use super::core::{Allocator, Core};
use crate::error::{Error, Result};
use crate::heap::{Block, Kind};
use crate::ids::{BlockId, PoolIndex, StreamId};
use crate::strategy::{FreeUsedBy, Goal};
use crate::streams::{Epochs, StreamContext};

/// An epoch of a stream ends once this part (1/n) of the reserved bytes was freed in it, but at least `LONG_EPOCH`
/// bytes. An event costs a quarter of a microsecond.
const EPOCHS: u64 = 64;
const LONG_EPOCH: u64 = 8 << 20;

impl Allocator {
    /// Frees an allocation. Its memory serves later requests of its stream at once; if other streams were named with
    /// [`Self::record_stream`], once they have passed this point.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`](crate::Error::InvalidAddress) if no live allocation starts there;
    /// [`Error::Driver`](crate::Error::Driver) if an event could not be recorded, and the allocation stays live. For want
    /// of memory of the host it does not fail: the block waits for its events until there is some.
    pub fn free(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        self.core.lock().free(address)
    }

    /// Does the same as [`Self::free`], for a program that names the stream of the last use, as CUDA's stream-ordered
    /// frees do. If that is not the stream of the allocation, its memory waits for both.
    ///
    /// # Errors
    /// Those of [`Self::free`]; [`Error::HostMemory`], and the allocation stays live.
    pub fn free_on(&self, address: u64, stream: StreamId) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let core = &mut *self.core.lock();
        if core.grows_at(address)? {
            let stream = core.driver.canonical_stream(stream)?;
            return core.free_growing_on(address, stream);
        }
        let id = core.take_live(address)?;
        if core.is_own_stream(id, stream) { core.free_block(id) } else { core.free_named(id, stream) }
    }

    /// Does the same as [`Self::free`], for a program with a current stream, such as PyTorch: work on that stream may
    /// use the allocation, even if [`Self::record_stream`] did not name it. As in PyTorch, the memory serves its own
    /// stream at once. Other streams, and the driver, get it once `stream` has passed all its work so far, too.
    ///
    /// PyTorch's own allocator never passes memory from one stream to another. So its programs may free a tensor under
    /// the stream that used it, and are correct as long as the tensor's own stream makes no request meanwhile.
    ///
    /// With the strategy `expandable`, and during a stream capture, when no event can be recorded, the memory waits for
    /// both streams, as with [`Self::free_on`].
    ///
    /// # Errors
    /// Those of [`Self::free`]; [`Error::HostMemory`] if another stream than its own is named, and the allocation stays
    /// live.
    pub fn free_with_current_stream(&self, address: u64, stream: StreamId) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let core = &mut *self.core.lock();
        if core.grows_at(address)? {
            let stream = core.driver.canonical_stream(stream)?;
            return core.free_growing_on(address, stream);
        }
        let id = core.take_live(address)?;
        if !core.is_own_stream(id, stream) {
            // That the stream is the current one at the free does not make it a named one.
            core.find_missing_record_stream(id);
            return core.naming(stream, |core| core.free_used_by(id, stream));
        }
        if !core.heap.has_borrowed() {
            return core.free_block(id);
        }
        let large = core.heap.block(id).pool.large();
        core.free_block(id)?;
        core.end_borrowed(large, stream);
        Ok(())
    }
}

impl Core {
    #[inline]
    pub(super) fn free(&mut self, address: u64) -> Result<()> {
        match self.take_live(address) {
            Ok(id) => self.free_block(id),
            // What was reserved, and has nothing yet, is no live block.
            Err(error) => self.free_empty_growing(address, error),
        }
    }

    /// Frees by `free`, which names a stream; guard mode is told which.
    fn naming<T>(&mut self, stream: StreamId, free: impl FnOnce(&mut Self) -> T) -> T {
        let name = |core: &mut Self, stream| {
            if let Some(guard) = &mut core.guard {
                guard.named = stream;
            }
        };
        name(self, Some(stream));
        let freed = free(self);
        name(self, None);
        freed
    }

    /// Frees a block that was taken out of the table of live allocations, and that `stream` uses last.
    fn free_named(&mut self, id: BlockId, stream: StreamId) -> Result<()> {
        let named = self.driver.canonical_stream(stream).map_err(Error::from);
        let named = named.and_then(|stream| self.name_stream(id, stream).map(|_| stream));
        let stream = named.inspect_err(|_| self.heap.keep_live(id))?;
        self.naming(stream, |core| core.free_block(id))
    }

    /// Frees a block that was taken out of the table of live allocations.
    #[inline]
    fn free_block(&mut self, id: BlockId) -> Result<()> {
        let block = self.heap.block(id);
        let has_uses = block.has_uses();
        let Block { address, size, pool, .. } = *block;
        if has_uses {
            if !self.growths.is_empty() && self.heap.grown_in(id).is_some() {
                self.heap.keep_live(id);
                return self.free_growing(address);
            }
            self.free_used(id)?;
        } else {
            self.heap.free_at_once(id);
        }
        self.freed(address, size, pool)
    }

    /// Frees the last part of an allocation that grows, which was taken out of the table of live allocations.
    pub(super) fn free_part(&mut self, id: BlockId) -> Result<()> {
        let Block { address, size, pool, .. } = *self.heap.block(id);
        self.heap.end_part(id, true);
        if let Err(error) = self.free_used(id) {
            // It is live still, if it could not be freed.
            if self.heap.live(address) == Ok(id) {
                self.heap.end_part(id, false);
            }
            return Err(error);
        }
        self.freed(address, size, pool)
    }

    /// Takes the steps that follow on a free.
    #[inline]
    fn freed(&mut self, address: u64, size: u64, pool: PoolIndex) -> Result<()> {
        self.shares.end(address);
        if self.heap.gives_back() {
            self.release_unkept();
        }
        if self.low_water.is_reached(size, &self.heap) {
            self.consolidate();
        }
        if self.heap.knows_streams()
            && self.heap.count_freed(pool, size) > LONG_EPOCH.max(self.heap.reserved() / EPOCHS)
        {
            self.epoch_full(pool.large());
        }
        self.checked()
    }

    /// Gives segments back to the driver that the layout keeps for nobody. What cannot be given back now stays free, and goes
    /// with the next one.
    #[cold]
    pub(super) fn release_unkept(&mut self) {
        self.heap.forget_given_back();
        if self.capturing() {
            return;
        }
        if let Err(error) = self.timed(|strategy, context| strategy.release(context, Goal::Unkept)) {
            tracing::warn!(%error, "a free segment could not be given back; it is kept");
        }
    }

    /// Frees a block that other streams use, that belongs to a private pool, or that guard mode watches.
    fn free_used(&mut self, id: BlockId) -> Result<()> {
        if self.guard.is_some() {
            return self.free_watched(id, |core| core.free_unwatched(id));
        }
        self.free_unwatched(id)
    }

    fn free_unwatched(&mut self, id: BlockId) -> Result<()> {
        if self.rules.frees_to_driver && self.free_to_driver(id)? {
            return Ok(());
        }
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

    /// Frees a block once the streams have passed that were named for it.
    fn free_in_order(&mut self, id: BlockId) -> Result<()> {
        let in_use = self.streams.recorded.has_uses(id);
        if in_use && !self.capturing() {
            let before = self.driver.busy_ns();
            let pending = match self.streams.recorded.record_events(&*self.driver, id) {
                // The block is held, as in a capture, until there is memory for its events.
                Err(Error::HostMemory) => None,
                pending => pending.inspect_err(|_| self.heap.keep_live(id))?,
            };
            self.heap.counters_mut().stalls.add(self.driver.busy_ns().saturating_sub(before));
            if let Some(mut pending) = pending {
                if self.config.paddle_stream_safe() {
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

    /// Gives a public block back to the driver's pool. Returns `false` if it cannot be done now, or if the memory is guarded and so is
    /// not of that pool.
    fn free_to_driver(&mut self, id: BlockId) -> Result<bool> {
        let Block { kind, pool, .. } = *self.heap.block(id);
        if kind == Kind::Guarded || self.capturing() || self.heap.is_private(pool.large()) {
            return Ok(false);
        }
        let freed = self.timed(|strategy, context| match strategy.stream_ordered() {
            Some(strategy) => strategy.free(context, id),
            None => Ok(false),
        });
        freed.inspect_err(|_| self.heap.keep_live(id))
    }

    /// Ends the epoch of a large pool's stream, because much was freed in it.
    #[cold]
    fn epoch_full(&mut self, large: PoolIndex) {
        self.heap.reset_freed(large);
        self.on_epochs("an epoch could not be ended", |epochs, on| epochs.end(on, large));
    }

    /// Ends the epoch of a borrowed stream that is the current one at a free.
    #[cold]
    fn end_borrowed(&mut self, large: PoolIndex, current: StreamId) {
        if self.heap.is_borrowed(current) && self.heap.pool(large).stream == current {
            self.on_epochs("an epoch could not be ended", |epochs, on| epochs.end_borrowed(on, large));
        }
    }

    /// Gathers passed memory at the low-water mark, so that ranges freed on different streams can merge.
    #[cold]
    fn consolidate(&mut self) {
        self.on_epochs("freed memory could not be gathered", |epochs, on| epochs.gather_all(on));
        if self.heap.spilled() > 0 || self.heap.host_stock().bytes() > 0 {
            self.return_spilled();
        }
    }

    /// Takes a step of the epochs, where memory passes from stream to stream. A block that was just freed is free, whether
    /// the step succeeds or not: a failure is logged.
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

    /// Frees a block, taken out of the table of live allocations, while `stream` is current: another stream than its
    /// own, or the same under another name.
    #[cold]
    fn free_used_by(&mut self, id: BlockId, stream: StreamId) -> Result<()> {
        let noted = self.note_used_by(id, stream).inspect_err(|_| self.heap.keep_live(id))?;
        let freed = self.free_block(id);
        if let (Err(_), Some(stream)) = (&freed, noted) {
            self.streams.recorded.forget_use(&mut self.heap, id, stream);
            if self.guard.is_some() {
                self.heap.set_has_uses(id);
            }
        }
        freed
    }

    /// Notes that a block is freed while `stream` is current. Returns the stream if the block has to wait for it and did
    /// not before.
    fn note_used_by(&mut self, id: BlockId, stream: StreamId) -> Result<Option<StreamId>> {
        let stream = self.driver.canonical_stream(stream)?;
        if self.is_own_stream(id, stream) {
            return Ok(None);
        }
        let large = self.heap.block(id).pool.large();
        // A block that waits for other streams already, or that belongs to no stream, waits for this stream too.
        // One with memory of its own, or with the machine's, is unmapped once both have passed.
        let is_unmapped = self.heap.block(id).kind == Kind::Guarded || self.goes_when_freed(id);
        let mut waits = is_unmapped || self.heap.has_no_stream(id) || self.streams.recorded.has_uses(id);
        if !waits && self.heap.is_private(large) {
            // Memory of a private pool serves no one else before the pool, or its stream, ends.
            self.heap.set_used_by_others(large);
        } else if !waits {
            waits = match self.rules.free_used_by {
                FreeUsedBy::DeviceWaits => {
                    self.heap.set_used_by_others(large);
                    false
                }
                FreeUsedBy::RecordStream => true,
                FreeUsedBy::Epoch => !self.timed(|_, context| {
                    let (streams, on) = context.on_streams();
                    streams.epochs.free_used_by(&on, large, stream)
                })?,
            };
        }
        let noted = waits && self.name_stream(id, stream)?;
        Ok(noted.then_some(stream))
    }
}
