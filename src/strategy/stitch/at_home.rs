//! One range at home, which needs no view.
//!
//! Owns: the rules by which a request finds a free block, and the taking of a range that only pools separate.

use super::choose;
use crate::backing::StrategyContext;
use crate::error::Result;
use crate::heap::{FitRules, Request};
use crate::ids::BlockId;

/// The rules by which requests find their blocks.
pub(super) const FIT: FitRules = FitRules { takes_idle: true, ..FitRules::BEST };

/// Takes a block of one range at home that the stream may use at once.
pub(super) fn at_home(context: &mut StrategyContext<'_>, request: &Request) -> Result<Option<BlockId>> {
    let id = context.heap.fit(request, &FIT);
    if id.is_some() { Ok(Some(id)) } else { run_at_home(context, request) }
}

/// Takes a block of a run that only pools separate, so that it needs no view.
pub(super) fn run_at_home(context: &mut StrategyContext<'_>, request: &Request) -> Result<Option<BlockId>> {
    let Request { size, pool, .. } = *request;
    let Some(first) = choose::run_at_home(context.heap, size, pool)? else { return Ok(None) };
    let id = context.heap.join_run(first, pool, size)?;
    context.heap.take_free(id);
    Ok(Some(id))
}
