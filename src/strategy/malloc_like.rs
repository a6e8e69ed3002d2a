//! Strategies whose misses take the steps of PyTorch's `malloc` (`malloc_fallback.rs`). Each strategy defines how it
//! finds a block and how it grows. Streams share no memory.
//!
//! Owns: [`MallocLike`], the only trait that such a strategy implements; the release of segments; and the size of
//! pages.

use super::contract::{FreeUsedBy, Goal};
use super::estimates::{Assumption, Estimates, Present};
use crate::backing::{
    MissResult, Served, StrategyContext, malloc_segment, release_segment, release_segments_from,
    release_whole_segments, whole_segments,
};
use crate::config::Config;
#[cfg(feature = "baselines")]
use crate::config::rounding::SMALL_SEGMENT;
use crate::error::Result;
use crate::fallible::TryCollect;
use crate::heap::{FitRules, Layout, Request};
use crate::ids::BlockId;
use crate::limits::Increase;

/// The bytes of a page. A device gives its memory in pages.
#[cfg(feature = "baselines")]
pub(super) const PAGE: u64 = SMALL_SEGMENT;

/// A strategy whose misses take PyTorch's steps. The provided methods are for segments of the driver's `malloc`, each
/// of which belongs to one stream.
pub(super) trait MallocLike: Send {
    /// The protection of a block whose free names another current stream than the block's own.
    const FREE_USED_BY: FreeUsedBy = FreeUsedBy::DeviceWaits;

    /// Returns the rules by which requests find their blocks.
    fn fit(&self, config: &Config) -> FitRules;

    /// Returns how memory is divided under these options, on a device with `total` bytes.
    fn divided(&self, _config: &Config, _total: u64) -> Layout {
        Layout::PYTORCH
    }

    /// Returns the least bytes by which memory grows for a request.
    fn growth(&self, config: &Config, request: &Request) -> u64;

    /// Returns the bytes of new memory that count against the limit `memory_fraction`.
    fn counted(&self, config: &Config, request: &Request) -> u64 {
        self.growth(config, request)
    }

    /// Takes new memory for the request. The block is not in the index of free blocks.
    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        let size = self.growth(context.config, request);
        context.require(Increase::taken(size))?;
        malloc_segment(context, request.pool, size)
    }

    /// Takes new memory for the request if the limit `memory_fraction` allows a whole segment, as in PyTorch, even if
    /// an expandable segment would map less. The limit in bytes is checked later, against the bytes really taken.
    fn grow_within_limit(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        context.require(Increase::segment(self.counted(context.config, request)))?;
        self.grow(context, request)
    }

    /// Gives back unused segments that are older than the average. The strategy does not wait for the GPU first.
    fn collect_garbage(&mut self, _context: &mut StrategyContext<'_>) -> MissResult<()> {
        Ok(())
    }

    /// Makes room before everything is given back: moves free memory together, or gives back just enough. Returns the
    /// block that then serves the request; `None` if there is none.
    fn make_room(&mut self, _context: &mut StrategyContext<'_>, _request: &Request) -> MissResult<Option<BlockId>> {
        Ok(None)
    }

    /// Gives free memory back, with the contract of [`Strategy::release`](super::Strategy::release).
    fn reclaim(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        release_segments(context, goal)
    }
}

impl<T: MallocLike> Estimates for T {
    fn growth_needed(&self, present: &Present<'_>, request: &Request, _assumption: Assumption) -> u64 {
        self.growth(present.config, request)
    }
}

/// Releases segments without live blocks. `cudaFree` itself waits for the GPU, so every release waits.
pub(super) fn release_segments(context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
    if goal == Goal::Unkept {
        let least = context.heap().layout().release_from;
        return release_segments_from(context, least).map(|()| true);
    }
    context.join_free_segments()?;
    if goal == Goal::Everything {
        return release_whole_segments(context).map(|()| true);
    }
    let Some(target) = goal.target() else { return Ok(false) };
    let whole = whole_segments(context.heap())?;
    let sizes = whole.iter().map(|id| context.heap().block(*id).size).try_to_vec()?;
    let Some((chosen, suffices)) = target.choose(context.heap(), &sizes)? else { return Ok(false) };
    chosen.into_iter().try_for_each(|index| release_segment(context, whole[index]))?;
    Ok(suffices)
}

/// Returns the least bytes to take for a request of `size` bytes: whole pages of 2 MiB, in which a device gives its
/// memory.
#[cfg(feature = "baselines")]
pub(super) fn least_segment(size: u64) -> u64 {
    size.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}
