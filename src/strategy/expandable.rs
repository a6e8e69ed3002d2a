//! Strategy `expandable`: PyTorch's expandable segments. Each pool has a reservation larger than the device; a miss
//! maps memory where the reservation's mapped part ends, or in a hole of it, in units of 2 MiB or 20 MiB.
//!
//! Owns: which units of a segment are mapped, with the same calls and costs as PyTorch's (`ExpandableSegment` of
//! c10/cuda/CUDACachingAllocator.cpp, 2.11). Unlike there, a failed growth is undone.

use super::contract::{Assumption, FreeUsedBy, Goal, Means, Rules, Strategy};
use super::malloc_fallback::{self, Grow};
use crate::backing::{Mapping, Miss, StrategyContext, choose};
use crate::config::rounding::{MIN_BLOCK, SMALL_SEGMENT};
use crate::config::{Config, Increase, Sharing};
use crate::driver::{Call, DriverResult};
use crate::error::Result;
use crate::heap::{Backing, Block, FitRules, Heap, NewMemory, Request, Slots, State};
use crate::ids::{BlockId, Class, PoolIndex, StreamId};
use crate::span::Span;
use std::cmp::Reverse;

pub(super) struct Expandable;

/// Units of a segment that lie wholly inside a free block: the first, and the end of the last.
#[derive(Clone, Copy)]
struct Units {
    block: BlockId,
    /// Bytes of one.
    unit: u64,
    first: u64,
    end: u64,
}

/// A part of a segment that is to be mapped.
struct Part {
    room: BlockId,
    size: u64,
    mapping: Mapping,
}

impl Strategy for Expandable {
    fn rules(&self, config: &Config) -> Rules {
        let fit = FitRules {
            growing_edge: true,
            max_split_size: config.max_split_size.unwrap_or(u64::MAX),
            max_non_split_rounding: config.max_non_split_rounding,
            min_rest: [MIN_BLOCK; 2],
            count_ages: true,
            ..FitRules::default()
        };
        let free_used_by = FreeUsedBy::RecordStream;
        Rules { fit, polls_first: true, sharing: Sharing::Never, passes_memory_on: false, free_used_by }
    }

    fn serve(
        &mut self,
        context: &mut StrategyContext<'_>,
        request: &Request,
        means: Means,
    ) -> std::result::Result<BlockId, Miss> {
        malloc_fallback::serve(self, context, request, means)
    }

    fn release(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        context.retry_rollback()?;
        match goal {
            Goal::Everything => release_everything(context).map(|()| true),
            Goal::DownTo { down_to, may_wait } => release_down_to(context, down_to, may_wait),
        }
    }

    fn growth_needed(&self, _heap: &Heap, config: &Config, request: &Request, _assumption: Assumption) -> u64 {
        let unit = unit_of(config, request.class);
        request.size.checked_next_multiple_of(unit).unwrap_or(u64::MAX)
    }
}

impl Grow for Expandable {
    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> std::result::Result<BlockId, Miss> {
        context.retry_rollback()?;
        let found = find_room(context.heap, request);
        let start = match found {
            Some(id) => id,
            None => reserve(context, request)?,
        };
        let unit = unit_of(context.config, request.class);
        let mut parts = plan(context.heap, start, request, unit);
        let mut slots = match map_parts(context, &mut parts, unit) {
            Ok(slots) => slots,
            Err(miss) => {
                undo(context, parts, found.is_none().then_some(start))?;
                return Err(miss);
            }
        };
        let mut grown = start;
        for Part { room, size, mapping } in parts {
            let span = Span::new(mapping.address, size);
            let handles: Vec<_> = mapping.pieces.iter().map(|piece| piece.handle).collect();
            context.heap.note_units(room, span.start, &handles)?;
            grown = context.heap.mapped(NewMemory { room, span, pool: request.pool }, &mut slots);
        }
        context.heap.take_free(grown);
        Ok(grown)
    }
}

/// Undoes a growth that failed, and gives back the segment that was reserved for it.
fn undo(context: &mut StrategyContext<'_>, parts: Vec<Part>, reserved: Option<BlockId>) -> DriverResult<()> {
    for part in parts {
        context.rollback.undo(context.heap, context.driver, part.mapping);
    }
    if let Some(start) = reserved
        && context.rollback.is_empty()
    {
        release_reservation(context, start)?;
    }
    Ok(())
}

/// Gives back the addresses of a segment in which nothing is mapped.
fn release_reservation(context: &mut StrategyContext<'_>, id: BlockId) -> DriverResult<()> {
    let Span { start, size } = context.heap.block(id).span();
    context.driver.address_free(start, size)?;
    context.heap.remove_expandable_segment(id);
    Ok(())
}

/// Unmaps the free units of public pools.
fn release_everything(context: &mut StrategyContext<'_>) -> Result<()> {
    for pool in context.heap.every_public_pool() {
        for id in context.heap.free_blocks(pool) {
            if let Some(units) = whole_units(context.heap, id) {
                // Neither unmap nor release waits for the GPU, and work of the stream may still use the memory.
                context.on_streams().1.wait_for_stream(pool)?;
                unmap_units(context, units)?;
            }
        }
        release_empty_segments(context, pool)?;
    }
    Ok(())
}

/// Unmaps units from the end of free blocks: passed ones first, and among these the ones unused longest.
fn release_down_to(context: &mut StrategyContext<'_>, down_to: u64, may_wait: bool) -> Result<bool> {
    let mut found = free_units(context)?;
    found.retain(|(_, passed)| *passed || may_wait);
    let heap = &*context.heap;
    found.sort_by_key(|(units, passed)| {
        let Block { freed_at, pool, address, .. } = *heap.block(units.block);
        let age = heap.clock(pool.class()).saturating_sub(freed_at);
        (!passed, Reverse(age), Reverse(address))
    });
    let each = found.iter().enumerate().flat_map(|(of, (units, _))| (units.first..units.end).map(move |_| of));
    let of: Vec<usize> = each.collect();
    let sizes: Vec<u64> = of.iter().map(|of| found[*of].0.unit).collect();
    let missing = heap.reserved().saturating_sub(down_to);
    if !may_wait && sizes.iter().sum::<u64>() < missing {
        return Ok(false);
    }
    let mut counts = vec![0; found.len()];
    for index in choose(&sizes, missing) {
        counts[of[index]] += 1;
    }
    for ((units, passed), count) in found.into_iter().zip(counts).filter(|(_, count)| *count > 0) {
        let pool = context.heap.block(units.block).pool;
        if !passed {
            context.on_streams().1.wait_for_stream(pool)?;
        }
        unmap_units(context, Units { first: units.end - count, ..units })?;
        release_empty_segments(context, pool)?;
    }
    Ok(true)
}

/// Returns the units that could be given back, for each free block of public pools, and whether the GPU has passed
/// them.
fn free_units(context: &mut StrategyContext<'_>) -> DriverResult<Vec<(Units, bool)>> {
    let mut found = Vec::new();
    let mut asked: Vec<(StreamId, bool)> = Vec::new();
    for pool in context.heap.every_public_pool() {
        let stream = context.heap.pool(pool).stream;
        for block in context.heap.free_blocks(pool) {
            let Some(units) = whole_units(context.heap, block) else { continue };
            let known = asked.iter().find(|(of, _)| *of == stream).map(|(_, passed)| *passed);
            let passed = match known {
                Some(passed) => passed,
                None => {
                    let (streams, mut on) = context.on_streams();
                    let passed = streams.epochs.has_passed_all(&mut on, pool.large())?;
                    asked.push((stream, passed));
                    passed
                }
            };
            found.push((units, passed));
        }
    }
    Ok(found)
}

/// Gives back segments in which nothing is mapped.
fn release_empty_segments(context: &mut StrategyContext<'_>, pool: PoolIndex) -> DriverResult<()> {
    let unmapped = context.heap.pool(pool).unmapped.iter().map(|(_, id)| *id);
    let empty: Vec<_> = unmapped.filter(|id| !context.heap.block(*id).is_split()).collect();
    empty.into_iter().try_for_each(|id| release_reservation(context, id))
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

/// Reserves addresses for a new segment: nine eighths of the device's memory, as PyTorch does.
fn reserve(context: &mut StrategyContext<'_>, request: &Request) -> std::result::Result<BlockId, Miss> {
    let mut slots = context.heap.reserve_slots(1)?;
    let unit = unit_of(context.config, request.class);
    let total = context.driver.properties().total_memory;
    let plenty = total.saturating_add(total / 8).max(request.size).checked_next_multiple_of(unit);
    let size = plenty.unwrap_or_else(|| request.size.next_multiple_of(unit));
    let span = Span::new(context.driver.reserve(size, 0)?, size);
    context.heap.check_answer(Call::Reserve, span, SMALL_SEGMENT)?;
    Ok(context.heap.add_expandable_segment(request.pool, span, unit, &mut slots))
}

/// Returns the parts to map so that the request has memory from the start of `id`.
fn plan(heap: &Heap, mut id: BlockId, request: &Request, unit: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut missing = request.size;
    while missing > 0 && id.is_some() {
        let Block { address, size, state, next, .. } = *heap.block(id);
        let covered = match state {
            State::Unmapped => {
                let size = missing.next_multiple_of(unit).min(size);
                let mapping = Mapping::of_new_memory(address, request.class);
                parts.push(Part { room: id, size, mapping });
                size
            }
            _ => size,
        };
        missing = missing.saturating_sub(covered);
        id = next;
    }
    parts
}

/// Creates and maps every part, and gives the device access. Returns the slots for their blocks. After an error, each
/// part says how much of it was done.
fn map_parts(context: &mut StrategyContext<'_>, parts: &mut [Part], unit: u64) -> std::result::Result<Slots, Miss> {
    if !context.allows(Increase::taken(parts.iter().map(|part| part.size).sum())) {
        return Err(Miss::OUT_OF_MEMORY);
    }
    // Each part cuts one block into three at most.
    let slots = context.heap.reserve_slots(2 * parts.len())?;
    for part in parts {
        part.mapping.create(context.driver, part.size, unit)?;
        part.mapping.map(context.driver)?;
    }
    Ok(slots)
}

/// Returns the units that lie wholly inside a free block.
fn whole_units(heap: &Heap, block: BlockId) -> Option<Units> {
    let span = heap.block(block).span();
    let segment = heap.segment(heap.block(block).segment)?;
    let Backing::Expandable { unit, .. } = segment.backing else { return None };
    let first = (span.start - segment.span.start).div_ceil(unit);
    let end = (span.end() - segment.span.start) / unit;
    (first < end).then_some(Units { block, unit, first, end })
}

/// Unmaps and releases units of a free block. Its stream has passed.
fn unmap_units(context: &mut StrategyContext<'_>, units: Units) -> Result<()> {
    let Units { block, unit, first, end } = units;
    let id = context.heap.block(block).segment;
    let Some(base) = context.heap.segment(id).map(|segment| segment.span.start) else { return Ok(()) };
    let mut slots = context.heap.reserve_slots(2)?;
    // PyTorch unmaps first. Releasing first keeps a unit whole whichever call fails: the memory of a released handle
    // goes back with its last mapping.
    let mut gone = 0;
    let result: Result<()> = (first..end).try_for_each(|slot| {
        if let Some(handle) = context.heap.unit_handle(id, slot) {
            context.driver.release(handle)?;
            context.heap.unit_released(id, slot);
        }
        context.driver.unmap(base + slot * unit, unit)?;
        gone += 1;
        Ok(())
    });
    if gone > 0 {
        context.heap.unmapped_units(block, Span::new(base + first * unit, gone * unit), gone, &mut slots);
    }
    result
}
