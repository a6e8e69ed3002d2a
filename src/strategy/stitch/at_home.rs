//! One range at home, which needs no view.
//!
//! Owns: the rules by which a request finds a free block, and the taking of a range of free blocks that could not merge
//! because some are the stream's own and some are idle.

use super::choose;
use crate::backing::StrategyContext;
use crate::error::Result;
use crate::heap::{FitRules, Request};
use crate::ids::BlockId;

/// The rules by which requests find their blocks. Once chunks are split, whole free granules are useful wherever they
/// lie, so blocks are placed in a way that keeps granules whole.
pub(super) const FIT: FitRules = FitRules { takes_idle: true, ..FitRules::BEST };
const FIT_BY_GRANULE: FitRules = FIT.by_granule();

/// The rules for a private pool with chunks of its own, which takes no idle memory.
const APART: FitRules = FitRules { takes_idle: false, ..FIT };
const APART_BY_GRANULE: FitRules = APART.by_granule();

/// Returns the rules by which this request finds a block.
pub(super) fn fit_rules_of(context: &StrategyContext<'_>, request: &Request) -> &'static FitRules {
    match (context.heap().takes_idle(request.pool), context.heap().has_split()) {
        (true, false) => &FIT,
        (true, true) => &FIT_BY_GRANULE,
        (false, false) => &APART,
        (false, true) => &APART_BY_GRANULE,
    }
}

/// Takes a block of one range at home that the stream may use without a wait; `None` if there is none.
pub(super) fn at_home(context: &mut StrategyContext<'_>, request: &Request) -> Result<Option<BlockId>> {
    match context.fit(request, fit_rules_of(context, request)) {
        None => run_at_home(context, request),
        id => Ok(id),
    }
}

/// Takes a block from contiguous free blocks that differ only in their pools (own or idle), so that no view is needed.
/// Returns `None` if there are no such blocks.
pub(super) fn run_at_home(context: &mut StrategyContext<'_>, request: &Request) -> Result<Option<BlockId>> {
    let Request { size, pool, .. } = *request;
    let Some(first) = choose::run_at_home(context.heap(), size, pool)? else { return Ok(None) };
    context.take_run(first, request, fit_rules_of(context, request).placement).map(Some)
}
