//! A test's own book of physical memory, not of addresses, so that it holds for views too: no two live blocks share a byte.

use seamalloc::driver::sim::{Piece, Range, SimGpu};
use std::collections::BTreeMap;

/// Where live blocks lie: memory and offset to the end there.
#[derive(Default)]
pub(crate) struct Taken(BTreeMap<(u64, u64), u64>);

impl Taken {
    /// A block has these pieces from now on. None of their bytes may be another's.
    pub(crate) fn take(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            let end = piece.offset + piece.size;
            let before = self.last_below(piece.memory, end);
            let clash = before.is_some_and(|(_, other_end)| other_end > piece.offset);
            assert!(!clash, "{piece:?} is part of a live block already: {before:?}");
            self.0.insert((piece.memory, piece.offset), end);
        }
    }

    /// The block that took them is freed.
    #[allow(dead_code, reason = "some tests make the book anew each time")]
    pub(crate) fn release(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            assert_eq!(self.0.remove(&(piece.memory, piece.offset)), Some(piece.offset + piece.size), "{piece:?}");
        }
    }

    /// The last part taken of a memory that begins below an offset: its own offset and end.
    pub(crate) fn last_below(&self, memory: u64, offset: u64) -> Option<(u64, u64)> {
        self.0.range((memory, 0)..(memory, offset)).next_back().map(|(&(_, from), &to)| (from, to))
    }
}

/// The memory of a live block, which lies behind every byte.
#[allow(dead_code, reason = "some tests look at other devices")]
pub(crate) fn lies(gpu: &SimGpu, range: Range) -> Vec<Piece> {
    let pieces = gpu.physical(range);
    assert_eq!(pieces.iter().map(|piece| piece.size).sum::<u64>(), range.size, "memory behind every byte of {range}");
    pieces
}
