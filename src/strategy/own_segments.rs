//! Private pools with segments of their own, under any strategy. Such pools follow PyTorch's rules, over a source or
//! the driver's `malloc`.
//!
//! Owns: the steps when no segment can be had. `caching.rs` determines the sizes and the splitting of segments.

use super::caching::Caching;
use super::contract::{Goal, Means, Strategy};
use super::estimates::Estimates;
use super::malloc_like::MallocLike;
use crate::backing::{InTurn, Miss, Served, StrategyContext, reclaim_private_pools};
use crate::config::Config;
use crate::config::rounding::segment_size;
use crate::heap::{FitRules, Request};

/// The estimates that reports use for a private pool with segments of its own.
pub(crate) const ESTIMATES: &dyn Estimates = &Caching;

/// Returns the rules by which requests find their blocks.
pub(crate) fn rules_of_own_segments(config: &Config, unsplit: bool) -> FitRules {
    let rules = Caching.fit(config);
    FitRules { no_split_from: if unsplit { 0 } else { rules.no_split_from }, ..rules }
}

/// Serves a request from a new segment. If no segment can be had, and if all means may be used and no stream is being
/// captured, the function waits for streams named by `record_stream`, reclaims ended private pools, and searches the
/// free blocks. If no block fits, the function releases the bytes of one segment and tries a new segment. If that fails
/// too, the function releases everything and tries again.
pub(crate) fn serve_own_segments(
    strategy: &mut dyn Strategy,
    context: &mut StrategyContext<'_>,
    request: &Request,
    means: Means,
) -> Served {
    match Caching.grow_within_limit(context, request) {
        // Giving memory back waits for the GPU, and no capture allows such a wait.
        Err(Miss::OutOfMemory { .. }) if means == Means::All && !context.capturing() => {}
        done => return done,
    }
    context.wait_for_recorded_streams()?;
    reclaim_private_pools(context).map_err(Miss::Failed)?;
    let own = context.heap().private().segments(context.heap().owner_of(request.pool));
    let unsplit = own.is_some_and(|own| own.are_unsplit());
    if let Some(id) = context.fit(request, &rules_of_own_segments(context.config, unsplit)) {
        return Ok(id);
    }
    let segment = segment_size(request.size, context.config.large_segment_size);
    for down_to in [context.heap().reserved().saturating_sub(segment), 0] {
        strategy.release(context, Goal::DownTo { down_to, may_wait: true })?;
        context.count_retry();
        if let Some(id) = Caching.grow_within_limit(context, request).found()? {
            return Ok(id);
        }
    }
    Err(Miss::OUT_OF_MEMORY)
}
