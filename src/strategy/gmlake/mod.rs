//! Strategy `gmlake`: GMLake's own algorithm (ASPLOS 2024), an opponent to be measured against.
//!
//! Owns: the five states of its BestFit, and what happens where memory is short. Memory comes in primitive blocks of
//! uniform 2 MiB chunks; a stitched block maps the chunks of several of them once more, into one range.
//!
//! ```text
//! pBlocks  |1.1.1.|    |2X2X|    |3.3.3.3.3X|      chunks of three allocations; X in use, dots free
//! sBlock   |1.1.1.3.3.3.|                          six chunks in one range: inactive while all six are free
//! ```
//! A request of whole chunks (larger ones are rounded up) is met by the first of these states that holds:
//! 1. exact match: an inactive pBlock, else an inactive sBlock, of just this size;
//! 2. single block: the smallest larger pBlock is split; else an inactive sBlock of up to `reuseLimit` times the size
//!    lends its head, as in the authors' release;
//! 3. multiple blocks, from `fragLimit` bytes on: free pBlocks, the largest first, are stitched, the last one split;
//! 4. insufficient blocks: the missing bytes are created as one more pBlock, and stitched to all that is free; below
//!    `fragLimit` a whole pBlock is created, of the size that PyTorch would give a segment;
//! 5. out of memory, after all cached memory was given back.
//!
//! A free changes states alone: the chunks are free, in every pBlock and sBlock that maps them, and sBlocks stay. They go
//! by least recent use when all together exceed `autoGC` (StitchFree), or with a pBlock that is given back. Up to 1 MiB
//! requests are served from segments of 2 MiB by `malloc`, as PyTorch's native allocator does. Blocks serve their own
//! stream only.
//!
//! Where the paper and its release differ, or the release errs, this takes what helps GMLake: docs/design.md has the list.
//! pBlocks lie at [home](crate::home) and sBlocks are [views](crate::views), so that tables, accounting and checks are
//! those of the strategy `stitch`; its algorithm is not used.

mod check;
mod pblock;
mod sblock;

use self::sblock::Pieces;
use super::caching::{self, Caching};
use super::enough::just_enough;
use super::home;
use super::ladder::{Grow, climb, climb_to_the_end};
use super::mapping::Unsettled;
use super::stitch::epochs::Epochs;
use super::stitch::view;
use super::{Ground, Miss, Premise, Strategy};
use crate::blocks::BlockId;
use crate::config::Config;
use crate::driver::DriverResult;
use crate::error::Error;
use crate::heap::{FitRules, Heap, Request};
use crate::home::GRANULE;
use crate::ids::StreamId;
use crate::rounding::{MIN_BLOCK, segment_size};
use crate::stats::Class;

/// The size of every chunk in bytes (the release's `granularitySize`).
const CHUNK: u64 = GRANULE;

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

/// State of the strategy; what is free where stands in the heap.
#[derive(Default)]
pub(super) struct GmLake {
    unsettled: Unsettled,
    epochs: Epochs,
}

impl Strategy for GmLake {
    /// A hit is an exact match only: a block that is larger by a chunk or more is refused, and left to the states.
    fn rules(&self, _config: &Config) -> FitRules {
        FitRules {
            growing_edge: false,
            max_split_size: 0,
            max_non_split_rounding: CHUNK,
            min_rest: [CHUNK, MIN_BLOCK],
            no_split_from: u64::MAX,
            count_ages: false,
            takes_idle: false,
            asks_first: true,
        }
    }

    fn miss(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        match request.class {
            Class::Small => climb(self, ground, request),
            Class::Large => self.best_fit(ground, &whole_chunks(request)),
        }
    }

    fn last_resort(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        if ground.capturing() {
            return Err(Miss::OutOfMemory);
        }
        match request.class {
            Class::Small => climb_to_the_end(self, ground, request),
            Class::Large => self.wait_and_release(ground, &whole_chunks(request)),
        }
    }

    fn release_cached(&mut self, ground: &mut Ground<'_>) -> DriverResult<()> {
        self.unsettled.settle(ground)?;
        ground.wait_for_all()?;
        self.epochs.all_passed(ground);
        // Segments for small blocks. A pBlock is none: addresses without memory lie beside it.
        Caching.release_cached(ground)?;
        view::finish_drops(ground)?;
        let whole = pblock::releasable(ground.heap);
        pblock::give_back(ground, &mut self.unsettled, &whole)?;
        home::release(ground)
    }

    /// Whole pBlocks, and segments for small blocks, whose `cudaFree` waits by itself.
    fn trim(&mut self, ground: &mut Ground<'_>, down_to: u64, may_wait: bool) -> DriverResult<bool> {
        self.unsettled.settle(ground)?;
        view::finish_drops(ground)?;
        if may_wait {
            ground.wait_for_all()?;
            self.epochs.all_passed(ground);
        } else {
            self.epochs.advance(ground)?;
        }
        let mut found = pblock::releasable(ground.heap);
        let segments_from = found.len();
        if may_wait {
            found.extend(caching::whole_segments(ground.heap));
        }
        let sizes: Vec<u64> = found.iter().map(|id| ground.heap.blocks[*id].size).collect();
        let missing = ground.heap.reserved().saturating_sub(down_to);
        if !may_wait && sizes.iter().sum::<u64>() < missing {
            return Ok(false);
        }
        let (pblocks, segments): (Vec<_>, Vec<_>) =
            just_enough(&sizes, missing).into_iter().partition(|index| *index < segments_from);
        let pblocks: Vec<_> = pblocks.into_iter().map(|index| found[index]).collect();
        pblock::give_back(ground, &mut self.unsettled, &pblocks)?;
        segments.into_iter().try_for_each(|index| caching::release(ground, found[index])).map(|()| true)
    }

    fn waits_for_others(&self, large: u32) -> bool {
        self.epochs.waits_for_others(large)
    }

    fn freed_under(&mut self, ground: &mut Ground<'_>, large: u32, stream: StreamId) -> DriverResult<bool> {
        self.epochs.freed_under(ground, large, stream)
    }

    fn stream_passed(&mut self, ground: &mut Ground<'_>, large: u32) {
        self.epochs.passed(ground, large);
    }

    fn reach(&self, heap: &Heap, config: &Config, pool: u32, _across: bool) -> u64 {
        let free = free_bytes(heap, pool);
        let stitches = pool & 1 == 0 && free >= config.frag_limit && config.defrag_level <= Attempt::LastResort as u32;
        if stitches { free } else { heap.largest_in(pool) }
    }

    fn growth(&self, heap: &Heap, config: &Config, request: &Request, _premise: Premise) -> u64 {
        let free = free_bytes(heap, request.pool);
        let stitches = request.class == Class::Large && request.size >= config.frag_limit && config.defrag_level == 0;
        if !stitches || free == 0 {
            return segment_size(request.size, config.large_segment_size);
        }
        request.size.next_multiple_of(CHUNK).saturating_sub(free)
    }

    fn close(&mut self, ground: &mut Ground<'_>) {
        self.epochs.destroy_events(ground);
    }

    fn check(&self, heap: &Heap) -> Result<(), String> {
        check::check(heap)
    }
}

impl Grow for GmLake {
    /// New memory of the size that PyTorch gives a segment.
    fn grow(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        if request.class == Class::Small {
            return Caching.grow(ground, request);
        }
        let size = segment_size(request.size, ground.config.large_segment_size);
        let id = pblock::create(ground, &mut self.unsettled, size, request.pool)?;
        Ok(pblock::split(ground.heap, id, request.size)?)
    }
}

impl GmLake {
    /// States 1 to 4.
    fn best_fit(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        if let Some(id) = find(ground, request)? {
            return Ok(id);
        }
        if let Some(id) = self.stitch(ground, request, Attempt::AtOnce)? {
            return Ok(id);
        }
        match self.grow(ground, request) {
            Err(Miss::OutOfMemory) => self.stitch(ground, request, Attempt::Short)?.ok_or(Miss::OutOfMemory),
            done => done,
        }
    }

    /// State 5, or one of the others once the GPU was waited for and all that is cached was given back.
    fn wait_and_release(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        ground.heap.counters.num_sync_all_streams += 1;
        ground.deferred.synchronize(ground.heap, ground.driver)?;
        if let Some(id) = find(ground, request)? {
            return Ok(id);
        }
        self.release_cached(ground)?;
        ground.heap.counters.num_alloc_retries += 1;
        match self.stitch(ground, request, Attempt::LastResort)? {
            Some(id) => Ok(id),
            None => self.grow(ground, request),
        }
    }

    /// States 3 and 4 of requests that may be stitched. `None` where they may not, or where nothing is free to stitch.
    fn stitch(
        &mut self,
        ground: &mut Ground<'_>,
        request: &Request,
        attempt: Attempt,
    ) -> Result<Option<BlockId>, Miss> {
        if request.size < ground.config.frag_limit || (attempt as u32) < ground.config.defrag_level {
            return Ok(None);
        }
        let Pieces { mut stretches, missing } = sblock::pieces(ground.heap, request.size, request.pool);
        // The event tells later when the GPU has passed the sBlocks that are idle now.
        self.epochs.advance(ground)?;
        if stretches.is_empty() || !sblock::stitch_free(ground, request.size / CHUNK)? {
            return Ok(None);
        }
        let mut created = BlockId::NONE;
        if missing > 0 {
            created = pblock::create(ground, &mut self.unsettled, missing, request.pool)?;
            stretches.push((ground.heap.blocks[created].address, missing));
        }
        let stitched = sblock::stitch(ground, &mut self.unsettled, &stretches, request);
        // What may still be mapped somewhere would not go.
        if stitched.is_err()
            && created.is_some()
            && self.unsettled.settle(ground).is_ok()
            && let Err(error) = pblock::release(ground, &mut self.unsettled, created)
        {
            tracing::error!(%error, "the memory for a stitched block could not be given back");
        }
        stitched.map(Some)
    }
}

/// All that is free in a pool.
fn free_bytes(heap: &Heap, pool: u32) -> u64 {
    let free = heap.pools[pool as usize].free.in_order(&heap.blocks);
    free.into_iter().map(|id| heap.blocks[id].size).sum()
}

/// Large requests are for whole chunks.
fn whole_chunks(request: &Request) -> Request {
    Request { size: request.size.next_multiple_of(CHUNK), ..*request }
}

/// States 1 and 2, and the reuse of larger sBlocks.
fn find(ground: &mut Ground<'_>, request: &Request) -> Result<Option<BlockId>, Error> {
    let Request { size, pool, .. } = *request;
    let heap = &mut *ground.heap;
    let smallest = heap.pools[pool as usize].free.best_fit(&heap.blocks, size);
    let exact = smallest.is_some() && heap.blocks[smallest].size == size;
    if !exact && let Some(view) = sblock::inactive(heap, size..=size, pool) {
        return sblock::reuse(heap, view, request).map(Some);
    }
    if smallest.is_some() {
        return pblock::split(heap, smallest, size).map(Some);
    }
    // As in the release, a float: beyond 64 bits it is the largest number.
    let most = (size as f64 * ground.config.reuse_limit) as u64;
    match sblock::inactive(heap, size..=most, pool) {
        Some(view) => sblock::reuse(heap, view, request).map(Some),
        None => Ok(None),
    }
}
