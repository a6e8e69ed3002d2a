//! The strategy of the example in `contract.rs`: the first free block that is large enough serves.

use super::contract::{FreeUsedBy, Goal, Means, Rules, Strategy};
use super::malloc_like::{least_segment, release_segments};
use crate::backing::{InTurn, Miss, Served, StrategyContext, malloc_segment};
use crate::config::Config;
use crate::error::Result;
use crate::heap::{FitRules, Request};
use crate::ids::BlockId;
use crate::limits::Increase;

pub(crate) struct FirstFit;

impl Strategy for FirstFit {
    /// A hit is a free block with exactly the size of the request. All other requests are misses.
    fn rules(&self, _config: &Config) -> Rules {
        Rules::streams_apart(FitRules::EXACT, FreeUsedBy::DeviceWaits)
    }

    fn serve(&mut self, context: &mut StrategyContext<'_>, request: &Request, means: Means) -> Served {
        let heap = context.heap();
        let fits = |id: &BlockId| heap.block(*id).size >= request.size;
        let fitting = heap.free_blocks(request.pool)?.into_iter().filter(fits);
        if let Some(first) = fitting.min_by_key(|id| heap.block(*id).address) {
            return Ok(context.take_block(first));
        }
        let size = least_segment(request.size);
        let grow = |context: &mut StrategyContext<'_>| {
            context.require(Increase::taken(size))?;
            malloc_segment(context, request.pool, size)
        };
        grow(context).or_try(|| {
            if means != Means::All || context.capturing() {
                return Err(Miss::OUT_OF_MEMORY);
            }
            self.release(context, Goal::Everything)?;
            grow(context)
        })
    }

    fn release(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        release_segments(context, goal)
    }
}
