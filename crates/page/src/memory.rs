//! The physical memory at each address, and a place for each chunk on an axis.
//!
//! Owns: the axis. Physical memory has no order. A new chunk gets the lowest place that is long enough, so the axis is
//! about as long as the peak of held memory.

use crate::tap::Note;
use rustc_hash::FxHashMap;
use seamalloc::driver::Handle;
use std::collections::BTreeMap;

/// A contiguous range on the axis of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) size: u64,
}

impl Piece {
    /// Returns whether two pieces have bytes in common.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.start < other.start + other.size && other.start < self.start + self.size
    }
}

/// Memory of one driver call: a handle, or an allocation of plain memory (`malloc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) at: Piece,
    /// The operation before which the chunk was made. `until` is the operation before which the chunk was given back;
    /// `None` if the chunk was not given back.
    pub(crate) from: u32,
    pub(crate) until: Option<u32>,
}

/// A range of addresses at which memory is mapped.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    size: u64,
    /// The place of the mapped memory on the axis.
    start: u64,
    owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Handle(Handle),
    /// Plain memory (of `malloc`), with the index of its chunk.
    Plain(usize),
    /// Memory of the driver's pool, whose physical place the driver does not report.
    Pool,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    chunk: usize,
    mappings: usize,
    released: bool,
}

/// The memory of a device, derived from its driver calls.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    axis: Axis,
    pub(crate) chunks: Vec<Chunk>,
    handles: FxHashMap<Handle, Held>,
    mappings: BTreeMap<u64, Mapping>,
    /// Every reservation, as its first address and its bytes.
    pub(crate) reservations: Vec<(u64, u64)>,
    /// The lowest address of the driver's pool.
    pool_base: Option<u64>,
}

impl Memory {
    /// Applies a driver call, which was made before operation `now`. Returns the addresses whose memory has changed.
    pub(crate) fn apply(&mut self, note: Note, now: u32) -> Option<(u64, u64)> {
        match note {
            Note::Reserved { address, size } => {
                self.reservations.push((address, size));
                None
            }
            Note::Created { handle, size } => {
                let chunk = self.add_chunk(size, now);
                self.handles.insert(handle, Held { chunk, mappings: 0, released: false });
                None
            }
            Note::Released { handle } => {
                if let Some(held) = self.handles.get_mut(&handle) {
                    held.released = true;
                }
                self.end_if_unused(handle, now);
                None
            }
            Note::Mapped { address, size, offset, handle } => {
                let held = self.handles.get_mut(&handle)?;
                held.mappings += 1;
                let start = self.chunks.get(held.chunk)?.at.start.saturating_add(offset);
                self.mappings.insert(address, Mapping { size, start, owner: Owner::Handle(handle) });
                Some((address, address.saturating_add(size)))
            }
            Note::Unmapped { address, size } => {
                let end = address.saturating_add(size);
                let inside: Vec<_> = self.mappings.range(address..end).map(|(at, _)| *at).collect();
                for at in inside {
                    self.unmap(at, now);
                }
                Some((address, end))
            }
            Note::Taken { address, size } => {
                let chunk = self.add_chunk(size, now);
                let start = self.chunks.get(chunk)?.at.start;
                self.mappings.insert(address, Mapping { size, start, owner: Owner::Plain(chunk) });
                None
            }
            Note::Pooled { address, size } => {
                // A pool is one range of addresses. The pool's memory is shown in the order of the addresses.
                let base = *self.pool_base.get_or_insert(address);
                let start = address.saturating_sub(base);
                self.mappings.insert(address, Mapping { size, start, owner: Owner::Pool });
                None
            }
            Note::Given { address } | Note::Returned { address } => {
                self.unmap(address, now);
                None
            }
        }
    }

    /// Returns the places on the axis of the memory at these addresses, in the order of the addresses. Addresses
    /// without memory are left out.
    pub(crate) fn pieces(&self, address: u64, size: u64) -> Vec<Piece> {
        let end = address.saturating_add(size);
        let mut out: Vec<Piece> = Vec::new();
        let first = self.mappings.range(..=address).next_back().map_or(address, |(at, _)| *at);
        for (at, mapping) in self.mappings.range(first..end) {
            let (from, to) = (address.max(*at), end.min(at.saturating_add(mapping.size)));
            if from >= to {
                continue;
            }
            let piece = Piece { start: mapping.start + (from - at), size: to - from };
            match out.last_mut() {
                Some(last) if last.start + last.size == piece.start => last.size += piece.size,
                _ => out.push(piece),
            }
        }
        out
    }

    /// Begins a pass. Chunks that were given back are dropped, and the other chunks count as made before the first
    /// operation.
    pub(crate) fn begin_pass(&mut self) {
        let mut kept = Vec::new();
        let mut moved = FxHashMap::default();
        for (index, chunk) in self.chunks.iter().enumerate().filter(|(_, chunk)| chunk.until.is_none()) {
            moved.insert(index, kept.len());
            kept.push(Chunk { from: 0, ..*chunk });
        }
        self.chunks = kept;
        let new = |index: usize| moved.get(&index).copied().unwrap_or(index);
        self.handles.values_mut().for_each(|held| held.chunk = new(held.chunk));
        for mapping in self.mappings.values_mut() {
            if let Owner::Plain(chunk) = &mut mapping.owner {
                *chunk = new(*chunk);
            }
        }
    }

    fn add_chunk(&mut self, size: u64, now: u32) -> usize {
        let start = self.axis.take(size);
        self.chunks.push(Chunk { at: Piece { start, size }, from: now, until: None });
        self.chunks.len() - 1
    }

    fn unmap(&mut self, address: u64, now: u32) {
        match self.mappings.remove(&address).map(|mapping| mapping.owner) {
            Some(Owner::Handle(handle)) => {
                if let Some(held) = self.handles.get_mut(&handle) {
                    held.mappings = held.mappings.saturating_sub(1);
                }
                self.end_if_unused(handle, now);
            }
            Some(Owner::Plain(chunk)) => self.end(chunk, now),
            Some(Owner::Pool) | None => {}
        }
    }

    fn end_if_unused(&mut self, handle: Handle, now: u32) {
        let Some(held) = self.handles.get(&handle).copied().filter(|held| held.released && held.mappings == 0) else {
            return;
        };
        self.handles.remove(&handle);
        self.end(held.chunk, now);
    }

    fn end(&mut self, chunk: usize, now: u32) {
        if let Some(chunk) = self.chunks.get_mut(chunk) {
            chunk.until = Some(now);
            self.axis.give(chunk.at);
        }
    }
}

/// The free places of the axis.
#[derive(Debug, Default)]
struct Axis {
    /// Free places below the end of the axis of physical memory, each as its first byte and its length in bytes. No two
    /// of them touch.
    free: BTreeMap<u64, u64>,
    end: u64,
}

impl Axis {
    fn take(&mut self, size: u64) -> u64 {
        let fitting = self.free.iter().find(|(_, bytes)| **bytes >= size).map(|(start, bytes)| (*start, *bytes));
        let Some((start, bytes)) = fitting else {
            let start = self.end;
            self.end = self.end.saturating_add(size);
            return start;
        };
        self.free.remove(&start);
        if bytes > size {
            self.free.insert(start + size, bytes - size);
        }
        start
    }

    fn give(&mut self, Piece { mut start, mut size }: Piece) {
        if let Some((before, bytes)) = self.free.range(..start).next_back().map(|(at, bytes)| (*at, *bytes))
            && before + bytes == start
        {
            self.free.remove(&before);
            (start, size) = (before, size + bytes);
        }
        if let Some(bytes) = self.free.remove(&(start + size)) {
            size += bytes;
        }
        if start + size == self.end {
            self.end = start;
        } else {
            self.free.insert(start, size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn made(memory: &mut Memory, handle: u64, size: u64, address: u64) {
        memory.apply(Note::Created { handle: Handle(handle), size }, 0);
        memory.apply(Note::Mapped { address, size, offset: 0, handle: Handle(handle) }, 0);
    }

    #[test]
    fn memory_that_is_mapped_twice_is_in_one_place() {
        let mut memory = Memory::default();
        (0..3).for_each(|n| made(&mut memory, n, 2 * MIB, (100 + 2 * n) * MIB));
        // The view contains the third and the first chunk.
        for (at, handle) in [(500, 2), (502, 0)] {
            memory.apply(Note::Mapped { address: at * MIB, size: 2 * MIB, offset: 0, handle: Handle(handle) }, 1);
        }
        let piece = |start: u64, size: u64| Piece { start: start * MIB, size: size * MIB };
        assert_eq!(memory.pieces(100 * MIB, 6 * MIB), [piece(0, 6)], "neighbours are one piece");
        assert_eq!(memory.pieces(501 * MIB, 2 * MIB), [piece(5, 1), piece(0, 1)]);
        assert_eq!(memory.pieces(503 * MIB, 9 * MIB), [piece(1, 1)], "what has no memory is left out");
        assert_eq!(memory.pieces(0, 50 * MIB), []);
    }

    #[test]
    fn a_chunk_ends_when_neither_handle_nor_mapping_is_left() {
        let mut memory = Memory::default();
        made(&mut memory, 1, 2 * MIB, 0);
        memory.apply(Note::Mapped { address: 8 * MIB, size: 2 * MIB, offset: 0, handle: Handle(1) }, 3);
        memory.apply(Note::Released { handle: Handle(1) }, 4);
        memory.apply(Note::Unmapped { address: 0, size: 2 * MIB }, 5);
        assert_eq!(memory.chunks[0].until, None);
        memory.apply(Note::Unmapped { address: 8 * MIB, size: 2 * MIB }, 6);
        assert_eq!(memory.chunks[0].until, Some(6));
        made(&mut memory, 2, MIB, 64 * MIB);
        assert_eq!(memory.chunks[1].at.start, 0, "its place is free for others");
    }

    #[test]
    fn places_are_joined_and_taken_from_the_lowest() {
        let mut axis = Axis::default();
        let starts: Vec<_> = [4, 4, 4, 4].into_iter().map(|size| axis.take(size)).collect();
        assert_eq!(starts, [0, 4, 8, 12]);
        axis.give(Piece { start: 0, size: 4 });
        axis.give(Piece { start: 8, size: 4 });
        assert_eq!(axis.take(5), 16);
        axis.give(Piece { start: 4, size: 4 });
        assert_eq!((axis.take(7), axis.take(5)), (0, 7));
        axis.give(Piece { start: 16, size: 5 });
        assert_eq!(axis.end, 16);
    }

    #[test]
    fn plain_memory_stays_itself_in_later_passes() {
        let mut memory = Memory::default();
        for (address, size) in [(10 * MIB, MIB), (20 * MIB, 3 * MIB)] {
            memory.apply(Note::Taken { address, size }, 7);
        }
        memory.apply(Note::Given { address: 10 * MIB }, 9);
        memory.begin_pass();
        let at = Piece { start: MIB, size: 3 * MIB };
        assert_eq!(memory.chunks, [Chunk { at, from: 0, until: None }]);
        memory.apply(Note::Given { address: 20 * MIB }, 2);
        assert_eq!(memory.chunks, [Chunk { at, from: 0, until: Some(2) }]);
    }
}
