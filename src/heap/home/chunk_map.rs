//! Home: the addresses at which every chunk of physical memory has its permanent place.
//!
//! Owns: the places of chunks, and which chunks are mapped at home. Both are looked up in constant time, in tables with
//! one entry for each granule of 2 MiB. `blocks/starts.rs` has a third such table, of the blocks. A chunk that only
//! views have used so far is bare: the chunk has its place at home, but is not mapped there.
//!
//! Home is one range of addresses, or several ranges if the driver gives no range that is large enough. The tables go
//! from the first range to the last range, so that a lookup is the same for one range and for many. No two ranges
//! touch, so no block and no run of mappings reaches from one range into another.

use crate::fallible::{Grown, with_room, zeros};
use crate::heap::blocks::starts::{GRANULE, Starts};
use crate::heap::fingerprint::Fingerprint;
use crate::ids::{ChunkId, Handle, SegmentId};
use crate::span::Span;

/// The most addresses of home, in bytes (64 TiB): no tested driver reserved more in one call.
pub(crate) const MAX_HOME: u64 = 64 << 40;

/// Physical memory at its place at home.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) handle: Handle,
    /// Whether the chunk was placed as a slab for small blocks.
    pub(crate) slab: bool,
    /// Whether code outside the allocator knows the physical memory, and not only its addresses.
    pub(crate) pinned: bool,
    /// Whether the chunk sleeps: the chunk's memory and handle were released, and its addresses stay.
    pub(crate) asleep: bool,
    /// Whether the chunk is spilled: its physical memory is host memory.
    pub(crate) spilled: bool,
}

impl Chunk {
    pub(crate) fn end(&self) -> u64 {
        self.address + self.size
    }

    /// Returns the addresses of the chunk at home.
    pub(crate) fn span(&self) -> Span {
        Span::new(self.address, self.size)
    }
}

/// One range of home's addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HomeRange {
    /// The addresses that the driver gave. The range's segment has all of these addresses, except at an end that would
    /// touch another range.
    pub(crate) reserved: Span,
    /// The number of the range's segment.
    pub(crate) segment: SegmentId,
}

/// The tables of a home with one more range.
#[derive(Debug)]
pub(crate) struct WiderTables {
    span: Span,
    starts: Starts,
    chunk_of: Vec<u32>,
    bare: Vec<u64>,
}

/// The home of one device.
#[derive(Debug)]
pub(crate) struct ChunkMap {
    /// All addresses from the first range of home to the last range.
    pub(crate) span: Span,
    /// The ranges of home, in the order in which they were reserved.
    ranges: Vec<HomeRange>,
    /// The number of the chunk that holds each granule, plus one; 0 without a chunk.
    chunk_of: Vec<u32>,
    chunks: Vec<Option<Chunk>>,
    vacant: Vec<u32>,
    /// One bit for each granule: 1 if the granule belongs to a chunk that is not mapped at home.
    bare: Vec<u64>,
    bare_chunks: usize,
    /// The address from which on all slabs for small blocks lie. Large chunks may lie above this address too, if home
    /// has memory in several places.
    slabs_from: u64,
    /// The fingerprint of all chunks: a hash of their addresses and sizes.
    fingerprint: Fingerprint,
}

impl ChunkMap {
    /// Makes the tables of a home with `size` bytes of addresses. The addresses have no start yet.
    pub(crate) fn of_size(size: u64) -> Grown<Self> {
        let granules = (size / GRANULE) as usize;
        Ok(Self {
            span: Span::new(0, size),
            ranges: with_room(1)?,
            chunk_of: zeros(granules)?,
            chunks: Vec::new(),
            vacant: Vec::new(),
            bare: zeros(granules.div_ceil(64))?,
            bare_chunks: 0,
            slabs_from: size,
            fingerprint: Fingerprint::default(),
        })
    }

    /// Sets the addresses of home.
    pub(crate) fn placed(mut self, span: Span, segment: SegmentId) -> Self {
        (self.span, self.slabs_from) = (span, span.end());
        self.ranges.push(HomeRange { reserved: span, segment });
        self
    }

    /// Returns the ranges of home, in the order in which they were reserved.
    pub(crate) fn ranges(&self) -> &[HomeRange] {
        &self.ranges
    }

    /// Returns the bytes of all ranges.
    pub(crate) fn addresses(&self) -> u64 {
        self.ranges.iter().map(|range| range.reserved.size).sum()
    }

    /// Makes room for one more range, before the range is reserved.
    pub(crate) fn reserve_range(&mut self) -> Grown<()> {
        self.ranges.try_reserve(1)
    }

    /// Returns the addresses of one more range, without a granule at each end that would touch another range.
    pub(crate) fn apart(&self, reserved: Span) -> Span {
        let touches =
            |at: u64| self.ranges.iter().any(|range| range.reserved.start == at || range.reserved.end() == at);
        let start = if touches(reserved.start) { reserved.start + GRANULE } else { reserved.start };
        let end = if touches(reserved.end()) { reserved.end() - GRANULE } else { reserved.end() };
        Span::between(start, end)
    }

    /// Makes the tables of a home that has one more range. Returns `None` if the tables would be larger than the tables
    /// of the largest home.
    pub(crate) fn wider(&self, starts: &Starts, range: Span) -> Grown<Option<WiderTables>> {
        // The start moves by whole words of bits, so that no word of `bare` has to be shifted.
        let below = self.span.start.saturating_sub(range.start).next_multiple_of(64 * GRANULE);
        let end = self.span.end().max(range.end());
        let Some(start) = self.span.start.checked_sub(below).filter(|start| end - start <= MAX_HOME) else {
            return Ok(None);
        };
        let span = Span::between(start, end);
        let (granules, moved) = ((span.size / GRANULE) as usize, (below / GRANULE) as usize);
        let mut out = WiderTables {
            span,
            starts: starts.wider(span, self.ranges.iter().map(|range| range.reserved))?,
            chunk_of: zeros(granules)?,
            bare: zeros(granules.div_ceil(64))?,
        };
        // Only entries of ranges are copied: entries between ranges take no host memory.
        for HomeRange { reserved, .. } in &self.ranges {
            let (from, to) = (self.granule(reserved.start), self.granule(reserved.end()));
            out.chunk_of[from + moved..to + moved].copy_from_slice(&self.chunk_of[from..to]);
            let (from, to, moved) = (from / 64, to.div_ceil(64), moved / 64);
            out.bare[from + moved..to + moved].copy_from_slice(&self.bare[from..to]);
        }
        Ok(Some(out))
    }

    /// Adds a range. The tables have room for the range. Returns the new table of the blocks at home, which covers the
    /// range.
    pub(crate) fn add_range(&mut self, range: HomeRange, tables: WiderTables) -> Starts {
        let WiderTables { span, starts, chunk_of, bare } = tables;
        (self.span, self.chunk_of, self.bare) = (span, chunk_of, bare);
        self.ranges.push(range);
        starts
    }

    /// Removes a range without chunks. Returns whether home still has a range.
    pub(crate) fn remove_range(&mut self, segment: SegmentId) -> bool {
        self.ranges.retain(|range| range.segment != segment);
        !self.ranges.is_empty()
    }

    /// Makes room for `count` more chunks.
    pub(crate) fn reserve(&mut self, count: usize) -> Grown<()> {
        self.chunks.try_reserve(count.saturating_sub(self.vacant.len()))?;
        // The list gets room for every chunk, so that no chunk needs host memory to become vacant.
        self.vacant.try_reserve((self.chunks.len() + count).saturating_sub(self.vacant.len()))
    }

    /// Returns the bytes of host memory in the tables.
    pub(crate) fn host_bytes(&self) -> usize {
        self.chunk_of.capacity() * 4 + self.bare.capacity() * 8 + self.chunks.capacity() * size_of::<Option<Chunk>>()
    }

    fn granule(&self, address: u64) -> usize {
        (address.wrapping_sub(self.span.start) / GRANULE) as usize
    }

    /// Returns whether an address lies in a range of home.
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.ranges.iter().any(|range| range.reserved.contains(address))
    }

    /// Returns the chunk that holds `address`, with its number, or `None`.
    pub(crate) fn chunk_at(&self, address: u64) -> Option<(ChunkId, Chunk)> {
        let slot = self.chunk_of.get(self.granule(address)).copied().unwrap_or(0).checked_sub(1)?;
        Some((ChunkId(slot), self.chunks.get(slot as usize).copied().flatten()?))
    }

    /// Returns the chunk with this number, or `None`.
    pub(crate) fn chunk(&self, id: ChunkId) -> Option<Chunk> {
        self.chunks.get(id.0 as usize).copied().flatten()
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Adds a chunk at its place. The chunk is bare at first.
    pub(crate) fn add_chunk(&mut self, chunk: Chunk) -> ChunkId {
        let slot = self.vacant.pop().unwrap_or(self.chunks.len() as u32);
        match self.chunks.get_mut(slot as usize) {
            Some(vacant) => *vacant = Some(chunk),
            None => self.chunks.push(Some(chunk)),
        }
        if chunk.slab {
            self.slabs_from = self.slabs_from.min(chunk.address);
        }
        self.fingerprint.flip(chunk.address, chunk.size);
        let first = self.granule(chunk.address);
        let count = (chunk.size / GRANULE) as usize;
        for granule in self.chunk_of.iter_mut().skip(first).take(count) {
            *granule = slot + 1;
        }
        self.mark(chunk, true);
        ChunkId(slot)
    }

    /// Sets or clears the bare bits of a chunk.
    fn mark(&mut self, chunk: Chunk, bare: bool) {
        let first = self.granule(chunk.address);
        for granule in first..first + (chunk.size / GRANULE) as usize {
            let Some(word) = self.bare.get_mut(granule / 64) else { return };
            let bit = 1 << (granule % 64);
            *word = if bare { *word | bit } else { *word & !bit };
        }
        self.bare_chunks = if bare { self.bare_chunks + 1 } else { self.bare_chunks - 1 };
    }

    /// Notes that a bare chunk was mapped at its place.
    pub(crate) fn mapped(&mut self, chunk: Chunk) {
        if self.is_bare(chunk.address, 1) {
            self.mark(chunk, false);
        }
    }

    /// Returns whether any of these bytes lie in a bare chunk. Addresses outside of home lie in no bare chunk.
    #[inline]
    pub(crate) fn is_bare(&self, address: u64, size: u64) -> bool {
        if self.bare_chunks == 0 {
            return false;
        }
        let (first, last) = (self.granule(address), self.granule(address + size - 1));
        let words = self.bare.get(first / 64..=last / 64).unwrap_or_default();
        let mut from = !0u64 << (first % 64);
        for (index, word) in words.iter().enumerate() {
            let up_to = if first / 64 + index == last / 64 { !0 >> (63 - last % 64) } else { !0 };
            if word & from & up_to != 0 {
                return true;
            }
            from = !0;
        }
        false
    }

    /// Notes that code outside the allocator knows the physical memory of a chunk.
    pub(crate) fn pin(&mut self, id: ChunkId) {
        if let Some(Some(chunk)) = self.chunks.get_mut(id.0 as usize) {
            chunk.pinned = true;
        }
    }

    /// Notes that a chunk has lost its memory (`None`), or has memory again, with this handle.
    pub(crate) fn set_handle(&mut self, id: ChunkId, handle: Option<Handle>) {
        if let Some(Some(chunk)) = self.chunks.get_mut(id.0 as usize) {
            chunk.asleep = handle.is_none();
            chunk.handle = handle.unwrap_or(chunk.handle);
        }
    }

    /// Removes a chunk. The place of the chunk stays empty.
    pub(crate) fn remove_chunk(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunk(id) else { return };
        self.mapped(chunk);
        self.chunks[id.0 as usize] = None;
        self.fingerprint.flip(chunk.address, chunk.size);
        let first = self.granule(chunk.address);
        let count = (chunk.size / GRANULE) as usize;
        for granule in self.chunk_of.iter_mut().skip(first).take(count) {
            *granule = 0;
        }
        self.vacant.push(id.0);
    }

    /// Returns whether an address lies in a chunk that was placed as a slab.
    pub(crate) fn is_slab(&self, address: u64) -> bool {
        address >= self.slabs_from && self.chunk_at(address).is_some_and(|(_, chunk)| chunk.slab)
    }

    /// Returns every chunk with its number.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (ChunkId, Chunk)> + '_ {
        (0..).map(ChunkId).zip(&self.chunks).filter_map(|(id, chunk)| chunk.map(|chunk| (id, chunk)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a home of 1 GiB with chunks of these numbers of granules, at contiguous addresses.
    fn home(granules: &[u64]) -> (ChunkMap, Vec<(ChunkId, Chunk)>) {
        const START: u64 = 7 << 30;
        let mut home = ChunkMap::of_size(1 << 30).unwrap().placed(Span::new(START, 1 << 30), SegmentId(0));
        let mut address = START;
        let mut chunks = Vec::new();
        for (handle, granules) in (0..).map(Handle).zip(granules) {
            let chunk = Chunk {
                address,
                size: granules * GRANULE,
                handle,
                slab: false,
                pinned: false,
                asleep: false,
                spilled: false,
            };
            chunks.push((home.add_chunk(chunk), chunk));
            address = chunk.end();
        }
        (home, chunks)
    }

    #[test]
    fn bare_is_what_touches_a_chunk_that_is_not_mapped() {
        let (mut home, chunks) = home(&[1, 70, 60, 3]);
        let [first, second, third, last] = [0, 1, 2, 3].map(|index| chunks[index].1);
        assert!(home.is_bare(first.address, 134 * GRANULE));
        for mapped in [first, third] {
            home.mapped(mapped);
            home.mapped(mapped);
        }
        assert!(!home.is_bare(first.address, GRANULE) && home.is_bare(first.address, GRANULE + 1));
        assert!(!home.is_bare(third.address, third.size) && home.is_bare(third.address - 1, 1));
        assert!(home.is_bare(third.end() - 1, 2));
        home.mapped(second);
        assert!(!home.is_bare(first.address, third.end() - first.address));
        home.remove_chunk(chunks[3].0);
        assert!(!home.is_bare(last.address, last.size), "a chunk that is gone is not bare");
        assert_eq!(home.bare_chunks, 0);
    }

    #[test]
    fn a_fingerprint_is_that_of_the_chunks() {
        let (mut home, chunks) = home(&[1, 2]);
        let both = home.fingerprint();
        let (last, chunk) = chunks[1];
        home.remove_chunk(last);
        let first = home.fingerprint();
        home.add_chunk(chunk);
        assert!(home.fingerprint() == both && first != both && first != Fingerprint::default());
    }

    #[test]
    fn a_further_range_leaves_all_where_it_is() {
        const GIB: u64 = 1 << 30;
        for start in [GIB, 7 * GIB - GRANULE - GIB / 2, 8 * GIB, 500 * GIB] {
            let (mut home, chunks) = home(&[1, 70, 60, 3]);
            let mut starts = Starts::of_size(home.span.size).unwrap().placed(home.span.start);
            home.mapped(chunks[1].1);
            let reserved = Span::new(start, GIB / 2);
            let inside = home.apart(reserved);
            let cut = if start == 8 * GIB { GRANULE } else { 0 };
            assert_eq!((inside.start, inside.end()), (start + cut, reserved.end()), "ranges do not touch");
            let tables = home.wider(&starts, reserved).unwrap().unwrap();
            home.reserve_range().unwrap();
            let segment = SegmentId(1);
            starts = home.add_range(HomeRange { reserved, segment }, tables);
            let (_, first) = chunks[0];
            let added = Chunk { address: inside.start, size: 5 * GRANULE, handle: Handle(77), ..first };
            let id = home.add_chunk(added);
            for (id, chunk) in chunks.iter().chain([&(id, added)]) {
                for at in [chunk.address, chunk.end() - 1] {
                    assert_eq!(
                        home.chunk_at(at).map(|(found, chunk)| (found, chunk.address)),
                        Some((*id, chunk.address))
                    );
                    assert!(home.holds(at) && home.is_bare(at, 1) == (chunk.address != chunks[1].1.address));
                }
            }
            assert_eq!((home.addresses(), home.ranges().len()), (GIB + GIB / 2, 2));
            assert!(!home.holds(reserved.end()) && !home.is_bare(reserved.end(), GRANULE));
            home.remove_chunk(id);
            assert!(home.remove_range(segment) && !home.holds(inside.start));
        }
        let (home, _) = home(&[1]);
        assert!(home.wider(&Starts::default(), Span::new(2 * MAX_HOME, GIB)).unwrap().is_none(), "tables have a bound");
    }

    #[test]
    fn addresses_outside_of_home_are_not_bare() {
        let (home, chunks) = home(&[1]);
        assert!(home.is_bare(chunks[0].1.address, 1));
        for address in [512, home.span.start - GRANULE, home.span.end(), u64::MAX - GRANULE] {
            assert!(!home.is_bare(address, 512), "{address:#x}");
        }
    }
}
