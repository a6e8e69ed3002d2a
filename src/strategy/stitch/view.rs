//! Views: found again, built, dropped.
//!
//! Owns: the driver calls that make a view and take it away, and the bound on mappings.

use super::choose::Stretch;
use crate::blocks::BlockId;
use crate::driver::{Call, DriverResult};
use crate::error::Error;
use crate::heap::{Heap, Request, Window};
use crate::home::{ChunkId, GRANULE};
use crate::strategy::mapping::{Mapping, Piece, Unsettled};
use crate::strategy::{Ground, Miss};
use crate::views::{View, ViewId};

/// A view in which the request fits, and where.
pub(super) fn find(heap: &Heap, size: u64, pool: u32) -> Option<Window> {
    heap.views.candidates(size).find_map(|view| heap.window(view, size, pool))
}

/// Maps the chunks of `stretches` one behind the other, and hands the request its bytes.
pub(super) fn build(
    ground: &mut Ground<'_>,
    unsettled: &mut Unsettled,
    stretches: &[Stretch],
    request: &Request,
) -> Result<BlockId, Miss> {
    const GONE: Error = Error::Internal("free memory without a chunk");
    unsettled.settle(ground)?;
    let home = ground.heap.home.as_ref().ok_or(GONE)?;
    let mut chunks: Vec<ChunkId> = Vec::new();
    let mut pieces: Vec<Piece> = Vec::new();
    let mut offset = None;
    for &(address, size) in stretches {
        let mut at = address;
        while at < address + size {
            let (id, chunk) = home.chunk_at(at).ok_or(GONE)?;
            offset.get_or_insert(at - chunk.address);
            chunks.push(id);
            pieces.push(Piece { size: chunk.size, handle: Some(chunk.handle) });
            at = chunk.end();
        }
    }
    let offset = offset.ok_or(GONE)?;
    let size: u64 = pieces.iter().map(|piece| piece.size).sum();
    let address = ground.driver.reserve(size, GRANULE)?;
    ground.heap.check_answer(Call::Reserve, address, size, GRANULE)?;
    let mut mapping = Mapping::of_chunks(address, pieces);
    if let Err(error) = mapping.map(ground.driver) {
        unsettled.undo(ground, mapping);
        return Err(error.into());
    }
    ground.heap.counters.views_built += 1;
    ground.heap.counters.mappings += chunks.len() as u64;
    let view = ground.heap.views.add(address, size, chunks);
    Ok(ground.heap.take_window(Window { view, offset }, request.size, request.pool)?)
}

/// How many chunks a view over these stretches maps.
pub(super) fn chunks_in(heap: &Heap, stretches: &[Stretch]) -> usize {
    let Some(home) = &heap.home else { return 0 };
    let mut count = 0;
    for &(address, size) in stretches {
        let mut at = address;
        while let Some((_, chunk)) = home.chunk_at(at).filter(|_| at < address + size) {
            count += 1;
            at = chunk.end();
        }
    }
    count
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
