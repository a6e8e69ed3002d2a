//! Time, cut into sections. A section stands for the moments at which the same set of buffers needs memory. Moments
//! have no section if their set is a part of the set just before or just after them.
//!
//! Owns: the sweep over the lifetimes, the sections of each buffer, and the resulting bound, the peak load. The sweep
//! is that of `Sweep` in google/minimalloc's `src/sweeper.cc` (Apache-2.0), except that a section is left out if the
//! section before contains all of its buffers.

use crate::problem::Problem;

/// A range of sections in which a buffer needs memory, and the range of the buffer's bytes that are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    /// The first section.
    pub(crate) first: u32,
    /// The section after the last one.
    pub(crate) end: u32,
    /// The first byte used, within the buffer.
    pub(crate) low: u64,
    /// The byte after the last byte used.
    pub(crate) high: u64,
}

/// The sections of a problem. Two buffers need memory at the same moment if and only if they share a section.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sections {
    /// The spans of all buffers, one buffer after the other, each in order of time.
    spans: Vec<Span>,
    /// The index of each buffer's first span; the last entry is the number of all spans.
    starts: Vec<u32>,
    /// The bytes that each section needs.
    pub(crate) loads: Vec<u64>,
}

impl Sections {
    pub(crate) fn new(problem: &Problem) -> Self {
        let buffers = problem.buffers();
        // (moment, 0 for an end or 1 for a beginning, index of the span). Ends come first, so that a buffer which
        // begins at the same moment is not live together with the ended one.
        let mut points = Vec::with_capacity(2 * buffers.len());
        let mut spans: Vec<Span> = Vec::with_capacity(buffers.len());
        let mut starts = Vec::with_capacity(buffers.len() + 1);
        for buffer in buffers {
            starts.push(spans.len() as u32);
            for piece in buffer.pieces() {
                let index = spans.len() as u32;
                points.push((piece.lower, 1_u8, index));
                points.push((piece.upper, 0_u8, index));
                spans.push(Span { first: 0, end: 0, low: piece.window.0, high: piece.window.1 });
            }
        }
        starts.push(spans.len() as u32);
        points.sort_unstable();
        let mut loads = Vec::new();
        let (mut load, mut has_begun) = (0_u64, false);
        for (_, kind, index) in points {
            let Some(span) = spans.get_mut(index as usize) else { continue };
            if kind == 1 {
                span.first = loads.len() as u32;
                load += span.high - span.low;
                has_begun = true;
                continue;
            }
            // The first end of a span after a beginning closes the section, since only then is the section's set of
            // buffers complete.
            if has_begun {
                loads.push(load);
                has_begun = false;
            }
            span.end = loads.len() as u32;
            load -= span.high - span.low;
        }
        Self { spans, starts, loads }
    }

    /// Returns the ranges of sections in which a buffer needs memory, in order.
    pub(crate) fn of(&self, buffer: u32) -> &[Span] {
        let from = self.starts[buffer as usize] as usize;
        let to = self.starts[buffer as usize + 1] as usize;
        &self.spans[from..to]
    }

    /// Returns the first section of a buffer and the section after its last.
    pub(crate) fn hull(&self, buffer: u32) -> (u32, u32) {
        let spans = self.of(buffer);
        (spans.first().map_or(0, |span| span.first), spans.last().map_or(0, |span| span.end))
    }

    /// Returns the least distance of the offsets of `below` and `above` if `below` is below `above`: the size of
    /// `below`, unless gaps reduce it. Returns `None` if the two buffers share no section (never need memory at the
    /// same moment).
    ///
    /// The rule is that of `Buffer::effective_size` in google/minimalloc's `src/minimalloc.cc` (Apache-2.0).
    pub(crate) fn distance(&self, below: u32, above: u32) -> Option<i64> {
        let (mut one, mut other) = (self.of(below).iter(), self.of(above).iter());
        let (mut a, mut b) = (one.next(), other.next());
        let mut distance: Option<i64> = None;
        while let (Some(low), Some(high)) = (a, b) {
            if low.first < high.end && high.first < low.end {
                let here = low.high as i64 - high.low as i64;
                distance = Some(distance.map_or(here, |most| most.max(here)));
            }
            if low.end <= high.end {
                a = one.next();
            } else {
                b = other.next();
            }
        }
        distance
    }

    /// Returns the peak load. No plan needs fewer bytes.
    pub(crate) fn bound(&self, problem: &Problem) -> u64 {
        let load = self.loads.iter().copied().max().unwrap_or(0);
        // With gaps, a buffer may be larger than the memory that it needs at any one time.
        let alone = problem.buffers().iter().map(|buffer| buffer.fixed.unwrap_or(0) + buffer.size).max();
        load.max(alone.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Buffer, Gap};

    /// The example is the picture in google/minimalloc's `src/sweeper.h`.
    #[test]
    fn sections_are_the_sets_that_no_other_contains() {
        let of = |lower, upper| Buffer::new(format!("{lower}"), lower, upper, 1);
        let problem = Problem::new("p", vec![of(1, 2), of(2, 4), of(0, 5), of(5, 9)]).unwrap();
        let sections = Sections::new(&problem);
        assert_eq!(sections.loads, [2, 2, 1]);
        let hulls: Vec<_> = (0..4).map(|buffer| sections.hull(buffer)).collect();
        assert_eq!(hulls, [(0, 1), (1, 2), (0, 2), (2, 3)]);
        assert_eq!(sections.bound(&problem), 2);
        assert_eq!((sections.distance(0, 2), sections.distance(0, 1)), (Some(1), None));
    }

    #[test]
    fn gaps_bring_buffers_nearer() {
        let gap = |lower, upper, window| Gap { lower, upper, window };
        let low = Buffer { gaps: vec![gap(2, 6, Some((0, 3)))], ..Buffer::new("low", 0, 6, 10) };
        let high = Buffer { gaps: vec![gap(4, 6, Some((2, 5)))], ..Buffer::new("high", 3, 8, 5) };
        let off = Buffer { gaps: vec![gap(1, 7, None)], ..Buffer::new("off", 0, 8, 100) };
        let problem = Problem::new("p", vec![low, high, off]).unwrap();
        let sections = Sections::new(&problem);
        // From 3 to 4 `low` needs 3 bytes and `high` needs all of its bytes.
        assert_eq!(sections.distance(0, 1), Some(3));
        assert_eq!(sections.distance(1, 0), Some(5));
        assert_eq!((sections.distance(0, 2), sections.distance(1, 2)), (Some(10), Some(5)));
        assert_eq!(sections.bound(&problem), 110);
    }
}
