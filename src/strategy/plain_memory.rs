//! Strategies over the driver's `malloc`, beside PyTorch's: each is how it finds a block and how it grows. Streams share nothing, and
//! a shortage takes PyTorch's steps (`malloc_fallback.rs`).
//!
//! Owns: [`PlainMemory`], which is all that such a strategy writes, and pages.

use super::caching::Caching;
use super::contract::{Assumption, FreeUsedBy, Goal, Means, Rules, Strategy};
use super::malloc_fallback::{self, Grow};
use crate::backing::{Served, StrategyContext};
use crate::config::Config;
use crate::config::rounding::SMALL_SEGMENT;
use crate::error::Result;
use crate::heap::{FitRules, Heap, Layout, Request};

/// Bytes of a page, in which a device gives its memory.
pub(super) const PAGE: u64 = SMALL_SEGMENT;

/// A strategy whose memory is segments of the driver's `malloc`, each of one stream.
pub(super) trait PlainMemory: Send {
    /// How requests find their blocks.
    const FIT: FitRules;

    /// Returns how memory is divided under these options, on a device with `total` bytes.
    fn divided(&self, config: &Config, total: u64) -> Layout;

    /// Returns the least bytes by which memory grows for a request.
    fn least_growth(&self, config: &Config, request: &Request) -> u64;

    /// Takes new memory for the request. The block is not in the free index.
    fn take(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served;
}

impl<T: PlainMemory> Strategy for T {
    fn rules(&self, _config: &Config) -> Rules {
        Rules::streams_apart(FitRules { count_ages: true, ..T::FIT }, FreeUsedBy::DeviceWaits)
    }

    fn layout(&self, config: &Config, total: u64) -> Layout {
        self.divided(config, total)
    }

    fn serve(&mut self, context: &mut StrategyContext<'_>, request: &Request, means: Means) -> Served {
        malloc_fallback::serve(self, context, request, means)
    }

    /// Releases segments in which nothing is live.
    fn release(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        context.join_free_segments()?;
        Caching.release(context, goal)
    }

    fn growth_needed(&self, _heap: &Heap, config: &Config, request: &Request, _assumption: Assumption) -> u64 {
        self.least_growth(config, request)
    }
}

impl<T: PlainMemory> Grow for T {
    fn counted(&self, config: &Config, request: &Request) -> u64 {
        self.least_growth(config, request)
    }

    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        self.take(context, request)
    }
}

/// Returns the least memory that is taken for a request of so many bytes: whole pages of 2 MiB, in which a device gives its
/// memory.
pub(super) fn least_segment(size: u64) -> u64 {
    size.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}
