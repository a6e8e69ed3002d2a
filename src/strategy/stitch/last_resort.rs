//! Before a request is refused: what the CPU can wait for, and what has to change its place.
//!
//! Owns: the last steps of a miss, and the order of them. Memory that the request cannot use where it lies goes back to
//! the driver, and home grows by it: free chunks of streams that share nothing, or free chunks that no view may join
//! because views are at one of their bounds.

use super::miss::{Joined, Stitch};
use super::release::ReleasableChunks;
use crate::backing::{Miss, StrategyContext};
use crate::config::Sharing;
use crate::heap::{GRANULE, Heap, Request};
use crate::ids::{BlockId, Class};

impl Stitch {
    /// The CPU waits for all that may still use freed memory. Then every free byte counts: where it lies, or in another
    /// place.
    pub(super) fn wait_and_replace(
        &mut self,
        context: &mut StrategyContext<'_>,
        request: &Request,
    ) -> Result<BlockId, Miss> {
        context.wait_for_recorded_streams()?;
        context.wait_for_all()?;
        if context.config.sharing != Sharing::Never {
            context.heap.make_all_idle();
        }
        match self.miss(context, request) {
            Err(Miss::OutOfMemory { .. }) => {}
            done => return done,
        }
        // What is free only to others first, since the request's own memory counts beside it.
        if request.class == Class::Large {
            let missing = match self.join(context, request)? {
                Joined::Block(id) => return self.attempt(context, request, |_, _| Ok(id)),
                Joined::Missing(missing) => missing,
            };
            match self.replace(context, request, missing, |heap, id| !heap.is_open(id, request.pool)) {
                Err(Miss::OutOfMemory { .. }) => {}
                done => return done,
            }
        }
        let whole = if request.class == Class::Small { GRANULE } else { request.size };
        self.replace(context, request, whole, |_, _| true)
    }

    /// Gives back free chunks, of those that have a byte in a block that the predicate is true for, and grows by `bytes`
    /// with them. Gives nothing back where it would not suffice.
    fn replace(
        &mut self,
        context: &mut StrategyContext<'_>,
        request: &Request,
        bytes: u64,
        wanted: impl Fn(&Heap, BlockId) -> bool,
    ) -> Result<BlockId, Miss> {
        let bytes = bytes.next_multiple_of(GRANULE);
        // Just enough; and where the driver then still refuses, for whatever reason, all.
        for all in [false, true] {
            // What is still mapped somewhere would not go.
            context.retry_rollback()?;
            let room = context.room();
            let goal = if all { u64::MAX } else { bytes.saturating_sub(room) };
            let heap = &*context.heap;
            let releasable = ReleasableChunks::of(heap).with(heap, |id| wanted(heap, id));
            let suffices = releasable.bytes().saturating_add(room) >= bytes;
            if !suffices || (all && releasable.bytes() == 0) {
                break;
            }
            releasable.release(context, goal)?;
            context.heap.counters_mut().num_alloc_retries += 1;
            let grown = self.attempt(context, request, |stitch, context| match request.class {
                Class::Small => stitch.slab(context, request),
                Class::Large => stitch.grow(context, request, bytes),
            });
            match grown {
                Err(Miss::OutOfMemory { .. }) => {}
                done => return done,
            }
        }
        Err(Miss::OUT_OF_MEMORY)
    }
}
