//! The addresses of home, which are reserved when first needed and given back when home is empty.
//!
//! Owns: the driver calls for the addresses of home. The strategy chooses the places of chunks in home.
//!
//! Some drivers refuse one large range, and give smaller ranges: on embedded devices, under WSL, in processes with
//! little address space. The size requested for home is halved until the driver agrees, and home grows by further
//! ranges.

use super::context::{Miss, MissResult, StrategyContext};
use crate::driver::{Call, DriverResult};
use crate::heap::{GRANULE, Heap, MAX_HOME, State};
use crate::ids::SegmentId;
use crate::span::Span;

/// The unit of a range's size, in bytes.
const UNIT: u64 = 64 * GRANULE;
/// Each range has at least as many bytes as this part (1/n) of the device's memory, so that home has no more than some
/// hundred ranges.
const LEAST_PART: u64 = 64;

/// Reserves home, if home does not exist yet. Home gets `times` times as many bytes of addresses as the device has
/// memory. If the driver refuses so many addresses, home gets a half of them, or a quarter, and so on, but at least the
/// range that a request of `size` bytes needs.
pub(crate) fn reserve_home(context: &mut StrategyContext<'_>, times: u64, size: u64) -> MissResult<()> {
    if context.heap.home().is_some() {
        return Ok(());
    }
    let most = wanted(context, times);
    let (mut range, least) = (most, least_range(context, size).min(most));
    loop {
        let (tables, mut slots) = context.heap.reserve_home(range)?;
        match context.reserve_addresses(range, 0) {
            Ok(start) => {
                let span = Span::new(start, range);
                context.heap.check_answer(Call::Reserve, span, GRANULE)?;
                context.heap.add_home(span, tables, &mut slots);
                return Ok(());
            }
            Err(error) if error.is_out_of_memory() && range > least => range = half(range).max(least),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reserves one more range of home in which `size` bytes have a place, unless home has all its addresses already. With
/// `spare`, the range is as large as the driver allows, otherwise as small as possible. Returns whether home has a new
/// range.
pub(crate) fn grow_home(context: &mut StrategyContext<'_>, times: u64, size: u64, spare: bool) -> MissResult<bool> {
    let Some(home) = context.heap.home() else { return Ok(false) };
    let left = wanted(context, times).saturating_sub(home.addresses());
    let least = least_range(context, size);
    // When the last range was reserved, the driver refused larger ranges.
    let last = home.ranges().last().map_or(left, |range| range.reserved.size);
    let mut range = if spare { left.min(last).max(least) } else { least };
    if least > left {
        return Ok(false);
    }
    let mut slots = context.heap.reserve_home_range()?;
    let reserved = loop {
        match context.reserve_addresses(range, 0) {
            Ok(start) => break Span::new(start, range),
            Err(error) if error.is_out_of_memory() && range > least => range = half(range).max(least),
            Err(error) if error.is_out_of_memory() => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    };
    context.heap.check_answer(Call::Reserve, reserved, GRANULE)?;
    match context.heap.wider_home(reserved) {
        Ok(Some(tables)) => {
            context.heap.add_home_range(reserved, tables, &mut slots)?;
            Ok(true)
        }
        refused => {
            context.driver.address_free(reserved.start, reserved.size)?;
            // Addresses too far from the other ranges cannot become part of home, so the range was given back.
            refused.map(|_| false).map_err(Miss::from)
        }
    }
}

/// Returns how many bytes of addresses home is to have.
fn wanted(context: &StrategyContext<'_>, times: u64) -> u64 {
    let total = context.driver.properties().total_memory;
    // Spilled memory keeps its addresses in home too.
    let beside = context.config.spill.unwrap_or(0);
    total.saturating_mul(times).saturating_add(beside).clamp(GRANULE, MAX_HOME).next_multiple_of(UNIT)
}

/// Returns the bytes of the smallest range in which `size` bytes have a place. For more bytes than the device has,
/// `size` is ignored.
fn least_range(context: &StrategyContext<'_>, size: u64) -> u64 {
    let total = context.driver.properties().total_memory;
    // A granule at each end may be left out, so that no two ranges touch.
    let size = if size <= total { size + 2 * GRANULE } else { 0 };
    (total / LEAST_PART).max(size).clamp(GRANULE, MAX_HOME).next_multiple_of(UNIT)
}

fn half(range: u64) -> u64 {
    (range / 2).next_multiple_of(UNIT)
}

/// Gives back the ranges of home that are empty.
pub(crate) fn release_home(context: &mut StrategyContext<'_>) -> DriverResult<()> {
    while let Some((segment, reserved)) = empty_range(context.heap) {
        context.driver.address_free(reserved.start, reserved.size)?;
        context.heap.remove_home_range(segment);
    }
    Ok(())
}

/// Returns the segment and the addresses of a range of home without any chunk, or `None`.
fn empty_range(heap: &Heap) -> Option<(SegmentId, Span)> {
    let is_empty = |segment: SegmentId| {
        let head = heap.block(heap.head_of(segment));
        head.state == State::Unmapped && !head.is_split()
    };
    let range = heap.home()?.ranges().iter().find(|range| is_empty(range.segment))?;
    Some((range.segment, range.reserved))
}
