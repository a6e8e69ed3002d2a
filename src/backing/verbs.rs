//! The verbs: methods of the context with which a strategy changes the heap. Most make no driver call.
//!
//! Owns: no state. Each verb makes one change to the heap. The strategy itself only reads the heap.

use super::chunks::{map_home, release_chunks};
use super::context::{Served, StrategyContext};
use crate::error::{Error, Result};
use crate::heap::{Chunk, FitRules, GRANULE, Placement, PlanHash, Request, Window};
use crate::ids::{BlockId, PoolIndex};
use crate::span::Span;

impl StrategyContext<'_> {
    /// Takes out of the free index the block that fits the request best by these rules. Returns `None` if no block
    /// fits.
    pub(crate) fn fit(&mut self, request: &Request, rules: &FitRules) -> Option<BlockId> {
        self.heap.fit(request, rules).some()
    }

    /// Takes a free block out of the free index, to serve the request with this block.
    pub(crate) fn take_block(&mut self, id: BlockId) -> BlockId {
        self.heap.take_free(id);
        id
    }

    /// Puts back a block that was taken and serves no request.
    pub(crate) fn put_back(&mut self, id: BlockId) {
        self.heap.put_back(id);
    }

    /// Joins the free blocks of segments without live blocks, for strategies whose blocks do not merge when freed.
    pub(crate) fn join_free_segments(&mut self) -> Result<()> {
        self.heap.join_free_segments()
    }

    /// Takes a block for the request from a run of neighbouring free blocks that begins at `first`. Only their
    /// different pools keep these blocks from merging.
    pub(crate) fn take_run(&mut self, first: BlockId, request: &Request, placement: Placement) -> Result<BlockId> {
        let id = self.heap.join_run(first, request.pool, request.size)?;
        self.heap.take_free(id);
        Ok(self.heap.place(id, request, placement))
    }

    /// Takes a block of an existing view. `plan` is the hash of the ranges of home chosen for the request, by which the
    /// view is found again.
    pub(crate) fn reuse_view(&mut self, window: Window, request: &Request, plan: Option<PlanHash>) -> Result<BlockId> {
        self.heap.reuse_view(window, request.size, request.pool, plan)
    }

    /// Takes an idle slab for a pool of small blocks.
    pub(crate) fn take_slab(&mut self, id: BlockId, pool: PoolIndex) -> Served {
        map_home(self, Span::new(self.heap.block(id).address, GRANULE))?;
        self.heap.take_slab(id, pool);
        Ok(id)
    }

    /// Makes a granule of a free large block a slab for a pool of small blocks, and takes the slab.
    pub(crate) fn carve_slab(&mut self, id: BlockId, slab: Span, pool: PoolIndex) -> Served {
        // The granule is mapped before the granule is cut out, so that the heap is unchanged if the mapping fails.
        map_home(self, slab)?;
        let id = self.heap.carve(id, slab)?;
        self.heap.make_slab(id, pool);
        Ok(id)
    }

    /// Makes all free memory of streams idle. The CPU has waited for the device.
    pub(crate) fn make_all_idle(&mut self) -> Result<()> {
        self.heap.make_all_idle()
    }

    /// Releases a free chunk. The chunk may lie in any number of free blocks. No stream uses the chunk, and no view
    /// maps it.
    pub(crate) fn release_chunk(&mut self, chunk: &Chunk) -> Result<()> {
        match self.heap.gather_span(chunk.span()) {
            Ok(block) => return release_chunks(self, block, chunk.span()),
            Err(Error::HostMemory) => return Err(Error::HostMemory),
            Err(error) => tracing::error!(%error, "a free chunk could not be gathered; it stays"),
        }
        Ok(())
    }

    /// Waits on the CPU for all work of a pool's stream.
    pub(crate) fn wait_for_stream(&mut self, pool: PoolIndex) -> Result<()> {
        Ok(self.on_streams().1.wait_for_stream(pool)?)
    }

    /// Returns whether the GPU has done all work given to a pool's stream so far.
    pub(crate) fn has_passed_all(&mut self, pool: PoolIndex) -> Result<bool> {
        let (streams, mut on) = self.on_streams();
        Ok(streams.epochs.has_passed_all(&mut on, pool.large())?)
    }

    /// During a capture, frees the blocks and makes idle the memory that streams have passed, as far as events that
    /// were recorded before the capture show this.
    pub(crate) fn poll_in_capture(&mut self) -> Result<()> {
        let (streams, mut on) = self.on_streams();
        streams.epochs.poll_in_capture(&mut on, &mut streams.recorded)
    }

    /// Returns when the event was recorded for which the pool's stream has to wait to get a free block of another
    /// stream. The time is a number of operations; 0 if the pool's stream has waited already. Returns `None` if the
    /// block is not free, or its epoch is open.
    pub(crate) fn recorded_at(&self, pool: PoolIndex, id: BlockId) -> Option<u64> {
        self.streams.epochs.recorded_at(self.heap, pool, id)
    }

    /// Counts a retry: a request asks the driver again after free memory was given back.
    pub(crate) fn count_retry(&mut self) {
        self.heap.journal_mut().retried();
    }

    /// Counts the bytes by which memory grew for a request, although the request could have waited for blocks that
    /// streams named by `record_stream` use.
    pub(crate) fn count_growth_for_wait(&mut self, request: &Request, bytes: u64) -> Result<()> {
        let (streams, on) = self.on_streams();
        if streams.has_recorded(&on, request)? {
            self.heap.journal_mut().grew_instead_of_wait(bytes);
        }
        Ok(())
    }

    /// Counts a request that was served because live memory was spilled.
    pub(crate) fn count_spill(&mut self) {
        self.heap.journal_mut().spilled_for_request();
    }
}
