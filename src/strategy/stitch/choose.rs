//! Which free ranges of home become a view.
//!
//! Owns: the choice. Between the first and the last range of a view only wholly free chunks count; the first may begin
//! in the middle of a chunk, the last may end in one.
//!
//! ```text
//! chunks        |      |      |      |      |
//! free range        ..................
//!                   head   whole   tail          as the first range: head and whole; as the last: whole and tail
//! ```

use crate::blocks::{BlockId, State};
use crate::heap::Heap;
use crate::home::{ChunkId, GRANULE};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A free range of home, as a view could use it.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    /// Where its whole chunks begin and end; equal if it holds none.
    from: u64,
    to: u64,
    end: u64,
    start_chunk: ChunkId,
    end_chunk: ChunkId,
}

impl Range {
    fn whole(&self) -> u64 {
        self.to - self.from
    }

    /// Bytes before its first whole chunk.
    fn head(&self) -> u64 {
        self.from - self.start
    }

    /// Bytes behind its last whole chunk.
    fn tail(&self) -> u64 {
        self.end - self.to
    }
}

/// A stretch of home that a view takes, address and bytes. Only the first may begin, and only the last may end, inside
/// a chunk.
pub(super) type Stretch = (u64, u64);

/// Ranges that make up `size` bytes, or how many bytes are missing. Time is linear in the ranges, with a logarithm for
/// each that is taken.
pub(super) fn ranges(heap: &Heap, size: u64, pool: u32) -> Result<Vec<Stretch>, u64> {
    among(heap, size, &[pool, heap.idle])
}

/// The most bytes that one view over what is free in these large pools, and in wholly free slabs, could have.
pub(super) fn usable(heap: &Heap, pools: &[u32]) -> u64 {
    among(heap, u64::MAX, pools).err().map_or(u64::MAX, |missing| u64::MAX - missing)
}

fn among(heap: &Heap, size: u64, pools: &[u32]) -> Result<Vec<Stretch>, u64> {
    let ranges = open_ranges(heap, pools);
    let (first, last) = ends(&ranges);
    let usable = ranges.iter().map(Range::whole).sum::<u64>() + gain(&ranges, first, last);
    if usable < size {
        return Err(size - usable);
    }
    Ok(compose(&ranges, size, first, last))
}

/// Bytes that the two ends add to the whole chunks.
fn gain(ranges: &[Range], first: Option<usize>, last: Option<usize>) -> u64 {
    first.map_or(0, |index| ranges[index].head()) + last.map_or(0, |index| ranges[index].tail())
}

/// The ranges that a view of as many bytes as possible begins and ends with. Whichever of the two gains more is chosen
/// first, since one range cannot be both.
fn ends(ranges: &[Range]) -> (Option<usize>, Option<usize>) {
    // Not both ends in one chunk: a view maps no chunk twice.
    let apart = |a: usize, b: usize| {
        a != b && ranges[a].start_chunk != ranges[b].end_chunk && ranges[b].start_chunk != ranges[a].end_chunk
    };
    // Of equal ones the largest, of those the lowest.
    let best = |gain: fn(&Range) -> u64, except: Option<usize>| {
        let indexed = ranges.iter().enumerate().filter(|(index, _)| except.is_none_or(|other| apart(*index, other)));
        indexed.max_by_key(|(_, range)| (gain(range), range.whole(), Reverse(range.start))).map(|(index, _)| index)
    };
    let Some((head, tail)) = best(Range::head, None).zip(best(Range::tail, None)) else { return (None, None) };
    let by_head = (Some(head), best(Range::tail, Some(head)));
    let by_tail = (best(Range::head, Some(tail)), Some(tail));
    if gain(ranges, by_head.0, by_head.1) >= gain(ranges, by_tail.0, by_tail.1) { by_head } else { by_tail }
}

/// Puts the ranges one behind the other: the first, then the largest, and as the last the smallest that suffices.
fn compose(ranges: &[Range], size: u64, first: Option<usize>, last: Option<usize>) -> Vec<Stretch> {
    let mut out = Vec::new();
    let mut missing = size;
    let mut used = vec![false; ranges.len()];
    let mut take = |used: &mut Vec<bool>, missing: &mut u64, index: usize, from: u64, to: u64| {
        used[index] = true;
        let bytes = (to - from).min(*missing);
        if bytes > 0 {
            out.push((from, bytes));
            *missing -= bytes;
        }
    };
    if let Some(first) = first {
        take(&mut used, &mut missing, first, ranges[first].start, ranges[first].to);
    }
    let longest_tail = ranges.iter().map(Range::tail).max().unwrap_or(0);
    let middle = |index: &usize| Some(*index) != first && Some(*index) != last && ranges[*index].whole() > 0;
    let by_size = |index: usize| (ranges[index].whole(), Reverse(ranges[index].start), index);
    let mut largest: BinaryHeap<_> = (0..ranges.len()).filter(middle).map(by_size).collect();
    while missing > 0 {
        while largest.peek().is_some_and(|(.., index)| used[*index]) {
            largest.pop();
        }
        let next = largest.peek().map(|(.., index)| *index);
        // Looked for only where one may suffice, so that the whole choice is about linear in the ranges.
        let most = next.into_iter().chain(last).map(|index| ranges[index].whole()).max().unwrap_or(0);
        let candidates = if most + longest_tail >= missing { 0..ranges.len() } else { 0..0 };
        let fitting = candidates
            .filter(|index| !used[*index] && ranges[*index].whole() + ranges[*index].tail() >= missing)
            .filter(|index| {
                let apart = |first: usize| ranges[first].start_chunk != ranges[*index].end_chunk;
                ranges[*index].whole() >= missing || first.is_none_or(apart)
            })
            .min_by_key(|index| (ranges[*index].whole() + ranges[*index].tail(), ranges[*index].start));
        if let Some(index) = fitting {
            take(&mut used, &mut missing, index, ranges[index].from, ranges[index].end);
            continue;
        }
        match next.or(last.filter(|index| !used[*index])) {
            Some(index) if Some(index) == last => {
                take(&mut used, &mut missing, index, ranges[index].from, ranges[index].end);
            }
            Some(index) => take(&mut used, &mut missing, index, ranges[index].from, ranges[index].to),
            None => break,
        }
    }
    out
}

/// What is free in large pools, and the slabs beside them.
fn open_ranges(heap: &Heap, pools: &[u32]) -> Vec<Range> {
    let Some(home) = &heap.home else { return Vec::new() };
    let mut out = Vec::new();
    for pool in pools.iter().flat_map(|pool| [*pool, pool + 1]) {
        // Slabs for small blocks serve large ones only whole.
        let least = if pool & 1 == 1 { GRANULE } else { 0 };
        heap.pools[pool as usize].free.visit_from(&heap.blocks, least, |id| {
            // Neighbours of different pools are one range: it is met at its first block.
            let open = |id: BlockId| pools.iter().any(|pool| heap.is_open(id, *pool));
            if open(heap.blocks[id].prev) {
                return;
            }
            let (start, mut end) = (heap.blocks[id].address, heap.blocks[id].end());
            let mut next = heap.blocks[id].next;
            while open(next) {
                end = heap.blocks[next].end();
                next = heap.blocks[next].next;
            }
            let Some((start_chunk, first)) = home.chunk_at(start) else { return };
            let Some((end_chunk, last)) = home.chunk_at(end - 1) else { return };
            let from = if start == first.address { start } else { first.end() };
            let to = if end == last.end() { end } else { last.address };
            // Inside one chunk it can only be an end of a view, if it touches one of the chunk.
            if from <= to {
                out.push(Range { start, from, to, end, start_chunk, end_chunk });
            }
        });
    }
    out
}

/// The first block of the smallest run of `size` bytes at home that only pools keep apart: what is free to one large pool,
/// and what is idle.
pub(super) fn run_at_home(heap: &Heap, size: u64, pool: u32) -> Option<BlockId> {
    let idle = &heap.pools[heap.idle as usize].free;
    if idle.len() == 0 || heap.is_private(pool) {
        return None;
    }
    let open = |id: BlockId| {
        let block = &heap.blocks[id];
        block.state == State::Free && (block.pool == pool || block.pool == heap.idle)
    };
    let mut best: Option<(u64, u64, BlockId)> = None;
    // A run of several blocks holds an idle one, and begins with its first or the block before that: neighbours of one
    // pool are one block.
    idle.visit_from(&heap.blocks, 0, |id| {
        let mut first = id;
        if open(heap.blocks[id].prev) {
            first = heap.blocks[id].prev;
            if open(heap.blocks[first].prev) {
                return;
            }
        }
        let (start, mut end, mut next) = (heap.blocks[first].address, heap.blocks[id].end(), heap.blocks[id].next);
        while open(next) {
            end = heap.blocks[next].end();
            next = heap.blocks[next].next;
        }
        let run = (end - start, start, first);
        if run.0 >= size && best.is_none_or(|best| (run.0, run.1) < (best.0, best.1)) {
            best = Some(run);
        }
    });
    best.map(|(.., first)| first)
}

/// Any 2 MiB of these large pools that lie free in a granule of their own.
pub(super) fn slab_anywhere(heap: &Heap, pools: &[u32]) -> Option<(BlockId, u64)> {
    for &pool in pools {
        for id in heap.pools[pool as usize].free.in_order(&heap.blocks) {
            let block = &heap.blocks[id];
            let at = block.address.next_multiple_of(GRANULE);
            if at + GRANULE <= block.end() {
                return Some((id, at));
            }
        }
    }
    None
}
