//! The steps of PyTorch's allocator when no free block fits, in its order: collect garbage, take new memory, give back
//! just enough and try again, give back everything and try again. One step more looks at the free blocks again.
//!
//! Owns: the order, which PyTorch's strategies share (`malloc` of c10/cuda/CUDACachingAllocator.cpp, 2.11).

use super::contract::{Goal, Means, Strategy};
use crate::backing::{Miss, Served, StrategyContext};
use crate::config::rounding::segment_size;
use crate::config::{Config, Increase};
use crate::heap::{FitRules, Request};

/// The steps that differ between PyTorch's strategies.
pub(super) trait Grow: Strategy {
    /// Returns how many bytes of new memory count against the fraction: a whole segment, as PyTorch counts it.
    fn counted(&self, config: &Config, request: &Request) -> u64 {
        segment_size(request.size, config.large_segment_size)
    }

    /// Takes new memory for the request. The block is not in the free index.
    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served;

    /// Gives back unused segments that are older than the average, without waiting for the GPU.
    fn collect_garbage(&mut self, _context: &mut StrategyContext<'_>) -> Result<(), Miss> {
        Ok(())
    }

    /// Gives back just enough oversize segments of the request's stream. Returns whether any were given back.
    fn release_available(&mut self, _context: &mut StrategyContext<'_>, _request: &Request) -> Result<bool, Miss> {
        Ok(false)
    }
}

/// Serves a miss as PyTorch does.
pub(super) fn serve<S: Grow>(
    strategy: &mut S,
    context: &mut StrategyContext<'_>,
    request: &Request,
    means: Means,
) -> Served {
    match means {
        Means::AsMapped | Means::Cheap | Means::Passed => grow(strategy, context, request),
        Means::All => reclaim_and_grow(strategy, context, request),
    }
}

/// Runs the first steps, which give back no memory but garbage.
fn grow<S: Grow>(strategy: &mut S, context: &mut StrategyContext<'_>, request: &Request) -> Served {
    // Giving memory back waits, which no capture allows.
    let collects = context.limits.by_fraction().is_some() && context.config.garbage_collection_threshold > 0.0;
    if !context.capturing() && collects {
        strategy.collect_garbage(context)?;
    }
    grow_within_limit(strategy, context, request)
}

/// Runs the last steps, until one finds a block.
fn reclaim_and_grow<S: Grow>(strategy: &mut S, context: &mut StrategyContext<'_>, request: &Request) -> Served {
    if context.capturing() {
        return Err(Miss::OUT_OF_MEMORY);
    }
    if strategy.release_available(context, request)? {
        match grow_within_limit(strategy, context, request) {
            Err(Miss::OutOfMemory { .. }) => {}
            done => return done,
        }
    }
    // As in PyTorch, memory that becomes free here is given back rather than searched.
    context.reclaim_recorded_streams()?;
    strategy.release(context, Goal::Everything)?;
    context.count_retry();
    match grow_within_limit(strategy, context, request) {
        Err(Miss::OutOfMemory { .. }) => fit_what_stayed(strategy, context, request),
        done => done,
    }
}

/// Takes a block that became free in the wait and could not be given back, because other parts of its segment are live.
/// PyTorch refuses here, and the same request made again would be served.
fn fit_what_stayed<S: Grow>(strategy: &S, context: &mut StrategyContext<'_>, request: &Request) -> Served {
    // The request was counted as a search when it first looked.
    let rules = FitRules { count_ages: false, ..strategy.rules(context.config).fit };
    context.fit(request, &rules).ok_or(Miss::OUT_OF_MEMORY)
}

/// Takes new memory for the request, if the fraction allows a whole segment, as PyTorch counts it, whatever an
/// expandable segment would map. The limit in bytes counts the bytes that are really taken, and is checked there.
pub(super) fn grow_within_limit<S: Grow>(
    strategy: &mut S,
    context: &mut StrategyContext<'_>,
    request: &Request,
) -> Served {
    let segment = strategy.counted(context.config, request);
    if !context.allows(Increase::segment(segment)) {
        return Err(Miss::OUT_OF_MEMORY);
    }
    strategy.grow(context, request)
}
