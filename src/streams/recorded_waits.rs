//! Freed blocks that recorded streams still use, taken after waits on the GPU.
//!
//! Owns: the choice of the blocks that a request takes, and its waits.
//!
//! ```text
//! stream A   allocate a | record_stream(a, B) | free a | allocate b
//! stream B              | work on a           | event  |
//!                                               stream A waits for the event, and b has the memory of a
//! ```
//! The free has already recorded the events (`record_stream.rs`). Blocks that no request takes stay pending until the
//! CPU sees their events complete, as in PyTorch. A stream that takes another stream's block also waits for the epoch
//! in which the block was freed.

use super::Streams;
use super::context::StreamContext;
use super::rounds::{ANY_AGE, Until};
use crate::config::StreamSharing;
use crate::driver::DriverResult;
use crate::error::{Error, Result};
use crate::fallible::TryPush;
use crate::heap::Request;
use crate::ids::{BlockId, PoolIndex};

/// The most blocks of each stream's queue that a request looks at, oldest first. If more blocks wait, the GPU lags far
/// behind the CPU, and one of the first blocks serves.
const MOST_LOOKED_AT: usize = 512;

/// A freed block that a request may take, and the operation that recorded the last event for which the request must
/// wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    at: u64,
    block: BlockId,
}

impl Streams {
    /// For the request's pool, frees blocks that recorded streams still use, and makes the pool's stream wait for these
    /// streams on the GPU. The smallest block that serves the request is taken. If there is none, the blocks freed
    /// longest ago are taken, of about `missing` bytes together. With `others`, blocks of other streams count too. No
    /// event recorded later than `until` is waited for. Returns whether any block was freed.
    ///
    /// # Errors
    /// The driver's error, or the host has too little memory. Blocks that were not taken stay pending.
    pub(crate) fn take_recorded(
        &mut self,
        context: &mut StreamContext<'_>,
        request: &Request,
        (missing, until, others): (u64, Until, bool),
    ) -> Result<bool> {
        if self.recorded.waiting() == 0 || !may_wait(context, request, others)? {
            return Ok(false);
        }
        if others {
            self.end_epochs_of_others(context, request)?;
        }
        let mut candidates = self.candidates(context, request, until, others)?;
        let size = |of: &Candidate| context.heap.block(of.block).size;
        let fitting = candidates.iter().copied().filter(|of| size(of) >= request.size);
        if let Some(best) = fitting.min_by_key(|of| (size(of), of.at)) {
            self.take_early(context, request.pool, best.block)?;
            return Ok(true);
        }
        candidates.sort_unstable();
        let mut found = 0;
        for Candidate { block, .. } in candidates {
            if found >= missing {
                break;
            }
            found += context.heap.block(block).size;
            self.take_early(context, request.pool, block)?;
        }
        Ok(found > 0)
    }

    /// Returns whether blocks of the request's pool wait for recorded uses, and the pool's stream could wait for these
    /// uses.
    pub(crate) fn has_recorded(&self, context: &StreamContext<'_>, request: &Request) -> Result<bool> {
        Ok(self.recorded.waiting() > 0 && !self.candidates(context, request, Until::ANY, false)?.is_empty())
    }

    /// Ends the open epochs in which other streams have freed pending blocks. Otherwise a miss ends only the epochs of
    /// streams that have free memory, and pending blocks are not free.
    fn end_epochs_of_others(&mut self, context: &mut StreamContext<'_>, request: &Request) -> Result<()> {
        let mut open: Vec<PoolIndex> = Vec::new();
        for (_, queue) in self.recorded.queues() {
            for queued in queue.iter().take(MOST_LOOKED_AT) {
                let from = context.heap.block(queued.block).pool.large();
                let is_open = from != request.pool.large()
                    && context.heap.pool(from).freed_in_epoch
                    && context.heap.is_of_stream(from);
                if is_open && !open.contains(&from) {
                    open.try_push(from)?;
                }
            }
        }
        open.into_iter().try_for_each(|pool| self.epochs.close(context, pool))
    }

    /// Returns the blocks that the request may take.
    fn candidates(
        &self,
        context: &StreamContext<'_>,
        request: &Request,
        until: Until,
        others: bool,
    ) -> Result<Vec<Candidate>> {
        let mut found = Vec::new();
        for (_, queue) in self.recorded.queues() {
            for queued in queue.iter().take(MOST_LOOKED_AT) {
                if queued.at > until.recorded {
                    break;
                }
                let block = queued.block;
                let from = context.heap.block(block).pool;
                let is_wanted = if others {
                    from != request.pool
                        && !from.is_small()
                        && context.heap.is_of_stream(from)
                        && context.heap.may_change_stream(block)
                } else {
                    from == request.pool
                };
                if is_wanted && context.heap.may_be_taken_early(block) {
                    let freed = if others { self.freed_at(context, block, from) } else { Some(0) };
                    if let Some(freed) = freed.filter(|at| *at <= until.freed) {
                        found.try_push(Candidate { at: freed.max(queued.at), block })?;
                    }
                }
            }
        }
        // A block that several streams used is in the queue of each of them.
        found.sort_unstable_by_key(|of| of.block);
        found.dedup_by_key(|of| of.block);
        Ok(found)
    }

    /// Looks up the epoch of the block's own stream in which a pending block was freed. Returns the operation that
    /// recorded the event at the epoch's end; 0 if the GPU has passed the epoch, and `None` if the epoch is open.
    fn freed_at(&self, context: &StreamContext<'_>, block: BlockId, from: PoolIndex) -> Option<u64> {
        let epoch = self.recorded.epoch_in(block, from)?;
        if epoch < context.heap.pool(from).passed {
            return Some(0);
        }
        let covered = self.epochs.covers(from, epoch);
        covered.then(|| self.epochs.closed_up_to(from, epoch).last().map_or(ANY_AGE, |closed| closed.at))
    }

    /// Makes the stream of a pool wait for all work that still uses a block, and frees the block for the pool.
    fn take_early(&mut self, context: &mut StreamContext<'_>, to: PoolIndex, block: BlockId) -> Result<()> {
        let from = context.heap.block(block).pool;
        context.heap.reserve_early(block, to)?;
        if from.large() != to.large() {
            let freed = self.recorded.epoch_in(block, from.large());
            let epoch = freed.ok_or(Error::Internal("a block of an unknown epoch was chosen"))?;
            self.epochs.wait_for_epoch(context, to.large(), (from.large(), epoch))?;
        }
        let stream = context.heap.pool(to.large()).stream;
        let (driver, heap) = (context.driver, &mut *context.heap);
        self.recorded.wait_on_gpu(block, |used_by, event, at| -> DriverResult<()> {
            driver.stream_wait(stream, event)?;
            heap.journal_mut().stream_waits(at, used_by);
            Ok(())
        })?;
        self.recorded.stop_waiting(block);
        let size = context.heap.block(block).size;
        context.heap.journal_mut().took_recorded_behind_wait(size);
        context.heap.free_early(block, to);
        Ok(())
    }
}

/// Returns whether the request can take pending blocks after waits on the GPU. A captured stream cannot wait for work
/// outside of its graph. A private pool and a pool of small blocks can take their own pending blocks, and no blocks of
/// other streams' pools.
fn may_wait(context: &StreamContext<'_>, request: &Request, others: bool) -> Result<bool> {
    let pool = request.pool;
    let is_denied = others && (pool.is_small() || context.heap.is_private(pool));
    if context.sharing != StreamSharing::Wait || context.capturing() || is_denied || context.heap.is_asleep(pool) {
        return Ok(false);
    }
    Ok(context.can_record(context.heap.pool(pool.large()).stream)?)
}
