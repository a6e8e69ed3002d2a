//! Units, the pieces of memory of equal size in expandable segments: how they are mapped and unmapped, and the
//! addresses in which they lie.
//!
//! Owns: the driver calls for units, which cost as much as PyTorch's calls (`ExpandableSegment` of
//! c10/cuda/CUDACachingAllocator.cpp, 2.11). Unlike in PyTorch, a failed growth is undone.

use super::context::{MissResult, Served, StrategyContext};
use super::mapping::Mapping;
use crate::config::rounding::SMALL_SEGMENT;
use crate::driver::{Call, DriverResult};
use crate::error::Result;
use crate::fallible::with_room;
use crate::heap::{Backing, Heap, NewMemory, Slots};
use crate::ids::{BlockId, PoolIndex};
use crate::limits::Increase;
use crate::span::Span;

/// The units (pieces of memory) of an expandable segment that lie wholly inside a free block: the number of the first
/// unit, and the number that follows the last unit's.
#[derive(Clone, Copy)]
pub(crate) struct Units {
    pub(crate) block: BlockId,
    /// The bytes of one unit.
    pub(crate) unit: u64,
    pub(crate) first: u64,
    pub(crate) end: u64,
}

/// A part of an unmapped block that is to be mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnmappedPart {
    pub(crate) room: BlockId,
    pub(crate) span: Span,
}

/// Reserves addresses for a segment of a pool. The size is halved as long as the driver refuses, but is never below
/// `least`. Returns the segment's unmapped block.
pub(crate) fn reserve_segment(
    context: &mut StrategyContext<'_>,
    pool: PoolIndex,
    mut size: u64,
    least: u64,
    unit: u64,
) -> Served {
    let mut slots = context.heap.reserve_segment(pool)?;
    loop {
        match context.reserve_addresses(size, 0) {
            Ok(start) => {
                let span = Span::new(start, size);
                context.heap.check_answer(Call::Reserve, span, SMALL_SEGMENT)?;
                return Ok(context.heap.add_expandable_segment(pool, span, unit, &mut slots));
            }
            Err(error) if error.is_out_of_memory() && size > least => {
                size = (size / 2).next_multiple_of(unit).max(least);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Gives back the addresses of a segment in which no memory is mapped.
fn release_reservation(context: &mut StrategyContext<'_>, id: BlockId) -> DriverResult<()> {
    let Span { start, size } = context.heap.block(id).span();
    context.driver.address_free(start, size)?;
    context.heap.remove_expandable_segment(id);
    Ok(())
}

/// Gives back the addresses of a segment after mapping memory there failed, unless some memory may still be mapped
/// there.
pub(crate) fn release_unused(context: &mut StrategyContext<'_>, id: BlockId) -> DriverResult<()> {
    if context.rollback.is_empty() { release_reservation(context, id) } else { Ok(()) }
}

/// Gives back the addresses of a pool's segments in which no memory is mapped.
pub(crate) fn release_empty_segments(context: &mut StrategyContext<'_>, pool: PoolIndex) -> DriverResult<()> {
    let is_empty = |heap: &Heap, id: BlockId| !heap.block(id).is_split();
    loop {
        let mut unmapped = context.heap.pool(pool).unmapped.iter();
        let Some((_, id)) = unmapped.find(|(_, id)| is_empty(context.heap, *id)) else { return Ok(()) };
        release_reservation(context, *id)?;
    }
}

/// Creates and maps memory, in units of `unit` bytes, for all parts of unmapped blocks, or for none. Returns the free
/// block that holds the last part; `None` if `parts` is empty.
pub(crate) fn map_units(
    context: &mut StrategyContext<'_>,
    pool: PoolIndex,
    parts: Vec<UnmappedPart>,
    unit: u64,
) -> MissResult<Option<BlockId>> {
    let mut mappings: Vec<Mapping> = with_room(parts.len())?;
    for UnmappedPart { room, span } in &parts {
        mappings.push(Mapping::of_new_memory(span.start, pool.class(), span.size, unit)?);
        context.heap.reserve_units(*room, *span)?;
    }
    context.rollback.reserve(parts.len())?;
    let mut slots = match make(context, &parts, &mut mappings, unit) {
        Ok(slots) => slots,
        Err(miss) => {
            for mapping in mappings {
                context.rollback.undo(context.heap, context.driver, mapping);
            }
            return Err(miss);
        }
    };
    let mut grown = None;
    for (UnmappedPart { room, span }, mapping) in parts.into_iter().zip(mappings) {
        context.heap.note_units(room, span.start, mapping.pieces.iter().map(|piece| piece.handle))?;
        grown = Some(context.heap.mapped(NewMemory { room, span, pool }, &mut slots));
    }
    Ok(grown)
}

/// Creates and maps the memory of every part, and gives the device access. Returns the slots for the blocks of the
/// parts. After an error, each of the `mappings` says how far its calls came.
fn make(
    context: &mut StrategyContext<'_>,
    parts: &[UnmappedPart],
    mappings: &mut [Mapping],
    unit: u64,
) -> MissResult<Slots> {
    context.require(Increase::taken(parts.iter().map(|part| part.span.size).sum()))?;
    let room = parts.first().map_or(BlockId::NONE, |part| part.room);
    let slots = context.heap.reserve_parts(room, parts.len())?;
    for (part, mapping) in parts.iter().zip(mappings) {
        mapping.create(context.driver, part.span.size, unit)?;
        mapping.map(context.driver)?;
    }
    Ok(slots)
}

/// Returns the units of an expandable segment that lie wholly inside a free block.
pub(crate) fn whole_units(heap: &Heap, block: BlockId) -> Option<Units> {
    let span = heap.block(block).span();
    let segment = heap.segment(heap.block(block).segment)?;
    let Backing::Expandable { unit, .. } = segment.backing else { return None };
    let first = (span.start - segment.span.start).div_ceil(unit);
    let end = (span.end() - segment.span.start) / unit;
    (first < end).then_some(Units { block, unit, first, end })
}

/// Unmaps and releases units of a free block. The block's stream has passed the block.
pub(crate) fn unmap_units(context: &mut StrategyContext<'_>, units: Units) -> Result<()> {
    let Units { block, unit, first, end } = units;
    let id = context.heap.block(block).segment;
    let Some(base) = context.heap.segment(id).map(|segment| segment.span.start) else { return Ok(()) };
    let mut slots = context.heap.reserve_parts(block, 1)?;
    // PyTorch unmaps first. If the handle is released first, the unit stays mapped whichever call fails: the driver
    // takes back the memory of a released handle only when its last mapping ends.
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
