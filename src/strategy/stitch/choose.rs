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

use crate::blocks::BlockId;
use crate::heap::Heap;
use crate::home::{ChunkId, GRANULE};

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

/// Ranges that make up `size` bytes, or how many bytes are missing.
pub(super) fn ranges(heap: &Heap, size: u64, pool: u32) -> Result<Vec<Stretch>, u64> {
    let mut ranges = open_ranges(heap, pool);
    ranges.sort_by_key(|range| (std::cmp::Reverse(range.whole()), range.start));
    let whole: u64 = ranges.iter().map(Range::whole).sum();
    // Not both ends in one chunk: a view maps no chunk twice.
    let apart = |a: usize, b: usize| {
        a != b && ranges[a].start_chunk != ranges[b].end_chunk && ranges[b].start_chunk != ranges[a].end_chunk
    };
    let best = |gain: fn(&Range) -> u64, except: Option<usize>| {
        let indexed = ranges.iter().enumerate().filter(|(index, _)| except.is_none_or(|other| apart(*index, other)));
        indexed.max_by_key(|(index, range)| (gain(range), std::cmp::Reverse(*index))).map(|(index, _)| index)
    };
    // Whichever of the two ends gains more is chosen first, since one range cannot be both.
    let heads = best(Range::head, None).map(|head| (head, best(Range::tail, Some(head))));
    let tails = best(Range::tail, None).map(|tail| (best(Range::head, Some(tail)), tail));
    let gain = |head: Option<usize>, tail: Option<usize>| {
        head.map_or(0, |index| ranges[index].head()) + tail.map_or(0, |index| ranges[index].tail())
    };
    let by_head = heads.map(|(head, tail)| (Some(head), tail)).unwrap_or_default();
    let by_tail = tails.map(|(head, tail)| (head, Some(tail))).unwrap_or_default();
    let (first, last) = if gain(by_head.0, by_head.1) >= gain(by_tail.0, by_tail.1) { by_head } else { by_tail };
    let usable = whole + gain(first, last);
    if usable < size {
        return Err(size - usable);
    }
    Ok(compose(&ranges, size, first, last))
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
    // Ranges come largest first: those before it are used.
    let mut largest = 0;
    while missing > 0 {
        while largest < ranges.len() && (used[largest] || Some(largest) == last || ranges[largest].whole() == 0) {
            largest += 1;
        }
        // Looked for only where one may suffice, so that the whole choice is about linear in the ranges.
        let most = ranges.get(largest).map_or(0, Range::whole).max(last.map_or(0, |last| ranges[last].whole()));
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
        let next = Some(largest).filter(|index| *index < ranges.len()).or(last.filter(|index| !used[*index]));
        match next {
            Some(index) if Some(index) == last => {
                take(&mut used, &mut missing, index, ranges[index].from, ranges[index].end);
            }
            Some(index) => take(&mut used, &mut missing, index, ranges[index].from, ranges[index].to),
            None => break,
        }
    }
    out
}

/// What is free for a pool.
fn open_ranges(heap: &Heap, pool: u32) -> Vec<Range> {
    let Some(home) = &heap.home else { return Vec::new() };
    let mut out = Vec::new();
    for pool in [pool, heap.idle, pool + 1, heap.idle + 1] {
        for id in heap.pools[pool as usize].free.in_order(&heap.blocks) {
            let (start, end) = (heap.blocks[id].address, heap.blocks[id].end());
            // Slabs for small blocks serve large ones only whole.
            if pool & 1 == 1 && end - start < GRANULE {
                continue;
            }
            let (Some((start_chunk, first)), Some((end_chunk, last))) = (home.chunk_at(start), home.chunk_at(end - 1))
            else {
                continue;
            };
            let from = if start == first.address { start } else { first.end() };
            let to = if end == last.end() { end } else { last.address };
            let range = match from <= to {
                true => Range { start, from, to, end, start_chunk, end_chunk },
                // Inside one chunk: it can only be an end of a view, if it touches one of the chunk.
                false => continue,
            };
            out.push(range);
        }
    }
    out
}

/// Any 2 MiB that lie free in a granule of their own.
pub(super) fn slab_anywhere(heap: &Heap, pool: u32) -> Option<(BlockId, u64)> {
    for pool in [pool, heap.idle] {
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
