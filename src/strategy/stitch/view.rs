//! Views: found again, built, dropped.
//!
//! Owns: the driver calls that make a view and take it away, and the bounds of views.

use super::choose::Stretch;
use crate::blocks::BlockId;
use crate::driver::{Call, DriverResult};
use crate::error::Error;
use crate::heap::{Heap, Request, Window};
use crate::home::{Chunk, ChunkId, GRANULE};
use crate::strategy::mapping::{Mapping, Piece, Unsettled};
use crate::strategy::{Ground, Miss};
use crate::views::{Choice, Taken, ViewId};

/// A view in which the request fits, and where.
pub(super) fn find(heap: &Heap, choice: Choice, size: u64, pool: u32) -> Option<Window> {
    heap.views.candidates(choice, size).find_map(|view| heap.window(view, size, pool))
}

/// The chunks that a view is to map one behind the other, and where in it the request begins.
pub(super) struct Plan {
    chunks: Vec<(ChunkId, Chunk)>,
    offset: u64,
    choice: Choice,
}

impl Plan {
    /// The plan of a view over these stretches of home.
    pub(super) fn over(heap: &Heap, stretches: &[Stretch], choice: Choice) -> Result<Self, Error> {
        const GONE: Error = Error::Internal("free memory without a chunk");
        let home = heap.home.as_ref().ok_or(GONE)?;
        let mut chunks: Vec<(ChunkId, Chunk)> = Vec::new();
        for &(address, size) in stretches {
            let mut at = address;
            while at < address + size {
                let (id, chunk) = home.chunk_at(at).ok_or(GONE)?;
                chunks.push((id, chunk));
                at = chunk.end();
            }
        }
        let ((start, _), (_, first)) = stretches.first().zip(chunks.first()).ok_or(GONE)?;
        let offset = start - first.address;
        Ok(Self { chunks, offset, choice })
    }

    /// How many mappings it takes.
    fn mappings(&self) -> usize {
        self.chunks.len()
    }

    /// How many bytes of address space it takes.
    fn size(&self) -> u64 {
        self.chunks.iter().map(|(_, chunk)| chunk.size).sum()
    }

    /// Whether it keeps within the bounds if there is no other view.
    pub(super) fn fits_alone(&self, ground: &Ground<'_>) -> bool {
        self.beside(Taken { views: 0, mappings: 0, addresses: 0 }).is_within(ground.config)
    }

    /// Whether it keeps within the bounds as things are.
    pub(super) fn fits(&self, ground: &Ground<'_>) -> bool {
        self.beside(ground.heap.views.taken()).is_within(ground.config)
    }

    /// What views take with this one.
    fn beside(&self, taken: Taken) -> Taken {
        Taken {
            views: taken.views + 1,
            mappings: taken.mappings + self.mappings(),
            addresses: taken.addresses.saturating_add(self.size()),
        }
    }
}

/// Maps the chunks of a plan, and hands the request its bytes.
pub(super) fn build(
    ground: &mut Ground<'_>,
    unsettled: &mut Unsettled,
    plan: Plan,
    request: &Request,
) -> Result<BlockId, Miss> {
    unsettled.settle(ground)?;
    let pieces = plan.chunks.iter().map(|(_, chunk)| Piece { size: chunk.size, handle: Some(chunk.handle) }).collect();
    let size = plan.size();
    let address = ground.driver.reserve(size, GRANULE)?;
    ground.heap.check_answer(Call::Reserve, address, size, GRANULE)?;
    let mut mapping = Mapping::of_chunks(address, pieces);
    if let Err(error) = mapping.map(ground.driver) {
        unsettled.undo(ground, mapping);
        return Err(error.into());
    }
    ground.heap.counters.views_built += 1;
    ground.heap.counters.mappings += plan.mappings() as u64;
    let view = ground.heap.views.add(address, size, plan.chunks.iter().map(|(id, _)| *id).collect());
    ground.heap.views.remember(plan.choice, view);
    Ok(ground.heap.take_window(Window { view, offset: plan.offset }, request.size, request.pool)?)
}

/// Drops the views unused longest, of those that no stream can still be using, until the planned one keeps within the
/// bounds beside the rest. Whether it does; where it cannot, none is dropped.
pub(super) fn make_room(ground: &mut Ground<'_>, plan: &Plan) -> DriverResult<bool> {
    let views = &ground.heap.views;
    let mut left = views.taken();
    let mut done_with = views.unused().filter(|(_, view)| ground.heap.is_done_with(view));
    let mut dropped = Vec::new();
    while !plan.beside(left).is_within(ground.config) {
        let Some((id, view)) = done_with.next() else {
            drop(done_with);
            ground.heap.counters.views_refused = Some(plan.beside(left));
            return Ok(false);
        };
        left.views -= 1;
        left.mappings -= view.mappings();
        left.addresses -= view.size;
        dropped.push(id);
    }
    drop(done_with);
    ground.heap.counters.views_refused = None;
    dropped.into_iter().try_for_each(|id| drop_view(ground, id)).map(|()| true)
}

/// Drops a view that nobody uses and every stream has passed.
pub(in crate::strategy) fn drop_view(ground: &mut Ground<'_>, id: ViewId) -> DriverResult<()> {
    let Some(view) = ground.heap.views.get(id) else { return Ok(()) };
    let (address, size, mappings) = (view.address, view.size, view.mappings());
    if !view.holes.is_empty() {
        // One by one, each noted: whichever call fails, what is mapped is known.
        cut(ground, id, |_| true)?;
        ground.heap.views.forget_chunks(id);
    } else if mappings > 0 {
        ground.driver.unmap(address, size)?;
        ground.heap.views.forget_chunks(id);
        ground.heap.counters.mappings -= mappings as u64;
    }
    ground.driver.address_free(address, size)?;
    ground.heap.views.remove(id);
    ground.heap.counters.views_dropped += 1;
    Ok(())
}

/// Unmaps these chunks of a view, of which other parts may be in use.
pub(super) fn cut(ground: &mut Ground<'_>, id: ViewId, gone: impl Fn(ChunkId) -> bool) -> DriverResult<()> {
    let Some((home, view)) = ground.heap.home.as_ref().zip(ground.heap.views.get(id)) else { return Ok(()) };
    let address = view.address;
    let mut found = Vec::new();
    let mut at = 0;
    for (index, chunk) in view.chunks.iter().enumerate() {
        let hole = || view.holes.iter().find(|(offset, _)| *offset == at).map_or(0, |(_, size)| *size);
        let size = home.chunk(*chunk).map_or_else(hole, |chunk| chunk.size);
        if *chunk != ChunkId::NONE && gone(*chunk) {
            found.push((index, (at, size)));
        }
        at += size;
    }
    for (index, (offset, size)) in found {
        ground.driver.unmap(address + offset, size)?;
        ground.heap.views.cut(id, index, (offset, size));
        ground.heap.counters.mappings -= 1;
    }
    Ok(())
}

/// Gives back the addresses of views whose mappings are gone already.
pub(in crate::strategy) fn finish_drops(ground: &mut Ground<'_>) -> DriverResult<()> {
    let unmapped: Vec<_> =
        ground.heap.views.iter().filter(|(_, view)| view.chunks.is_empty()).map(|(id, _)| id).collect();
    unmapped.into_iter().try_for_each(|id| drop_view(ground, id))
}
