//! Views that grow for one allocation: their addresses, and the chunks that are mapped after earlier chunks.
//!
//! Owns: the driver calls for growing views, and the work that the GPU must have done before memory is unmapped. The
//! strategy chooses the chunks.

use super::context::{Miss, MissResult, Served, StrategyContext};
use super::mapping::{Mapping, Piece};
use super::segments::reclaim_private_pools;
use super::view::{drop_view, make_room_for};
use crate::driver::Call;
use crate::error::{Error, Result};
use crate::fallible::TryCollect;
use crate::heap::{Chunk, GRANULE, PrivatePool, Request, Tail, ViewUsage, Window};
use crate::ids::{ChunkId, PoolId, ViewId};
use crate::span::Span;

/// Reserves addresses for a view that grows to `capacity` bytes, a multiple of the granule. A view that grew for an
/// earlier allocation is reused, with the chunks still mapped in the view. Returns the view.
///
/// # Errors
/// [`Miss::OutOfMemory`] if the bounds on views, or the device, have no room for the addresses. Nothing has changed.
pub(crate) fn reserve_addresses(context: &mut StrategyContext<'_>, capacity: u64, owner: PoolId) -> MissResult<ViewId> {
    if let Some(view) = context.heap.spare_growing(capacity, owner) {
        context.heap.set_growing(view, true);
        return Ok(view);
    }
    context.retry_rollback()?;
    make_room(context, ViewUsage { views: 1, mappings: 0, addresses: capacity })?;
    let new = context.heap.reserve_growing()?;
    let span = Span::new(context.driver.reserve(capacity, GRANULE)?, capacity);
    context.heap.check_answer(Call::Reserve, span, GRANULE)?;
    Ok(context.heap.add_growing(span, new))
}

/// Ends the growth of a view. If the view has no mapping, its addresses are given back. Otherwise the view stays for
/// the next allocation that grows, until its memory is released or other views need the room.
///
/// # Errors
/// A driver call failed. The view grows no more, and its addresses are given back at the next release.
pub(crate) fn release_addresses(context: &mut StrategyContext<'_>, view: ViewId) -> Result<()> {
    context.heap.set_growing(view, false);
    let is_empty = |of: &crate::heap::View| of.mappings() == 0 && context.heap.is_done_with(of);
    if context.heap.views().get(view).is_some_and(is_empty) && !context.capturing() {
        context.retry_rollback()?;
        drop_view(context, view)?;
    }
    Ok(())
}

/// Drops views until `more` views, mappings and addresses fit within the bounds on views.
fn make_room(context: &mut StrategyContext<'_>, more: ViewUsage) -> MissResult<()> {
    let mut refused = make_room_for(context, more)?;
    if refused.is_some() {
        // Views that the GPU has passed meanwhile may be dropped too.
        context.advance_epochs()?;
        refused = make_room_for(context, more)?;
    }
    if refused.is_some() { Err(Miss::OutOfMemory { refused }) } else { Ok(()) }
}

/// Returns the first chunks that are mapped after the parts of a view, as far as they can serve a request without being
/// mapped again. If these chunks have too few bytes for the request, all later chunks are unmapped once the GPU has
/// passed them. The CPU waits for the GPU if necessary.
///
/// # Errors
/// [`Error::NotGrowable`] in a capture that forbids the wait, or if a graph may use the memory that is to be unmapped.
/// Chunks that were unmapped before a failed call stay unmapped.
pub(crate) fn settled_tail(context: &mut StrategyContext<'_>, request: &Request) -> Result<Tail> {
    let view = request.extends;
    if context.heap.has_pending_parts(view) {
        refuse_in_capture(context, view)?;
        context.streams.recorded.poll(context.heap, context.driver)?;
        if context.heap.has_pending_parts(view) {
            context.wait_for_recorded_streams()?;
        }
    }
    let tail = context.heap.tail(view, request.size, request.pool)?;
    if tail.bytes >= request.size {
        // These chunks are enough for the request, so the chunks mapped after them stay mapped for later requests.
        return Ok(tail);
    }
    let runs = context.heap.mapped_behind(view, tail.before)?;
    let Some(of) = context.heap.views().get(view) else { return Ok(tail) };
    let address = of.address;
    let kept = of.growing.map_or(0, |extent| extent.bytes) + tail.bytes;
    if !runs.is_empty() {
        context.retry_rollback()?;
        wait_to_unmap(context, view)?;
        for (chunks, run) in runs {
            context.driver.unmap(address + run.start, run.size)?;
            context.heap.cut_tail(view, chunks, run.start);
        }
    }
    // No chunk is mapped after the kept chunks any more.
    context.heap.cut_tail(view, tail.before, kept);
    Ok(tail)
}

/// Waits until the GPU has done all work that used the parts of a view that the program has given back.
fn wait_to_unmap(context: &mut StrategyContext<'_>, view: ViewId) -> Result<()> {
    let state = |context: &StrategyContext<'_>| {
        let view = context.heap.views().get(view);
        view.map_or((true, false), |view| (context.heap.has_passed(view), !view.pins.is_empty()))
    };
    // Uses by private pools belong to no epoch, so passed epochs are not enough for a view that such pools use
    // (pinned).
    let (passed, pinned) = state(context);
    if passed && !pinned {
        return Ok(());
    }
    refuse_in_capture(context, view)?;
    if pinned {
        if is_captured(context, view) {
            // Graphs of private pools that have ended are not launched any more.
            if let Some(error) = reclaim_private_pools(context)? {
                tracing::warn!(%error, "the source of a private pool that has ended refused its memory");
            }
        }
        if is_captured(context, view) {
            let why = "a graph may use the addresses that it gave back, and their memory serves other requests";
            return Err(Error::NotGrowable { address: address_of(context, view), why });
        }
    } else {
        context.advance_epochs()?;
        if state(context).0 {
            return Ok(());
        }
    }
    Ok(context.wait_for_all()?)
}

/// Returns whether a graph may use a view.
fn is_captured(context: &StrategyContext<'_>, view: ViewId) -> bool {
    let pools = context.heap.private();
    let captured = |owner: &PoolId| pools.get(*owner).is_some_and(PrivatePool::is_captured);
    context.heap.views().get(view).is_some_and(|view| view.pins.iter().any(captured))
}

fn refuse_in_capture(context: &StrategyContext<'_>, view: ViewId) -> Result<()> {
    if !context.capturing() {
        return Ok(());
    }
    let why = "what it gave back is in use or serves others, and the CPU cannot wait while a stream is being captured";
    Err(Error::NotGrowable { address: address_of(context, view), why })
}

fn address_of(context: &StrategyContext<'_>, view: ViewId) -> u64 {
    context.heap.views().get(view).map_or(0, |view| view.address)
}

/// Maps chunks after the chunks of the view that the request extends, and hands out the next part. All new chunks are
/// free for the request. The part consists of the kept chunks of `tail`, which are mapped already, and the new chunks.
/// Returns the part's block.
///
/// # Errors
/// [`Miss::OutOfMemory`] if the bounds on views, or the device, have no room for the mappings. Nothing has changed.
pub(crate) fn map_part(
    context: &mut StrategyContext<'_>,
    request: &Request,
    tail: &Tail,
    chunks: &[(ChunkId, Chunk)],
) -> Served {
    let view = request.extends;
    let ids = chunks.iter().map(|(id, _)| *id).try_to_vec()?;
    let bytes = chunks.iter().map(|(_, chunk)| chunk.size).sum::<u64>();
    context.heap.reserve_part(view, &ids, &tail.kept, request.pool)?;
    if !chunks.is_empty() {
        context.retry_rollback()?;
        make_room(context, ViewUsage { views: 0, mappings: chunks.len(), addresses: 0 })?;
        context.rollback.reserve(1)?;
        let pieces = chunks.iter().map(|(_, chunk)| Piece { size: chunk.size, handle: Some(chunk.handle) });
        let end = context.heap.views().get(view).map_or(0, |view| view.address + view.size);
        context.map(Mapping::at_home(end, pieces.try_to_vec()?))?;
        context.heap.map_behind(view, &ids, bytes);
    }
    let offset = context.heap.views().get(view).and_then(|view| view.growing).map_or(0, |extent| extent.bytes);
    Ok(context.heap.take_window(Window { view, offset }, tail.bytes + bytes, request.pool)?)
}
