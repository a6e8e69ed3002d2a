//! Spilled memory comes back to the device, or is released once no block in it is live.
//!
//! Owns: when memory comes back or is released. `spill.rs` has the public operations.

use super::core::Core;
use crate::backing;
use crate::error::Result;
use crate::features::spill::bring_back;
use crate::heap::Request;
use crate::ids::{BlockId, ChunkId, Class, StreamId, ViewId};

/// The part (1/n) of the memory limit that must be free after all spilled memory has come back. Otherwise spilled
/// memory comes back only when the program calls for it.
const SPARE: u64 = 16;

impl Core {
    /// Returns all spilled memory to the device, or only the chunks `only`, after a wait for the device. If there is
    /// too little room, free memory is given back first.
    pub(super) fn bring_back(&mut self, only: Option<&[ChunkId]>) -> Result<u64> {
        let spilled = self.heap.spilled_chunks().filter(|(id, _)| only.is_none_or(|only| only.contains(id)));
        let bytes: u64 = spilled.map(|(_, chunk)| chunk.size).sum();
        self.timed(|strategy, context| bring_back(strategy, context, only, bytes))
    }

    /// Returns spilled memory to the device if no request had to spill for a long time, and much of the memory held is
    /// free. The host memory that becomes empty is kept for the next spill. If there is no spill for as long a time
    /// again, this host memory is given back. On failure, which is logged, the memory stays spilled.
    #[cold]
    pub(super) fn return_spilled(&mut self) {
        let limit = self.limits.lowest().unwrap_or(u64::MAX).min(self.driver.properties().total_memory);
        if self.capturing() || !self.nobody_else_looks() || !self.heap.may_return(limit) {
            return;
        }
        let active = self.heap.counters().active_bytes.current().saturating_sub(self.heap.live_asleep());
        // Without the option `spill`, only parts of split chunks lie in host memory. They are few bytes, and come back
        // wherever there is room.
        let spare = if self.config.spill.is_some() { limit / SPARE } else { 0 };
        // All live memory, spilled memory included, must fit with some room.
        let spilled = self.heap.spilled();
        if spilled == 0 || active.saturating_add(spare) > limit {
            self.release_host_stock();
            return;
        }
        if self.some_stream_is_captured() {
            return;
        }
        self.heap.has_returned();
        let room = spilled.saturating_add(spare);
        let returned = self.timed(|strategy, context| bring_back(strategy, context, None, room));
        match returned {
            Ok(bytes) => tracing::debug!(bytes, "spilled memory came back"),
            Err(error) => tracing::warn!(%error, "spilled memory could not come back; it stays where it is"),
        }
    }

    /// Returns whether a stream is being captured without the allocator being told: a wait for the device would
    /// invalidate that capture. The driver is not asked about external streams, or about streams that made no request.
    fn some_stream_is_captured(&self) -> bool {
        let captured = |large| {
            let pool = self.heap.pool(large);
            let is_asked = !pool.ended && pool.stream != StreamId::DEFAULT && !self.heap.is_external(pool.stream);
            // A stream that was destroyed is not captured. If the driver cannot tell, the stream may be captured.
            is_asked && self.driver.is_capturing(pool.stream).unwrap_or_else(|error| !error.status.may_name_no_stream())
        };
        self.heap.stream_pools().any(captured)
    }

    /// Gives back the host memory that is kept for the next spill. On failure, which is logged, the memory stays.
    pub(super) fn release_host_stock(&mut self) {
        if self.heap.host_stock().bytes() == 0 {
            return;
        }
        if let Err(error) = self.timed(|_, context| backing::release_host_stock(context)) {
            tracing::warn!(%error, "host memory that is kept could not be given back yet");
        }
    }

    /// Gives back host memory in which no block is live any more. If a call fails, the memory stays, and a later call
    /// tries again.
    ///
    /// # Errors
    /// An error if a call failed and memory is missing at an address: no request may be served before that memory is
    /// mapped again.
    #[cold]
    pub(super) fn drop_spilled(&mut self) -> Result<()> {
        let Err(error) = self.timed(|_, context| backing::drop_spilled(context)) else { return Ok(()) };
        if self.rollback.is_whole() {
            tracing::warn!(%error, "host memory that is free could not be given back yet");
            return Ok(());
        }
        Err(error)
    }

    /// Returns whether the memory of a block goes back to the host once the block is freed.
    pub(super) fn goes_when_freed(&self, id: BlockId) -> bool {
        self.heap.spilled() > 0 && !self.heap.is_private(self.heap.block(id).pool) && self.heap.is_spilled(id)
    }

    /// Makes a spilled block that is about to be freed wait for its own stream too, so that its host memory goes back
    /// instead of serving requests as device memory. Returns whether the block must wait. Returns `false` if the host
    /// has no memory for the block's entry; the block's memory then goes back with the next epoch.
    pub(super) fn wait_for_own(&mut self, id: BlockId) -> bool {
        if !self.goes_when_freed(id) || self.heap.waits_for_own(id).is_err() {
            return false;
        }
        let noted = self.streams.recorded.record_own(&mut self.heap, id).unwrap_or(false);
        if !noted {
            self.heap.waits_for_own_no_more(id);
        }
        noted
    }

    /// Undoes [`Self::wait_for_own`], if the block could not be freed.
    pub(super) fn forget_own(&mut self, id: BlockId) {
        self.heap.waits_for_own_no_more(id);
        let stream = self.heap.pool(self.heap.block(id).pool.large()).stream;
        self.streams.recorded.forget_use(&mut self.heap, id, stream);
    }

    /// Returns the memory of a live block to the device, because other processes or libraries will use it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if the device has no room for the memory; the driver's errors.
    pub(super) fn must_be_on_device(&mut self, id: BlockId) -> Result<()> {
        let spilled = self.heap.spilled_under(id)?;
        if spilled.is_empty() {
            return Ok(());
        }
        if !self.capturing() {
            self.bring_back(Some(&spilled))?;
        }
        let left = self.heap.spilled_under(id)?;
        if left.is_empty() {
            return Ok(());
        }
        let home = self.heap.home().into_iter();
        let size = home.flat_map(|home| left.iter().filter_map(|id| home.chunk(*id))).map(|chunk| chunk.size).sum();
        let pool = self.heap.block(id).pool.large();
        Err(self
            .out_of_memory(&Request { size, requested: size, pool, class: Class::Large, extends: ViewId::NONE }, None))
    }
}
