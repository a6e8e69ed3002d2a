//! Changes to the heap, and steps with driver calls, that only the strategies of `strategy/baselines` need.
//!
//! Owns: how units (pieces of memory) move within their expandable segment, and the search for the largest segment that
//! the driver gives.

use super::context::{Miss, Served, StrategyContext};
use super::mapping::{Mapping, Piece};
use super::segments::malloc_segment;
use super::units::{Units, UnmappedPart};
use crate::error::Result;
use crate::fallible::with_room;
use crate::heap::{NewMemory, Placement, Request};
use crate::ids::{BlockId, PoolIndex, StreamId};
use crate::limits::Increase;
use crate::span::Span;

impl StrategyContext<'_> {
    /// Takes the part `span` of a free block at home or in an expandable segment. The parts before and after `span`
    /// stay free.
    pub(crate) fn carve(&mut self, id: BlockId, span: Span) -> Result<BlockId> {
        self.heap.carve(id, span)
    }

    /// Places a request in a block that was taken. Returns the block of the request. The rest of the block becomes
    /// free.
    pub(crate) fn place(&mut self, id: BlockId, request: &Request, placement: Placement) -> BlockId {
        self.heap.place(id, request, placement)
    }

    /// Cuts a block that was taken into at most `most` blocks of equal size. Returns the first block. The others become
    /// free.
    pub(crate) fn cut_equally(&mut self, id: BlockId, size: u64, most: u64) -> BlockId {
        self.heap.cut_equally(id, size, most)
    }

    /// Returns whether a pool has free memory and its stream is in a capture that the allocator was not told of. The
    /// allocator cannot wait for such a stream.
    pub(crate) fn is_captured(&self, pool: PoolIndex) -> Result<bool> {
        let of = self.heap.pool(pool.large());
        let has_memory = self.heap.has_free(pool);
        let may_be = has_memory && !of.ended && of.stream != StreamId::DEFAULT;
        Ok(may_be && self.driver.is_capturing(of.stream)?)
    }
}

/// Allocates a segment of the first size that the limits allow and the driver gives. `sizes` are in falling order.
/// Returns the segment's block, which is in no index.
pub(crate) fn malloc_largest(
    context: &mut StrategyContext<'_>,
    pool: PoolIndex,
    sizes: impl Iterator<Item = u64>,
) -> Served {
    // Once the driver has refused a size, the loop skips sizes for which the device has no room.
    let mut room = u64::MAX;
    for size in sizes {
        if size > room || !context.allows(Increase::of(size)) {
            continue;
        }
        match malloc_segment(context, pool, size) {
            Err(Miss::OutOfMemory { .. }) => room = context.known_room().unwrap_or(size),
            done => return done,
        }
    }
    Err(Miss::OUT_OF_MEMORY)
}

/// Moves units (pieces of memory) of an expandable segment from free blocks of one pool to contiguous addresses in a
/// part of an unmapped block of the segment, or moves none. The pool's stream has passed the blocks. Returns the free
/// block that now holds the units. If a unit cannot be unmapped at its old place, this unit and all later units stay
/// there, the earlier units have moved, and the error is returned.
///
/// A unit is mapped at its new place before the unit is unmapped at its old place, so that the unit's memory is always
/// mapped somewhere.
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
    // Room for the pieces that are split off `mapping` if unmapping a unit fails, and for the number of units unmapped
    // in each of the `sources`.
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
        // The unmapped block of the destination may have become part of another block.
        let room = context.heap.unmapped_at(pool, start);
        context.heap.note_units(room, start, mapping.pieces.iter().map(|piece| piece.handle))?;
        grown = context.heap.mapped(NewMemory { room, span, pool }, &mut slots);
    }
    unmapped?;
    Ok(grown)
}

impl Mapping {
    /// Splits off all pieces but the first `pieces`, which stay mapped. Returns the mapping of the split pieces, which
    /// is still to be undone. `rest` has room for the split pieces.
    fn split_off(&mut self, pieces: usize, mut rest: Vec<Piece>) -> Self {
        let kept: u64 = self.pieces[..pieces].iter().map(|piece| piece.size).sum();
        rest.extend(self.pieces.drain(pieces..));
        let mapped = self.mapped.saturating_sub(kept);
        self.mapped -= mapped;
        Self { address: self.address + kept, pieces: rest, mapped, owned: self.owned, reservation: Span::default() }
    }
}
