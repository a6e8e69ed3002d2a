//! Strategy `malloc-async`: the driver's stream-ordered allocator (`cudaMallocAsync`), as PyTorch's backend of that
//! name and Paddle's `CUDAMallocAsyncAllocator` use it.
//!
//! The driver has the free memory and decides which memory serves a request. The strategy caches no memory, and every
//! request and every free is a driver call. The strategy's rules are those of `c10/cuda/CUDAMallocAsyncAllocator.cpp`
//! (pytorch/pytorch, 0345947) and of `paddle/phi/core/memory/allocation/cuda_malloc_async_allocator.cc`
//! (PaddlePaddle/Paddle, 06dc365):
//!
//! | rule | from |
//! |---|---|
//! | the pool never gives memory back by itself (release threshold `UINT64_MAX`), and the three policies of reuse are on | PyTorch, `lazy_init_device` |
//! | a block is freed on its own stream | PyTorch, `free_impl`; Paddle, `CUDAMallocAsyncAllocation::Free` |
//! | if other streams used the block, a stream for frees waits for an event of each, and the block is freed on that stream | the same, and `sync_raw`, `sync_streams` |
//! | if allocated memory exceeds a ratio of the device's memory, the request's stream waits for the stream for frees | Paddle, `MallocThrottling`, `ClearFreeStream` |
//! | allocated and freed in a capture: free for the pool's later requests | both, `freeAsync` and `FreeImpl`, case 1 |
//! | allocated in a capture, freed outside: freed with the graph, here with its private pool | Paddle, `FreeImpl`, case 2, and `AllocateImpl` |
//! | allocated outside, freed in a capture: freed after the capture | PyTorch, Note "Avoid freeing uncaptured ptrs …"; Paddle, case 3 |
//! | allocated and freed outside: freed at once, or after the capture if another stream is being captured | both, case 4; the wait for the capture rests on a measurement |
//!
//! The strategy differs from both PyTorch and Paddle in these points:
//! - The allocator has a pool of its own instead of the device's default pool, so that the pool's figures are the
//!   allocator's alone.
//! - Captures make no allocation nodes in graphs. A captured request gets memory of its private pool, as in every
//!   strategy, so the driver's rules for such nodes do not apply.
//! - Paddle waits at every request above its ratio. Here a request waits only if a block was freed on the stream for
//!   frees since the last wait. As in Paddle, the bytes freed on that stream count twice in the sum that is compared
//!   with the ratio.
//! - PyTorch and Paddle refuse a request that the driver refuses. Here the allocator waits for the device, gives free
//!   memory back, and tries once more, as in the other strategies.
//! - PyTorch's limit counts allocated memory. Here limits count the pool's memory, as in every strategy. If the pool
//!   might grow beyond a limit, a request is tried if free memory might serve it, and undone if the pool has grown.

use crate::backing::{DriverPool, InTurn, Miss, MissResult, Served, StrategyContext};
use crate::config::Config;
use crate::config::rounding::MIN_BLOCK;
use crate::error::Result;
use crate::heap::Rounding;
use crate::heap::{FitRules, Layout, Merging, Request};
use crate::ids::BlockId;
use crate::limits::Increase;
use crate::strategy::contract::{Abilities, FreeUsedBy, Goal, Means, Rules, Strategy, StreamOrdered, Target};
use crate::strategy::estimates::{Assumption, Estimates, Present};

/// The step in bytes by which a pool grows and shrinks, as all figures of PyTorch's backend on an H200 show.
const STEP: u64 = 32 << 20;

#[derive(Default)]
pub(crate) struct MallocAsync {
    pool: DriverPool,
}

impl Strategy for MallocAsync {
    fn rules(&self, _config: &Config) -> Rules {
        let abilities = Abilities { exports: false, ..Abilities::FIXED };
        let apart = Rules::streams_apart(FitRules::EXACT, FreeUsedBy::RecordStream);
        Rules { frees_to_driver: true, abilities, ..apart }
    }

    fn layout(&self, _config: &Config, _total: u64) -> Layout {
        Layout {
            rounding: Rounding::Multiple { of: MIN_BLOCK, padding: 0 },
            small_limit: 0,
            merging: Merging::Never,
            release_from: 0,
        }
    }

    fn serve(&mut self, context: &mut StrategyContext<'_>, request: &Request, means: Means) -> Served {
        self.pool.refresh(context);
        if !context.capturing() {
            // A graph may use free memory of its private pool, so a private pool releases none.
            if !context.heap().is_private(request.pool) {
                self.pool.release_free_of(context, request.pool)?;
            }
            self.throttle(context, request)?;
        }
        let grows = Increase::of(grown_by(request.size));
        if context.allows(grows)
            && let Some(id) = self.pool.malloc(context, request.pool, request.size).found()?
        {
            return Ok(id);
        }
        if means != Means::All || context.capturing() {
            return Err(Miss::OUT_OF_MEMORY);
        }
        context.wait_for_recorded_streams()?;
        if let Some(id) = self.without_growth(context, request)? {
            return Ok(id);
        }
        self.release(context, Goal::Everything)?;
        context.count_retry();
        if context.allows(grows) {
            return self.pool.malloc(context, request.pool, request.size);
        }
        self.without_growth(context, request)?.ok_or(Miss::OUT_OF_MEMORY)
    }

    /// Trims the pool.
    fn release(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        if goal == Goal::Unkept {
            return self.pool.release_free(context).map(|()| true);
        }
        self.pool.refresh(context);
        self.pool.release_free(context)?;
        let everything = Target { down_to: 0, may_wait: true, partly: true };
        let Some(target) = goal.target().or((goal == Goal::Everything).then_some(everything)) else { return Ok(false) };
        let too_much = target.excess(context.heap());
        let idle = context.heap().pool_held() - context.heap().pool_used();
        if too_much == 0 || (idle < too_much && !target.partly) {
            return Ok(too_much == 0);
        }
        if target.may_wait {
            context.wait_for_all()?;
        }
        // A trim leaves at least this many bytes in the pool.
        let keep = context.heap().pool_held().saturating_sub(too_much) / STEP * STEP;
        self.pool.trim(context, keep)?;
        Ok(context.heap().reserved() <= target.down_to)
    }
}

impl StreamOrdered for MallocAsync {
    fn free(&mut self, context: &mut StrategyContext<'_>, id: BlockId) -> Result<bool> {
        self.pool.free(context, id)
    }

    fn close(&mut self, context: &mut StrategyContext<'_>) -> Result<()> {
        self.pool.close(context)
    }
}

/// The estimates use the request's size alone, since the driver does not tell which requests its pool could serve.
impl Estimates for MallocAsync {
    fn growth_needed(&self, _present: &Present<'_>, request: &Request, _assumption: Assumption) -> u64 {
        grown_by(request.size)
    }
}

impl MallocAsync {
    /// Makes the request's stream wait for memory that other streams have freed, if many bytes are in use.
    fn throttle(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Result<()> {
        let pending = self.pool.pending();
        if pending == 0 {
            return Ok(());
        }
        let allocated = context.heap().pool_used() + pending;
        let total = context.total_memory().max(1);
        let ratio = context.config.paddle.cuda_malloc_async_pool_memory_throttle_ratio;
        if (allocated + pending) as f64 / total as f64 > ratio {
            let stream = context.heap().pool(request.pool.large()).stream;
            self.pool.wait_for_frees(context, stream)?;
        }
        Ok(())
    }

    /// Serves a request from memory of the pool when the pool may not grow. Returns `None` if the pool would have to
    /// grow.
    fn without_growth(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> MissResult<Option<BlockId>> {
        let held = context.heap().pool_held();
        if held - context.heap().pool_used() < request.size {
            return Ok(None);
        }
        let Some(id) = self.pool.malloc(context, request.pool, request.size).found()? else { return Ok(None) };
        let grown = context.heap().pool_held() > held;
        if !grown || context.allows(Increase::of(0)) {
            return Ok(Some(id));
        }
        self.pool.undo(context, id)?;
        context.wait_for_all()?;
        self.pool.trim(context, held)?;
        Ok(None)
    }
}

/// Returns the most bytes by which a pool grows for a request.
fn grown_by(size: u64) -> u64 {
    size.checked_next_multiple_of(STEP).unwrap_or(u64::MAX)
}
