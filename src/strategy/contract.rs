//! The contract between the allocator and a strategy.
//!
//! Owns: the trait [`Strategy`] and the plain data of its methods.
//!
//! The allocator serves a hit by itself, by [`Strategy::rules`]: plain data, so that the hot path makes no dynamic
//! call. A strategy decides which block a miss gets ([`Strategy::serve`]) and which memory goes back
//! ([`Strategy::release`]). It reads the heap ([`StrategyContext::heap`]), and changes it and calls the driver by the
//! verbs of `backing` alone: the types allow nothing else.
//!
//! The allocator keeps to these rules, and so does every verb:
//! - The allocator's lock is held. The caller counts the time in the driver as a stall.
//! - If a driver call fails, the heap is as before that call, and memory is accounted to the byte: a change that
//!   could not be undone counts as held until it is (`PendingRollback`).
//!
//! A strategy keeps to these rules:
//! - While a stream is being captured (`context.capturing()`), it makes no wait, query or free that a capture forbids.
//! - It unmaps nothing that a stream may still use, and serves no stream with memory of another that has not passed.
//! - Before it takes memory it asks whether the limits allow that (`context.require(…)`).
//!
//! # To add a strategy
//! 1. Write its file beside this one, or in `baselines/` (the feature `baselines`) if it is there to be compared. If
//!    its misses take PyTorch's steps, implement `MallocLike` (`baselines/classic/tiny.rs` is the shortest), otherwise
//!    [`Strategy`] and [`Estimates`](super::Estimates).
//! 2. Give it a row in the table of `strategy/mod.rs`, which makes it by `Default`, and a name in
//!    `config/strategy_kind.rs`. The compiler does not ask for four `matches!` there (`needs_virtual_memory` and those
//!    below it), for `just options`, or for the count in `CONTRIBUTING.md`.
//! 3. Add a file of one line and its `mod` to `tests/contract`, where the suite runs all promises of a strategy on it;
//!    and the `mod` to `tests/contract_on_host`, if it runs on host memory.
//!
//! # Example
//! `first_fit.rs`, which a test below runs. The file shows the trait alone: a row of the table also needs `Default` and
//! [`Estimates`](super::Estimates). With `FitRules::BEST` in place of `EXACT`, the smallest block that fits would serve
//! a hit:
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
    /// How requests find their blocks.
    pub(crate) fit: FitRules,
    /// Whether every request first queries the events of other streams, as in PyTorch. Otherwise only a miss does, and
    /// a request now and then, so that not every hit calls the driver while a block waits.
    pub(crate) polls_first: bool,
    /// When memory freed on one stream may serve another.
    pub(crate) sharing: StreamSharing,
    /// Whether memory that a stream has freed at home becomes idle once the stream has passed the free. If so, long
    /// epochs are ended, and passed memory is gathered when little memory is live.
    pub(crate) passes_memory_on: bool,
    pub(crate) free_used_by: FreeUsedBy,
    /// Whether the allocator waits for pending memory, the oldest first, before it asks for [`Means::All`]. Otherwise the
    /// strategy waits for all of it, as in PyTorch.
    pub(crate) waits_for_oldest: bool,
    /// Whether a public block goes back to the driver as soon as it is freed, in the order of the streams that use it
    /// ([`Strategy::free`]). Such blocks are marked as if other streams used them, so that no other strategy's frees ask for it.
    pub(crate) frees_to_driver: bool,
    pub(crate) abilities: Abilities,
}

/// The abilities of a strategy's memory beside serving requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    /// Whether allocations can grow in place.
    pub(crate) grows: bool,
    /// Whether a private pool can sleep and wake: its memory is released, and later mapped again at the same addresses.
    pub(crate) sleeps: bool,
    /// Whether freed blocks of a private pool can be handed out again at the same addresses.
    pub(crate) restores: bool,
    /// Whether the strategy knows without a wait which memory the GPU has passed, and can release that memory alone.
    pub(crate) tells_passed: bool,
    /// Whether the memory can be shared with other processes, other devices and other libraries.
    pub(crate) exports: bool,
}

impl Abilities {
    /// The abilities of memory that stays where it is.
    pub(crate) const FIXED: Self =
        Self { grows: false, sleeps: false, restores: false, tells_passed: false, exports: true };
    /// The abilities of memory that can be mapped at any addresses.
    pub(crate) const MAPPED: Self =
        Self { grows: true, sleeps: true, restores: true, tells_passed: true, exports: true };
}

impl Rules {
    /// The rules of every strategy but `stitch`: streams share no memory, and a shortage waits as PyTorch does.
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

/// The protection of a block that is freed while another stream than its own is current. Its own stream may reuse it at
/// once; other streams and the driver may not, until the other stream has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreeUsedBy {
    /// No other stream gets the block, and giving it back waits for the device (`cudaFree`).
    DeviceWaits,
    /// The epoch in which it is freed protects the block.
    Epoch,
    /// The block waits for that stream, as if `record_stream` had named it. Nothing else protects it.
    RecordStream,
}

/// The means by which a strategy may serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Means {
    /// Free memory as it is mapped: one range, or an existing view. No new memory is taken. Only for strategies that
    /// wait for the oldest work; others treat this as [`Means::Cheap`].
    AsMapped,
    /// Memory that can be had without a wait of the CPU for the GPU, and without giving memory back to the driver that
    /// could serve later requests.
    Cheap,
    /// After [`Means::Cheap`] found too little: memory that the request cannot use where it lies, and that the GPU has
    /// passed, goes back, so that memory can grow by as much. The CPU does not wait. Only for strategies that wait for
    /// the oldest work.
    Passed,
    /// After [`Means::Cheap`] found too little: the CPU waits for the GPU, and memory that the request cannot use where
    /// it lies goes back, so that memory can grow by as much.
    All,
}

/// How much free memory should go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Every free byte that can go. The CPU may wait.
    Everything,
    /// Free memory that the GPU is known to have passed: `enough` bytes and hardly more, or all of it. The CPU does not
    /// wait.
    Passed {
        /// The bytes to give back.
        enough: u64,
    },
    /// Free memory that the GPU has passed, until at most `down_to` bytes are held, or all of it. The CPU does not
    /// wait, except with strategies whose every release waits (`cudaFree`). Never more than [`Self::DownTo`] gives
    /// back.
    Towards { down_to: u64 },
    /// Just enough free memory that at most `down_to` bytes are held. If `may_wait`, the CPU may wait for the GPU, and
    /// all free memory goes if that is too little. Otherwise only memory that the GPU has passed goes, and none if that
    /// is too little.
    DownTo { down_to: u64, may_wait: bool },
    /// Free segments that the layout does not keep ([`Layout::release_from`]). Not used where the layout keeps all.
    Unkept,
}

impl Goal {
    /// Returns the goal as a number of bytes; `None` if it is not one.
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
    /// Whether memory is given back even if all that can go is too little.
    pub(super) partly: bool,
}

impl Target {
    /// Returns by how many bytes the memory held exceeds the target.
    pub(super) fn excess(&self, heap: &Heap) -> u64 {
        heap.reserved().saturating_sub(self.down_to)
    }

    /// Returns whether `free` bytes of free memory suffice for the target; `None` if they are too few and stay.
    pub(super) fn suffices(&self, heap: &Heap, free: u64) -> Option<bool> {
        let suffices = free >= self.excess(heap);
        (suffices || self.partly).then_some(suffices || self.may_wait)
    }

    /// Chooses the free pieces to give back, by sizes in order of preference, so that they suffice with hardly any
    /// excess. Returns the indices of the chosen ones and whether they suffice; `None` if all stay.
    pub(super) fn choose(&self, heap: &Heap, sizes: &[u64]) -> Result<Option<(Vec<usize>, bool)>> {
        let Some(suffices) = self.suffices(heap, sizes.iter().sum()) else { return Ok(None) };
        Ok(Some((choose(sizes, self.excess(heap))?, suffices)))
    }
}

/// A strategy: its steps on a miss, and its choice of memory to give back to the driver.
pub(crate) trait Strategy: Send {
    /// Returns the rules under these options. The allocator asks when the options change, and serves every hit by the answer.
    fn rules(&self, config: &Config) -> Rules;

    /// Returns how memory is divided under these options, on a device with `total` bytes: as PyTorch divides it, unless
    /// the strategy says otherwise. The allocator asks once, before the first request.
    fn layout(&self, _config: &Config, _total: u64) -> Layout {
        Layout::PYTORCH
    }

    /// Serves a request that no free block fits by the rules. Returns a mapped block of the request's pool with at
    /// least its size, which was taken out of the free index (`context.take_block`) or is new. The allocator splits off
    /// the excess, by [`FitRules::min_rest`].
    ///
    /// The allocator asks with rising `means`. On [`Miss::OUT_OF_MEMORY`] it goes on to the next means, and after
    /// [`Means::All`] refuses the request. After an error the strategy holds nothing for the request.
    ///
    /// [`Miss::OUT_OF_MEMORY`]: crate::backing::Miss::OUT_OF_MEMORY
    fn serve(&mut self, context: &mut StrategyContext<'_>, request: &Request, means: Means) -> Served;

    /// Gives free memory back to the driver, just enough for the goal. Returns whether it sufficed. A strategy whose
    /// every release waits for the GPU gives nothing for [`Goal::Passed`].
    ///
    /// # Errors
    /// A driver call failed. Memory given back before it stays given back.
    fn release(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool>;
}

/// A strategy that gives each public block back to the driver at its free, in the order of the streams that use it. Its
/// rules have [`Rules::frees_to_driver`].
pub(crate) trait StreamOrdered {
    /// Gives a freed public block, which is in no table of live allocations any more, back to the driver. Returns
    /// `false`, and changes nothing, if that cannot be done now.
    ///
    /// # Errors
    /// A driver call failed, or the host has no memory. The block is as before.
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
