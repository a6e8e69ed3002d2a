//! Segments that are allocated whole, by the driver's `malloc` or by the source of a private pool.
//!
//! Owns: the source of each such segment, its release, and how private pools that have ended give up their memory. The
//! strategy chooses the sizes of segments and how they are split.

use super::context::{Miss, MissResult, Served, StrategyContext};
use crate::config::rounding::MIN_BLOCK;
use crate::driver::{Call, Driver, DriverResult, in_relaxed_capture_mode};
use crate::error::{Error, Result};
use crate::fallible::{TryCollect, TryPush, text};
use crate::heap::{Heap, SegmentSource, SourceError, guarded};
use crate::ids::{BlockId, PoolId, PoolIndex};
use crate::span::Span;
use std::cmp::Reverse;

/// The limit below which the size of every segment lies, in bytes: the size of the user address space of x86-64. The
/// flight recorder has room only for sizes below this number.
const ADDRESS_SPACE: u64 = 1 << 47;

/// Allocates a segment for a pool, by the pool's source or by the driver's `malloc`. Returns the segment's block, which
/// is in no index.
pub(crate) fn malloc_segment(context: &mut StrategyContext<'_>, pool: PoolIndex, size: u64) -> Served {
    let mut slots = context.heap.reserve_segment(pool)?;
    let address = take_memory(context, pool, size)?;
    Ok(context.heap.add_malloc_segment(pool, Span::new(address, size), &mut slots))
}

/// Releases the segments of public pools that are wholly free and have at least `least` bytes.
pub(crate) fn release_segments_from(context: &mut StrategyContext<'_>, least: u64) -> Result<()> {
    for id in whole_segments(context.heap)? {
        if context.heap.block(id).size >= least {
            release_segment(context, id)?;
        }
    }
    Ok(())
}

/// Releases a segment whose only block is free.
pub(crate) fn release_segment(context: &mut StrategyContext<'_>, id: BlockId) -> DriverResult<()> {
    context.heap.notify_segment_free(id);
    let freed = context.driver.free(context.heap.block(id).address);
    freed.inspect_err(|_| context.heap.notify_segment_kept(id))?;
    context.heap.remove_malloc_segment(id);
    Ok(())
}

/// Releases every segment of public pools that is wholly free.
pub(crate) fn release_whole_segments(context: &mut StrategyContext<'_>) -> Result<()> {
    for pool in context.heap.every_public_pool()? {
        for id in context.heap.free_blocks(pool)? {
            if !context.heap.block(id).is_split() {
                release_segment(context, id)?;
            }
        }
    }
    Ok(())
}

/// Returns the free blocks of public pools that are whole segments. The block that was unused longest comes first.
pub(crate) fn whole_segments(heap: &Heap) -> Result<Vec<BlockId>> {
    let mut whole = Vec::new();
    for pool in heap.every_public_pool()? {
        let now = heap.clock(pool.class());
        let unsplit = heap.free_blocks(pool)?.into_iter().filter(|id| !heap.block(*id).is_split());
        for id in unsplit {
            let block = heap.block(id);
            whole.try_push((Reverse(now.saturating_sub(block.freed_at)), block.address, id))?;
        }
    }
    whole.sort_unstable();
    Ok(whole.into_iter().map(|(.., id)| id).try_to_vec()?)
}

/// Makes the memory of released private pools public. The CPU first waits for the device, since graphs may have been
/// launched on streams that the allocator does not know.
///
/// A pool with segments of its own releases these segments instead. Returns the first error of a source, if any. The
/// other pools are processed even after an error.
pub(crate) fn reclaim_private_pools(context: &mut StrategyContext<'_>) -> Result<Option<Error>> {
    let mut released = Vec::new();
    for pool in context.heap.private().released()? {
        if context.heap.is_reclaimable(pool)? {
            released.try_push(pool)?;
        }
    }
    if released.is_empty() || context.capturing() {
        return Ok(None);
    }
    context.driver.synchronize()?;
    let mut failed = None;
    for pool in released {
        if context.heap.private().segments(pool).is_some() {
            failed = failed.or(release_own_segments(context, pool)?);
        } else {
            context.heap.merge_private_pool(pool, true)?;
        }
    }
    Ok(failed)
}

/// Releases the free segments of a pool that has ended. The device has passed all work. Returns the first error of the
/// pool's source, if any. A segment that the source refused stays.
pub(crate) fn release_own_segments(context: &mut StrategyContext<'_>, owner: PoolId) -> Result<Option<Error>> {
    let mut failed = None;
    for id in context.heap.whole_segments_of(owner)? {
        let (pool, span) = (context.heap.block(id).pool, context.heap.block(id).span());
        context.heap.notify_segment_free(id);
        let Err(error) = return_memory(context, pool, span) else {
            context.heap.remove_malloc_segment(id);
            continue;
        };
        context.heap.notify_segment_kept(id);
        if !matches!(error, Error::Source { .. }) {
            return Err(error);
        }
        tracing::error!(%error, "a segment of a private pool could not be given back; it is kept");
        failed = failed.or(Some(error));
    }
    context.heap.forget_empty(owner);
    Ok(failed)
}

/// Takes memory for a segment of a pool, by the pool's source or by the driver's `malloc`. Returns the address. An
/// invalid address is an error. Such an address is not given back, since other code may use the memory there.
fn take_memory(context: &mut StrategyContext<'_>, pool: PoolIndex, size: u64) -> MissResult<u64> {
    let owner = context.heap.owner_of(pool);
    let Some(answer) = call(context, owner, |source| guarded("giving a segment", || source.malloc(size))) else {
        let address = context.allowed_in_captures(|| context.driver.malloc(size))?;
        context.heap.check_answer(Call::Malloc, Span::new(address, size), MIN_BLOCK)?;
        return Ok(address);
    };
    let address = match answer? {
        Ok(address) => address,
        Err(SourceError::OutOfMemory) => return Err(Miss::OUT_OF_MEMORY),
        Err(SourceError::Failed(detail)) => return Err(Error::Source { pool: owner, detail }.into()),
    };
    let span = Span::new(address, size);
    if size < ADDRESS_SPACE && context.heap.may_begin_at(span, MIN_BLOCK) && !overlaps_view(context.heap, span) {
        return Ok(address);
    }
    let what = "which cannot be, or is part of memory that the allocator has";
    let detail = text(format_args!("it gave {size} bytes at {address:#x}, {what}"));
    Err(Error::Source { pool: owner, detail }.into())
}

/// Gives back memory that [`take_memory`] has taken.
fn return_memory(context: &mut StrategyContext<'_>, pool: PoolIndex, span: Span) -> Result<()> {
    let owner = context.heap.owner_of(pool);
    let freed = call(context, owner, |source| guarded("taking a segment back", || source.free(span.start, span.size)));
    match freed.transpose()? {
        None => Ok(context.allowed_in_captures(|| context.driver.free(span.start))?),
        Some(Ok(())) => Ok(()),
        Some(Err(SourceError::Failed(detail))) => Err(Error::Source { pool: owner, detail }),
        Some(Err(SourceError::OutOfMemory)) => {
            let detail = text(format_args!("it did not take a segment back, for want of memory"));
            Err(Error::Source { pool: owner, detail })
        }
    }
}

/// Calls the source of a private pool, in relaxed mode during a capture. Returns `None` if the pool has no source.
fn call<T>(
    context: &mut StrategyContext<'_>,
    owner: PoolId,
    call: impl FnOnce(&mut dyn SegmentSource) -> std::result::Result<T, SourceError>,
) -> Option<DriverResult<std::result::Result<T, SourceError>>> {
    let (driver, capturing): (&dyn Driver, _) = (context.driver, context.capturing());
    let source = context.heap.private_mut().segments_mut(owner)?.source()?;
    Some(in_relaxed_capture_mode(driver, capturing, || Ok(call(source))))
}

/// Returns whether a view has addresses in this span.
fn overlaps_view(heap: &Heap, span: Span) -> bool {
    heap.views().iter().any(|(_, view)| view.reservation().intersection(&span).is_some())
}
