//! Views: how they are built, cut and dropped.
//!
//! Owns: the driver calls that make and remove a view, and the bounds on views. The strategy chooses the chunks of a
//! view.

use super::context::{Served, StrategyContext};
use super::mapping::{Mapping, Piece};
use crate::config::Config;
use crate::driver::Call;
use crate::error::Error;
use crate::fallible::{TryCollect, TryPush};
use crate::heap::{Chunk, GRANULE, Heap, PlanHash, Request, View, ViewUsage, Window};
use crate::ids::{ChunkId, ViewId};
use crate::span::Span;

/// The chunks that a view maps at contiguous addresses, and the offset of the request in the view.
pub(crate) struct ViewPlan {
    chunks: Vec<(ChunkId, Chunk)>,
    offset: u64,
    /// The hash of the ranges of home chosen for the request, by which the view is found again.
    hash: Option<PlanHash>,
}

impl ViewPlan {
    /// Prepares a view over these spans of home.
    ///
    /// # Errors
    /// One of the spans lies in no chunk.
    pub(crate) fn over(heap: &Heap, spans: &[Span], hash: Option<PlanHash>) -> Result<Self, Error> {
        const GONE: Error = Error::Internal("free memory without a chunk");
        let home = heap.home().ok_or(GONE)?;
        let mut chunks: Vec<(ChunkId, Chunk)> = Vec::new();
        for span in spans {
            let mut at = span.start;
            while at < span.end() {
                let (id, chunk) = home.chunk_at(at).ok_or(GONE)?;
                chunks.try_push((id, chunk))?;
                at = chunk.end();
            }
        }
        let (span, (_, first)) = spans.first().zip(chunks.first()).ok_or(GONE)?;
        let offset = span.start - first.address;
        Ok(Self { chunks, offset, hash })
    }

    /// Returns how many bytes of addresses the view takes.
    fn size(&self) -> u64 {
        self.chunks.iter().map(|(_, chunk)| chunk.size).sum()
    }

    /// Returns whether the bounds on views (such as `max_views`) allow the view if there is no other view.
    pub(crate) fn fits_alone(&self, config: &Config) -> bool {
        self.fits_beside(ViewUsage::default(), config)
    }

    /// Returns whether the bounds on views allow the view beside all present views.
    pub(crate) fn fits(&self, heap: &Heap, config: &Config) -> bool {
        self.fits_beside(heap.views().usage(), config)
    }

    /// Returns whether the bounds on views allow the view beside other views with the usage `usage`.
    pub(crate) fn fits_beside(&self, usage: ViewUsage, config: &Config) -> bool {
        self.usage_with(usage).is_within(config)
    }

    /// Returns the usage of all views with the planned view, if the other views have the usage `usage`.
    fn usage_with(&self, usage: ViewUsage) -> ViewUsage {
        usage.with(ViewUsage { views: 1, mappings: self.chunks.len(), addresses: self.size() })
    }
}

/// Maps the chunks of a view, and gives the request its part of the view. Returns the block.
pub(crate) fn build_view(context: &mut StrategyContext<'_>, plan: ViewPlan, request: &Request) -> Served {
    context.retry_rollback()?;
    let piece = |chunk: &Chunk| Piece { size: chunk.size, handle: Some(chunk.handle) };
    let pieces = plan.chunks.iter().map(|(_, chunk)| piece(chunk)).try_to_vec()?;
    let chunks = plan.chunks.iter().map(|(id, _)| *id).try_to_vec()?;
    context.heap.reserve_window(&chunks, plan.offset, request.size)?;
    let new = context.heap.reserve_view(chunks)?;
    context.rollback.reserve(1)?;
    let size = plan.size();
    let span = Span::new(context.reserve_addresses(size, GRANULE)?, size);
    context.heap.check_answer(Call::Reserve, span, GRANULE)?;
    context.map(Mapping::of_chunks(span.start, pieces))?;
    let view = context.heap.add_view(span, new, plan.hash);
    Ok(context.heap.take_window(Window { view, offset: plan.offset }, request.size, request.pool)?)
}

/// Drops views until the bounds on views (such as `max_views`) allow the new view. Only views that no stream can still
/// use are dropped, and views unused longest come first. If the drop of all such views were not enough, drops none and
/// returns the usage that the other views would have had together with the new view.
pub(crate) fn make_room(context: &mut StrategyContext<'_>, plan: &ViewPlan) -> Result<Option<ViewUsage>, Error> {
    make_room_for(context, plan.usage_with(ViewUsage::default()))
}

/// Drops views, as [`make_room`] does, until the bounds on views allow `more` views, mappings and addresses.
pub(super) fn make_room_for(context: &mut StrategyContext<'_>, more: ViewUsage) -> Result<Option<ViewUsage>, Error> {
    let views = context.heap.views();
    let mut left = views.usage();
    let mut done_with = views.unused().filter(|(_, view)| context.heap.is_done_with(view));
    let mut dropped = Vec::new();
    while !left.with(more).is_within(context.config) {
        let Some((id, view)) = done_with.next() else { return Ok(Some(left.with(more))) };
        left.views -= 1;
        left.mappings -= view.mappings();
        left.addresses -= view.addresses;
        dropped.try_push(id)?;
    }
    drop(done_with);
    dropped.into_iter().try_for_each(|id| drop_view(context, id)).map(|()| None)
}

/// Returns the usage of the views that [`make_room`] would not drop.
pub(crate) fn usage_of_kept_views(heap: &Heap) -> ViewUsage {
    let kept = heap.views().iter().filter(|(_, view)| !heap.is_done_with(view));
    kept.fold(ViewUsage::default(), |usage, (_, view)| ViewUsage {
        views: usage.views + 1,
        mappings: usage.mappings + view.mappings(),
        addresses: usage.addresses + view.addresses,
    })
}

/// Drops a view that no block uses and that every stream has passed.
pub(crate) fn drop_view(context: &mut StrategyContext<'_>, id: ViewId) -> Result<(), Error> {
    let Some(view) = context.heap.views().get(id) else { return Ok(()) };
    let (span, reservation, mappings) = (view.span(), view.reservation(), view.mappings());
    if !view.holes.is_empty() {
        // The chunks are unmapped one by one, and each is noted, so that the heap is right whichever call fails.
        cut_view(context, id, |_| true)?;
        context.heap.unmapped_view(id, 0);
    } else if mappings > 0 {
        context.driver.unmap(span.start, span.size)?;
        context.heap.unmapped_view(id, mappings);
    }
    context.driver.address_free(reservation.start, reservation.size)?;
    context.heap.remove_view(id);
    Ok(())
}

/// Unmaps chosen chunks of a view. Other parts of the view may be in use.
pub(crate) fn cut_view(
    context: &mut StrategyContext<'_>,
    id: ViewId,
    is_cut: impl Fn(ChunkId) -> bool,
) -> Result<(), Error> {
    let Some((home, view)) = context.heap.home().zip(context.heap.views().get(id)) else { return Ok(()) };
    let address = view.address;
    let mut found = Vec::new();
    let mut at = 0;
    for (index, chunk) in view.chunks.iter().enumerate() {
        let size = home.chunk(*chunk).map_or_else(|| view.hole_at(at), |chunk| chunk.size);
        if *chunk != ChunkId::NONE && is_cut(*chunk) {
            found.try_push((index, Span::new(at, size)))?;
        }
        at += size;
    }
    context.heap.reserve_holes(id, found.len())?;
    for (index, hole) in found {
        context.driver.unmap(address + hole.start, hole.size)?;
        context.heap.cut_view(id, index, hole);
    }
    Ok(())
}

/// Gives back the addresses of views in which no chunk is mapped and which no block uses. A view that consists only of
/// holes may still be in use.
pub(crate) fn finish_drops(context: &mut StrategyContext<'_>) -> Result<(), Error> {
    let heap = &*context.heap;
    let is_unused = |view: &View| view.chunks.is_empty() && view.users == 0;
    let is_over = |view: &View| is_unused(view) || (view.mappings() == 0 && heap.is_done_with(view));
    let unmapped = heap.views().iter().filter(|(_, view)| view.growing.is_none() && is_over(view)).map(|(id, _)| id);
    unmapped.try_to_vec()?.into_iter().try_for_each(|id| drop_view(context, id))
}
