//! Strategy `paddle-vmm`: Paddle's allocator over virtual memory, version 2 (pull request 79605).
//!
//! The rules are those of `vmm_auto_growth_best_fit_allocator_v2.cc` and `…_multi_pool_allocator_v2.cc` (19a2a2a), and
//! of `remap_transaction.cc` and `free_block_remap_compactor.cc` (30899ae):
//! - requests below 2 MiB have one pool and all others another pool, each in one range of addresses
//!   (`RouteAllocation`);
//! - the smallest free block that fits serves, and among equal ones the lowest; the request gets the front of the block
//!   (`AllocFromFreeBlocks`); free neighbours merge (`TryMerge`);
//! - a miss maps memory for the whole request after all other memory of the pool, in handles of one size; a free block
//!   directly before the new memory stays unchanged, and the rest of the last handle is free (`AllocateImpl`);
//! - if no memory can be had, handles that lie wholly in free blocks and that the GPU has passed are unmapped, and
//!   mapped again at contiguous addresses: as many handles as the request needs, or none (`CompactFreeBlocks`,
//!   `CollectRemapSourcePlan`).
//!
//! The strategy differs in these points. Handles are mapped at their new place before the old place is unmapped, so
//! that a failed call leaves the memory unchanged. The CPU waits for the request's stream, where Paddle queries the
//! events of each block. If moving is not enough, free memory is given back to the driver. Programs give no hints about
//! the lifetime of a tensor (`PoolHint`), so there is no pool for stable tensors, and no pool for oversized requests.

use crate::backing::whole_units;
use crate::backing::{MissResult, Served, StrategyContext, Units, UnmappedPart, move_units};
use crate::config::Config;
use crate::config::rounding::MIN_BLOCK;
use crate::error::Result;
use crate::fallible::{TryCollect, TryPush};
use crate::heap::Rounding;
use crate::heap::{FitRules, GRANULE, Heap, Layout, Request};
use crate::ids::{BlockId, Class, PoolIndex};
use crate::span::Span;
use crate::strategy::contract::{FreeUsedBy, Goal};
use crate::strategy::expandable::{addresses, grow_units, release_units};
use crate::strategy::malloc_like::MallocLike;

/// The size below which requests go to the small pool (`transient_small_threshold`).
const SMALL_BELOW: u64 = 2 << 20;

/// The addresses that a pool reserves, as a multiple of those that PyTorch reserves, so that handles have a place to
/// move to.
const ROOM_TO_MOVE: u64 = 4;

#[derive(Default)]
pub(crate) struct Vmm;

impl MallocLike for Vmm {
    const FREE_USED_BY: FreeUsedBy = FreeUsedBy::RecordStream;

    fn fit(&self, _config: &Config) -> FitRules {
        FitRules { count_ages: true, ..FitRules::BEST }
    }

    fn divided(&self, _config: &Config, _total: u64) -> Layout {
        Layout {
            rounding: Rounding::Multiple { of: MIN_BLOCK, padding: 0 },
            small_limit: SMALL_BELOW - MIN_BLOCK,
            ..Layout::PYTORCH
        }
    }

    fn growth(&self, config: &Config, request: &Request) -> u64 {
        in_handles(config, request)
    }

    fn make_room(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> MissResult<Option<BlockId>> {
        compact(context, request)
    }

    fn reclaim(&mut self, context: &mut StrategyContext<'_>, goal: Goal) -> Result<bool> {
        release_units(context, goal, |context, pool| Ok(!context.is_captured(pool)?))
    }

    fn grow(&mut self, context: &mut StrategyContext<'_>, request: &Request) -> Served {
        context.retry_rollback()?;
        let (handle, size) = (handle_of(context.config, request.class), in_handles(context.config, request));
        let found = tail(context.heap(), request.pool, size);
        let most = addresses(context, request, handle).saturating_mul(ROOM_TO_MOVE);
        let mut start = 0;
        let grown = grow_units(context, request.pool, found, (most, size, handle), |heap, room| {
            start = heap.block(room).address;
            [UnmappedPart { room, span: Span::new(start, size) }].into_iter().try_to_vec()
        })?;
        Ok(context.carve(grown, Span::new(start, request.size))?)
    }
}

/// Moves free handles of the request's pool together, if there are enough of them. Returns the block of the request, or
/// `None`.
fn compact(context: &mut StrategyContext<'_>, request: &Request) -> MissResult<Option<BlockId>> {
    context.retry_rollback()?;
    context.reclaim_recorded_streams()?;
    // Memory that became free during the wait may serve without a move.
    if let Some(id) = context.fit(request, &FitRules::BEST) {
        return Ok(Some(id));
    }
    // A graph may use free memory of its private pool where it lies, so handles of private pools are not moved.
    if context.heap().is_private(request.pool) || context.is_captured(request.pool)? {
        return Ok(None);
    }
    let size = in_handles(context.config, request);
    let Some(room) = tail(context.heap(), request.pool, size) else { return Ok(None) };
    let Some(sources) = sources(context.heap(), request.pool, room, size)? else { return Ok(None) };
    // Neither unmap nor map waits for the GPU, so the CPU waits for the stream, whose work may still use the memory.
    context.wait_for_stream(request.pool)?;
    let span = Span::new(context.heap().block(room).address, size);
    let moved = move_units(context, &sources, UnmappedPart { room, span })?;
    Ok(Some(context.carve(moved, Span::new(span.start, request.size))?))
}

/// Returns whole handles in free blocks of a pool, in the segment of `room`. The handles at the lowest addresses come
/// first, and their total is `size` bytes. Returns `None` if the segment has too few such handles.
fn sources(heap: &Heap, pool: PoolIndex, room: BlockId, size: u64) -> Result<Option<Vec<Units>>> {
    let mut free = heap.free_blocks(pool)?;
    free.retain(|id| heap.block(*id).segment == heap.block(room).segment);
    free.sort_unstable_by_key(|id| heap.block(*id).address);
    let mut found = Vec::new();
    let mut missing = size;
    for units in free.into_iter().filter_map(|id| whole_units(heap, id)) {
        let wanted = (missing / units.unit).min(units.end - units.first);
        // A handle that was released although it could not be unmapped cannot be mapped again.
        let segment = heap.block(units.block).segment;
        let is_whole = |slot: u64| heap.unit_handle(segment, slot).is_some();
        if wanted > 0 && (units.first..units.first + wanted).all(is_whole) {
            found.try_push(Units { end: units.first + wanted, ..units })?;
            missing -= wanted * units.unit;
        }
    }
    Ok((missing == 0).then_some(found))
}

/// Returns the unmapped block of a pool at the highest address with at least `size` bytes.
fn tail(heap: &Heap, pool: PoolIndex, size: u64) -> Option<BlockId> {
    let unmapped = heap.pool(pool).unmapped.iter().map(|(_, id)| *id);
    unmapped.rev().find(|id| heap.block(*id).size >= size)
}

/// Returns the bytes of a handle.
fn handle_of(config: &Config, class: Class) -> u64 {
    match class {
        Class::Small => GRANULE,
        Class::Large => config.paddle.vmm_v2_large_pool_handle_size,
    }
}

/// Returns the bytes of the handles for a request.
fn in_handles(config: &Config, request: &Request) -> u64 {
    request.size.checked_next_multiple_of(handle_of(config, request.class)).unwrap_or(u64::MAX)
}
