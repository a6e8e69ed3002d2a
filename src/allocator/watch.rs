//! Guard mode within an allocation and a free.
//!
//! Owns: the steps that `guarded.rs`, the frees and the misses take while guard mode is on.

use super::core::Core;
use super::prepared::{AllocRequest, Prepared};
use crate::backing::{AllocatorContext, reclaim_private_pools};
use crate::error::{Error, Result};
use crate::features::guard::Guard;
use crate::ids::{BlockId, StreamId};

impl Core {
    /// Runs a step of guard mode. Returns `None` if guard mode is off.
    pub(super) fn on_guard<T>(&mut self, step: impl FnOnce(&mut Guard, &mut AllocatorContext<'_>) -> T) -> Option<T> {
        let mut guard = self.features.guard.take()?;
        let result = self.timed(|_, context| step(&mut guard, context));
        self.features.guard = Some(guard);
        Some(result)
    }

    /// Serves a request by a guarded block, if the request is to be guarded and can be.
    pub(super) fn allocate_guarded(&mut self, asked: &AllocRequest) -> Result<Option<u64>> {
        let Some(graphs) =
            self.features.guard.as_ref().filter(|guard| guard.wants(asked.size)).map(|g| g.options().graphs)
        else {
            return Ok(None);
        };
        let prepared = self.prepare(asked)?;
        if !self.may_be_guarded(&prepared, graphs) {
            return Ok(None);
        }
        let made = self.on_guard(|guard, context| guard.allocate(context, &prepared.request));
        let Some(id) = made.unwrap_or(Ok(None))? else { return Ok(None) };
        let address = self.hand_out(id, &prepared)?;
        self.watch(address)?;
        Ok(Some(address))
    }

    /// Returns whether a request may be guarded. Memory of a segment source comes in the source's segments, so it is
    /// not guarded. Memory that a graph uses cannot be unmapped while the graph may be launched, so it is guarded only
    /// if `graphs` is set.
    fn may_be_guarded(&self, prepared: &Prepared, graphs: bool) -> bool {
        let Some(private) = prepared.private else { return true };
        let is_captured = private.captured || self.heap.private().get(private.owner).is_some_and(|pool| pool.captured);
        private.unsplit.is_none() && (graphs || !is_captured)
    }

    /// Notes an allocation, and lets its free take the slow path.
    pub(super) fn watch(&mut self, address: u64) -> Result<()> {
        let Some(guard) = &mut self.features.guard else { return Ok(()) };
        let id = self.heap.live(address)?;
        guard.allocated(&self.heap, &*self.driver, id);
        self.heap.set_has_uses(id);
        Ok(())
    }

    /// Takes a live allocation out of the address table. If no live allocation starts at the address, the error
    /// names the allocation that guard mode knows at that address.
    #[inline]
    pub(super) fn take_live(&mut self, address: u64) -> Result<BlockId> {
        self.heap.take_live(address).map_err(|error| self.explained(address, error))
    }

    #[cold]
    fn explained(&mut self, address: u64, error: Error) -> Error {
        let finding = self.features.guard.as_mut().and_then(|guard| guard.wrong_free(address));
        finding.map_or(error, |finding| Error::WrongFree { address, finding: Box::new(finding) })
    }

    /// Takes the steps of guard mode before a block is freed. Returns the block's address and stream, for
    /// [`Self::end_watched_free`].
    pub(super) fn begin_watched_free(&mut self, id: BlockId) -> Option<(u64, StreamId)> {
        self.features.guard.as_ref()?;
        let block = *self.heap.block(id);
        self.find_missing_record_stream(id);
        Some((block.address, self.heap.pool(block.pool.large()).stream))
    }

    /// Notes that a block was freed while guard mode is on.
    pub(super) fn end_watched_free(&mut self, (address, own): (u64, StreamId)) {
        self.on_guard(|guard, context| {
            guard.freed(address, own);
            guard.step(context);
        });
    }

    /// Finds the streams that still use a block which is about to be freed, and that the program did not name. The
    /// memory then waits for these streams as if the program had named them.
    pub(super) fn find_missing_record_stream(&mut self, id: BlockId) {
        if self.features.guard.is_none() {
            return;
        }
        let address = self.heap.block(id).address;
        let named = self.streams.recorded.uses(id).to_vec();
        let missing = self.on_guard(|guard, context| guard.missing_record_stream(context.driver(), address, &named));
        for stream in missing.into_iter().flatten() {
            if let Err(error) = self.streams.recorded.record_use(&mut self.heap, id, stream) {
                tracing::warn!(%error, %stream, "freed memory does not wait for a stream that nobody named");
            }
        }
    }

    /// Gives back the memory of a private pool that has just ended, so that a graph launched afterwards ends in an
    /// illegal address error. The CPU waits for the device.
    pub(super) fn end_guarded_pools(&mut self) {
        if self.capturing() || !self.features.guard.as_ref().is_some_and(|guard| guard.options().graphs) {
            return;
        }
        let ended = self.timed(|_, context| reclaim_private_pools(context));
        if let Err(error) = ended.and_then(|failed| failed.map_or(Ok(()), Err)) {
            tracing::warn!(%error, "the memory of a private pool stays for now");
        }
        self.on_guard(Guard::drain);
    }

    /// Unmaps all guarded memory that can be unmapped. The CPU waits for the device.
    pub(super) fn drain_guard(&mut self) {
        self.on_guard(Guard::drain);
    }
}
