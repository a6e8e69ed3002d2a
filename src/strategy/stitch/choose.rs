//! The choice of the free ranges of home that become a view.
//!
//! Owns: the choice. Between the first and the last range of a view, only wholly free chunks count. The first range may
//! begin in the middle of a chunk, and the last may end in one.
//!
//! ```text
//! chunks        |      |      |      |      |
//! free range        ..................
//!                   head   whole   tail          as the first range: head and whole; as the last: whole and tail
//! ```

use crate::error::Result;
use crate::fallible::{Grown, TryCollect, TryPush, filled};
use crate::heap::{GRANULE, Heap};
use crate::ids::{BlockId, ChunkId, PoolIndex};
use crate::span::Span;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A free range of home, with the values that matter for a view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    start: u64,
    /// The addresses where the range's whole chunks begin and end; equal if it has none.
    pub(super) from: u64,
    pub(super) to: u64,
    end: u64,
    start_chunk: ChunkId,
    end_chunk: ChunkId,
    /// Whether the range begins with a slab.
    slabs: bool,
}

impl Range {
    fn whole(&self) -> u64 {
        self.to - self.from
    }

    /// Returns the bytes of the range before its first whole chunk.
    fn head(&self) -> u64 {
        self.from - self.start
    }

    /// Returns the bytes of the range after its last whole chunk.
    fn tail(&self) -> u64 {
        self.end - self.to
    }
}

/// Returns the spans of home that make up `size` bytes, or the number of missing bytes. Only the first span may begin
/// inside a chunk, and only the last may end inside one. Takes O(n) in the free ranges, and a logarithm for each range
/// taken. Wholly free slabs are used too, unless `spares_slabs`.
pub(super) fn spans(heap: &Heap, size: u64, pool: PoolIndex, spares_slabs: bool) -> Result<Spans> {
    let (own, with_idle) = ([pool], [pool, heap.idle()]);
    let mut ranges = open_ranges(heap, if heap.takes_idle(pool) { &with_idle } else { &own })?;
    if spares_slabs {
        ranges.retain(|range| !range.slabs);
    }
    Ok(spans_in(&ranges, size)?)
}

/// Returns the most bytes that one view could have over the free memory of these large pools and wholly free slabs.
pub(super) fn usable(heap: &Heap, pools: &[PoolIndex]) -> Result<u64> {
    Ok(spans_of(heap, u64::MAX, pools)?.err().map_or(u64::MAX, |missing| u64::MAX - missing))
}

/// Returns the bytes of wholly free chunks in free ranges of these large pools and in wholly free slabs.
pub(super) fn whole(heap: &Heap, pools: &[PoolIndex]) -> Result<u64> {
    Ok(open_ranges(heap, pools)?.iter().map(Range::whole).sum())
}

/// The spans of a view, or the number of missing bytes.
pub(super) type Spans = std::result::Result<Vec<Span>, u64>;

/// Returns the result of [`spans`] for only the memory of these large pools.
pub(super) fn spans_of(heap: &Heap, size: u64, pools: &[PoolIndex]) -> Result<Spans> {
    Ok(spans_in(&open_ranges(heap, pools)?, size)?)
}

/// Returns the spans of these ranges that make up `size` bytes, or the number of missing bytes.
fn spans_in(ranges: &[Range], size: u64) -> Grown<Spans> {
    let (first, last) = ends(ranges);
    let usable = ranges.iter().map(Range::whole).sum::<u64>() + gain(ranges, first, last);
    if usable < size {
        return Ok(Err(size - usable));
    }
    Ok(Ok(Composition::new(ranges, size, first, last)?.compose()?))
}

/// Returns the bytes in parts of chunks that the first and the last range add to a view's whole chunks.
fn gain(ranges: &[Range], first: Option<usize>, last: Option<usize>) -> u64 {
    first.map_or(0, |index| ranges[index].head()) + last.map_or(0, |index| ranges[index].tail())
}

/// Returns the ranges with which the largest possible view begins and ends. One range cannot be both ends, so each end
/// is once chosen first, and the better of the two results is returned.
fn ends(ranges: &[Range]) -> (Option<usize>, Option<usize>) {
    // The two ends may not lie in one chunk, since a view maps no chunk twice.
    let apart = |a: usize, b: usize| {
        a != b && ranges[a].start_chunk != ranges[b].end_chunk && ranges[b].start_chunk != ranges[a].end_chunk
    };
    // Of ranges that add equally many bytes at an end, the largest is best, and of equal ones the lowest.
    let best = |gain: fn(&Range) -> u64, except: Option<usize>| {
        let indexed = ranges.iter().enumerate().filter(|(index, _)| except.is_none_or(|other| apart(*index, other)));
        indexed.max_by_key(|(_, range)| (gain(range), range.whole(), Reverse(range.start))).map(|(index, _)| index)
    };
    let Some((head, tail)) = best(Range::head, None).zip(best(Range::tail, None)) else { return (None, None) };
    let by_head = (Some(head), best(Range::tail, Some(head)));
    let by_tail = (best(Range::head, Some(tail)), Some(tail));
    if gain(ranges, by_head.0, by_head.1) >= gain(ranges, by_tail.0, by_tail.1) { by_head } else { by_tail }
}

/// A view that is being composed: the first range, then the largest ranges, and last the smallest range that has all
/// missing bytes.
struct Composition<'a> {
    ranges: &'a [Range],
    first: Option<usize>,
    last: Option<usize>,
    used: Vec<bool>,
    /// The ranges for the middle of the view, between its first and its last range; the largest on top.
    largest: BinaryHeap<(u64, Reverse<u64>, usize)>,
    longest_tail: u64,
    missing: u64,
    out: Vec<Span>,
}

impl<'a> Composition<'a> {
    fn new(ranges: &'a [Range], size: u64, first: Option<usize>, last: Option<usize>) -> Grown<Self> {
        let middle = |index: &usize| Some(*index) != first && Some(*index) != last && ranges[*index].whole() > 0;
        let by_size = |index: usize| (ranges[index].whole(), Reverse(ranges[index].start), index);
        Ok(Self {
            ranges,
            first,
            last,
            used: filled(false, ranges.len())?,
            largest: (0..ranges.len()).filter(middle).map(by_size).try_to_vec()?.into(),
            longest_tail: ranges.iter().map(Range::tail).max().unwrap_or(0),
            missing: size,
            out: Vec::new(),
        })
    }

    fn compose(mut self) -> Grown<Vec<Span>> {
        if let Some(first) = self.first {
            self.take(first, self.ranges[first].start, self.ranges[first].to)?;
        }
        while self.missing > 0 {
            let next = self.largest_unused();
            if let Some(index) = self.smallest_sufficient(next) {
                self.take(index, self.ranges[index].from, self.ranges[index].end)?;
                continue;
            }
            // Without a next range, only the range for the view's end is left, and has all missing bytes.
            let Some(index) = next else { break };
            self.take(index, self.ranges[index].from, self.ranges[index].to)?;
        }
        Ok(self.out)
    }

    /// Takes the bytes of a range between these addresses, or as many of them as are missing.
    fn take(&mut self, index: usize, from: u64, to: u64) -> Grown<()> {
        self.used[index] = true;
        let bytes = (to - from).min(self.missing);
        if bytes > 0 {
            self.out.try_push(Span::new(from, bytes))?;
            self.missing -= bytes;
        }
        Ok(())
    }

    /// Returns the largest unused range for the middle of the view, between its first and its last range.
    fn largest_unused(&mut self) -> Option<usize> {
        while self.largest.peek().is_some_and(|(.., index)| self.used[*index]) {
            self.largest.pop();
        }
        self.largest.peek().map(|(.., index)| *index)
    }

    /// Returns the smallest range that has all missing bytes if the view ends with it. The search is made only if some
    /// range may have as many bytes, so composing a view takes about linear time in the number of ranges.
    fn smallest_sufficient(&self, next: Option<usize>) -> Option<usize> {
        let Self { ranges, missing, .. } = *self;
        let most = next.into_iter().chain(self.last).map(|index| ranges[index].whole()).max().unwrap_or(0);
        if most + self.longest_tail < missing {
            return None;
        }
        let apart = |index: usize| self.first.is_none_or(|first| ranges[first].start_chunk != ranges[index].end_chunk);
        (0..ranges.len())
            .filter(|index| !self.used[*index] && ranges[*index].whole() + ranges[*index].tail() >= missing)
            .filter(|index| ranges[*index].whole() >= missing || apart(*index))
            .min_by_key(|index| (ranges[*index].whole() + ranges[*index].tail(), ranges[*index].start))
    }
}

/// Returns a block and the blocks after it in its segment, each with the value that `open` returns for it, up to the
/// first `None`.
pub(super) fn run<T>(
    heap: &Heap,
    first: BlockId,
    open: impl Fn(BlockId) -> Option<T>,
) -> impl Iterator<Item = (BlockId, T)> {
    let mut next = first;
    std::iter::from_fn(move || {
        let (id, found) = (next, open(next)?);
        next = heap.block(id).next;
        Some((id, found))
    })
}

/// Returns the end of the contiguous blocks from `first` on for which `open` returns `true`.
fn end_of_run(heap: &Heap, first: BlockId, open: impl Fn(BlockId) -> bool) -> u64 {
    let last = run(heap, heap.block(first).next, |id| open(id).then_some(())).last();
    heap.block(last.map_or(first, |(id, ())| id)).end()
}

/// Returns the free ranges of large pools and of the slabs beside them.
pub(super) fn open_ranges(heap: &Heap, pools: &[PoolIndex]) -> Result<Vec<Range>> {
    let Some(home) = heap.home() else { return Ok(Vec::new()) };
    let open = |id: BlockId| pools.iter().any(|pool| heap.is_open(id, *pool));
    let mut out = Vec::new();
    for pool in pools.iter().flat_map(|pool| [*pool, pool.small()]) {
        // A slab for small blocks serves large requests only as a whole.
        let min_size = if pool.is_small() { GRANULE } else { 0 };
        heap.visit_free(pool, min_size, |id| {
            // Neighbours of different pools are one range, which is visited at its first block.
            if open(heap.block(id).prev) {
                return Ok(());
            }
            let (start, end) = (heap.block(id).address, end_of_run(heap, id, open));
            let Some((start_chunk, first)) = home.chunk_at(start) else { return Ok(()) };
            let Some((end_chunk, last)) = home.chunk_at(end - 1) else { return Ok(()) };
            let from = if start == first.address { start } else { first.end() };
            let to = if end == last.end() { end } else { last.address };
            // A range inside one chunk can only be an end of a view, and only if it touches an end of the chunk.
            if from <= to {
                out.try_push(Range { start, from, to, end, start_chunk, end_chunk, slabs: first.slab })?;
            }
            Ok(())
        })?;
    }
    Ok(out)
}

/// Returns the first block of the smallest contiguous run of `size` free bytes at home, of blocks of one large pool and
/// idle blocks; `None` if there is none.
pub(super) fn run_at_home(heap: &Heap, size: u64, pool: PoolIndex) -> Result<Option<BlockId>> {
    let idle = heap.idle();
    if !heap.has_free(idle) || heap.is_private(pool) {
        return Ok(None);
    }
    let open = |id: BlockId| heap.is_large_and_open(id, pool);
    let mut best: Option<(u64, u64, BlockId)> = None;
    // A run of several blocks contains an idle block. The run begins with its first idle block or with the block
    // before, since neighbours of one pool are merged.
    heap.visit_free(idle, 0, |id| {
        let mut first = id;
        if open(heap.block(id).prev) {
            first = heap.block(id).prev;
            if open(heap.block(first).prev) {
                return Ok(());
            }
        }
        let start = heap.block(first).address;
        let run = (end_of_run(heap, id, open) - start, start, first);
        if run.0 >= size && best.is_none_or(|best| (run.0, run.1) < (best.0, best.1)) {
            best = Some(run);
        }
        Ok(())
    })?;
    Ok(best.map(|(.., first)| first))
}

/// Returns any free, aligned 2 MiB of these large pools, and the block that contains them; `None` if there are none.
pub(super) fn slab_anywhere(heap: &Heap, pools: &[PoolIndex]) -> Result<Option<(BlockId, Span)>> {
    for pool in pools {
        for id in heap.free_blocks(*pool)? {
            let block = heap.block(id);
            let at = block.address.next_multiple_of(GRANULE);
            if at + GRANULE <= block.end() {
                return Ok(Some((id, Span::new(at, GRANULE))));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]
mod tests {
    use super::*;

    /// The sizes of a chunk and of home in these tests, in bytes.
    const CHUNK: u64 = 3;
    const BYTES: usize = 15;

    /// Returns the ranges of a home where these bytes are free, as [`open_ranges`] finds them.
    fn ranges(free: &[bool]) -> Vec<Range> {
        let mut out: Vec<Range> = Vec::new();
        let mut at = 0;
        while at < free.len() {
            let len = free[at..].iter().take_while(|free| **free).count();
            if len > 0 {
                let (start, end) = (at as u64, (at + len) as u64);
                let (from, to) = (start.next_multiple_of(CHUNK), end / CHUNK * CHUNK);
                if from <= to {
                    let chunk = |address: u64| ChunkId((address / CHUNK) as u32);
                    out.push(Range {
                        start,
                        from,
                        to,
                        end,
                        start_chunk: chunk(start),
                        end_chunk: chunk(end - 1),
                        slabs: false,
                    });
                }
            }
            at += len.max(1);
        }
        out
    }

    /// Returns the view of `size` bytes, or `None` if there is none.
    fn composed(ranges: &[Range], size: u64) -> Option<Vec<Span>> {
        let (first, last) = ends(ranges);
        let usable = ranges.iter().map(Range::whole).sum::<u64>() + gain(ranges, first, last);
        (usable >= size).then(|| Composition::new(ranges, size, first, last).unwrap().compose().unwrap())
    }

    /// Returns whether a view maps only free bytes, no chunk twice, and parts of chunks only at its ends.
    fn is_valid(spans: &[Span], free: &[bool], size: u64) -> bool {
        let mut mapped = vec![false; free.len()];
        for (index, span) in spans.iter().enumerate() {
            let begins_right = index == 0 || span.start % CHUNK == 0;
            let ends_right = index + 1 == spans.len() || span.end() % CHUNK == 0;
            let is_free = (span.start..span.end()).all(|at| free[at as usize]);
            let mut chunks = span.start / CHUNK..=(span.end() - 1) / CHUNK;
            let twice = chunks.any(|chunk| std::mem::replace(&mut mapped[chunk as usize], true));
            if span.size == 0 || !begins_right || !ends_right || !is_free || twice {
                return false;
            }
        }
        spans.iter().map(|span| span.size).sum::<u64>() == size
    }

    /// Returns whether the view's ranges are in the right order: at each place after the first range comes the smallest
    /// unused range that would complete the view, or the largest unused one if there is none.
    fn is_in_order(spans: &[Span], ranges: &[Range], size: u64) -> bool {
        let (first, last) = ends(ranges);
        let mut left: Vec<usize> = (0..ranges.len()).collect();
        let mut missing = size;
        for (number, span) in spans.iter().enumerate() {
            let of = |index: &usize| (ranges[*index].start..ranges[*index].end).contains(&span.start);
            let Some(index) = left.iter().copied().find(of) else { return false };
            let with_tail = |index: usize| ranges[index].whole() + ranges[index].tail();
            let apart = |index: usize| first.is_none_or(|first| ranges[first].start_chunk != ranges[index].end_chunk);
            let suffices =
                |index: &usize| with_tail(*index) >= missing && (ranges[*index].whole() >= missing || apart(*index));
            let next = left.iter().copied().filter(suffices).min_by_key(|index| (with_tail(*index), *index));
            let largest = left.iter().copied().filter(|index| Some(*index) != last && ranges[*index].whole() > 0);
            let largest = largest.max_by_key(|index| (ranges[*index].whole(), Reverse(*index)));
            let begins = first.filter(|first| number == 0 && ranges[*first].start < ranges[*first].to);
            if Some(index) != begins.or(next).or(largest) {
                return false;
            }
            left.retain(|of| *of != index);
            missing -= span.size;
        }
        true
    }

    #[test]
    fn every_view_of_every_small_home_is_valid_and_chosen_in_order() {
        for bits in 0..1_u32 << BYTES {
            let free: Vec<bool> = (0..BYTES).map(|at| bits >> at & 1 == 1).collect();
            let ranges = ranges(&free);
            let mut size = 1;
            while let Some(spans) = composed(&ranges, size) {
                assert!(is_valid(&spans, &free, size), "{free:?}: {size} bytes are {spans:?}");
                assert!(is_in_order(&spans, &ranges, size), "{free:?}: {size} bytes are {spans:?}");
                size += 1;
            }
            let at_one_end = ranges.iter().map(|range| range.head().max(range.tail())).max().unwrap_or(0);
            let whole = ranges.iter().map(Range::whole).sum::<u64>();
            assert!(size > whole + at_one_end, "{free:?}: {size} bytes are refused");
        }
    }
}
