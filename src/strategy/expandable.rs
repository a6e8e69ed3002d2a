//! Strategy `expandable`: PyTorch's expandable segments. Each pool has a reservation larger than the device. A miss
//! maps memory where the reservation's mapped part ends, or in a hole of this part, in units of 2 MiB or 20 MiB.
//!
//! Owns: the choice of the units of a segment to map (`ExpandableSegment` of c10/cuda/CUDACachingAllocator.cpp, 2.11).
//! `backing/units.rs` makes the calls.

use super::contract::{FreeUsedBy, Goal, Target};
use super::malloc_like::MallocLike;
use crate::backing::{
    Miss, Served, StrategyContext, Units, UnmappedPart, map_units, release_empty_segments, release_unused,
    reserve_segment, unmap_units, whole_units,
};
use crate::config::Config;
use crate::config::rounding::{MIN_BLOCK, SMALL_SEGMENT, segment_size};
use crate::error::Result;
use crate::fallible::{Grown, TryCollect, TryPush, filled};
use crate::heap::{Block, FitRules, Heap, Request, State};
use crate::ids::{BlockId, Class, PoolIndex, StreamId};
use crate::span::Span;
use std::cmp::Reverse;

#[derive(Default)]
pub(crate) struct Expandable;

impl MallocLike for Expandable {
    const FREE_USED_BY: FreeUsedBy = FreeUsedBy::RecordStream;

    fn fit(&self, config: &Config) -> FitRules {
        FitRules {
            growing_edge: true,
            max_split_size: config.max_split_size.unwrap_or(u64::MAX),
            max_non_split_rounding: config.max_non_split_rounding,
            min_rest: [MIN_BLOCK; 2],
            count_ages: true,
            ..FitRules::BEST
        }
    }

    fn growth(&self, config: &Config, request: &Request) -> u64 {
        let unit = unit_of(config, request.class);
        request.size.checked_next_multiple_of(unit).unwrap_or(u64::MAX)
    }

    /// Counts a whole segment against `memory_fraction`, as PyTorch does, even if fewer bytes are mapped. The limit in
    /// bytes counts mapped bytes.
    fn counted(&self, config: &Config, request: &Request) -> u64 {
        segment_size(request.size, config.large_segment_size)
    }

    fn reclaim(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        release_units(context, goal, |_, _| Ok(true))
    }

    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        context.retry_rollback()?;
        let found = find_room(context.heap(), request);
        let unit = unit_of(context.config, request.class);
        let least = request.size.checked_next_multiple_of(unit).unwrap_or(request.size);
        let most = addresses(context, request, unit);
        let parts = |heap: &Heap, start| plan(heap, start, request, unit);
        let grown = grow_units(context, request.pool, found, (most, least, unit), parts)?;
        Ok(context.take_block(grown))
    }
}

/// Maps memory at unmapped parts of a segment, from the block `found` on, or in a new segment with between `least` and
/// `most` bytes of addresses. If mapping fails, the new segment is given back. Returns the free block that contains the
/// last part.
pub(super) fn grow_units(
    context: &mut StrategyContext<'_>,
    pool: PoolIndex,
    found: Option<BlockId>,
    (most, least, unit): (u64, u64, u64),
    parts: impl FnOnce(&Heap, BlockId) -> Grown<Vec<UnmappedPart>>,
) -> Served {
    let room = found.map_or_else(|| reserve_segment(context, pool, most, least, unit), Ok)?;
    let parts = parts(context.heap(), room);
    let mapped = parts.map_err(Miss::from).and_then(|parts| map_units(context, pool, parts, unit));
    if mapped.is_err() && found.is_none() {
        release_unused(context, room)?;
    }
    Ok(mapped?.unwrap_or(room))
}

/// Gives free units (the handles of a segment) back. For [`Goal::Everything`], gives back the units of public pools for
/// which `may` returns true.
pub(super) fn release_units(
    context: &mut StrategyContext<'_>,
    goal: Goal,
    may: impl Fn(&StrategyContext<'_>, PoolIndex) -> Result<bool>,
) -> Result<bool> {
    context.retry_rollback()?;
    match goal.target() {
        Some(target) => release_down_to(context, target),
        None if goal == Goal::Everything => release_everything(context, may).map(|()| true),
        None => Ok(false),
    }
}

/// Unmaps the free units (handles) of public pools for which `may` returns true.
fn release_everything(
    context: &mut StrategyContext<'_>,
    may: impl Fn(&StrategyContext<'_>, PoolIndex) -> Result<bool>,
) -> Result<()> {
    for pool in context.heap().every_public_pool()? {
        if !may(context, pool)? {
            continue;
        }
        for id in context.heap().free_blocks(pool)? {
            if let Some(units) = whole_units(context.heap(), id) {
                // Neither unmap nor release waits for the GPU, so the CPU waits for the stream, whose work may still
                // use the memory.
                context.wait_for_stream(pool)?;
                unmap_units(context, units)?;
            }
        }
        release_empty_segments(context, pool)?;
    }
    Ok(())
}

/// Unmaps units (handles) from the ends of free blocks: passed units first, and among these the units unused longest.
fn release_down_to(context: &mut StrategyContext<'_>, target: Target) -> Result<bool> {
    let mut found = free_units(context)?;
    found.retain(|(_, passed)| *passed || target.may_wait);
    let heap = context.heap();
    found.sort_unstable_by_key(|(units, passed)| {
        let Block { freed_at, pool, address, .. } = *heap.block(units.block);
        let age = heap.clock(pool.class()).saturating_sub(freed_at);
        (!passed, Reverse(age), Reverse(address))
    });
    let each = found.iter().enumerate().flat_map(|(of, (units, _))| (units.first..units.end).map(move |_| of));
    let of = each.try_to_vec()?;
    let sizes = of.iter().map(|of| found[*of].0.unit).try_to_vec()?;
    let Some((chosen, suffices)) = target.choose(heap, &sizes)? else { return Ok(false) };
    let mut counts = filled(0, found.len())?;
    for index in chosen {
        counts[of[index]] += 1;
    }
    for ((units, passed), count) in found.into_iter().zip(counts).filter(|(_, count)| *count > 0) {
        let pool = context.heap().block(units.block).pool;
        if !passed {
            context.wait_for_stream(pool)?;
        }
        unmap_units(context, Units { first: units.end - count, ..units })?;
        release_empty_segments(context, pool)?;
    }
    Ok(suffices)
}

/// Returns, for each free block of public pools, the units (handles) that could be given back, and whether the GPU has
/// passed them.
fn free_units(context: &mut StrategyContext<'_>) -> Result<Vec<(Units, bool)>> {
    let mut found = Vec::new();
    let mut asked: Vec<(StreamId, bool)> = Vec::new();
    for pool in context.heap().every_public_pool()? {
        let stream = context.heap().pool(pool).stream;
        for block in context.heap().free_blocks(pool)? {
            let Some(units) = whole_units(context.heap(), block) else { continue };
            let known = asked.iter().find(|(of, _)| *of == stream).map(|(_, passed)| *passed);
            let passed = match known {
                Some(passed) => passed,
                None => {
                    let passed = context.has_passed_all(pool)?;
                    asked.try_push((stream, passed))?;
                    passed
                }
            };
            found.try_push((units, passed))?;
        }
    }
    Ok(found)
}

/// Returns the bytes by which a segment grows at a time.
fn unit_of(config: &Config, class: Class) -> u64 {
    match class {
        Class::Small => SMALL_SEGMENT,
        Class::Large => config.large_segment_size,
    }
}

/// Returns the lowest run of free and unmapped blocks that is large enough for the request and has an unmapped part.
fn find_room(heap: &Heap, request: &Request) -> Option<BlockId> {
    let open = |id: BlockId| matches!(heap.block(id).state, State::Free | State::Unmapped);
    heap.pool(request.pool).unmapped.iter().find_map(|&(_, unmapped)| {
        let before = heap.block(unmapped).prev;
        let start = if open(before) { before } else { unmapped };
        let (mut room, mut at) = (0, start);
        while room < request.size && open(at) {
            room += heap.block(at).size;
            at = heap.block(at).next;
        }
        (room >= request.size).then_some(start)
    })
}

/// Returns the bytes of addresses that a new segment reserves: nine eighths of the device's memory, as in PyTorch.
pub(super) fn addresses(context: &StrategyContext<'_>, request: &Request, unit: u64) -> u64 {
    let total = context.total_memory();
    let plenty = total.saturating_add(total / 8).max(request.size).checked_next_multiple_of(unit);
    plenty.unwrap_or_else(|| request.size.next_multiple_of(unit))
}

/// Returns the unmapped parts to map so that the request has memory from the start of `id`.
fn plan(heap: &Heap, mut id: BlockId, request: &Request, unit: u64) -> Grown<Vec<UnmappedPart>> {
    let mut parts = Vec::new();
    let mut missing = request.size;
    while missing > 0 && id.is_some() {
        let Block { address, size, state, next, .. } = *heap.block(id);
        let covered = match state {
            State::Unmapped => {
                let span = Span::new(address, missing.next_multiple_of(unit).min(size));
                parts.try_push(UnmappedPart { room: id, span })?;
                span.size
            }
            _ => size,
        };
        missing = missing.saturating_sub(covered);
        id = next;
    }
    Ok(parts)
}
