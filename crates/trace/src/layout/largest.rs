//! The largest request that each allocator could serve from a layout.
//!
//! Owns: the assumptions. The blocks stay where they are. PyTorch's native allocator serves a request from one free
//! block, or from new memory, for which wholly free segments are given back to the driver. Expandable segments map
//! whole free pieces of 20 MiB (2 MiB for small requests) again, at the addresses after a stream's last block.
//! Expandable segments also take pieces of other streams, after a wait for the GPU. `stitch` joins every free piece of
//! 2 MiB at other addresses, and splits chunks for this. With `split:off`, `stitch` joins the same pieces as expandable
//! segments, between the free ends of two partly used pieces. Private pools keep their memory. Pending memory counts as
//! in use.

use crate::memory::{Memory, MemoryError, SeededMap};
use seamalloc::driver::StreamId;
use seamalloc::snapshot::SegmentInfo;
use std::cmp::Reverse;

/// The bytes of a piece of memory for requests of more than 1 MiB, in an expandable segment and in a chunk of `stitch`.
pub(super) const LARGE_PIECE: u64 = 20 << 20;
/// The bytes of a piece of memory for small requests, and of the pieces into which `stitch` splits chunks.
pub(super) const GRANULE: u64 = 2 << 20;

/// The largest request that each allocator could serve at the moment of a layout. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LargestRequests {
    /// The largest request for PyTorch's native allocator.
    pub native: u64,
    /// The largest request for PyTorch's expandable segments.
    pub expandable: u64,
    /// The largest request for seamalloc's `stitch` with `split:off`.
    pub unsplit: u64,
    /// The largest request for seamalloc's `stitch`, which splits chunks.
    pub stitch: u64,
}

/// The free memory of public pools, divided into the parts that can serve a request together. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Parts {
    /// The largest free block for requests of more than 1 MiB.
    hole: u64,
    /// The bytes of segments that are wholly free.
    segments: u64,
    /// The bytes of pieces (20 MiB; 2 MiB for small requests) that are wholly free.
    pieces: u64,
    /// The bytes that PyTorch gives back before it refuses a request: wholly free segments, and wholly free pieces of
    /// expandable segments.
    pub(super) releasable: u64,
    /// The bytes of pieces of 2 MiB that are wholly free.
    granules: u64,
    /// The free bytes at the end of a stream's last expandable segment that lie in a partly used piece of 20 MiB: the
    /// most over all streams.
    edge: u64,
    /// The most bytes that a view gets from the free ends of two partly used pieces of 20 MiB, before and after its
    /// whole pieces.
    ends: u64,
}

/// The free end of a piece of 20 MiB that is partly in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    bytes: u64,
    /// The address of the piece.
    piece: u64,
    /// The address of the free block.
    block: u64,
}

/// Sums the free memory outside of private pools by the parts of [`Parts`]. Segments are added in the order of their
/// addresses.
#[derive(Debug, Default)]
pub(super) struct PartsCounter {
    parts: Parts,
    heads: Vec<End>,
    tails: Vec<End>,
    /// For each stream, the free bytes at the end of its last expandable segment that lie in a partly used piece of 20
    /// MiB.
    edges: SeededMap<StreamId, u64>,
}

impl PartsCounter {
    /// Adds a segment with these free ranges, each given by its first byte and its end.
    pub(super) fn add(
        &mut self,
        segment: &SegmentInfo,
        free: impl Iterator<Item = (u64, u64)>,
        memory: &mut Memory,
    ) -> Result<(), MemoryError> {
        let piece = if segment.small { GRANULE } else { LARGE_PIECE };
        let end = segment.address.saturating_add(segment.total_size);
        let mut edge = 0;
        for (from, to) in free {
            if !segment.small {
                self.parts.hole = self.parts.hole.max(to - from);
            }
            let is_whole = (from, to) == (segment.address, end);
            if is_whole {
                self.parts.segments = self.parts.segments.saturating_add(segment.total_size);
            }
            let whole = |unit: u64| whole(segment.address, end, unit, from, to);
            let (first, last) = whole(GRANULE);
            self.parts.granules = self.parts.granules.saturating_add(last.saturating_sub(first));
            let (first, last) = whole(piece);
            let pieces = last.saturating_sub(first);
            self.parts.pieces = self.parts.pieces.saturating_add(pieces);
            if is_whole || segment.expandable {
                self.parts.releasable = self.parts.releasable.saturating_add(pieces);
            }
            if to == end {
                edge = first - from;
            }
            // A free block within one piece that touches neither end of it (`first > last`) cannot begin or end a view.
            // In a segment for small requests a view takes whole pieces only, so the ends do not count.
            let has_ends = first <= last && !segment.small;
            let head = if has_ends { first - from } else { 0 };
            let tail = if has_ends { to - last } else { 0 };
            if head > 0 {
                let end = End { bytes: head, piece: first.saturating_sub(piece), block: from };
                memory.push(&mut self.heads, end)?;
            }
            if tail > 0 {
                memory.push(&mut self.tails, End { bytes: tail, piece: last, block: from })?;
            }
        }
        if segment.expandable && !segment.small {
            memory.room_in_map(&mut self.edges)?;
            self.edges.insert(segment.stream, edge);
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Parts {
        self.heads.sort_unstable_by_key(|end| Reverse(end.bytes));
        self.tails.sort_unstable_by_key(|end| Reverse(end.bytes));
        // A view joins a pair of free ends, which lie in different pieces and different free blocks. An end shares its
        // piece with at most one other end, and its block with at most one, so the best pair is among the few largest
        // ends.
        const FEW: usize = 3;
        let fits = |head: &End, tail: &End| head.block != tail.block && head.piece != tail.piece;
        let pairs =
            self.heads.iter().take(FEW).flat_map(|head| self.tails.iter().take(FEW).map(move |tail| (head, tail)));
        let both = pairs.filter(|(head, tail)| fits(head, tail)).map(|(head, tail)| head.bytes + tail.bytes);
        let alone = self.heads.iter().chain(&self.tails).map(|end| end.bytes);
        let ends = both.chain(alone).max().unwrap_or(0);
        let edge = self.edges.values().copied().max().unwrap_or(0);
        Parts { ends, edge, ..self.parts }
    }
}

/// Returns the beginning and the end of those pieces of `unit` bytes of a segment that lie wholly in the range from
/// `from` to `to`. The last piece of a segment may be short. If the beginning is larger than the end, the range lies
/// inside of one piece and touches neither end of the piece.
fn whole(start: u64, end: u64, unit: u64, from: u64, to: u64) -> (u64, u64) {
    let offset = (from - start).checked_next_multiple_of(unit).unwrap_or(u64::MAX);
    let first = start.saturating_add(offset).min(end);
    let last = if to == end { end } else { to - (to - start) % unit };
    (first, last)
}

impl LargestRequests {
    /// Returns the requests, each limited to `most` bytes.
    pub(super) fn at_most(self, most: u64) -> Self {
        let Self { native, expandable, unsplit, stitch } = self;
        let [native, expandable, unsplit, stitch] = [native, expandable, unsplit, stitch].map(|bytes| bytes.min(most));
        Self { native, expandable, unsplit, stitch }
    }
}

impl Parts {
    /// Returns the largest requests if the device has `room` bytes beside the reserved memory.
    pub(super) fn largest(&self, room: u64) -> LargestRequests {
        let Self { hole, segments, pieces, granules, edge, ends, .. } = *self;
        let whole = |bytes: u64, unit: u64| bytes - bytes % unit;
        let native = hole.max(whole(room.saturating_add(segments), GRANULE));
        let expandable = hole.max(edge.saturating_add(whole(room.saturating_add(pieces), LARGE_PIECE)));
        let unsplit = hole.max(whole(room, GRANULE).saturating_add(pieces).saturating_add(ends));
        let stitch = unsplit.max(whole(room, GRANULE).saturating_add(granules));
        LargestRequests { native, expandable, unsplit, stitch }
    }
}
