//! Host memory of earlier spills, kept for the next spill.
//!
//! Owns: [`HostStock`]: the kept pieces, how many bytes may be kept, and which pieces the next spill uses.
//! `backing/host_stock.rs` makes the calls.
//!
//! The operating system takes a third of a second to page-lock a GiB, which is most of the time of a spill. So the host
//! memory of chunks that come back, or are freed, is kept here. Kept and spilled bytes together never exceed the most
//! bytes that were spilled at one time. So keeping memory takes no more host memory than spilling has taken before.

use crate::fallible::{Grown, TryCollect};
use crate::ids::Handle;

/// The most pieces into which one spilled part is cut. Each piece then becomes a chunk of its own.
const MAX_PIECES: usize = 4;

/// Page-locked host memory that is unused at present.
#[derive(Debug, Default)]
pub(crate) struct HostStock {
    /// The bytes and the handle of each kept piece, the smallest piece first.
    pieces: Vec<(u64, Handle)>,
    /// The bytes of all kept pieces.
    bytes: u64,
    /// The most bytes that were spilled at one time since all kept memory was last given back.
    most_spilled: u64,
}

impl HostStock {
    /// Returns the bytes of all kept pieces.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes how many bytes are spilled.
    pub(crate) fn note_spilled(&mut self, bytes: u64) {
        self.most_spilled = self.most_spilled.max(bytes);
    }

    /// Returns by how many bytes kept and spilled bytes together exceed their bound while `spilled` bytes are spilled.
    pub(crate) fn excess(&self, spilled: u64) -> u64 {
        (self.bytes + spilled).saturating_sub(self.most_spilled.max(spilled))
    }

    /// Returns whether `size` more bytes may be kept while `spilled` bytes are spilled.
    pub(crate) fn allows(&self, size: u64, spilled: u64) -> bool {
        self.bytes + size + spilled <= self.most_spilled
    }

    /// Makes room for `pieces` more pieces.
    pub(crate) fn reserve(&mut self, pieces: usize) -> Grown<()> {
        self.pieces.try_reserve(pieces)
    }

    /// Takes a kept piece of host memory of exactly `size` bytes, or returns `None`.
    pub(crate) fn take(&mut self, size: u64) -> Option<Handle> {
        let at = self.pieces.partition_point(|piece| piece.0 < size);
        self.pieces.get(at).filter(|piece| piece.0 == size)?;
        Some(self.remove(at).1)
    }

    /// Takes the piece of kept host memory to give back for an excess of `excess` bytes: the smallest piece of at least
    /// so many bytes, or else the largest piece.
    pub(crate) fn take_for(&mut self, excess: u64) -> Option<(u64, Handle)> {
        let enough = self.pieces.partition_point(|piece| piece.0 < excess);
        let at = enough.min(self.pieces.len().checked_sub(1)?);
        Some(self.remove(at))
    }

    fn remove(&mut self, at: usize) -> (u64, Handle) {
        let piece = self.pieces.remove(at);
        self.bytes -= piece.0;
        piece
    }

    /// Keeps a piece of host memory. The list has room for the piece ([`Self::reserve`]).
    pub(crate) fn put(&mut self, size: u64, handle: Handle) {
        let at = self.pieces.partition_point(|piece| piece.0 < size);
        self.pieces.insert(at, (size, handle));
        self.bytes += size;
    }

    /// Notes that all kept memory was given back while `spilled` bytes are spilled. `spilled` is the new bound on kept
    /// and spilled bytes together.
    pub(crate) fn emptied(&mut self, spilled: u64) {
        self.most_spilled = spilled;
    }

    /// Returns the sizes of all kept pieces, from which the parts of a spill are made.
    pub(crate) fn sizes(&self) -> Grown<Sizes> {
        Ok(Sizes(self.pieces.iter().map(|piece| piece.0).try_to_vec()?))
    }

    /// Returns whether the pieces are in order, and `bytes` is their sum.
    pub(in crate::heap) fn is_whole(&self) -> bool {
        self.pieces.is_sorted_by_key(|piece| piece.0)
            && self.pieces.iter().map(|piece| piece.0).sum::<u64>() == self.bytes
    }
}

/// The sizes of the kept pieces of host memory that no spilled part has taken yet, the smallest first.
#[derive(Debug)]
pub(crate) struct Sizes(Vec<u64>);

impl Sizes {
    /// Cuts a spilled part of `size` bytes into the largest kept pieces that fit, and one piece for the remaining
    /// bytes. Calls `part` with the bytes of each piece.
    pub(crate) fn cut(&mut self, size: u64, mut part: impl FnMut(u64) -> Grown<()>) -> Grown<()> {
        let mut left = size;
        for _ in 1..MAX_PIECES {
            let Some(at) = self.0.partition_point(|kept| *kept <= left).checked_sub(1) else { break };
            let kept = self.0.remove(at);
            part(kept)?;
            left -= kept;
        }
        // A kept piece may have exactly the remaining bytes.
        if let Ok(at) = self.0.binary_search(&left) {
            self.0.remove(at);
        }
        if left > 0 { part(left) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stock(sizes: &[u64]) -> HostStock {
        let mut stock = HostStock::default();
        stock.reserve(sizes.len()).unwrap();
        sizes.iter().enumerate().for_each(|(number, size)| stock.put(*size, Handle(number as u64)));
        assert!(stock.is_whole());
        stock
    }

    fn cut(sizes: &mut Sizes, size: u64) -> Vec<u64> {
        let mut parts = Vec::new();
        sizes
            .cut(size, |part| {
                parts.push(part);
                Ok(())
            })
            .unwrap();
        parts
    }

    #[test]
    fn parts_are_put_together_from_what_is_kept() {
        let mut sizes = stock(&[20, 4, 8, 8, 2]).sizes().unwrap();
        assert_eq!(cut(&mut sizes, 20), [20], "one that fits as it is");
        assert_eq!(cut(&mut sizes, 19), [8, 8, 2, 1], "the largest first, and one byte that is new");
        assert_eq!(cut(&mut sizes, 3), [3], "none fits");
        assert_eq!(cut(&mut sizes, 4), [4]);
        assert_eq!(cut(&mut sizes, 4), [4], "it is taken, and this one is new");
        let mut many = stock(&[1; 9]).sizes().unwrap();
        assert_eq!(cut(&mut many, 9), [1, 1, 1, 6], "not from many");
        assert_eq!(cut(&mut many, 4), [1, 1, 1, 1], "the last piece is a kept one too");
        assert_eq!(many.0.len(), 2);
    }

    #[test]
    fn no_more_is_kept_than_lay_spilled() {
        let mut stock = stock(&[4, 8]);
        assert_eq!(stock.excess(0), 12);
        stock.note_spilled(20);
        assert_eq!((stock.excess(8), stock.excess(10)), (0, 2));
        assert!(stock.allows(8, 0) && !stock.allows(9, 0) && !stock.allows(8, 1));
        assert_eq!(stock.excess(30), 12, "beside more than ever nothing is kept");
        assert_eq!(stock.take_for(5).unwrap().0, 8, "the smallest that is enough");
        assert_eq!(stock.take_for(5).unwrap().0, 4, "or the largest");
        assert!(stock.take_for(5).is_none() && stock.take(4).is_none() && stock.bytes() == 0);
        stock.emptied(6);
        assert!(stock.allows(6, 0) && !stock.allows(7, 0));
    }
}
