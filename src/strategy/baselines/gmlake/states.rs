//! The five states of GMLake's BestFit.
//!
//! Owns: [`GmLake`], and the order of the states.

use super::pblock::{self, CHUNK};
use super::sblock::{self, Pieces};
use crate::backing::{
    InTurn, Miss, MissResult, Served, StrategyContext, ViewPlan, build_view, finish_drops, release_chunks,
    release_home, release_segment, release_whole_segments, whole_segments,
};
use crate::config::Config;
use crate::config::rounding::segment_size;
use crate::error::Result;
use crate::fallible::TryCollect;
use crate::heap::{FitRules, Heap, Request};
use crate::ids::{BlockId, Class, PoolIndex};
use crate::strategy::contract::{FreeUsedBy, Goal, Means, Rules, Strategy, Target};
use crate::strategy::estimates::{Assumption, Estimates, Present};
use crate::strategy::malloc_like::MallocLike;

/// The points of a request at which GMLake's released code tries to stitch, in order. `defragLevel` is the number of
/// points that are skipped.
#[derive(Clone, Copy)]
enum Attempt {
    /// Before any memory is created.
    AtOnce = 0,
    /// After memory could not be created.
    Short = 1,
    /// After all cached memory was given back.
    LastResort = 2,
}

/// How requests find their blocks.
const FIT: FitRules = FitRules {
    max_split_size: 0,
    max_non_split_rounding: CHUNK,
    min_rest: [CHUNK, FitRules::BEST.min_rest[Class::Small as usize]],
    ..FitRules::BEST
};

/// The strategy `gmlake`. The strategy has no state of its own, since the heap has the free memory.
#[derive(Default)]
pub(crate) struct GmLake;

/// The part of the strategy that serves small blocks, which lie in segments as in PyTorch.
struct SmallBlocks;

impl MallocLike for SmallBlocks {
    fn fit(&self, _config: &Config) -> FitRules {
        FIT
    }

    fn growth(&self, config: &Config, request: &Request) -> u64 {
        segment_size(request.size, config.large_segment_size)
    }

    fn reclaim(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        GmLake.release(context, goal)
    }
}

impl Strategy for GmLake {
    /// The rules accept exact matches only. A block that is larger by a chunk or more is left to GMLake's five states.
    fn rules(&self, _config: &Config) -> Rules {
        Rules::streams_apart(FIT, FreeUsedBy::Epoch)
    }

    fn serve(&mut self, context: &mut StrategyContext<'_>, request: &Request, means: Means) -> Served {
        match (request.class, means) {
            (Class::Small, _) => SmallBlocks.serve(context, request, means),
            (Class::Large, Means::AsMapped | Means::Cheap | Means::Passed) => {
                self.best_fit(context, &whole_chunks(request))
            }
            (Class::Large, Means::All) if context.capturing() => Err(Miss::OUT_OF_MEMORY),
            (Class::Large, Means::All) => self.wait_and_release(context, &whole_chunks(request)),
        }
    }

    /// Releases whole pBlocks, and the segments of small blocks, whose `cudaFree` waits by itself.
    fn release(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        context.retry_rollback()?;
        match goal.target() {
            Some(target) => release_down_to(context, target),
            None if goal == Goal::Everything => release_everything(context).map(|()| true),
            None => Ok(false),
        }
    }
}

impl Estimates for GmLake {
    fn largest_servable(&self, heap: &Heap, config: &Config, pool: PoolIndex, _across: bool) -> u64 {
        let free = free_bytes(heap, pool);
        let enabled = config.defrag_level <= Attempt::LastResort as u32;
        let stitches = !pool.is_small() && free >= config.frag_limit && enabled;
        if stitches { free } else { heap.largest_in(pool) }
    }

    fn growth_needed(&self, present: &Present<'_>, request: &Request, _assumption: Assumption) -> u64 {
        let Present { heap, config, .. } = *present;
        let free = free_bytes(heap, request.pool);
        let stitches = request.class == Class::Large && request.size >= config.frag_limit && config.defrag_level == 0;
        if !stitches || free == 0 {
            return segment_size(request.size, config.large_segment_size);
        }
        request.size.next_multiple_of(CHUNK).saturating_sub(free)
    }
}

impl GmLake {
    /// Takes new memory of the size that PyTorch would give a segment.
    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        let size = segment_size(request.size, context.config.large_segment_size);
        let id = create(context, size, request.pool)?;
        Ok(pblock::split(context, id, request.size)?)
    }

    /// Tries states 1 to 4.
    fn best_fit(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        if let Some(id) = find(context, request)? {
            return Ok(id);
        }
        if let Some(id) = stitch(context, request, Attempt::AtOnce)? {
            return Ok(id);
        }
        self.grow(context, request).or_try(|| stitch(context, request, Attempt::Short)?.ok_or(Miss::OUT_OF_MEMORY))
    }

    /// Waits for the GPU, gives back all cached memory, and tries the states again. If no state holds, this is state 5.
    fn wait_and_release(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        context.wait_for_recorded_streams()?;
        if let Some(id) = find(context, request)? {
            return Ok(id);
        }
        self.release(context, Goal::Everything)?;
        context.count_retry();
        match stitch(context, request, Attempt::LastResort)? {
            Some(id) => Ok(id),
            None => self.grow(context, request),
        }
    }
}

fn release_everything(context: &mut StrategyContext<'_>) -> Result<()> {
    context.wait_for_all()?;
    // This releases only segments of small blocks: a pBlock is never a whole segment, since addresses without memory
    // lie beside it.
    release_whole_segments(context)?;
    finish_drops(context)?;
    let whole = pblock::releasable(context.heap())?;
    pblock::release(context, &whole)?;
    Ok(release_home(context)?)
}

fn release_down_to(context: &mut StrategyContext<'_>, target: Target) -> Result<bool> {
    finish_drops(context)?;
    if target.may_wait {
        context.wait_for_all()?
    } else {
        context.advance_epochs()?
    }
    let mut found = pblock::releasable(context.heap())?;
    let segments_from = found.len();
    if target.may_wait {
        let segments = whole_segments(context.heap())?;
        found.try_reserve(segments.len())?;
        found.extend(segments);
    }
    let sizes = found.iter().map(|id| context.heap().block(*id).size).try_to_vec()?;
    let Some((chosen, suffices)) = target.choose(context.heap(), &sizes)? else { return Ok(false) };
    let of_kind = |pblocks: bool| chosen.iter().filter(move |index| (**index < segments_from) == pblocks);
    let pblocks = of_kind(true).map(|index| found[*index]).try_to_vec()?;
    pblock::release(context, &pblocks)?;
    of_kind(false).try_for_each(|index| release_segment(context, found[*index]))?;
    Ok(suffices)
}

/// Tries states 1 and 2, and the reuse of larger sBlocks.
fn find(context: &mut StrategyContext<'_>, request: &Request) -> Result<Option<BlockId>> {
    let Request { size, pool, .. } = *request;
    let smallest = context.heap().best_fit(pool, size).some();
    let exact = smallest.is_some_and(|id| context.heap().block(id).size == size);
    if !exact && let Some(view) = sblock::inactive(context.heap(), size..=size, pool) {
        return sblock::reuse(context, view, request).map(Some);
    }
    if let Some(smallest) = smallest {
        return pblock::split(context, smallest, size).map(Some);
    }
    // The product is a float, as in GMLake's released code. Beyond 64 bits it saturates.
    let most = (size as f64 * context.config.reuse_limit) as u64;
    match sblock::inactive(context.heap(), size..=most, pool) {
        Some(view) => sblock::reuse(context, view, request).map(Some),
        None => Ok(None),
    }
}

/// Tries states 3 and 4 for requests that may be stitched. Returns `None` if the request may not be stitched, if there
/// is no free memory to stitch, or if the driver makes no more mappings. As in GMLake's released code, stitching comes
/// first, and `autoGC` afterwards.
fn stitch(context: &mut StrategyContext<'_>, request: &Request, attempt: Attempt) -> MissResult<Option<BlockId>> {
    if request.size < context.config.frag_limit || (attempt as u32) < context.config.defrag_level {
        return Ok(None);
    }
    let Pieces { mut spans, missing } = sblock::pieces(context.heap(), request.size, request.pool)?;
    // The event of each epoch will tell when the GPU has passed the sBlocks that are unused now.
    context.advance_epochs()?;
    if spans.is_empty() {
        return Ok(None);
    }
    let mut created = None;
    if missing > 0 {
        spans.try_reserve(1)?;
        let id = create(context, missing, request.pool)?;
        created = Some(id);
        spans.push(crate::span::Span::new(context.heap().block(id).address, missing));
    }
    let stitched = sblock::with_room_for_mappings(context, request.size, 0, |context| {
        let plan = ViewPlan::over(context.heap(), &spans, None)?;
        build_view(context, plan, request)
    });
    if stitched.is_ok() {
        sblock::keep_within_auto_gc(context);
    }
    // The new pBlock is released unless it may still be mapped elsewhere.
    if stitched.is_err()
        && let Some(created) = created
        && context.retry_rollback().is_ok()
        && let Err(error) = release_chunks(context, created, context.heap().block(created).span())
    {
        tracing::error!(%error, "the memory for a stitched block could not be given back");
    }
    // If stitching fails, one piece of new memory needs fewer mappings.
    stitched.found()
}

/// Creates a free pBlock.
fn create(context: &mut StrategyContext<'_>, size: u64, pool: PoolIndex) -> Served {
    sblock::with_room_for_mappings(context, size, size, |context| pblock::create(context, size, pool))
}

/// Returns the free bytes of a pool.
fn free_bytes(heap: &Heap, pool: PoolIndex) -> u64 {
    let mut bytes = 0;
    // If the host has no memory for the walk, free memory counts as used.
    let _ = heap.visit_free(pool, 0, |id| {
        bytes += heap.block(id).size;
        Ok(())
    });
    bytes
}

/// Rounds a large request up to whole chunks.
fn whole_chunks(request: &Request) -> Request {
    Request { size: request.size.next_multiple_of(CHUNK), ..*request }
}
