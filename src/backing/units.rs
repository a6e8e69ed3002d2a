//! Units of expandable segments: how they are mapped, unmapped and moved, and the addresses that they lie in.
//!
//! Owns: the driver calls for them, with the costs of PyTorch's (`ExpandableSegment` of
//! c10/cuda/CUDACachingAllocator.cpp, 2.11). Unlike there, a failed growth is undone.

use super::context::{MissResult, Served, StrategyContext};
use super::mapping::{Mapping, Piece};
use crate::config::Increase;
use crate::config::rounding::SMALL_SEGMENT;
use crate::driver::{Call, DriverResult};
use crate::error::Result;
use crate::fallible::with_room;
use crate::heap::{Backing, Heap, NewMemory, Slots};
use crate::ids::{BlockId, PoolIndex};
use crate::span::Span;

/// Units of a segment that lie wholly inside a free block: the first, and the end of the last.
#[derive(Clone, Copy)]
pub(crate) struct Units {
    pub(crate) block: BlockId,
    /// Bytes of one unit.
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

/// Reserves addresses for a segment of a pool: `size` bytes, halved as long as the driver refuses, but at least
/// `least`. Returns its unmapped block.
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

/// Gives back the addresses of a segment in which nothing is mapped.
fn release_reservation(context: &mut StrategyContext<'_>, id: BlockId) -> DriverResult<()> {
    let Span { start, size } = context.heap.block(id).span();
    context.driver.address_free(start, size)?;
    context.heap.remove_expandable_segment(id);
    Ok(())
}

/// Gives back the addresses of a segment after mapping memory there failed, unless some of it may still be mapped.
pub(crate) fn release_unused(context: &mut StrategyContext<'_>, id: BlockId) -> DriverResult<()> {
    if context.rollback.is_empty() { release_reservation(context, id) } else { Ok(()) }
}

/// Gives back segments in which nothing is mapped.
pub(crate) fn release_empty_segments(context: &mut StrategyContext<'_>, pool: PoolIndex) -> DriverResult<()> {
    let is_empty = |heap: &Heap, id: BlockId| !heap.block(id).is_split();
    loop {
        let mut unmapped = context.heap.pool(pool).unmapped.iter();
        let Some((_, id)) = unmapped.find(|(_, id)| is_empty(context.heap, *id)) else { return Ok(()) };
        release_reservation(context, *id)?;
    }
}

/// Creates and maps the units of all parts, or of none. Returns the free block that the last part became part of;
/// `None` without parts.
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

/// Creates and maps every part, and gives the device access. Returns the slots for their blocks. After an error, each
/// mapping says how much of it was done.
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

/// Returns the units that lie wholly inside a free block.
pub(crate) fn whole_units(heap: &Heap, block: BlockId) -> Option<Units> {
    let span = heap.block(block).span();
    let segment = heap.segment(heap.block(block).segment)?;
    let Backing::Expandable { unit, .. } = segment.backing else { return None };
    let first = (span.start - segment.span.start).div_ceil(unit);
    let end = (span.end() - segment.span.start) / unit;
    (first < end).then_some(Units { block, unit, first, end })
}

/// Unmaps and releases units of a free block. Its stream has passed.
pub(crate) fn unmap_units(context: &mut StrategyContext<'_>, units: Units) -> Result<()> {
    let Units { block, unit, first, end } = units;
    let id = context.heap.block(block).segment;
    let Some(base) = context.heap.segment(id).map(|segment| segment.span.start) else { return Ok(()) };
    let mut slots = context.heap.reserve_parts(block, 1)?;
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

/// Moves units of free blocks of one pool to a part of an unmapped block of its segment, one behind the other, or none
/// of them. Their stream has passed. Returns the free block that they are part of. If a unit cannot be unmapped at its
/// old place, it and the units behind it stay there, the others have moved, and the error is returned.
///
/// A unit is mapped at its new place before it is unmapped at the old one, so that its memory is always at one of them.
pub(crate) fn move_units(context: &mut StrategyContext<'_>, sources: &[Units], to: UnmappedPart) -> Served {
    let pool = sources.first().map_or(PoolIndex::DEFAULT, |units| context.heap.block(units.block).pool);
    let count = sources.iter().map(|units| (units.end - units.first) as usize).sum();
    let mut pieces = with_room(count)?;
    for units in sources {
        let segment = context.heap.block(units.block).segment;
        let handles = (units.first..units.end).map(|slot| context.heap.unit_handle(segment, slot));
        pieces.extend(handles.map(|handle| Piece { size: units.unit, handle }));
    }
    let mapping = Mapping::at_home(to.span.start, pieces);
    context.heap.reserve_units(to.room, to.span)?;
    context.rollback.reserve(1)?;
    let mut slots = context.heap.reserve_parts(to.room, sources.len() + 1)?;
    // Room for the part split off if a unit cannot be unmapped, and for the progress in each source.
    let spare: Vec<Piece> = with_room(count)?;
    let mut gone: Vec<u64> = with_room(sources.len())?;
    let mut mapping = context.map(mapping)?;
    let (mut moved, mut unmapped) = (0, Ok(()));
    for units in sources {
        let base = context.heap.segment(context.heap.block(units.block).segment).map_or(0, |of| of.span.start);
        let mut done = 0;
        while unmapped.is_ok() && units.first + done < units.end {
            unmapped = context.driver.unmap(base + (units.first + done) * units.unit, units.unit);
            done += u64::from(unmapped.is_ok());
        }
        moved += done as usize;
        gone.push(done);
    }
    if moved < count {
        let rest = mapping.split_off(moved, spare);
        context.rollback.undo(context.heap, context.driver, rest);
    }
    let mut grown = BlockId::NONE;
    let (segment, start) = (context.heap.block(to.room).segment, to.span.start);
    for (units, done) in sources.iter().zip(gone).filter(|(_, done)| *done > 0) {
        (units.first..units.first + done).for_each(|slot| context.heap.unit_released(segment, slot));
        let base = context.heap.segment(segment).map_or(0, |of| of.span.start);
        let span = Span::new(base + units.first * units.unit, done * units.unit);
        context.heap.unmapped_units(units.block, span, done, &mut slots);
    }
    if moved > 0 {
        let span = Span::new(start, mapping.pieces.iter().map(|piece| piece.size).sum());
        // The unmapped block of the destination may have become part of another.
        let room = context.heap.unmapped_at(pool, start);
        context.heap.note_units(room, start, mapping.pieces.iter().map(|piece| piece.handle))?;
        grown = context.heap.mapped(NewMemory { room, span, pool }, &mut slots);
    }
    unmapped?;
    Ok(grown)
}
