//! Before a request is refused: what the CPU can wait for, and what has to change its place.
//!
//! Owns: the last steps of a miss, and the order of them. Memory that the request cannot use where it lies goes back to
//! the driver, and home grows by it: free chunks of streams that share nothing, or free chunks that no view may join
//! because views are at one of their bounds.

use super::{Spare, Stitch};
use crate::blocks::BlockId;
use crate::config::Sharing;
use crate::heap::Request;
use crate::home::GRANULE;
use crate::stats::Class;
use crate::strategy::{Ground, Miss, Strategy};

impl Stitch {
    /// The CPU waits for all that may still use freed memory. Then every free byte counts: where it lies, or in another
    /// place.
    pub(super) fn wait_and_replace(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        ground.heap.counters.num_sync_all_streams += 1;
        ground.deferred.synchronize(ground.heap, ground.driver)?;
        ground.wait_for_all()?;
        self.epochs.all_passed(ground);
        if ground.config.sharing != Sharing::Never {
            ground.heap.make_all_idle();
        }
        match self.miss(ground, request) {
            Err(Miss::OutOfMemory) => {}
            done => return done,
        }
        // What is free only to others first, since the request's own memory counts beside it.
        if request.class == Class::Large {
            let missing = match self.join(ground, request)? {
                Ok(id) => return self.attempt(ground, request, |_, _| Ok(id)),
                Err(missing) => missing,
            };
            let pool = request.pool;
            match self.replace(ground, request, missing, |ground, id| !ground.heap.is_open(id, pool)) {
                Err(Miss::OutOfMemory) => {}
                done => return done,
            }
        }
        let whole = if request.class == Class::Small { GRANULE } else { request.size };
        self.replace(ground, request, whole, |_, _| true)
    }

    /// Gives back free chunks, of those that have a byte in a block that the predicate is true for, and grows by `bytes`
    /// with them. Gives nothing back where it would not suffice.
    fn replace(
        &mut self,
        ground: &mut Ground<'_>,
        request: &Request,
        bytes: u64,
        wanted: impl Fn(&Ground<'_>, BlockId) -> bool,
    ) -> Result<BlockId, Miss> {
        let bytes = bytes.next_multiple_of(GRANULE);
        // Just enough; and where the driver then still refuses, for whatever reason, all.
        for all in [false, true] {
            // What is still mapped somewhere would not go.
            self.unsettled.settle(ground)?;
            let room = room(ground);
            let goal = if all { u64::MAX } else { bytes.saturating_sub(room) };
            let spare = Spare::of(ground.heap).with(ground.heap, |id| wanted(ground, id));
            let suffices = spare.bytes().saturating_add(room) >= bytes;
            if !suffices || (all && spare.bytes() == 0) {
                break;
            }
            spare.give_back(ground, &mut self.unsettled, goal)?;
            ground.heap.counters.num_alloc_retries += 1;
            let grown = self.attempt(ground, request, |stitch, ground| match request.class {
                Class::Small => stitch.slab(ground, request),
                Class::Large => stitch.grow(ground, request, bytes),
            });
            match grown {
                Err(Miss::OutOfMemory) => {}
                done => return done,
            }
        }
        Err(Miss::OutOfMemory)
    }
}

/// Bytes by which home could grow as things are. None where the driver does not say.
fn room(ground: &Ground<'_>) -> u64 {
    let allowed = ground.limit.map_or(u64::MAX, |limit| limit.saturating_sub(ground.heap.reserved()));
    ground.driver.memory_info().map_or(0, |info| info.free).min(allowed)
}
