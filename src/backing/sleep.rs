//! Sleep of a private pool: the pool's physical memory goes back to the driver. Later, new memory is mapped at the same
//! addresses.
//!
//! Owns: the order of the calls, and how they are undone when a call fails. `backup.rs` makes the copies.
//!
//! ```text
//!           home            views          memory
//! awake     |aa..|bbbb|     |bbbb|aa..|    two chunks
//! asleep    |aa..|bbbb|     |bbbb|aa..|    none: these are only addresses. What a and b hold is kept elsewhere
//! ```
//! To sleep, live contents are copied first. Then every chunk is unmapped at all its places. An unmapped chunk can be
//! mapped again as long as its memory exists. The memory is released last. To wake, new memory is created, mapped at
//! every place and written. The pool owns the new memory once all these steps are done.
//!
//! No work may use the memory meanwhile: the program has promised this by its call, and the caller has waited for the
//! device.

use super::backup::{restore, save};
use super::context::{MissResult, StrategyContext};
use super::mapping::{Mapping, Piece};
use super::place::Place;
use crate::error::{Error, Result};
use crate::fallible::{Grown, TryPush, with_room};
use crate::heap::{Backup, Sleeper};
use crate::ids::{Class, PoolId};
use crate::limits::Increase;

/// Gives back the memory of a private pool with chunks of its own, and keeps the contents of its live blocks. The
/// device has passed all work. Returns the bytes given back.
///
/// # Errors
/// After any error the pool has not changed, except for live memory that could not be mapped again immediately. This
/// mapping is tried again before any other step (`PendingRollback`).
pub(crate) fn sleep(context: &mut StrategyContext<'_>, owner: PoolId, backup: &Backup) -> Result<u64> {
    context.retry_rollback()?;
    let sleeper = context.heap.sleeper(owner)?;
    if sleeper.chunks.iter().any(|(_, chunk)| chunk.pinned) {
        let why = "memory of it was shared with other processes, or registered elsewhere, by more than its addresses";
        return Err(Error::NotSleepable { pool: owner, why });
    }
    context.heap.reserve_sleep(&sleeper)?;
    context.rollback.reserve_handles(sleeper.chunks.len())?;
    context.rollback.reserve_places(sleeper.places.len())?;
    let saved = save(context, &sleeper, backup)?;
    if let Err(error) = unmap_everywhere(context, &sleeper) {
        context.heap.private_mut().stock_mut().take_from(saved);
        return Err(error);
    }
    context.heap.fall_asleep(owner, &sleeper, saved);
    for (_, chunk) in &sleeper.chunks {
        let class = Class::of(chunk.slab);
        if let Err(error) = context.rollback.release(context.driver, (chunk.handle, chunk.size), class) {
            tracing::error!(%error, bytes = chunk.size, "memory of a pool that sleeps could not be released yet");
            context.heap.pending_rollback(class, chunk.size, 0);
        }
    }
    Ok(sleeper.bytes())
}

/// Unmaps all chunks at all their places, or none.
fn unmap_everywhere(context: &mut StrategyContext<'_>, sleeper: &Sleeper) -> Result<()> {
    let mut gone: Vec<Place> = with_room(sleeper.places.len())?;
    for place in &sleeper.places {
        let (_, chunk) = sleeper.chunks[place.chunk];
        let mut place = Place::of(place.span, chunk.handle, 0)?;
        let unmapped = place.exchange(context.driver, std::iter::empty());
        gone.push(place);
        if let Err(error) = unmapped {
            for place in gone.into_iter().rev() {
                context.rollback.restore(context.driver, place);
            }
            return Err(error.into());
        }
    }
    Ok(())
}

/// Gives a sleeping private pool memory again, and restores the contents of its live blocks. Returns the bytes taken
/// from the device.
///
/// # Errors
/// [`Miss::OutOfMemory`] if the limits or the device leave too little room. After any error the pool still sleeps, and
/// its saved contents are kept.
pub(crate) fn wake(context: &mut StrategyContext<'_>, owner: PoolId) -> MissResult<u64> {
    context.retry_rollback()?;
    let sleeper = context.heap.sleeper(owner)?;
    let bytes = sleeper.bytes();
    context.require(Increase::of(bytes))?;
    let mut memory = Mapping::of_new_pieces(Class::Large, sleeper.chunks.len())?;
    let mut runs = runs_of(&sleeper)?;
    context.rollback.reserve(1 + runs.len())?;
    let made = make(context, &sleeper, &mut memory, &mut runs).and_then(|()| restore(context, owner, &sleeper));
    if let Err(error) = made {
        undo(context, memory, runs);
        return Err(error.into());
    }
    context.heap.wake_up(owner, &sleeper, memory.pieces.iter().filter_map(|piece| piece.handle));
    Ok(bytes)
}

/// Places of chunks at contiguous addresses, with the numbers of the chunks.
struct Run {
    mapping: Mapping,
    chunks: Vec<usize>,
}

/// Returns the places of the chunks in runs of contiguous addresses. One call gives the device access to a whole run.
fn runs_of(sleeper: &Sleeper) -> Grown<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    let mut last = None;
    for place in &sleeper.places {
        let piece = Piece { size: place.span.size, handle: None };
        let begins = last != Some((place.view, place.span.start));
        if begins {
            runs.try_push(Run { mapping: Mapping::at_home(place.span.start, Vec::new()), chunks: Vec::new() })?;
        }
        if let Some(run) = runs.last_mut() {
            run.mapping.pieces.try_push(piece)?;
            run.chunks.try_push(place.chunk)?;
        }
        last = Some((place.view, place.span.end()));
    }
    Ok(runs)
}

/// Creates the pool's new memory, and maps this memory at all its addresses.
fn make(context: &StrategyContext<'_>, sleeper: &Sleeper, memory: &mut Mapping, runs: &mut [Run]) -> Result<()> {
    for (_, chunk) in &sleeper.chunks {
        memory.create(context.driver, chunk.size, chunk.size)?;
    }
    for run in runs {
        for (piece, chunk) in run.mapping.pieces.iter_mut().zip(&run.chunks) {
            piece.handle = memory.pieces.get(*chunk).and_then(|piece| piece.handle);
        }
        run.mapping.map(context.driver)?;
    }
    Ok(())
}

/// Gives back memory with which a pool could not wake. A place that cannot be unmapped now is unmapped later. Until
/// then the memory counts as held, and its release waits for the unmapping.
fn undo(context: &mut StrategyContext<'_>, memory: Mapping, mut left: Vec<Run>) {
    // Places (mapped ranges) that cannot be unmapped now are unmapped later, in the same order.
    left.retain_mut(|run| run.mapping.undo(context.driver).is_err());
    if left.is_empty() {
        context.rollback.undo(context.heap, context.driver, memory);
        return;
    }
    tracing::error!(places = left.len(), "a pool could not wake, and this could not be undone yet");
    context.rollback.keep(context.heap, memory);
    for run in left {
        context.rollback.keep(context.heap, run.mapping);
    }
}
