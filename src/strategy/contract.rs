//! What the allocator asks of a strategy.
//!
//! Owns: the trait [`Strategy`] and the plain data that goes with it.
//!
//! A strategy decides three things: which block a miss gets ([`Strategy::serve`]), which memory goes back
//! ([`Strategy::release`]), and by which rules a hit finds its block ([`Strategy::rules`]). It decides nothing on the hot
//! path, for its rules are plain data. It makes its driver calls by the functions of `backing`, which note in the heap what
//! they did; it writes no table itself.
//!
//! Contract of every method that takes a [`StrategyContext`]:
//! - The allocator's lock is held. The caller counts the time in the driver as a stall.
//! - Where a driver call fails, the heap is as before that call, and memory is accounted to the byte: what could not be
//!   undone counts as held until it is (`PendingRollback`).
//! - While a stream is being captured (`context.capturing()`), nothing is waited for, asked for or freed that a capture
//!   forbids.
//! - Nothing is unmapped while a stream may still use it, and nothing serves another stream before its own has passed.

use crate::backing::{Miss, StrategyContext};
use crate::config::rounding::segment_size;
use crate::config::{Config, Sharing};
use crate::error::Result;
use crate::heap::{FitRules, Heap, Request};
use crate::ids::{BlockId, PoolIndex};

/// A strategy's rules as plain data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// How requests find their blocks.
    pub(crate) fit: FitRules,
    /// Whether every request first asks what other streams have passed, as in PyTorch. Otherwise a miss does, and a
    /// request now and then, so that not every hit calls the driver while anything waits.
    pub(crate) polls_first: bool,
    /// When memory freed on one stream may serve another.
    pub(crate) sharing: Sharing,
    /// Whether what a stream has freed at home becomes everyone's once it has passed. Then epochs end when they are long,
    /// and what has passed is gathered when live memory is low.
    pub(crate) passes_memory_on: bool,
    pub(crate) free_used_by: FreeUsedBy,
}

/// A block is freed while another stream than its own is current, which may use it: its own stream may have it at once.
/// What keeps it from others, and from the driver, until the other stream has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreeUsedBy {
    /// Nobody else gets it, and giving it back waits for the device (`cudaFree`).
    DeviceWaits,
    /// The epoch in which it is freed.
    Epoch,
    /// Nothing: the block has to wait for that stream, as if `record_stream` had named it.
    RecordStream,
}

/// What a request may cost others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Means {
    /// Nothing is given back to the driver that could serve later, and the CPU does not wait for the GPU.
    Cheap,
    /// After [`Means::Cheap`] found too little: the CPU waits for the GPU, and what the request cannot use where it lies goes
    /// back, so that memory can grow by it.
    All,
}

/// How much free memory is to go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Every free byte that can. The CPU may wait.
    Everything,
    /// Just enough that no more than `down_to` bytes are held. If it may not wait for the GPU: only what the GPU has passed,
    /// and nothing at all where that is too little. If it may: all there is where all is too little.
    DownTo { down_to: u64, may_wait: bool },
}

/// What a strategy may count on when it is asked how far memory would have to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assumption {
    /// Things are as they are.
    AsIs,
    /// The same, but no view can be added: memory must lie in one piece.
    NoMoreViews,
    /// What is free on other streams is this one's as well.
    AllStreams,
}

/// What happens on a miss, and which memory goes back to the driver.
pub(crate) trait Strategy: Send {
    /// Returns the rules under these options.
    fn rules(&self, config: &Config) -> Rules;

    /// Makes a free block of at least the request's size, with memory at its addresses, and takes it out of the free index.
    fn serve(
        &mut self,
        context: &mut StrategyContext<'_>,
        request: &Request,
        means: Means,
    ) -> std::result::Result<BlockId, Miss>;

    /// Gives free memory back to the driver. Returns whether it sufficed for the goal.
    ///
    /// # Errors
    /// A driver call failed. What was given back before it stays given back.
    fn release(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool>;

    /// Returns the largest request that what is free for a pool could meet now, without new memory; `across` as if the memory
    /// of other streams were this one's. For reports: it makes no driver call.
    fn largest_servable(&self, heap: &Heap, _config: &Config, pool: PoolIndex, _across: bool) -> u64 {
        heap.largest_in(pool)
    }

    /// Returns by how many bytes at most the memory held would have to grow for a request that nothing free meets, less what
    /// would go back to the driver for it. For reports: it makes no driver call.
    fn growth_needed(&self, _heap: &Heap, config: &Config, request: &Request, _assumption: Assumption) -> u64 {
        segment_size(request.size, config.large_segment_size)
    }

    /// Checks the strategy's own rules that always hold, beyond those of the heap. For tests.
    ///
    /// # Errors
    /// Says which rule is broken, and where.
    fn check(&self, _heap: &Heap) -> std::result::Result<(), String> {
        Ok(())
    }
}
