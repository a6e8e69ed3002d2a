//! Checkpoints of private pools: the list of a pool's live blocks, and a restore, after which exactly these blocks are
//! live again.
//!
//! Owns: the steps of a restore. A launched graph writes to blocks that were freed during its capture. A program that
//! goes on from the graph's results, to capture the next graph in the same pool, needs these blocks to be live again at
//! their addresses. PyTorch does this for trees of graphs (`torch.compile(mode="reduce-overhead")`).

use super::core::Core;
use super::operations::Pools;
use crate::config::rounding::SMALL_LIMIT;
use crate::error::{Error, Result};
use crate::ids::PoolId;
use crate::report::pool::PoolBlock;

impl Pools<'_> {
    /// Returns a checkpoint of a private pool: its live blocks, by address. The call walks all blocks.
    ///
    /// # Errors
    /// [`Error::UnknownPool`] if the pool does not exist.
    pub fn blocks(self, pool: PoolId) -> Result<Vec<PoolBlock>> {
        let core = self.0.core.lock();
        core.heap.private_stats(pool)?;
        core.heap.live_of(pool)
    }

    /// Frees every live block of a private pool, then hands out the blocks of a checkpoint again, at the same addresses
    /// and over the same memory. In the statistics, blocks that are live before and after the call count as freed and
    /// allocated. If some of the pool's memory was freed in the order of a stream, the CPU waits for that stream.
    ///
    /// # Errors
    /// [`Error::UnknownPool`] if every use and route of the pool has ended (nothing has changed);
    /// [`Error::NotRestorable`] if a block cannot be handed out again, as always with other strategies than `stitch`
    /// and for pools with segments of their own; [`Error::NotGrowable`] while an allocation of the pool grows in place;
    /// [`Error::Driver`] if a wait failed; [`Error::HostMemory`]: some of the pool's blocks may have been freed, and
    /// the same call can succeed later.
    pub fn restore(self, pool: PoolId, blocks: &[PoolBlock]) -> Result<()> {
        let core = &mut *self.0.core.lock();
        core.heap.private().exists(pool)?;
        core.heap.private().must_be_awake(pool)?;
        let restores = core.rules.abilities.restores && core.heap.private().segments(pool).is_none();
        if let (Some(first), false) = (blocks.first(), restores) {
            return Err(Error::NotRestorable { address: first.address });
        }
        core.features.growing.none_of(pool)?;
        core.heap.reserve_restored(blocks.len())?;
        for live in core.heap.live_of(pool)? {
            core.free(live.address)?;
        }
        core.poll()?;
        // Until the GPU has done a stream's work, the stream's memory in a private pool may lie in two pairs of pools
        // (large and small): one pair whose memory captures may take, and one pair set aside for memory that is free in
        // stream order only. The wait joins the two pairs.
        core.wait_for_pool(pool)?;
        // Large blocks come first: a stitched block can take a part of a slab for small blocks only while the slab is
        // wholly free.
        let of_class = |large: bool| blocks.iter().filter(move |block| (block.size > SMALL_LIMIT) == large);
        of_class(true).chain(of_class(false)).try_for_each(|block| core.restore(pool, block))?;
        core.checked()
    }
}

impl Core {
    fn restore(&mut self, owner: PoolId, block: &PoolBlock) -> Result<()> {
        let (id, request) = self.heap.retake(owner, block)?;
        let reserved = self.heap.reserve_private(id);
        reserved.inspect_err(|_| self.heap.put_back(id))?;
        let address = self.heap.hand_out(id, &request, &self.rules.fit)?;
        self.heap.handed_out_privately(id, owner, false);
        self.watch(address)
    }
}
