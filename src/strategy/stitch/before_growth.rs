//! Chunks are split before memory grows, where the program allows it and it pays.
//!
//! Owns: when it pays. `split.rs` chooses the chunks, and `backing/exchange.rs` makes the calls.
//!
//! Growth is cheap: memory that a job needs once costs 2 to 3 ms a GiB, and a split waits for the device. But what growth adds
//! beside free memory stays held. So chunks are split once more than [`WASTE`] of what would be held lies free, for
//! [`GAIN`] of it at least, and [`MOST_MS`] at most.

use super::miss::{Joined, Stitch};
use super::split::{candidates, gain_within, may_split, split};
use crate::backing::{Miss, StrategyContext};
use crate::config::Split;
use crate::heap::{Heap, Request};
use crate::ids::{BlockId, PoolIndex};

/// A part (1/n) of what is held. With less lying free, memory grows.
const WASTE: u64 = 300;
/// The least that splitting is to gain, as a part (1/n) of what is held.
const GAIN: u64 = 800;
/// The longest stall, as estimated, in milliseconds.
const MOST_MS: u64 = 5;

/// Returns how many bytes would lie free for the stream of a large pool, or for all that share, if memory grew by `missing` for a
/// request.
fn free_after_growth(heap: &Heap, pool: PoolIndex, apart: bool, request: u64, missing: u64) -> Result<u64, Miss> {
    let mut free = missing;
    for large in heap.stream_pools().filter(|large| !apart || *large == pool).chain([heap.idle()]) {
        heap.visit_free(large, 0, |id| {
            free += heap.block(id).size;
            Ok(())
        })?;
    }
    Ok(free.saturating_sub(request))
}

impl Stitch {
    /// Splits chunks for a request for which so many bytes are missing, if that is better than to grow by them. Returns the block
    /// that serves it, or what is missing then.
    pub(super) fn split_before_growth(
        &mut self,
        context: &mut StrategyContext<'_>,
        request: &Request,
        missing: u64,
    ) -> Result<Joined, Miss> {
        let stays = Ok(Joined::Missing(missing));
        if context.config.split != Split::BeforeGrowth || !may_split(context) {
            return stays;
        }
        let held = context.heap.reserved().saturating_add(missing);
        let pool = request.pool.large();
        let apart = context.shares_nothing();
        let serves = |heap: &Heap, id: BlockId| !apart || heap.is_open(id, pool);
        if free_after_growth(context.heap, pool, apart, request.size, missing)? < held / WASTE {
            return stays;
        }
        let candidates = candidates(context.heap, &serves)?;
        let gain = gain_within(&candidates, missing, MOST_MS);
        if gain < held / GAIN {
            return stays;
        }
        context.wait_for_all()?;
        if split(context, &serves, candidates, gain)? { self.join(context, request) } else { stays }
    }
}
