//! The choice of whole chunks that make up a number of bytes.
//!
//! Owns: the choice for a view that is extended. Such a view takes whole chunks, so no part of a chunk may be in use.

use super::choose::open_ranges;
use super::grow::LARGEST_CHUNK;
use crate::error::Result;
use crate::fallible::{TryCollect, TryPush, filled};
use crate::heap::{Chunk, Heap, Request};
use crate::ids::ChunkId;
use std::cmp::Reverse;

/// The chunks, or the number of missing bytes.
pub(super) type Whole = std::result::Result<Vec<(ChunkId, Chunk)>, u64>;

/// Returns free chunks with `size` bytes together, without the chunks in `except`, the largest first. If no chunks
/// reach the size exactly, the last one is the smallest that has the missing bytes. The last one is no larger than the
/// chunks by which memory grows, so that the excess beyond `size` stays small. All chunks together have at most `room`
/// bytes.
pub(super) fn whole_chunks(heap: &Heap, request: &Request, size: u64, room: u64, except: &[ChunkId]) -> Result<Whole> {
    if size == 0 {
        return Ok(Ok(Vec::new()));
    }
    let pool = request.pool;
    let (own, with_idle) = ([pool], [pool, heap.idle()]);
    let ranges = open_ranges(heap, if heap.takes_idle(pool) { &with_idle } else { &own })?;
    let Some(home) = heap.home() else { return Ok(Err(size)) };
    let mut except = except.iter().copied().try_to_vec()?;
    except.sort_unstable();
    let mut free: Vec<(ChunkId, Chunk)> = Vec::new();
    for range in ranges {
        let mut at = range.from;
        while let Some((id, chunk)) = home.chunk_at(at).filter(|_| at < range.to) {
            at = chunk.end();
            if except.binary_search(&id).is_err() {
                free.try_push((id, chunk))?;
            }
        }
    }
    free.sort_unstable_by_key(|(_, chunk)| (Reverse(chunk.size), chunk.address));
    let mut used = filled(false, free.len())?;
    let (mut chosen, mut missing) = (Vec::new(), size);
    for (index, of) in free.iter().enumerate().filter(|(_, (_, chunk))| chunk.size <= size) {
        if missing == 0 {
            break;
        }
        if of.1.size <= missing {
            missing -= of.1.size;
            used[index] = true;
            chosen.try_push(*of)?;
        }
    }
    if missing > 0 {
        // The chunks are in the order of falling sizes.
        let suffices = |chunk: &Chunk| {
            (missing..=LARGEST_CHUNK).contains(&chunk.size) && chunk.size <= room.saturating_sub(size - missing)
        };
        let last = free.iter().enumerate().rev().find(|(index, (_, chunk))| !used[*index] && suffices(chunk));
        match last {
            Some((_, of)) => chosen.try_push(*of)?,
            None => return Ok(Err(missing)),
        }
    }
    Ok(Ok(chosen))
}
