//! The free stretches of memory, as a planner sees them.
//!
//! Owns: how spans of home that lie apart become one address range of a plan, and where a place in it lies.
//!
//! ```text
//! home      |WW.t|....|....|h..W|     W: weights. `t` lies free at a chunk's end (a tail), `h` at a chunk's start (a head)
//! stretch   [ t |....| h ]            a view can map it: it goes on only from the end of one chunk to the start of another
//! ```
//! A stretch of a tail, whole chunks and a head has just the bytes that some requests of the step's peak need, where that is
//! possible: so what lies free beside weights is used, and no new chunk is.

use crate::fallible::{Grown, TryPush, with_room};
use crate::heap::Heap;
use crate::span::Span;
use std::cmp::Reverse;

/// In bytes: a smaller part of a chunk is left out.
const LEAST_PART: u64 = 1 << 20;
/// The most ranges. More make a planner slow, and the smallest gain least.
const MAX_RANGES: usize = 1024;
/// How many tails, and how many heads, are joined with others, the largest first; and how many sizes of requests are tried for each.
const MAX_JOINED: usize = 64;
const MAX_SIZES: usize = 16;
/// Up to so many requests of one size lie in a stretch that is made for them.
const MAX_REQUESTS_EACH: u64 = 3;

/// Spans of home, one behind the other, in which a view can map them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) spans: Vec<Span>,
}

impl Stretch {
    pub(super) fn size(&self) -> u64 {
        self.spans.iter().map(|span| span.size).sum()
    }

    /// Returns each span with its offset.
    pub(super) fn with_offsets(&self) -> impl Iterator<Item = (u64, Span)> + '_ {
        let mut at = 0;
        self.spans.iter().map(move |span| {
            let offset = at;
            at += span.size;
            (offset, *span)
        })
    }

    /// Returns the spans of home of a place, neighbours as one. A place that does not lie within has none.
    pub(super) fn pieces(&self, offset: u64, size: u64) -> Grown<Vec<Span>> {
        let mut pieces: Vec<Span> = Vec::new();
        let Some(end) = offset.checked_add(size).filter(|end| *end <= self.size()) else { return Ok(pieces) };
        for (at, span) in self.with_offsets() {
            let (from, to) = (offset.max(at), end.min(at + span.size));
            if from >= to {
                continue;
            }
            let piece = Span::new(span.start + from - at, to - from);
            match pieces.last_mut() {
                Some(last) if last.end() == piece.start => last.size += piece.size,
                _ => pieces.try_push(piece)?,
            }
        }
        Ok(pieces)
    }
}

/// Free memory by where it lies in its chunks.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeParts {
    tails: Vec<Span>,
    heads: Vec<Span>,
    /// Between what something else holds of one chunk.
    middles: Vec<Span>,
    /// Runs of whole chunks.
    whole: Vec<Span>,
}

/// How a tail is joined with a head and whole chunks.
#[derive(Clone, Copy)]
struct Joint {
    /// Bytes of the tail and the head that are used.
    gain: u64,
    head: Option<usize>,
    /// Bytes of whole chunks between them.
    whole: u64,
    size: u64,
    count: u64,
}

impl FreeParts {
    /// Adds a free span, divided into whole chunks and parts of chunks that something else holds.
    pub(super) fn add(&mut self, heap: &Heap, span: Span) -> Grown<()> {
        let Some(home) = heap.home() else { return Ok(()) };
        let chunks = home.chunk_at(span.start).zip(home.chunk_at(span.end() - 1));
        let Some(((_, first), (_, last))) = chunks else { return Ok(()) };
        let from = if first.address == span.start { span.start } else { first.end().min(span.end()) };
        let to = if last.end() == span.end() { span.end() } else { last.address.max(from) };
        let (before, after) = (Span::between(span.start, from), Span::between(to, span.end()));
        if before.size > LEAST_PART {
            let is_tail = before.end() == first.end();
            if is_tail { &mut self.tails } else { &mut self.middles }.try_push(before)?;
        }
        if after.size > LEAST_PART {
            self.heads.try_push(after)?;
        }
        if from < to { self.whole.try_push(Span::between(from, to)) } else { Ok(()) }
    }

    /// Makes stretches of it: those with parts of chunks first, and how many these are, then all that is left of whole chunks as
    /// one, the longest run first. `peak`: the sizes of the requests that are live when most is, and how many of each.
    pub(super) fn stretches(mut self, heap: &Heap, peak: &mut [(u64, u64)]) -> Grown<(Vec<Stretch>, usize)> {
        let by_size = |span: &Span| (Reverse(span.size), span.start);
        self.whole.sort_unstable_by_key(by_size);
        self.tails.sort_unstable_by_key(by_size);
        self.heads.sort_unstable_by_key(by_size);
        peak.sort_unstable_by_key(|(size, _)| Reverse(*size));
        let mut ranges: Vec<Stretch> = Vec::new();
        let tails = std::mem::take(&mut self.tails);
        let (joined, rest) = tails.split_at(tails.len().min(MAX_JOINED));
        for tail in joined {
            ranges.try_push(self.joined(heap, Some(*tail), peak)?)?;
        }
        for _ in 0..self.heads.len().min(MAX_JOINED) {
            ranges.try_push(self.joined(heap, None, peak)?)?;
        }
        for span in rest.iter().chain(&self.heads).chain(&self.middles) {
            ranges.try_push(Stretch { spans: alone(*span)? })?;
        }
        ranges.retain(|range| !range.spans.is_empty());
        ranges.sort_by_cached_key(|range| (range.size(), range.spans.first().map(|span| span.start)));
        ranges.drain(..ranges.len().saturating_sub(MAX_RANGES));
        let held = ranges.len();
        if !self.whole.is_empty() {
            ranges.try_push(Stretch { spans: self.whole })?;
        }
        Ok((ranges, held))
    }

    /// Joins a tail, if there is one, with a head and whole chunks, so that requests of the peak fill them as well as can be.
    fn joined(&mut self, heap: &Heap, tail: Option<Span>, peak: &mut [(u64, u64)]) -> Grown<Stretch> {
        let mut spans = Vec::new();
        let best = self.best_joint(heap, tail, peak);
        let joint = best.unwrap_or(Joint { gain: 0, head: None, whole: 0, size: 0, count: 0 });
        let fallback = self.heads.iter().position(|head| !is_of_one_chunk(heap, tail, head));
        let head = if best.is_some() { joint.head } else { fallback }.map(|index| self.heads.remove(index));
        if let Some(tail) = tail {
            spans.try_push(tail)?;
        }
        self.take_whole(heap, joint.whole, &mut spans)?;
        if let Some(head) = head {
            spans.try_push(head)?;
        }
        if let Some((_, count)) = peak.iter_mut().find(|(size, _)| *size == joint.size) {
            *count -= joint.count.min(*count);
        }
        Ok(Stretch { spans })
    }

    fn best_joint(&self, heap: &Heap, tail: Option<Span>, peak: &[(u64, u64)]) -> Option<Joint> {
        let chunk = self.last_chunk(heap).map_or(0, |chunk| chunk.size);
        let room: u64 = self.whole.iter().map(|span| span.size).sum();
        let part = tail.map_or(0, |span| span.size);
        // The two ends of one chunk are none: a view that maps a chunk twice would have the same bytes at two addresses.
        let heads = self.heads.iter().take(MAX_JOINED).enumerate();
        let heads = heads.filter(|(_, head)| !is_of_one_chunk(heap, tail, head));
        let heads = heads.map(|(index, span)| (Some(index), span.size));
        let mut best: Option<Joint> = None;
        let alone = tail.map(|_| (None, 0));
        for (head, with) in heads.chain(alone) {
            for (size, left) in peak.iter().filter(|(_, left)| *left > 0).take(MAX_SIZES) {
                for count in 1..=MAX_REQUESTS_EACH.min(*left) {
                    let Some(missing) = size.checked_mul(count).map(|need| need.saturating_sub(part + with)) else {
                        continue;
                    };
                    let whole =
                        if missing == 0 { 0 } else { missing.checked_next_multiple_of(chunk).unwrap_or(u64::MAX) };
                    if (chunk == 0 && missing > 0) || whole > room {
                        continue;
                    }
                    let over = part + with + whole - size * count;
                    let gain = (part + with).saturating_sub(over);
                    let is_better = |best: &Joint| (gain, Reverse(whole)) > (best.gain, Reverse(best.whole));
                    if gain > 0 && best.as_ref().is_none_or(is_better) {
                        best = Some(Joint { gain, head, whole, size: *size, count });
                    }
                }
            }
        }
        best
    }

    /// Returns the chunk that is taken out of the whole ones next: the last one of the shortest run.
    fn last_chunk(&self, heap: &Heap) -> Option<Span> {
        let run = self.whole.last()?;
        let (_, chunk) = heap.home()?.chunk_at(run.end() - 1)?;
        chunk.span().intersection(run)
    }

    /// Takes whole chunks of so many bytes out of the shortest runs.
    fn take_whole(&mut self, heap: &Heap, bytes: u64, spans: &mut Vec<Span>) -> Grown<()> {
        let (mut taken, first) = (0, spans.len());
        while taken < bytes {
            let Some(chunk) = self.last_chunk(heap) else { break };
            spans.try_push(chunk)?;
            taken += chunk.size;
            if let Some(run) = self.whole.last_mut() {
                run.size -= chunk.size;
            }
            self.whole.pop_if(|run| run.size == 0);
        }
        // Chunks of one run come in the order of their addresses, so that neighbours stay in one piece.
        if let Some(new) = spans.get_mut(first..) {
            new.sort_unstable_by_key(|span| span.start);
        }
        Ok(())
    }
}

/// Returns whether a tail and a head are of the same chunk.
fn is_of_one_chunk(heap: &Heap, tail: Option<Span>, head: &Span) -> bool {
    let chunk = |span: &Span| heap.home()?.chunk_at(span.start).map(|(id, _)| id);
    tail.is_some_and(|tail| chunk(&tail) == chunk(head))
}

fn alone(span: Span) -> Grown<Vec<Span>> {
    let mut spans = with_room(1)?;
    spans.push(span);
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_lies_in_as_many_pieces_as_the_stretch_has_there() {
        let spans = vec![Span::new(100, 10), Span::new(500, 20), Span::new(520, 20), Span::new(40, 5)];
        let stretch = Stretch { spans };
        assert_eq!(stretch.pieces(0, 10).unwrap(), [Span::new(100, 10)]);
        assert_eq!(stretch.pieces(5, 30).unwrap(), [Span::new(105, 5), Span::new(500, 25)]);
        assert_eq!(stretch.pieces(5, 50).unwrap(), [Span::new(105, 5), Span::new(500, 40), Span::new(40, 5)]);
        assert!(stretch.pieces(6, 50).unwrap().is_empty(), "beyond the end");
        assert!(stretch.pieces(u64::MAX, 2).unwrap().is_empty());
    }
}
