//! The five states of GMLake's BestFit.
//!
//! Owns: [`GmLake`], and the order of the states.

use super::check;
use super::pblock::{self, CHUNK};
use super::sblock::{self, Pieces};
use crate::backing::{
    Miss, StrategyContext, ViewPlan, build_view, choose, finish_drops, release_chunks, release_home, release_segment,
    release_whole_segments, whole_segments,
};
use crate::config::rounding::segment_size;
use crate::config::{Config, Sharing};
use crate::error::Result;
use crate::heap::{FitRules, Heap, Request};
use crate::ids::{BlockId, Class, PoolIndex};
use crate::strategy::caching::Caching;
use crate::strategy::contract::{Assumption, FreeUsedBy, Goal, Means, Rules, Strategy};
use crate::strategy::malloc_fallback::{self, Grow};

/// The release's attempts to stitch, of which `defragLevel` skips the first ones.
#[derive(Clone, Copy)]
enum Attempt {
    /// Before any memory is created.
    AtOnce = 0,
    /// Memory could not be created.
    Short = 1,
    /// All cached memory was given back.
    LastResort = 2,
}

/// The strategy. What is free where stands in the heap.
pub(crate) struct GmLake;

impl Strategy for GmLake {
    /// A hit is an exact match only: a block that is larger by a chunk or more is refused, and left to the states.
    fn rules(&self, _config: &Config) -> Rules {
        let fit = FitRules {
            max_split_size: 0,
            max_non_split_rounding: CHUNK,
            min_rest: [CHUNK, FitRules::default().min_rest[Class::Small as usize]],
            ..FitRules::default()
        };
        let free_used_by = FreeUsedBy::Epoch;
        Rules { fit, polls_first: true, sharing: Sharing::Never, passes_memory_on: false, free_used_by }
    }

    fn serve(
        &mut self,
        context: &mut StrategyContext<'_>,
        request: &Request,
        means: Means,
    ) -> std::result::Result<BlockId, Miss> {
        match (request.class, means) {
            (Class::Small, _) => malloc_fallback::serve(self, context, request, means),
            (Class::Large, Means::Cheap) => self.best_fit(context, &whole_chunks(request)),
            (Class::Large, Means::All) if context.capturing() => Err(Miss::OUT_OF_MEMORY),
            (Class::Large, Means::All) => self.wait_and_release(context, &whole_chunks(request)),
        }
    }

    /// Whole pBlocks, and segments for small blocks, whose `cudaFree` waits by itself.
    fn release(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        context.retry_rollback()?;
        match goal {
            Goal::Everything => release_everything(context).map(|()| true),
            Goal::DownTo { down_to, may_wait } => release_down_to(context, down_to, may_wait),
        }
    }

    fn largest_servable(&self, heap: &Heap, config: &Config, pool: PoolIndex, _across: bool) -> u64 {
        let free = free_bytes(heap, pool);
        let enabled = config.defrag_level <= Attempt::LastResort as u32;
        let stitches = !pool.is_small() && free >= config.frag_limit && enabled;
        if stitches { free } else { heap.largest_in(pool) }
    }

    fn growth_needed(&self, heap: &Heap, config: &Config, request: &Request, _assumption: Assumption) -> u64 {
        let free = free_bytes(heap, request.pool);
        let stitches = request.class == Class::Large && request.size >= config.frag_limit && config.defrag_level == 0;
        if !stitches || free == 0 {
            return segment_size(request.size, config.large_segment_size);
        }
        request.size.next_multiple_of(CHUNK).saturating_sub(free)
    }

    fn check(&self, heap: &Heap) -> std::result::Result<(), String> {
        check::check(heap)
    }
}

impl Grow for GmLake {
    /// New memory of the size that PyTorch gives a segment.
    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> std::result::Result<BlockId, Miss> {
        if request.class == Class::Small {
            return Caching.grow(context, request);
        }
        let size = segment_size(request.size, context.config.large_segment_size);
        let id = pblock::create(context, size, request.pool)?;
        Ok(pblock::split(context.heap, id, request.size)?)
    }
}

impl GmLake {
    /// States 1 to 4.
    fn best_fit(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> std::result::Result<BlockId, Miss> {
        if let Some(id) = find(context, request)? {
            return Ok(id);
        }
        if let Some(id) = stitch(context, request, Attempt::AtOnce)? {
            return Ok(id);
        }
        match self.grow(context, request) {
            Err(Miss::OutOfMemory { .. }) => stitch(context, request, Attempt::Short)?.ok_or(Miss::OUT_OF_MEMORY),
            done => done,
        }
    }

    /// State 5, or one of the others once the GPU was waited for and all that is cached was given back.
    fn wait_and_release(
        &mut self,
        context: &mut StrategyContext<'_>,
        request: &Request,
    ) -> std::result::Result<BlockId, Miss> {
        context.wait_for_recorded_streams()?;
        if let Some(id) = find(context, request)? {
            return Ok(id);
        }
        self.release(context, Goal::Everything)?;
        context.heap.counters_mut().num_alloc_retries += 1;
        match stitch(context, request, Attempt::LastResort)? {
            Some(id) => Ok(id),
            None => self.grow(context, request),
        }
    }
}

fn release_everything(context: &mut StrategyContext<'_>) -> Result<()> {
    context.wait_for_all()?;
    // Segments for small blocks. A pBlock is none: addresses without memory lie beside it.
    release_whole_segments(context)?;
    finish_drops(context)?;
    let whole = pblock::releasable(context.heap);
    pblock::release(context, &whole)?;
    Ok(release_home(context)?)
}

fn release_down_to(context: &mut StrategyContext<'_>, down_to: u64, may_wait: bool) -> Result<bool> {
    finish_drops(context)?;
    if may_wait {
        context.wait_for_all()?
    } else {
        context.advance_epochs()?
    }
    let mut found = pblock::releasable(context.heap);
    let segments_from = found.len();
    if may_wait {
        found.extend(whole_segments(context.heap));
    }
    let sizes: Vec<u64> = found.iter().map(|id| context.heap.block(*id).size).collect();
    let missing = context.heap.reserved().saturating_sub(down_to);
    if !may_wait && sizes.iter().sum::<u64>() < missing {
        return Ok(false);
    }
    let (pblocks, segments): (Vec<_>, Vec<_>) =
        choose(&sizes, missing).into_iter().partition(|index| *index < segments_from);
    let pblocks: Vec<_> = pblocks.into_iter().map(|index| found[index]).collect();
    pblock::release(context, &pblocks)?;
    segments.into_iter().try_for_each(|index| release_segment(context, found[index]))?;
    Ok(true)
}

/// States 1 and 2, and the reuse of larger sBlocks.
fn find(context: &mut StrategyContext<'_>, request: &Request) -> Result<Option<BlockId>> {
    let Request { size, pool, .. } = *request;
    let smallest = context.heap.best_fit(pool, size).some();
    let exact = smallest.is_some_and(|id| context.heap.block(id).size == size);
    if !exact && let Some(view) = sblock::inactive(context.heap, size..=size, pool) {
        return sblock::reuse(context.heap, view, request).map(Some);
    }
    if let Some(smallest) = smallest {
        return pblock::split(context.heap, smallest, size).map(Some);
    }
    // As in the release, a float: beyond 64 bits it is the largest number.
    let most = (size as f64 * context.config.reuse_limit) as u64;
    match sblock::inactive(context.heap, size..=most, pool) {
        Some(view) => sblock::reuse(context.heap, view, request).map(Some),
        None => Ok(None),
    }
}

/// States 3 and 4 of requests that may be stitched. Returns `None` where they may not, or where nothing is free to stitch.
fn stitch(
    context: &mut StrategyContext<'_>,
    request: &Request,
    attempt: Attempt,
) -> std::result::Result<Option<BlockId>, Miss> {
    if request.size < context.config.frag_limit || (attempt as u32) < context.config.defrag_level {
        return Ok(None);
    }
    let Pieces { mut spans, missing } = sblock::pieces(context.heap, request.size, request.pool);
    // The event tells later when the GPU has passed the sBlocks that are idle now.
    context.advance_epochs()?;
    if spans.is_empty() || !sblock::stitch_free(context, request.size / CHUNK)? {
        return Ok(None);
    }
    let mut created = None;
    if missing > 0 {
        let id = pblock::create(context, missing, request.pool)?;
        created = Some(id);
        spans.push(crate::span::Span::new(context.heap.block(id).address, missing));
    }
    let plan = ViewPlan::over(context.heap, &spans, None);
    let stitched = plan.map_err(Miss::from).and_then(|plan| build_view(context, plan, request));
    // What may still be mapped somewhere would not go.
    if stitched.is_err()
        && let Some(created) = created
        && context.retry_rollback().is_ok()
        && let Err(error) = release_chunks(context, created, context.heap.block(created).span())
    {
        tracing::error!(%error, "the memory for a stitched block could not be given back");
    }
    stitched.map(Some)
}

/// Returns all that is free in a pool.
fn free_bytes(heap: &Heap, pool: PoolIndex) -> u64 {
    heap.free_blocks(pool).into_iter().map(|id| heap.block(id).size).sum()
}

/// Large requests are for whole chunks.
fn whole_chunks(request: &Request) -> Request {
    Request { size: request.size.next_multiple_of(CHUNK), ..*request }
}
