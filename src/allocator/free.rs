//! Frees: a block becomes free immediately, or once the GPU has completed the work of other streams that uses the
//! block.
//!
//! Owns: the operations, and the one path of every free. `freed.rs` has the steps of a block that does not become free
//! immediately.

use super::core::{Allocator, Core};
use super::freed::FreePath;
use crate::error::{Error, Result};
use crate::heap::{Block, Kind};
use crate::ids::{BlockId, StreamId};
use crate::strategy::FreeUsedBy;

impl Allocator {
    /// Frees an allocation. The memory serves later requests of the allocation's stream at once. If other streams were
    /// named with [`Self::record_stream`], the memory serves requests only once the GPU has completed the work that
    /// these streams were given before the free.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`](crate::Error::InvalidAddress) if no live allocation starts there;
    /// [`Error::Driver`](crate::Error::Driver) if an event could not be recorded, and the allocation stays live. The
    /// free does not fail if the host is out of memory: the block then waits for its events until the host has memory
    /// again.
    pub fn free(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        self.core.lock().free(address)
    }

    /// Frees an allocation as [`Self::free`] does, for a program that names the stream of the last use, as CUDA's
    /// stream-ordered frees do. If `stream` is not the allocation's own stream, the memory waits for both streams.
    ///
    /// # Errors
    /// The errors of [`Self::free`]; [`Error::HostMemory`], and the allocation stays live.
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

    /// Frees an allocation as [`Self::free`] does, for a program with a current stream, such as PyTorch: work on
    /// `stream` may use the allocation, even if [`Self::record_stream`] did not name `stream`. As in PyTorch, the
    /// memory serves the allocation's own stream at once. Other streams, and the driver, also wait for all work given
    /// to `stream` so far.
    ///
    /// PyTorch's own allocator never passes memory from one stream to another. So a PyTorch program may free a tensor
    /// while the stream that used it is current, and is correct as long as the tensor's own stream makes no request
    /// meanwhile.
    ///
    /// With the strategy `expandable`, and during a stream capture, when no event can be recorded, the memory waits for
    /// both streams, as with [`Self::free_on`].
    ///
    /// # Errors
    /// The errors of [`Self::free`]; [`Error::HostMemory`] if `stream` is not the allocation's own, and the allocation
    /// stays live.
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
            // Guard mode looks before `stream` is noted: being the current stream at the free does not count as being
            // named.
            core.find_missing_record_stream(id);
            return core.naming(stream, |core| core.free_used_by(id, stream));
        }
        if !core.heap.has_external() {
            return core.free_block(id);
        }
        let large = core.heap.block(id).pool.large();
        core.free_block(id)?;
        core.end_external(large, stream);
        Ok(())
    }
}

impl Core {
    #[inline]
    pub(super) fn free(&mut self, address: u64) -> Result<()> {
        match self.take_live(address) {
            Ok(id) => self.free_block(id),
            // An allocation that grows and has no memory yet has no live block, but it can be freed too.
            Err(error) => self.free_empty_growing(address, error),
        }
    }

    /// Calls `free`, and tells guard mode meanwhile which stream the free names.
    fn naming<T>(&mut self, stream: StreamId, free: impl FnOnce(&mut Self) -> T) -> T {
        let name = |core: &mut Self, stream| {
            if let Some(guard) = &mut core.features.guard {
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
        match if has_uses { self.free_path(id) } else { FreePath::Now } {
            FreePath::Now => self.heap.free_at_once(id),
            FreePath::ByFeature => {
                self.heap.keep_live(id);
                return self.free_growing(address);
            }
            path => self.free_used(id, path)?,
        }
        self.freed(address, size, pool)
    }

    /// Returns the free path of a block whose free takes more than merging ([`Block::has_uses`]).
    fn free_path(&self, id: BlockId) -> FreePath {
        let grows = !self.features.growing.is_empty() && self.heap.grown_in(id).is_some();
        if grows { FreePath::ByFeature } else { self.path_of_used(id) }
    }

    /// Frees a block, taken out of the table of live allocations, while `stream` is current. `stream` is not the
    /// block's own stream, or is its own stream under another name.
    #[cold]
    fn free_used_by(&mut self, id: BlockId, stream: StreamId) -> Result<()> {
        let noted = self.note_used_by(id, stream).inspect_err(|_| self.heap.keep_live(id))?;
        let freed = self.free_block(id);
        if let (Err(_), Some(stream)) = (&freed, noted) {
            self.streams.recorded.forget_use(&mut self.heap, id, stream);
            if self.features.guard.is_some() {
                self.heap.set_has_uses(id);
            }
        }
        freed
    }

    /// Notes that a block is freed while `stream` is current. Returns `stream` if the block has to wait for `stream`,
    /// and did not have to before.
    fn note_used_by(&mut self, id: BlockId, stream: StreamId) -> Result<Option<StreamId>> {
        let stream = self.driver.canonical_stream(stream)?;
        if self.is_own_stream(id, stream) {
            return Ok(None);
        }
        self.streams.known.add(stream)?;
        let large = self.heap.block(id).pool.large();
        // A block that waits for other streams already, or that belongs to no stream, waits for this stream too. A
        // guarded or spilled block is unmapped once its own stream and this stream have passed the free.
        let is_unmapped = self.heap.block(id).kind == Kind::Guarded || self.goes_when_freed(id);
        let mut waits = is_unmapped || self.heap.has_no_stream(id) || self.streams.recorded.has_uses(id);
        if !waits && self.heap.is_private(large) {
            // Memory of a private pool serves no other pool before the private pool, or the stream, ends.
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
