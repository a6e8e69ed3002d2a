//! The known bytes of the simulated memory, and the writer of each byte.
//!
//! Owns: the known bytes of each piece of physical memory. All other bytes read as 0. Bytes change when work is given
//! to a stream, not when the work would run.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::bookkeeping::{Memory, Piece, Range};

/// The writer of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// The allocator. Kernels may not use bytes that the allocator wrote.
    Allocator,
    Kernel,
}

/// A run of bytes with the same value, up to `end`.
#[derive(Clone, Copy, Debug)]
struct Run {
    end: u64,
    value: u8,
    writer: Writer,
}

/// The known bytes, by the number of the physical memory and the offset in the memory.
#[derive(Debug, Default)]
pub(super) struct Contents(FxHashMap<u64, BTreeMap<u64, Run>>);

impl Contents {
    /// Sets all bytes of a piece.
    pub(super) fn fill(&mut self, piece: Piece, value: u8, writer: Writer) {
        if writer == Writer::Kernel && !self.0.contains_key(&piece.memory) {
            // A kernel's bytes are kept only in memory with known bytes; most memory has none.
            return;
        }
        self.clear(piece);
        let run = Run { end: piece.offset + piece.size, value, writer };
        self.0.entry(piece.memory).or_default().insert(piece.offset, run);
    }

    /// Forgets the bytes of a piece.
    pub(super) fn clear(&mut self, piece: Piece) {
        let Some(runs) = self.0.get_mut(&piece.memory) else { return };
        let (start, end) = (piece.offset, piece.offset + piece.size);
        let met: Vec<(u64, Run)> =
            runs.range(..end).rev().take_while(|(_, run)| run.end > start).map(|(at, run)| (*at, *run)).collect();
        for (at, run) in met {
            runs.remove(&at);
            if at < start {
                runs.insert(at, Run { end: start, ..run });
            }
            if run.end > end {
                runs.insert(end, run);
            }
        }
    }

    /// Copies the bytes of a range to another range. Both ranges must be usable.
    pub(super) fn copy(&mut self, from: Range, to: Range, memory: &Memory<()>) {
        self.copy_pieces(memory.physical_at(from), memory.physical_at(to));
    }

    /// Copies the bytes of pieces to the same number of bytes in other pieces.
    pub(super) fn copy_pieces(&mut self, from: Vec<Piece>, to: Vec<Piece>) {
        let mut known = Vec::new();
        let mut begin = 0;
        for piece in from {
            let end = piece.offset + piece.size;
            let runs = self.0.get(&piece.memory).into_iter().flat_map(|runs| runs.range(..end).rev());
            for (at, run) in runs.take_while(|(_, run)| run.end > piece.offset) {
                let (first, last) = ((*at).max(piece.offset), run.end.min(end));
                known.push((begin + first - piece.offset, Run { end: begin + last - piece.offset, ..*run }));
            }
            begin += piece.size;
        }
        let mut begin = 0;
        for piece in to {
            self.clear(piece);
            let end = begin + piece.size;
            for (at, run) in known.iter().filter(|(at, run)| *at < end && run.end > begin) {
                let first = piece.offset + (*at).max(begin) - begin;
                let run = Run { end: piece.offset + run.end.min(end) - begin, ..*run };
                self.0.entry(piece.memory).or_default().insert(first, run);
            }
            begin = end;
        }
    }

    /// Returns the offset and the size of the first bytes in a piece whose last writer is the allocator; `None` if
    /// there are none.
    pub(super) fn of_allocator(&self, piece: Piece) -> Option<(u64, u64)> {
        let end = piece.offset + piece.size;
        let met = |(at, run): (&u64, &Run)| {
            let (from, to) = ((*at).max(piece.offset), run.end.min(end));
            (run.writer == Writer::Allocator && from < to).then(|| (from, to - from))
        };
        // Runs do not overlap, so only the last run that begins before the piece may reach into it.
        let runs = self.0.get(&piece.memory)?;
        let first = runs.range(..=piece.offset).next_back().map_or(piece.offset, |(at, _)| *at);
        runs.range(first..end).find_map(met)
    }

    /// Copies the bytes of a piece into `bytes`.
    pub(super) fn read(&self, piece: Piece, bytes: &mut [u8]) {
        bytes.fill(0);
        let Some(runs) = self.0.get(&piece.memory) else { return };
        let end = piece.offset + piece.size;
        for (at, run) in runs.range(..end).rev().take_while(|(_, run)| run.end > piece.offset) {
            let (from, to) = ((*at).max(piece.offset) - piece.offset, run.end.min(end) - piece.offset);
            if let Some(part) = bytes.get_mut(from as usize..to as usize) {
                part.fill(run.value);
            }
        }
    }

    /// Returns the first part of `range` whose last writer is the allocator. Returns `None` if there is none. Every
    /// byte of `range` must be usable.
    pub(super) fn marked_in(&self, range: Range, memory: &Memory<()>) -> Option<Range> {
        if self.0.is_empty() {
            return None;
        }
        let mut address = range.address;
        for piece in memory.physical_at(range) {
            if let Some((offset, size)) = self.of_allocator(piece) {
                return Some(Range { address: address + (offset - piece.offset), size });
            }
            address += piece.size;
        }
        None
    }

    /// Sets every byte of `range`, which must be usable.
    pub(super) fn fill_range(&mut self, range: Range, value: u8, writer: Writer, memory: &Memory<()>) {
        for piece in memory.physical_at(range) {
            self.fill(piece, value, writer);
        }
    }

    /// Copies the bytes of a range, which must be usable, into `bytes`.
    pub(super) fn read_at(&self, address: u64, bytes: &mut [u8], memory: &Memory<()>) {
        let mut left = bytes;
        for piece in memory.physical_at(Range { address, size: left.len() as u64 }) {
            let Some((part, rest)) = left.split_at_mut_checked(piece.size as usize) else { return };
            self.read(piece, part);
            left = rest;
        }
    }

    /// Sets the bytes of a range, which must be usable.
    pub(super) fn write_at(&mut self, address: u64, bytes: &[u8], memory: &Memory<()>) {
        let mut left = bytes;
        for piece in memory.physical_at(Range { address, size: left.len() as u64 }) {
            let Some((part, rest)) = left.split_at_checked(piece.size as usize) else { return };
            self.write(piece, part);
            left = rest;
        }
    }

    /// Sets the bytes of a piece. Zeros are not stored, since unknown bytes read as 0.
    pub(super) fn write(&mut self, piece: Piece, bytes: &[u8]) {
        self.clear(piece);
        let mut at = piece.offset;
        for equal in bytes.chunk_by(|a, b| a == b) {
            let end = at + equal.len() as u64;
            if let Some(&value) = equal.first().filter(|value| **value != 0) {
                let run = Run { end, value, writer: Writer::Kernel };
                self.0.entry(piece.memory).or_default().insert(at, run);
            }
            at = end;
        }
    }

    /// Returns the numbers of the physical memory in `range` that has known bytes.
    pub(super) fn known_in(&self, range: Range, memory: &Memory<()>) -> Vec<u64> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let numbers = memory.physical_at(range).into_iter().map(|piece| piece.memory);
        numbers.filter(|number| self.0.contains_key(number)).collect()
    }

    /// Forgets the bytes of those memories among `numbers` that no longer exist.
    pub(super) fn forget_gone(&mut self, numbers: impl IntoIterator<Item = u64>, memory: &Memory<()>) {
        numbers.into_iter().filter(|number| !memory.is_there(*number)).for_each(|number| self.forget(number));
    }

    /// Forgets the bytes of one physical memory.
    pub(super) fn forget(&mut self, memory: u64) {
        self.0.remove(&memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, size: u64) -> Piece {
        Piece { memory: 7, offset, size }
    }

    #[test]
    fn later_writes_cover_earlier_ones() {
        let mut contents = Contents::default();
        contents.fill(piece(0, 10), 5, Writer::Kernel);
        assert_eq!(contents.of_allocator(piece(0, 10)), None);
        contents.fill(piece(10, 20), 1, Writer::Allocator);
        contents.fill(piece(15, 5), 2, Writer::Kernel);
        contents.fill(piece(28, 10), 3, Writer::Kernel);
        let mut bytes = [9; 40];
        contents.read(piece(0, 40), &mut bytes);
        assert_eq!(bytes[..10], [0; 10], "what a kernel wrote where nobody looks is not kept");
        assert_eq!((bytes[10..15].to_vec(), bytes[15..20].to_vec()), (vec![1; 5], vec![2; 5]));
        assert_eq!((bytes[20..28].to_vec(), bytes[28..38].to_vec()), (vec![1; 8], vec![3; 10]));
        assert_eq!(bytes[38..], [0; 2]);
        assert_eq!(contents.of_allocator(piece(0, 40)), Some((10, 5)));
        assert_eq!(contents.of_allocator(piece(15, 5)), None);
        assert_eq!(contents.of_allocator(piece(17, 100)), Some((20, 8)));
        contents.forget(7);
        assert_eq!(contents.of_allocator(piece(0, 40)), None);
    }
}
