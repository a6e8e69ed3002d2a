//! Spilling of live memory to host memory, and its return to the device.
//!
//! Owns: the choice of chunks to spill. `exchange.rs` makes the calls. The heap decides which chunks may be spilled.

use super::context::{InTurn, Miss, MissResult, Spill, StrategyContext};
use super::exchange::{Cut, Fate, Part, exchange};
use crate::config::SpillCandidate;
use crate::driver::Call;
use crate::error::{Error, Result};
use crate::fallible::{Grown, TryPush};
use crate::heap::{Chunk, GRANULE, Heap};
use crate::ids::{Account, BlockId, ChunkId};
use crate::span::Span;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// The most exchanges that may be refused in one call of [`spill`], by the driver or by the bounds on views.
const MAX_REFUSED: u32 = 16;

/// The fineness with which the live shares of chunks are compared: in 64ths of a chunk. Of chunks with equal shares,
/// the coldest is spilled first.
const SHARES: u128 = 64;

/// A chunk that is to be spilled.
struct Chosen {
    id: ChunkId,
    chunk: Chunk,
    candidate: SpillCandidate,
    coldness: u64,
}

/// Spills live memory until the device has about `bytes` more, if spilling is allowed at present. The CPU has waited
/// for the device. Returns whether any memory was spilled. If all candidates together would not suffice, no memory is
/// spilled.
///
/// # Errors
/// The errors of [`exchange`].
pub(crate) fn spill(context: &mut StrategyContext<'_>, bytes: u64) -> MissResult<bool> {
    let Some(spill) = context.spill.filter(|_| !context.capturing()) else { return Ok(false) };
    drop_spilled(context)?;
    let before = context.driver.busy_ns();
    let owners = context.heap.owners_of_pieces()?;
    let budget = spill.budget.saturating_sub(context.heap.spilled());
    let chosen = choose(context.heap, &spill, &owners, bytes, budget)?;
    if chosen.is_empty() {
        return Ok(false);
    }
    if context.heap.counters().spills.chunks == 0 {
        tracing::warn!(
            bytes,
            budget = spill.budget,
            policy = spill.policy.name(),
            "live memory does not fit the device: what is used least is spilled to host memory, and is slower from now on"
        );
    }
    let (mut any, mut refused) = (false, 0);
    for Chosen { id, chunk, candidate, .. } in chosen {
        if refused == MAX_REFUSED {
            break;
        }
        let cut = Cut { id, parts: parts_of(context.heap, &chunk)? };
        if exchange(context, &[cut]).found()?.is_none() {
            refused += 1;
            continue;
        }
        context.heap.watch_spilled(chunk.span(), &owners);
        context.heap.journal_mut().chunk_spilled();
        tracing::debug!(address = chunk.address, bytes = candidate.live, age = candidate.age, "memory was spilled");
        any = true;
    }
    let spent = context.driver.busy_ns().saturating_sub(before);
    context.heap.journal_mut().spent_on_spills(spent);
    if any {
        context.heap.has_spilled();
    }
    Ok(any)
}

/// Splits a chunk without room on the device for copies of its live parts: the live parts go to host memory, the device
/// gets the memory of the whole chunk back, and the live parts return at once. `parts` are the parts of the split.
/// Returns whether the chunk was split; if not, nothing has changed. With the option `spill` live memory is spilled
/// instead, and no chunk is split in this way.
///
/// The return needs a second gate. If this gate cannot be closed, or if another process takes the device memory that is
/// then free, the live parts stay in host memory, as spilled memory does, until live memory is low next (at the end of
/// a training step), or until the next such split. If the return at that moment fails, it is tried again as late as the
/// return of other spilled memory ([`Heap::may_return`]). A warning is logged.
///
/// # Errors
/// The errors of [`exchange`], except if the host has no memory for the live parts: the chunk is then not split.
pub(crate) fn split_through_host(context: &mut StrategyContext<'_>, id: ChunkId, parts: Vec<Part>) -> MissResult<bool> {
    if context.config.spill.is_some() {
        return Ok(false);
    }
    if context.heap.spilled() > 0 {
        return_split(context, Span::between(0, u64::MAX))?;
    }
    let Some(chunk) = context.heap.home().and_then(|home| home.chunk(id)) else { return Ok(false) };
    let mut cut = Cut { id, parts };
    cut.parts.iter_mut().filter(|part| part.fate == Fate::Copied).for_each(|part| part.fate = Fate::Spilled);
    let copied = cut.parts.iter().filter(|part| part.fate == Fate::Spilled).map(|part| part.size).sum();
    let owners = context.heap.owners_of_pieces()?;
    // The limits must leave room for the parts once the chunk's memory is given back.
    if context.missing(copied) > chunk.size || context.heap.spill_candidate(&chunk, &owners).is_none() {
        return Ok(false);
    }
    let count = cut.parts.len() as u64;
    match exchange(context, &[cut]) {
        Ok(_) => {}
        Err(Miss::Failed(Error::Driver(error))) if error.call == Call::CreateOnHost => {
            tracing::debug!(%error, "no chunk is split: the device has no room for copies, and the host has none either");
            context.split_no_more();
            return Ok(false);
        }
        Err(Miss::OutOfMemory { .. }) => return Ok(false),
        Err(miss) => return Err(miss),
    }
    context.heap.journal_mut().chunk_split(count, copied);
    context.heap.watch_spilled(chunk.span(), &owners);
    if !return_split(context, chunk.span())? {
        context.heap.has_left_parts();
    }
    Ok(true)
}

/// Returns whether the driver gives host memory that can be mapped in the place of device memory, as
/// [`split_through_host`] needs it. In some containers it gives none. With the option `spill` the answer is no, since
/// live memory is then spilled instead.
pub(crate) fn has_host_memory(context: &mut StrategyContext<'_>) -> bool {
    if context.config.spill.is_some() {
        return false;
    }
    let tried = context.rollback.reserve_handles(1).map_err(Miss::from).and_then(|()| {
        let handle = context.driver.create_on_host(GRANULE)?;
        if let Err(error) = context.rollback.release(context.driver, (handle, GRANULE), Account::Host) {
            tracing::warn!(%error, "host memory could not be released yet");
            context.heap.pending_rollback(Account::Host, GRANULE, 0);
        }
        Ok(())
    });
    tried.is_ok()
}

/// Moves the spilled chunks in a span of home back to the device, after [`split_through_host`]. Returns whether all came
/// back.
fn return_split(context: &mut StrategyContext<'_>, span: Span) -> MissResult<bool> {
    let mut cuts = Vec::new();
    for (id, chunk) in context.heap.spilled_chunks().filter(|(_, chunk)| span.contains(chunk.address)) {
        cuts.try_push(Cut::whole(id, chunk.size, Fate::Copied)?)?;
    }
    let all = exchange(context, &cuts).found()? == Some(cuts.len());
    if !all {
        let bytes = context.heap.spilled();
        // Shown by default, as the warnings of the gate are.
        tracing::warn!(
            target: "seamalloc::backing::gate",
            bytes,
            "parts of a split chunk lie in host memory, and are slower, until a later return of them succeeds"
        );
    }
    Ok(all)
}

/// Returns the parts into which a chunk is cut when spilled. Free parts lose their memory. Live parts are cut into the
/// sizes of the host memory kept from earlier spills.
fn parts_of(heap: &Heap, chunk: &Chunk) -> Grown<Vec<Part>> {
    let mut kept = heap.host_stock().sizes()?;
    let mut parts = Vec::new();
    for (span, live) in heap.spill_parts(chunk) {
        if live {
            kept.cut(span.size, |size| parts.try_push(Part { size, fate: Fate::Spilled }))?;
        } else {
            parts.try_push(Part { size: span.size, fate: Fate::Lost })?;
        }
    }
    Ok(parts)
}

/// Returns the coldest chunks whose spilling gives the device `bytes` bytes within the budget of host memory. If these
/// do not suffice, returns the chunks with the smallest share of live bytes that do. Returns no chunk if neither order
/// suffices.
fn choose(
    heap: &Heap,
    spill: &Spill<'_>,
    owners: &FxHashMap<BlockId, BlockId>,
    bytes: u64,
    budget: u64,
) -> Grown<Vec<Chosen>> {
    let mut all = Vec::new();
    for (id, chunk) in heap.home().into_iter().flat_map(|home| home.chunks()) {
        let Some(candidate) = heap.spill_candidate(&chunk, owners) else { continue };
        let Some(coldness) = spill.policy.coldness(&candidate) else { continue };
        all.try_push(Chosen { id, chunk, candidate, coldness })?;
    }
    all.sort_unstable_by_key(|of| (Reverse(of.coldness), Reverse(of.candidate.size), of.chunk.address));
    if !within(&all, bytes, budget) {
        // Prefer chunks with the fewest live bytes for each byte that the device gains.
        let share = |of: &SpillCandidate| u128::from(of.live) * SHARES / u128::from(of.size.max(1));
        all.sort_unstable_by_key(|of| (share(&of.candidate), Reverse(of.coldness), of.chunk.address));
        if !within(&all, bytes, budget) {
            all.clear();
        }
    }
    let (mut gained, mut left) = (0, budget);
    all.retain(|of| takes(&of.candidate, bytes, &mut gained, &mut left));
    Ok(all)
}

/// Returns whether spilling these chunks in order gives the device `bytes` bytes within the budget of host memory.
fn within(all: &[Chosen], bytes: u64, budget: u64) -> bool {
    let (mut gained, mut left) = (0, budget);
    all.iter().any(|of| {
        takes(&of.candidate, bytes, &mut gained, &mut left);
        gained >= bytes
    })
}

/// Decides whether a chunk is spilled, given the bytes gained and the host memory of the budget left so far, and
/// updates both numbers.
fn takes(of: &SpillCandidate, bytes: u64, gained: &mut u64, left: &mut u64) -> bool {
    let takes = *gained < bytes && of.live <= *left;
    if takes {
        *gained += of.size;
        *left -= of.live;
    }
    takes
}

/// Gives back host memory without live blocks that every stream has passed. No stream is being captured.
///
/// # Errors
/// A driver call failed. Memory that was given back before the error stays given back.
pub(crate) fn drop_spilled(context: &mut StrategyContext<'_>) -> Result<()> {
    for (id, size) in context.heap.spilled_and_free()? {
        match exchange(context, &[Cut::whole(id, size, Fate::Lost)?]) {
            Ok(_) | Err(Miss::OutOfMemory { .. }) => {}
            Err(Miss::Failed(error)) => return Err(error),
        }
    }
    Ok(())
}

/// Moves spilled chunks back to the device, the hottest chunk first, as long as the device has room for them and
/// `spare` bytes more. With `only`, moves no other chunks. The CPU has waited for the device. Returns the bytes that
/// came back.
///
/// # Errors
/// A driver call failed. Chunks that were moved before the error stay on the device.
pub(crate) fn unspill(context: &mut StrategyContext<'_>, only: Option<&[ChunkId]>, spare: u64) -> Result<u64> {
    drop_spilled(context)?;
    if context.config.spill.is_none() && only.is_none() {
        // Only parts of split chunks are spilled: the gate is closed once for all of them.
        let before = context.heap.spilled();
        return match return_split(context, Span::between(0, u64::MAX)) {
            Err(Miss::Failed(error)) => Err(error),
            _ => Ok(before - context.heap.spilled()),
        };
    }
    let before = context.driver.busy_ns();
    let owners = context.heap.owners_of_pieces()?;
    let mut all = Vec::new();
    for (id, chunk) in context.heap.spilled_chunks().filter(|(id, _)| only.is_none_or(|only| only.contains(id))) {
        let on_device = Chunk { spilled: false, ..chunk };
        let candidate = context.heap.spill_candidate(&on_device, &owners);
        let coldness = candidate.zip(context.spill).and_then(|(of, spill)| spill.policy.coldness(&of));
        all.try_push((coldness.unwrap_or(0), chunk.address, id, chunk.size))?;
    }
    all.sort_unstable();
    let (mut returned, mut refused) = (0, 0);
    for (_, _, id, size) in all {
        if refused == MAX_REFUSED {
            break;
        }
        if context.room() < size.saturating_add(spare) {
            continue;
        }
        match exchange(context, &[Cut::whole(id, size, Fate::Copied)?]) {
            Ok(_) => returned += size,
            Err(Miss::OutOfMemory { .. }) => {
                refused += 1;
                continue;
            }
            Err(Miss::Failed(error)) => return Err(error),
        }
        context.heap.journal_mut().chunk_returned(size);
    }
    let spent = context.driver.busy_ns().saturating_sub(before);
    context.heap.journal_mut().spent_on_spills(spent);
    Ok(returned)
}
