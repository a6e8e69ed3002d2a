//! Coop's arena: the whole budget is one range. A block takes the smallest free piece that is large enough; of several
//! such pieces of one size, the piece at the lowest address. An expensive tensor goes to the low end of this piece and
//! a cheap tensor to the high end, so that cheap tensors lie beside each other.
//!
//! The rules are those of `FindPiece`, `FindProperPositionInGroup` and `PieceCmp` with two groups, left and right
//! (`oneflow/core/vm/remat/allocator.cpp` and `.h` of Oneflow-Inc/oneflow; Zhang and others, Coop: Memory is not a
//! Commodity, NeurIPS 2023).

use super::{ALIGNMENT, End, Memory, Piece};
use seamalloc::Error;
use std::collections::{BTreeMap, BTreeSet};

/// One range of memory with two ends.
#[derive(Clone, Debug)]
pub struct Arena {
    budget: u64,
    used: u64,
    /// For each piece, by its address: its bytes, and whether it is free. The pieces cover the range without gaps or
    /// overlaps.
    pieces: BTreeMap<u64, (u64, bool)>,
    /// The free pieces by bytes and address.
    free: BTreeSet<(u64, u64)>,
}

impl Arena {
    /// The first address, which is not 0, as in allocators.
    const BASE: u64 = ALIGNMENT;

    /// Makes an arena of `budget` bytes, rounded down to the alignment.
    #[must_use]
    pub fn new(budget: u64) -> Self {
        let budget = budget / ALIGNMENT * ALIGNMENT;
        let (mut pieces, mut free) = (BTreeMap::new(), BTreeSet::new());
        if budget > 0 {
            pieces.insert(Self::BASE, (budget, true));
            free.insert((budget, Self::BASE));
        }
        Self { budget, used: 0, pieces, free }
    }

    fn add_free(&mut self, address: u64, bytes: u64) {
        if bytes > 0 {
            self.pieces.insert(address, (bytes, true));
            self.free.insert((bytes, address));
        }
    }

    fn take_free(&mut self, address: u64) -> Option<u64> {
        let (bytes, is_free) = *self.pieces.get(&address)?;
        if !is_free {
            return None;
        }
        self.pieces.remove(&address);
        self.free.remove(&(bytes, address));
        Some(bytes)
    }
}

impl Memory for Arena {
    fn allocate(&mut self, bytes: u64, end: End) -> Result<Option<u64>, Error> {
        let bytes = self.rounded(bytes);
        let Some((held, at)) = self.free.range((bytes, 0)..).next().copied() else { return Ok(None) };
        self.take_free(at);
        let address = match end {
            End::Dear => {
                self.add_free(at + bytes, held - bytes);
                at
            }
            End::Cheap => {
                self.add_free(at, held - bytes);
                at + held - bytes
            }
        };
        self.pieces.insert(address, (bytes, false));
        self.used += bytes;
        Ok(Some(address))
    }

    fn free(&mut self, address: u64) -> Result<(), Error> {
        let Some((bytes, false)) = self.pieces.remove(&address) else { return Err(Error::InvalidAddress { address }) };
        self.used -= bytes;
        let (mut start, mut total) = (address, bytes);
        if let Some(next) = self.take_free(address + bytes) {
            total += next;
        }
        let before = self.pieces.range(..address).next_back().map(|(at, piece)| (*at, *piece));
        if let Some((at, (held, true))) = before
            && at + held == address
        {
            self.take_free(at);
            (start, total) = (at, total + held);
        }
        self.add_free(start, total);
        Ok(())
    }

    fn budget(&self) -> u64 {
        self.budget
    }

    fn used(&self) -> u64 {
        self.used
    }

    /// An arena holds all of its memory from the beginning.
    fn peak_reserved(&self) -> u64 {
        self.budget
    }

    fn is_one_range(&self) -> bool {
        true
    }

    fn pieces(&self) -> Vec<Piece> {
        let piece = |(address, (bytes, is_free)): (&u64, &(u64, bool))| Piece {
            address: *address,
            bytes: *bytes,
            segment: 0,
            is_free: *is_free,
        };
        self.pieces.iter().map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(arena: &Arena) -> Vec<(u64, u64, bool)> {
        arena.pieces().iter().map(|piece| (piece.address / 512 - 1, piece.bytes / 512, piece.is_free)).collect()
    }

    #[test]
    fn dear_blocks_lie_low_and_cheap_ones_high_and_neighbours_merge() {
        let mut arena = Arena::new(10 * 512 + 511);
        let place = |arena: &mut Arena, bytes, end| arena.allocate(bytes, end).unwrap().unwrap();
        let dear = place(&mut arena, 513, End::Dear);
        let cheap = place(&mut arena, 512, End::Cheap);
        let second = place(&mut arena, 3 * 512, End::Cheap);
        assert_eq!(ranges(&arena), [(0, 2, false), (2, 4, true), (6, 3, false), (9, 1, false)]);
        assert_eq!((arena.used(), arena.unused()), (6 * 512, 4 * 512));
        assert_eq!(arena.allocate(5 * 512, End::Dear).unwrap(), None);
        arena.free(cheap).unwrap();
        // The block takes the smallest piece that is large enough.
        let last = place(&mut arena, 1, End::Dear);
        assert_eq!(last, cheap);
        arena.free(last).unwrap();
        arena.free(second).unwrap();
        assert_eq!(ranges(&arena), [(0, 2, false), (2, 8, true)]);
        arena.free(dear).unwrap();
        assert_eq!(ranges(&arena), [(0, 10, true)]);
        assert!(arena.free(dear).is_err());
    }
}
