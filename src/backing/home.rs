//! The addresses of home: reserved when first needed, given back when home is empty.
//!
//! Owns: the driver calls for them. The strategy chooses what lies in home, and where.

use super::context::{Miss, StrategyContext};
use crate::driver::{Call, DriverResult};
use crate::heap::{GRANULE, State};
use crate::span::Span;

/// The most addresses of home, in bytes (64 TiB): no driver was seen to reserve more at once.
const MAX_HOME: u64 = 64 << 40;

/// Reserves home, if it does not exist yet, with `times` as many addresses as the device has memory.
pub(crate) fn reserve_home(context: &mut StrategyContext<'_>, times: u64) -> Result<(), Miss> {
    if context.heap.home().is_some() {
        return Ok(());
    }
    let total = context.driver.properties().total_memory;
    // What is spilled has its addresses there too.
    let beside = context.config.spill.unwrap_or(0);
    let size =
        total.saturating_mul(times).saturating_add(beside).clamp(GRANULE, MAX_HOME).next_multiple_of(64 * GRANULE);
    let (tables, mut slots) = context.heap.reserve_home(size)?;
    let span = Span::new(context.driver.reserve(size, 0)?, size);
    context.heap.check_answer(Call::Reserve, span, GRANULE)?;
    context.heap.add_home(span, tables, &mut slots);
    Ok(())
}

/// Gives back the addresses of home, if it is empty.
pub(crate) fn release_home(context: &mut StrategyContext<'_>) -> DriverResult<()> {
    let Some(home) = context.heap.home() else { return Ok(()) };
    let (span, head) = (home.span, context.heap.block(context.heap.head_of(home.segment)));
    if head.state == State::Unmapped && !head.is_split() {
        context.driver.address_free(span.start, span.size)?;
        context.heap.remove_home();
    }
    Ok(())
}
