//! One range at home, which needs no view.
//!
//! Owns: the rules by which a request finds a free block, and how a range is taken whose blocks only pools separate.

use super::choose;
use crate::backing::StrategyContext;
use crate::config::Config;
use crate::error::Result;
use crate::heap::{FitRules, Placement, Request};
use crate::ids::BlockId;

/// The rules by which requests find their blocks, without and with chunks that are split.
const FIT: FitRules = FitRules { takes_idle: true, ..FitRules::BEST };
const FIT_BY_GRANULE: FitRules = FitRules { placement: Placement::ByGranule, ..FIT };

/// Returns the rules by which requests find their blocks.
pub(super) fn fit_rules(config: &Config) -> &'static FitRules {
    // Whole granules in coarse chunks are worth nothing unless chunks are split.
    if config.splits() { &FIT_BY_GRANULE } else { &FIT }
}

const APART: FitRules = FitRules { takes_idle: false, ..FIT };
const APART_BY_GRANULE: FitRules = FitRules { takes_idle: false, ..FIT_BY_GRANULE };

/// Returns the rules by which this request finds a block: in a private pool with chunks of its own it takes no idle
/// memory.
pub(super) fn fit_rules_of(context: &StrategyContext<'_>, request: &Request) -> &'static FitRules {
    if context.heap().takes_idle(request.pool) {
        return fit_rules(context.config);
    }
    if context.config.splits() { &APART_BY_GRANULE } else { &APART }
}

/// Takes a block of one range at home that the stream may use at once.
pub(super) fn at_home(context: &mut StrategyContext<'_>, request: &Request) -> Result<Option<BlockId>> {
    match context.fit(request, fit_rules_of(context, request)) {
        None => run_at_home(context, request),
        id => Ok(id),
    }
}

/// Takes a block of contiguous free blocks that only pools separate, so that it needs no view.
pub(super) fn run_at_home(context: &mut StrategyContext<'_>, request: &Request) -> Result<Option<BlockId>> {
    let Request { size, pool, .. } = *request;
    let Some(first) = choose::run_at_home(context.heap(), size, pool)? else { return Ok(None) };
    context.take_run(first, request, fit_rules(context.config).placement).map(Some)
}
