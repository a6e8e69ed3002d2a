//! Views: built, cut, dropped.
//!
//! Owns: the driver calls that make a view and take it away, and the bounds of views. Over which chunks one is built is the
//! strategy's.

use super::context::{Miss, StrategyContext};
use super::mapping::{Mapping, Piece};
use crate::config::Config;
use crate::driver::{Call, DriverResult};
use crate::error::Error;
use crate::heap::{Chunk, GRANULE, Heap, PlanHash, Request, ViewUsage, Window};
use crate::ids::{BlockId, ChunkId, ViewId};
use crate::span::Span;

/// The chunks that a view is to map one behind the other, and where in it the request begins.
pub(crate) struct ViewPlan {
    chunks: Vec<(ChunkId, Chunk)>,
    offset: u64,
    /// What the view is remembered by.
    hash: Option<PlanHash>,
}

impl ViewPlan {
    /// The plan of a view over these spans of home.
    ///
    /// # Errors
    /// One of them lies in no chunk.
    pub(crate) fn over(heap: &Heap, spans: &[Span], hash: Option<PlanHash>) -> Result<Self, Error> {
        const GONE: Error = Error::Internal("free memory without a chunk");
        let home = heap.home().ok_or(GONE)?;
        let mut chunks: Vec<(ChunkId, Chunk)> = Vec::new();
        for span in spans {
            let mut at = span.start;
            while at < span.end() {
                let (id, chunk) = home.chunk_at(at).ok_or(GONE)?;
                chunks.push((id, chunk));
                at = chunk.end();
            }
        }
        let (span, (_, first)) = spans.first().zip(chunks.first()).ok_or(GONE)?;
        let offset = span.start - first.address;
        Ok(Self { chunks, offset, hash })
    }

    /// Returns how many bytes of address space it takes.
    fn size(&self) -> u64 {
        self.chunks.iter().map(|(_, chunk)| chunk.size).sum()
    }

    /// Whether it keeps within the bounds if there is no other view.
    pub(crate) fn fits_alone(&self, config: &Config) -> bool {
        self.beside(ViewUsage { views: 0, mappings: 0, addresses: 0 }).is_within(config)
    }

    /// Whether it keeps within the bounds as things are.
    pub(crate) fn fits(&self, heap: &Heap, config: &Config) -> bool {
        self.beside(heap.views().usage()).is_within(config)
    }

    /// Returns what views take with this one.
    fn beside(&self, usage: ViewUsage) -> ViewUsage {
        ViewUsage {
            views: usage.views + 1,
            mappings: usage.mappings + self.chunks.len(),
            addresses: usage.addresses.saturating_add(self.size()),
        }
    }
}

/// Maps the chunks of a plan, and hands the request its bytes. Returns the block.
pub(crate) fn build_view(
    context: &mut StrategyContext<'_>,
    plan: ViewPlan,
    request: &Request,
) -> Result<BlockId, Miss> {
    context.retry_rollback()?;
    let pieces = plan.chunks.iter().map(|(_, chunk)| Piece { size: chunk.size, handle: Some(chunk.handle) }).collect();
    let size = plan.size();
    let span = Span::new(context.driver.reserve(size, GRANULE)?, size);
    context.heap.check_answer(Call::Reserve, span, GRANULE)?;
    let mut mapping = Mapping::of_chunks(span.start, pieces);
    if let Err(error) = mapping.map(context.driver) {
        context.rollback.undo(context.heap, context.driver, mapping);
        return Err(error.into());
    }
    let view = context.heap.add_view(span, plan.chunks.iter().map(|(id, _)| *id).collect(), plan.hash);
    Ok(context.heap.take_window(Window { view, offset: plan.offset }, request.size, request.pool)?)
}

/// Drops the views unused longest, of those that no stream can still be using, until the planned one keeps within the
/// bounds beside the rest. Returns what views would have taken with it where it cannot; then none is dropped.
pub(crate) fn make_room(context: &mut StrategyContext<'_>, plan: &ViewPlan) -> DriverResult<Option<ViewUsage>> {
    let views = context.heap.views();
    let mut left = views.usage();
    let mut done_with = views.unused().filter(|(_, view)| context.heap.is_done_with(view));
    let mut dropped = Vec::new();
    while !plan.beside(left).is_within(context.config) {
        let Some((id, view)) = done_with.next() else { return Ok(Some(plan.beside(left))) };
        left.views -= 1;
        left.mappings -= view.mappings();
        left.addresses -= view.size;
        dropped.push(id);
    }
    drop(done_with);
    dropped.into_iter().try_for_each(|id| drop_view(context, id)).map(|()| None)
}

/// Drops a view that nobody uses and every stream has passed.
pub(crate) fn drop_view(context: &mut StrategyContext<'_>, id: ViewId) -> DriverResult<()> {
    let Some(view) = context.heap.views().get(id) else { return Ok(()) };
    let (span, mappings) = (view.span(), view.mappings());
    if !view.holes.is_empty() {
        // One by one, each noted: whichever call fails, what is mapped is known.
        cut_view(context, id, |_| true)?;
        context.heap.unmapped_view(id, 0);
    } else if mappings > 0 {
        context.driver.unmap(span.start, span.size)?;
        context.heap.unmapped_view(id, mappings);
    }
    context.driver.address_free(span.start, span.size)?;
    context.heap.remove_view(id);
    Ok(())
}

/// Unmaps these chunks of a view, of which other parts may be in use.
pub(crate) fn cut_view(
    context: &mut StrategyContext<'_>,
    id: ViewId,
    gone: impl Fn(ChunkId) -> bool,
) -> DriverResult<()> {
    let Some((home, view)) = context.heap.home().zip(context.heap.views().get(id)) else { return Ok(()) };
    let address = view.address;
    let mut found = Vec::new();
    let mut at = 0;
    for (index, chunk) in view.chunks.iter().enumerate() {
        let hole = || view.holes.iter().find(|hole| hole.start == at).map_or(0, |hole| hole.size);
        let size = home.chunk(*chunk).map_or_else(hole, |chunk| chunk.size);
        if *chunk != ChunkId::NONE && gone(*chunk) {
            found.push((index, Span::new(at, size)));
        }
        at += size;
    }
    for (index, hole) in found {
        context.driver.unmap(address + hole.start, hole.size)?;
        context.heap.cut_view(id, index, hole);
    }
    Ok(())
}

/// Gives back the addresses of views whose mappings are gone already.
pub(crate) fn finish_drops(context: &mut StrategyContext<'_>) -> DriverResult<()> {
    let unmapped = context.heap.views().iter().filter(|(_, view)| view.chunks.is_empty()).map(|(id, _)| id);
    let unmapped: Vec<ViewId> = unmapped.collect();
    unmapped.into_iter().try_for_each(|id| drop_view(context, id))
}
