//! Views: found again, built, dropped.
//!
//! Owns: the driver calls that make a view and take it away, and the bound on mappings.

use super::choose::Stretch;
use crate::blocks::BlockId;
use crate::driver::{Call, DriverResult};
use crate::error::Error;
use crate::heap::{Heap, Request, Window};
use crate::home::{Chunk, ChunkId, GRANULE};
use crate::strategy::mapping::{Mapping, Piece, Unsettled};
use crate::strategy::{Ground, Miss};
use crate::views::{View, ViewId};

/// A view in which the request fits, and where.
pub(super) fn find(heap: &Heap, size: u64, pool: u32) -> Option<Window> {
    heap.views.candidates(size).find_map(|view| heap.window(view, size, pool))
}

/// The chunks that a view is to map one behind the other, and where in it the request begins.
pub(super) struct Plan {
    chunks: Vec<(ChunkId, Chunk)>,
    offset: u64,
}

impl Plan {
    /// The plan of a view over these stretches of home.
    pub(super) fn over(heap: &Heap, stretches: &[Stretch]) -> Result<Self, Error> {
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
        Ok(Self { chunks, offset })
    }

    /// How many mappings it takes.
    pub(super) fn mappings(&self) -> usize {
        self.chunks.len()
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
    let size: u64 = plan.chunks.iter().map(|(_, chunk)| chunk.size).sum();
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
    Ok(ground.heap.take_window(Window { view, offset: plan.offset }, request.size, request.pool)?)
}

/// Drops the views unused longest, of those that no stream can still be using, until `more` mappings fit the bound.
/// Whether they do.
pub(super) fn make_room(ground: &mut Ground<'_>, more: usize) -> DriverResult<bool> {
    while ground.heap.views.mappings() + more > ground.config.max_view_mappings {
        let droppable = |(id, view): (ViewId, &View)| ground.heap.is_done_with(view).then_some((view.tick, id));
        let Some((_, oldest)) = ground.heap.views.iter().filter_map(droppable).min() else { return Ok(false) };
        drop_view(ground, oldest)?;
    }
    Ok(true)
}

/// Drops every view over a chunk. `false` if one of them is in use; then some may be dropped already. No stream may
/// still be using them.
pub(super) fn drop_over(ground: &mut Ground<'_>, chunk: ChunkId) -> DriverResult<bool> {
    let over = ground.heap.views.iter().filter(|(_, view)| view.chunks.contains(&chunk));
    let views: Vec<_> = over.map(|(id, view)| (id, view.users)).collect();
    if views.iter().any(|(_, users)| *users > 0) {
        return Ok(false);
    }
    for (id, _) in views {
        drop_view(ground, id)?;
    }
    Ok(true)
}

fn drop_view(ground: &mut Ground<'_>, id: ViewId) -> DriverResult<()> {
    let Some(view) = ground.heap.views.get(id) else { return Ok(()) };
    let (address, size, mapped) = (view.address, view.size, view.chunks.len());
    if mapped > 0 {
        ground.driver.unmap(address, size)?;
        ground.heap.views.forget_chunks(id);
        ground.heap.counters.mappings -= mapped as u64;
    }
    ground.driver.address_free(address, size)?;
    ground.heap.views.remove(id);
    Ok(())
}

/// Gives back the addresses of views whose mappings are gone already.
pub(super) fn finish_drops(ground: &mut Ground<'_>) -> DriverResult<()> {
    let unmapped: Vec<_> =
        ground.heap.views.iter().filter(|(_, view)| view.chunks.is_empty()).map(|(id, _)| id).collect();
    unmapped.into_iter().try_for_each(|id| drop_view(ground, id))
}
