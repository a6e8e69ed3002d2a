//! The contract between the allocator and a strategy.
//!
//! Owns: the trait [`Strategy`] and the plain data of its methods.
//!
//! The allocator serves a hit by itself, by [`Strategy::rules`]. The rules are plain data, so that the hot path makes
//! no dynamic call. A strategy decides which block a miss gets ([`Strategy::serve`]) and which memory is given back
//! ([`Strategy::release`]). A strategy reads the heap ([`StrategyContext::heap`]). A strategy changes the heap and
//! calls the driver only by functions of `backing` (verbs): the types allow no other way.
//!
//! The allocator and every verb keep to these rules:
//! - The allocator's lock is held. The caller counts the time in the driver as a stall.
//! - If a driver call fails, the heap is as before that call, and memory is accounted to the byte. A change that could
//!   not be undone counts as held until it is undone (`PendingRollback`).
//!
//! A strategy keeps to these rules:
//! - While a stream is being captured (`context.capturing()`), the strategy makes no wait, query or free that a capture
//!   forbids.
//! - The strategy unmaps no memory that a stream may still use. It gives a stream no memory that another stream has not
//!   passed.
//! - Before the strategy takes memory, it asks whether the limits allow it (`context.require(…)`).
//!
//! # To add a strategy
//! 1. Write the file of the strategy in this folder, or in `baselines/` (the feature `baselines`) if the strategy
//!    serves comparisons. If its misses take PyTorch's steps, implement `MallocLike` (`baselines/classic/tiny.rs` is
//!    the shortest example). Otherwise implement [`Strategy`] and [`Estimates`](super::Estimates).
//! 2. Add a row to the table of `strategy/mod.rs`, which makes the strategy by `Default`, and a name to
//!    `config/strategy_kind.rs`. The compiler does not check three further places: the four `matches!` of that
//!    file (`needs_virtual_memory` and those below it), `just options`, and the count in `CONTRIBUTING.md`.
//! 3. Add a file of one line and its `mod` to `tests/contract`, where the suite tests all promises of a strategy. If
//!    the strategy runs on host memory, also add the `mod` to `tests/contract_on_host`.
//!
//! # Example
//! The example is `first_fit.rs`, which a test below runs. The file implements only the trait; a row of the table also
//! needs `Default` and [`Estimates`](super::Estimates). With `FitRules::BEST` in place of `EXACT`, the smallest block
//! that fits would serve a hit:
//! ```ignore
#![doc = include_str!("first_fit.rs")]
//! ```

use crate::backing::{Served, StrategyContext, choose};
use crate::config::{Config, StreamSharing};
use crate::error::Result;
use crate::heap::{FitRules, Heap, Layout, Request};
use crate::ids::BlockId;

/// A strategy's rules as plain data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The rules by which requests find their blocks.
    pub(crate) fit: FitRules,
    /// Whether every request first queries the events of other streams, as in PyTorch. Otherwise only a miss, and from
    /// time to time another request, queries these events, so that a waiting block does not make every hit call the
    /// driver.
    pub(crate) polls_first: bool,
    /// The rule that says when memory freed on one stream may serve another stream.
    pub(crate) sharing: StreamSharing,
    /// Whether memory that a stream has freed at home becomes idle once the stream has passed the free. If true, long
    /// epochs are ended, and passed memory is made idle when live memory is low.
    pub(crate) passes_memory_on: bool,
    pub(crate) free_used_by: FreeUsedBy,
    /// Whether the allocator waits for pending memory, the oldest first, before it asks for [`Means::All`]. If false,
    /// the strategy waits for all pending memory, as in PyTorch.
    pub(crate) waits_for_oldest: bool,
    /// Whether a block outside of private pools is given back to the driver as soon as it is freed, in the order of the
    /// streams that use it ([`Strategy::free`]). Such blocks are marked as used by other streams, and only frees of
    /// marked blocks check this rule.
    pub(crate) frees_to_driver: bool,
    pub(crate) abilities: Abilities,
}

/// The abilities of a strategy's memory besides serving requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// Whether allocations can grow in place.
    pub(crate) grows: bool,
    /// Whether a private pool can sleep and wake: its memory is released, and later mapped again at the same addresses.
    pub(crate) sleeps: bool,
    /// Whether freed blocks of a private pool can be handed out again at the same addresses.
    pub(crate) restores: bool,
    /// Whether the strategy knows without a wait which memory the GPU has passed, and can release only that memory.
    pub(crate) tells_passed: bool,
    /// Whether the memory can be shared with other processes, other devices and other libraries.
    pub(crate) exports: bool,
}

impl Abilities {
    /// The abilities of memory whose addresses and mapping are fixed.
    pub(crate) const FIXED: Self =
        Self { grows: false, sleeps: false, restores: false, tells_passed: false, exports: true };
    /// The abilities of memory that can be mapped at any addresses.
    pub(crate) const MAPPED: Self =
        Self { grows: true, sleeps: true, restores: true, tells_passed: true, exports: true };
}

impl Rules {
    /// The rules of every strategy except `stitch`: streams share no memory, and the allocator waits as in PyTorch if
    /// memory is short.
    pub(crate) fn streams_apart(fit: FitRules, free_used_by: FreeUsedBy) -> Self {
        Self {
            fit,
            polls_first: true,
            sharing: StreamSharing::Never,
            passes_memory_on: false,
            free_used_by,
            waits_for_oldest: false,
            frees_to_driver: false,
            abilities: Abilities::FIXED,
        }
    }
}

/// The protection of a block whose free names another current stream than the block's own. The block's own stream may
/// reuse it at once. Other streams and the driver may not, until the named stream has passed the free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreeUsedBy {
    /// No other stream gets the block. Giving the block back waits for the device (`cudaFree`).
    DeviceWaits,
    /// The epoch in which the block is freed protects it: whoever waits for the epoch also waits for the named stream.
    Epoch,
    /// The block waits for the named stream, as if `record_stream` had named it. Nothing else protects the block.
    RecordStream,
}

/// The means by which a strategy may serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Means {
    /// Free memory without new mappings: one range, or an existing view. No new memory is taken. Only strategies with
    /// [`Rules::waits_for_oldest`] distinguish these means from [`Means::Cheap`].
    AsMapped,
    /// Memory that can be had without a wait of the CPU for the GPU, and without giving back to the driver any memory
    /// that could serve later requests.
    Cheap,
    /// Used after [`Means::Cheap`] found too little. Free memory that the GPU has passed, and that the request cannot
    /// use where it lies, is given back, and memory grows by as much. The CPU does not wait. The allocator uses these
    /// means only for strategies with [`Rules::waits_for_oldest`].
    Passed,
    /// Used after [`Means::Cheap`] found too little. The CPU waits for the GPU. Free memory that the request cannot use
    /// where it lies is given back, and memory grows by as much.
    All,
}

/// The amount of free memory that should be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// All free memory that can be given back. The CPU may wait.
    Everything,
    /// Free memory that the GPU is known to have passed: `enough` bytes with hardly any excess, or all of it if there
    /// is less. The CPU does not wait.
    Passed {
        /// The bytes to give back.
        enough: u64,
    },
    /// Free memory that the GPU has passed, until at most `down_to` bytes are held, or all of it if it is too little.
    /// The CPU does not wait, except in strategies whose every release waits (`cudaFree`). This goal gives back no more
    /// than [`Self::DownTo`].
    Towards { down_to: u64 },
    /// Just enough free memory that at most `down_to` bytes are held. If `may_wait`, the CPU may wait for the GPU, and
    /// if all free memory is too little, all of it is given back. Otherwise only memory that the GPU has passed is
    /// given back, and none if it is too little.
    DownTo { down_to: u64, may_wait: bool },
    /// Free segments that the layout does not keep ([`Layout::release_from`]). Not used if the layout keeps all
    /// segments.
    Unkept,
}

impl Goal {
    /// Returns the goal as a number of bytes; `None` for goals that are no number of bytes.
    pub(super) fn target(self) -> Option<Target> {
        match self {
            Self::DownTo { down_to, may_wait } => Some(Target { down_to, may_wait, partly: may_wait }),
            Self::Towards { down_to } => Some(Target { down_to, may_wait: false, partly: true }),
            Self::Everything | Self::Passed { .. } | Self::Unkept => None,
        }
    }
}

/// A goal in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// The most bytes that may be held afterwards.
    pub(super) down_to: u64,
    /// Whether the CPU may wait for the GPU.
    pub(super) may_wait: bool,
    /// Whether memory is given back even if all memory that can be given back is too little.
    pub(super) partly: bool,
}

impl Target {
    /// Returns the bytes by which the memory held exceeds the target.
    pub(super) fn excess(&self, heap: &Heap) -> u64 {
        heap.reserved().saturating_sub(self.down_to)
    }

    /// Returns `None` if `free` bytes of free memory are too few for the target and `partly` is false, so that none are
    /// given back. Otherwise returns whether they count as enough; with `may_wait`, also too few do.
    pub(super) fn suffices(&self, heap: &Heap, free: u64) -> Option<bool> {
        let suffices = free >= self.excess(heap);
        (suffices || self.partly).then_some(suffices || self.may_wait)
    }

    /// Chooses pieces of free memory to give back: enough for the target, with hardly any excess. `sizes` has the sizes
    /// of the pieces in order of preference. Returns the indices of the chosen pieces, and whether these are enough.
    /// Returns `None` if no piece is to be given back.
    pub(super) fn choose(&self, heap: &Heap, sizes: &[u64]) -> Result<Option<(Vec<usize>, bool)>> {
        let Some(suffices) = self.suffices(heap, sizes.iter().sum()) else { return Ok(None) };
        Ok(Some((choose(sizes, self.excess(heap))?, suffices)))
    }
}

/// A strategy: its steps on a miss, and its choice of memory to give back to the driver.
pub(crate) trait Strategy: Send {
    /// Returns the rules under these options. The allocator asks when the options change, and serves every hit by these
    /// rules.
    fn rules(&self, config: &Config) -> Rules;

    /// Returns how memory is divided under these options, on a device with `total` bytes. The default is PyTorch's
    /// division. The allocator asks once, before the first request.
    fn layout(&self, _config: &Config, _total: u64) -> Layout {
        Layout::PYTORCH
    }

    /// Serves a request that no free block fits by the rules. Returns a mapped block of the request's pool with at
    /// least the request's size. The block is new, or was taken out of the free index (`context.take_block`). The
    /// allocator splits off the excess, by [`FitRules::min_rest`].
    ///
    /// The allocator asks with rising `means`. On [`Miss::OUT_OF_MEMORY`] it goes on to the next means, and refuses the
    /// request after [`Means::All`]. After an error the strategy holds no memory for the request.
    ///
    /// [`Miss::OUT_OF_MEMORY`]: crate::backing::Miss::OUT_OF_MEMORY
    fn serve(&mut self, context: &mut StrategyContext<'_>, request: &Request, means: Means) -> Served;

    /// Gives free memory back to the driver, just enough for the goal. Returns whether the goal was reached. A strategy
    /// whose every release waits for the GPU gives back no memory for [`Goal::Passed`].
    ///
    /// # Errors
    /// A driver call failed. Memory that was given back before the failed call stays given back.
    fn release(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool>;
}

/// A strategy that gives each block outside of private pools back to the driver when it is freed, in the order of the
/// streams that use it. The strategy's rules have [`Rules::frees_to_driver`].
pub(crate) trait StreamOrdered {
    /// Gives a freed block that belongs to no private pool back to the driver. The block is in no table of live
    /// allocations any more. Returns `false` and changes no state if the block cannot be given back now.
    ///
    /// # Errors
    /// A driver call failed, or the host has too little memory. The block is as before.
    fn free(&mut self, context: &mut StrategyContext<'_>, id: BlockId) -> Result<bool>;

    /// Gives back the strategy's driver objects other than memory, at the end of the allocator.
    ///
    /// # Errors
    /// A driver call failed.
    fn close(&mut self, context: &mut StrategyContext<'_>) -> Result<()>;
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic fails the test")]
mod tests {
    use super::super::first_fit::FirstFit;
    use super::*;
    use crate::backing::{AllocatorContext, Exchanges, PendingRollback};
    use crate::driver::sim::{SimConfig, SimGpu};
    use crate::heap::HeapRules;
    use crate::ids::{Class, PoolIndex, ViewId};
    use crate::limits::Limits;
    use crate::streams::Streams;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_example_takes_the_first_block_that_fits_and_gives_all_back_when_memory_is_short() {
        let gpu = SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap();
        let config = Config::parse("memory_limit:16MiB").unwrap();
        let rules = FirstFit.rules(&config);
        let layout = FirstFit.layout(&config, 16 * MIB);
        let heap = HeapRules {
            oversize_from: u64::MAX,
            adopts_idle: false,
            home_is_shared: false,
            layout,
            flight: 0,
            ages: false,
        };
        let mut heap = crate::heap::Heap::new(heap).unwrap();
        let (mut streams, mut rollback) = (Streams::default(), PendingRollback::default());
        let limits = Limits::new(&config, 16 * MIB);
        let mut serve = |heap: &mut Heap, mib: u64| {
            let tables = (heap, &mut streams, &mut rollback);
            let mut context = AllocatorContext::new(tables, &gpu, (&config, limits), Exchanges::Never, None);
            let (size, pool) = (mib * MIB, PoolIndex::DEFAULT);
            let request = Request { size, requested: size, pool, class: Class::Large, extends: ViewId::NONE };
            let id = FirstFit.serve(&mut context, &request, Means::All).map_err(|_| mib)?;
            Ok::<u64, u64>(context.heap_mut().hand_out(id, &request, &rules.fit).unwrap())
        };
        let free = |heap: &mut Heap, address: u64| {
            let id = heap.take_live(address).unwrap();
            heap.free_at_once(id);
        };
        let [a, b, c] = [6, 2, 4].map(|mib| serve(&mut heap, mib).unwrap());
        free(&mut heap, a);
        free(&mut heap, c);
        let lowest = a.min(c);
        assert_eq!(serve(&mut heap, 3), Ok(lowest), "the lowest of two, whichever is smaller");
        assert_eq!(serve(&mut heap, 14), Err(14), "the limit holds beside what is live");
        free(&mut heap, lowest);
        free(&mut heap, b);
        assert!(serve(&mut heap, 14).is_ok(), "all that was free went back first");
        assert_eq!((heap.reserved(), heap.check()), (14 * MIB, Ok(())));
    }
}
