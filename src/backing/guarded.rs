//! Memory for guarded blocks. Each block gets a reservation and physical memory of its own.
//!
//! Owns: the driver calls for guarded blocks. `heap/home/guarded.rs` has the heap's records of guarded blocks.

use super::context::{Miss, Served, StrategyContext};
use super::mapping::Mapping;
use crate::driver::Call;
use crate::error::Error;
use crate::heap::{GRANULE, GuardedMemory, Request};
use crate::ids::BlockId;
use crate::limits::Increase;
use crate::span::Span;

/// The bytes of addresses without memory before and after the memory of a guarded block. An access that a wrong index
/// takes farther away may reach other memory unnoticed.
pub(crate) const GUARD_RANGE: u64 = GRANULE;

const NO_MEMORY: Error = Error::Internal("a guarded block without memory of its own");

/// Makes a guarded block for a request. The block is in no index. The driver calls are legal in captures.
pub(crate) fn map_guarded(context: &mut StrategyContext<'_>, request: &Request) -> Served {
    let size = request.size.next_multiple_of(GRANULE);
    context.require(Increase::of(size))?;
    context.retry_rollback()?;
    let mut slots = context.heap.reserve_guarded(request.pool)?;
    context.rollback.reserve(1)?;
    let mut mapping = Mapping::of_new_pieces(request.class, 1)?;
    let bytes = size + 2 * GUARD_RANGE;
    let reservation = Span::new(context.driver.reserve(bytes, 0)?, bytes);
    context.heap.check_answer(Call::Reserve, reservation, GRANULE)?;
    let mapped = Span::new(reservation.start + GUARD_RANGE, size);
    mapping.place(reservation, mapped.start);
    let made = mapping.create(context.driver, size, size).and_then(|()| mapping.map(context.driver));
    let handle = mapping.pieces.first().and_then(|piece| piece.handle);
    match (made, handle) {
        (Ok(()), Some(handle)) => {
            let memory = GuardedMemory { handle, mapped, reservation };
            Ok(context.heap.add_guarded_segment(request, memory, &mut slots))
        }
        (made, _) => {
            context.rollback.undo(context.heap, context.driver, mapping);
            Err(made.map_or_else(Miss::from, |()| NO_MEMORY.into()))
        }
    }
}

/// Unmaps a freed guarded block, and gives its memory back. All work that used the block is done. Returns the block's
/// addresses, which stay reserved, or `None` if the block is not guarded.
pub(crate) fn unmap_guarded(context: &mut StrategyContext<'_>, id: BlockId) -> Result<Option<Span>, Error> {
    let Some(GuardedMemory { handle, mapped, reservation }) = context.heap.guarded_memory(id) else { return Ok(None) };
    let class = context.heap.block(id).pool.class();
    context.rollback.reserve_handles(1)?;
    context.driver.unmap(mapped.start, mapped.size)?;
    context.heap.remove_guarded_segment(id, mapped);
    // If the release fails, the memory counts as held, and its release is tried again later.
    if let Err(error) = context.rollback.release(context.driver, (handle, mapped.size), class) {
        context.heap.pending_rollback(class, mapped.size, 0);
        tracing::warn!(%error, "memory of a guarded allocation could not be given back yet");
    }
    Ok(Some(reservation))
}
