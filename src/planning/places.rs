//! Where a plan's requests lie: in one piece of home, or in several behind a view.
//!
//! Owns: which views a plan needs. They are built once, when the plan is put in place; a request then takes its part as it takes any
//! free part of a view.
//!
//! ```text
//! stretch    | tail |  chunk  |  chunk  | head |
//! places     |  a  |  b  |   c    |  d   |  e  |     b, d and e lie in several pieces if these chunks are no neighbours at home
//! views       [ tail, chunk ]       [chunk, head]
//! ```

use super::recorder::NOWHERE;
use crate::fallible::{Grown, TryPush, filled, with_room};
use crate::heap::{Heap, Window};
use crate::ids::{ChunkId, ViewId};
use crate::span::Span;

/// In bytes: parts that overlap share a view up to this size, so that a view has few chunks to look through.
const MAX_SHARED: u64 = 1 << 30;

/// The bit of a code that says that the request lies in pieces.
const IN_PIECES: u64 = 1;

/// Where a request is to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlannedPlace<'a> {
    /// In one piece.
    Home(Span),
    /// In these pieces, through a view with this serial number.
    View { spans: &'a [Span], window: Window, serial: u64 },
    /// In pieces for which there is no view.
    Missing,
}

/// Pieces of home, which a view is to map.
#[derive(Clone, Debug)]
struct Pieces {
    spans: Vec<Span>,
    /// The view, and the first of its bytes.
    view: usize,
    offset: u64,
}

/// A view that a plan needs.
#[derive(Clone, Debug)]
struct PlannedView {
    spans: Vec<Span>,
    /// The view, its serial number, and where the spans begin in it.
    built: Option<(ViewId, u64, u64)>,
}

/// A place in several pieces that is not in a view yet: by its request, and where it lies in which stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stitched {
    pub(super) stretch: (usize, usize),
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) number: usize,
}

/// The place of each request of a plan.
#[derive(Clone, Debug, Default)]
pub(super) struct PlannedPlaces {
    /// An address of home, which is even; or twice the number of the pieces and [`IN_PIECES`]; or [`NOWHERE`].
    codes: Vec<u64>,
    pieces: Vec<Pieces>,
    views: Vec<PlannedView>,
    /// Whether views are to be built.
    pub(super) is_unbuilt: bool,
}

impl PlannedPlaces {
    /// Returns so many requests without a place.
    pub(super) fn none(requests: usize) -> Grown<Self> {
        Ok(Self { codes: filled(NOWHERE, requests)?, ..Self::default() })
    }

    /// Gives a request its place at home.
    pub(super) fn put(&mut self, number: usize, address: u64) {
        if let Some(code) = self.codes.get_mut(number) {
            *code = address;
        }
    }

    /// Gives requests their places in pieces. `pieces` returns those of a part of a stretch.
    pub(super) fn put_stitched(
        &mut self,
        mut stitched: Vec<Stitched>,
        pieces: impl Fn((usize, usize), u64, u64) -> Grown<Vec<Span>>,
    ) -> Grown<()> {
        stitched.sort_unstable();
        let mut at = 0;
        while let Some(first) = stitched.get(at) {
            let (start, mut end) = (first.offset, first.offset + first.size);
            let mut next = at + 1;
            while let Some(of) = stitched.get(next) {
                let of_end = end.max(of.offset + of.size);
                let is_contained = of_end == end;
                if of.stretch != first.stretch || of.offset >= end || (of_end - start > MAX_SHARED && !is_contained) {
                    break;
                }
                (end, next) = (of_end, next + 1);
            }
            let view = self.views.len();
            self.views.try_push(PlannedView { spans: pieces(first.stretch, start, end - start)?, built: None })?;
            for of in &stitched[at..next] {
                let Some(code) = self.codes.get_mut(of.number) else { continue };
                let spans = pieces(of.stretch, of.offset, of.size)?;
                let index = self.pieces.len() as u64;
                self.pieces.try_push(Pieces { spans, view, offset: of.offset - start })?;
                *code = (index << 1) | IN_PIECES;
            }
            at = next;
        }
        self.is_unbuilt = !self.views.is_empty();
        Ok(())
    }

    /// Returns the place of a request.
    #[inline]
    pub(super) fn get(&self, number: usize, size: u64) -> Option<PlannedPlace<'_>> {
        let code = *self.codes.get(number)?;
        if code & IN_PIECES == 0 {
            return (code != NOWHERE).then_some(PlannedPlace::Home(Span::new(code, size)));
        }
        let pieces = self.pieces.get((code >> 1) as usize)?;
        let built = self.views.get(pieces.view).and_then(|view| view.built);
        Some(built.map_or(PlannedPlace::Missing, |(view, serial, base)| PlannedPlace::View {
            spans: &pieces.spans,
            window: Window { view, offset: base + pieces.offset },
            serial,
        }))
    }

    /// Returns whether a request has a place.
    pub(super) fn has(&self, number: usize) -> bool {
        self.codes.get(number).is_some_and(|code| *code != NOWHERE)
    }

    /// Returns the spans of home in which a request of so many bytes lies.
    pub(super) fn spans(&self, number: usize, size: u64) -> impl Iterator<Item = Span> + '_ {
        let code = self.codes.get(number).copied().unwrap_or(NOWHERE);
        let home = (code & IN_PIECES == 0 && code != NOWHERE).then_some(Span::new(code, size));
        let pieces = self.pieces.get((code >> 1) as usize).filter(|_| code & IN_PIECES != 0);
        home.into_iter().chain(pieces.into_iter().flat_map(|pieces| pieces.spans.iter().copied()))
    }

    /// Finds or builds the views that are missing. `build` returns a view over these chunks, if there can be one.
    ///
    /// # Errors
    /// Those of `build`. Views that were built stay.
    pub(super) fn build_views<E>(
        &mut self,
        mut build: impl FnMut(&[Span]) -> Result<Option<(ViewId, u64, u64)>, E>,
    ) -> Result<(), E> {
        self.is_unbuilt = false;
        for view in &mut self.views {
            view.built = None;
            view.built = build(&view.spans)?;
        }
        Ok(())
    }

    /// Returns the bytes of host memory that it takes.
    pub(super) fn host_bytes(&self) -> usize {
        let lists = self.pieces.iter().map(|of| &of.spans).chain(self.views.iter().map(|of| &of.spans));
        lists.map(|spans| spans.capacity() * size_of::<Span>()).sum::<usize>()
            + self.codes.capacity() * size_of::<u64>()
            + self.pieces.capacity() * size_of::<Pieces>()
            + self.views.capacity() * size_of::<PlannedView>()
    }
}

/// Returns the chunks that a view over these spans would map, and where the spans begin in it; `None` if memory is not so any more
/// that a view can map them: each span but the last ends with a chunk, each but the first begins with one, no chunk comes twice, and none
/// is a tag's, whose chunks lie in views of its own.
pub(super) fn chunks_of(heap: &Heap, spans: &[Span]) -> Grown<Option<(Vec<ChunkId>, u64)>> {
    let Some((home, first)) = heap.home().zip(spans.first()) else { return Ok(None) };
    let mut chunks = Vec::new();
    let mut offset = 0;
    for (number, span) in spans.iter().enumerate() {
        let mut at = span.start;
        while at < span.end() {
            let Some((id, chunk)) = home.chunk_at(at).filter(|(_, chunk)| !chunk.asleep && !chunk.spilled) else {
                return Ok(None);
            };
            let begins = at == chunk.address || (number == 0 && at == first.start);
            let ends = chunk.end() <= span.end() || number + 1 == spans.len();
            let is_a_tags = |id| !heap.takes_idle(heap.block(id).pool);
            if !begins || !ends || heap.blocks_over(chunk.span()).any(is_a_tags) {
                return Ok(None);
            }
            if chunks.is_empty() {
                offset = at - chunk.address;
            }
            chunks.try_push(id)?;
            at = chunk.end();
        }
    }
    let mut sorted: Vec<ChunkId> = with_room(chunks.len())?;
    sorted.extend_from_slice(&chunks);
    sorted.sort_unstable();
    let is_twice = sorted.windows(2).any(|pair| pair[0] == pair[1]);
    Ok(Some((chunks, offset)).filter(|_| !is_twice))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stitched(offset: u64, size: u64, number: usize) -> Stitched {
        Stitched { stretch: (0, 0), offset, size, number }
    }

    #[test]
    fn places_that_overlap_share_a_view_and_others_have_their_own() {
        let mut places = PlannedPlaces::none(4).unwrap();
        places.put(3, 4096);
        let pieces = |_, offset, size| Ok(vec![Span::new(offset, 512), Span::new(offset + 8192, size - 512)]);
        let asked = vec![stitched(9216, 1024, 2), stitched(512, 1024, 1), stitched(0, 1024, 0)];
        places.put_stitched(asked, pieces).unwrap();
        assert!(places.is_unbuilt);
        assert_eq!(places.get(0, 1024), Some(PlannedPlace::Missing));
        let mut asked = Vec::new();
        places
            .build_views(|spans| {
                asked.push(spans.to_vec());
                Ok::<_, ()>(Some((ViewId(asked.len() as u32), 7, 256)))
            })
            .unwrap();
        assert_eq!(asked, [pieces((0, 0), 0, 1536).unwrap(), pieces((0, 0), 9216, 1024).unwrap()]);
        let window = |number| match places.get(number, 1024) {
            Some(PlannedPlace::View { window, serial: 7, .. }) => (window.view, window.offset),
            other => panic!("{other:?}"),
        };
        assert_eq!([0, 1, 2].map(window), [(ViewId(1), 256), (ViewId(1), 768), (ViewId(2), 256)]);
        assert_eq!(places.get(3, 100), Some(PlannedPlace::Home(Span::new(4096, 100))));
        assert_eq!(places.spans(1, 1024).map(|span| span.size).sum::<u64>(), 1024);
    }

    #[test]
    fn without_its_view_a_place_is_missing() {
        let mut places = PlannedPlaces::none(2).unwrap();
        let pieces = |_, offset, size| Ok(vec![Span::new(offset, 512), Span::new(offset + 8192, size - 512)]);
        places.put_stitched(vec![stitched(0, 1024, 0)], pieces).unwrap();
        assert_eq!(places.build_views(|_| Err("refused")), Err("refused"));
        assert_eq!(places.get(0, 1024), Some(PlannedPlace::Missing));
        assert_eq!((places.get(1, 1024), places.has(1), places.has(0)), (None, false, true));
    }
}
