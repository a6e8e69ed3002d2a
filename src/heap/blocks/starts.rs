//! The table by which the block that covers an address of home is found: for each granule, the first block that begins
//! in it.
//!
//! Owns: [`Starts`], with one entry for each granule of 2 MiB. A split or a merge updates one entry.
//!
//! ```text
//! granule    |0     |1     |2     |3     |
//! blocks     |aa bbbbbbbbbbbb cccccccc dd|
//! first      |a     |-     |c     |d     |   the first block that begins in the granule; - none
//! ```

use super::block::BlockTable;
use crate::fallible::{Grown, zeros};
use crate::ids::BlockId;
use crate::span::Span;

/// The size of a granule in bytes: the granularity of the driver's virtual-memory calls on every GPU so far.
pub(crate) const GRANULE: u64 = 2 << 20;

/// The first block that begins in each granule of home.
#[derive(Debug, Default)]
pub(crate) struct Starts {
    /// The first address of home that the table covers.
    from: u64,
    /// The first block that begins in each granule; 0 if no block begins there.
    first: Vec<u32>,
    /// One bit for each granule: 1 if a block begins in the granule.
    begun: Vec<u64>,
}

impl Starts {
    /// Makes the table of `size` bytes of addresses, which have no start address yet.
    pub(in crate::heap) fn of_size(size: u64) -> Grown<Self> {
        let granules = (size / GRANULE) as usize;
        Ok(Self { from: 0, first: zeros(granules)?, begun: zeros(granules.div_ceil(64))? })
    }

    /// Sets the first address of the table.
    pub(in crate::heap) fn placed(mut self, from: u64) -> Self {
        self.from = from;
        self
    }

    /// Makes the table of a wider span, which begins a multiple of 64 granules (one word of bits) before the present
    /// span. Only entries of the `ranges` of home are copied, so that entries between them take no host memory.
    pub(in crate::heap) fn wider(&self, span: Span, ranges: impl Iterator<Item = Span>) -> Grown<Self> {
        let mut out = Self::of_size(span.size)?.placed(span.start);
        let moved = ((self.from - span.start) / GRANULE) as usize;
        for range in ranges {
            let (from, to) = (self.granule(range.start), self.granule(range.end()));
            out.first[from + moved..to + moved].copy_from_slice(&self.first[from..to]);
            let (from, to, moved) = (from / 64, to.div_ceil(64), moved / 64);
            out.begun[from + moved..to + moved].copy_from_slice(&self.begun[from..to]);
        }
        Ok(out)
    }

    /// Returns the bytes of host memory in the table.
    pub(super) fn host_bytes(&self) -> usize {
        self.first.capacity() * size_of::<u32>() + self.begun.capacity() * size_of::<u64>()
    }

    fn granule(&self, address: u64) -> usize {
        (address.wrapping_sub(self.from) / GRANULE) as usize
    }

    /// Notes a block that begins at `address`. The previous block `before` begins at `before_address`.
    #[inline]
    pub(super) fn begins(&mut self, id: BlockId, address: u64, before: BlockId, before_address: u64) {
        let granule = self.granule(address);
        if before.is_some() && self.granule(before_address) == granule {
            return;
        }
        if let Some(first) = self.first.get_mut(granule) {
            *first = id.0;
            self.begun[granule / 64] |= 1 << (granule % 64);
        }
    }

    /// Notes that the block at `address` was merged into the block before it. `next` is the block after the merged
    /// block.
    #[inline]
    pub(super) fn ends(&mut self, id: BlockId, address: u64, next: BlockId, next_address: u64) {
        let granule = self.granule(address);
        if self.first.get(granule) != Some(&id.0) {
            return;
        }
        if next.is_some() && self.granule(next_address) == granule {
            self.first[granule] = next.0;
        } else {
            self.first[granule] = 0;
            self.begun[granule / 64] &= !(1 << (granule % 64));
        }
    }

    /// Returns the block that covers `address`.
    pub(super) fn covering(&self, blocks: &BlockTable, address: u64) -> BlockId {
        let granule = self.granule(address);
        let mut id = BlockId(self.first.get(granule).copied().unwrap_or(0));
        if id.is_none() || blocks[id].address > address {
            id = self.last_before(granule);
        }
        while id.is_some() && blocks[id].end() <= address {
            id = blocks[id].next;
        }
        id
    }

    /// Returns a block that begins in the nearest earlier granule in which any block begins.
    fn last_before(&self, granule: usize) -> BlockId {
        let mut word = granule / 64;
        let Some(&bits) = self.begun.get(word) else { return BlockId::NONE };
        let mut bits = bits & ((1u64 << (granule % 64)) - 1);
        while bits == 0 {
            let Some(before) = word.checked_sub(1) else { return BlockId::NONE };
            word = before;
            bits = self.begun[word];
        }
        BlockId(self.first[word * 64 + 63 - bits.leading_zeros() as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wider_table_leaves_all_where_it_is() {
        const GIB: u64 = 1 << 30;
        let own = Span::new(7 * GIB, GIB);
        for below in [0, 64 * GRANULE, 128 * GRANULE] {
            let mut starts = Starts::of_size(own.size).unwrap().placed(own.start);
            starts.begins(BlockId(1), own.start, BlockId::NONE, 0);
            starts.begins(BlockId(2), own.start + 70 * GRANULE, BlockId(1), own.start);
            let wide = Span::between(own.start - below, own.end() + GIB);
            let mut wider = starts.wider(wide, std::iter::once(own)).unwrap();
            let first = |starts: &Starts, at: u64| starts.first[starts.granule(at)];
            wider.begins(BlockId(9), own.end() + GRANULE, BlockId::NONE, 0);
            let found = [own.start, own.start + 70 * GRANULE, own.end() + GRANULE].map(|at| first(&wider, at));
            assert_eq!(found, [1, 2, 9]);
            assert_eq!(wider.last_before(wider.granule(own.end())), BlockId(2));
            wider.ends(BlockId(9), own.end() + GRANULE, BlockId::NONE, 0);
            assert_eq!(first(&wider, own.end() + GRANULE), 0);
        }
    }
}
