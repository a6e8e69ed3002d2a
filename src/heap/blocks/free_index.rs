//! The free blocks of one pool, found by size: exact best fit, at the lowest address among blocks of equal size.
//!
//! Owns: the order of free blocks. The index links blocks through `left` and `right` of the [`BlockTable`], so that no
//! operation allocates.
//!
//! Blocks fall into bins of similar size, 32 bins for each power of two. Two levels of bitmap tell which bins hold
//! blocks. Each bin is a treap ordered by (size, address): a search tree that is balanced by a hash of the block's id.
//! Most trees hold a handful of blocks. A search in a tree of thousands of near-equal blocks still takes logarithmic
//! time.
//!
//! ```text
//! size / 512 = 0b1_01101_01100   power of two 2^10, mantissa 01101 -> bin (10 - 5 + 1) * 32 + 13
//!                ^ ^^^^^ 5 bits choose the bin, the rest is ordered inside it
//! ```

use super::block::BlockTable;
use crate::config::rounding::MIN_BLOCK;
use crate::fallible::{Grown, TryPush, filled, with_room};
use crate::heap::fingerprint::Fingerprint;
use crate::ids::BlockId;

const MANTISSA_BITS: u32 = 5;
const PER_OCTAVE: usize = 1 << MANTISSA_BITS;
/// The bins are for sizes of up to 2^42 units of 512 B (2 PiB). Larger sizes share the last bin.
const BINS: usize = 38 * PER_OCTAVE;
const WORDS: usize = BINS / 64;

/// The free blocks of one pool.
#[derive(Debug)]
pub(in crate::heap) struct FreeIndex {
    roots: Box<[BlockId; BINS]>,
    /// One bit for each bin: 1 if the bin holds a block.
    occupied: [u64; WORDS],
    /// One bit for each word of `occupied`: 1 if the word is not 0.
    summary: u64,
    len: usize,
    /// The fingerprint (a hash) of the blocks of at least `counted_from` bytes.
    fingerprint: Fingerprint,
    counted_from: u64,
}

/// The place of a link: the root of a bin, or a child link of a block.
#[derive(Clone, Copy)]
enum Link {
    Root(usize),
    Left(BlockId),
    Right(BlockId),
}

impl FreeIndex {
    /// The bytes of host memory of an index besides the struct itself.
    pub(super) const HOST_BYTES: usize = BINS * size_of::<BlockId>();

    /// Makes an index whose fingerprint counts blocks of at least `counted_from` bytes.
    pub(super) fn new(counted_from: u64) -> Grown<Self> {
        // A boxed array cannot be allocated fallibly, so a vector is allocated and converted in place.
        let roots = filled(BlockId::NONE, BINS)?.try_into().unwrap_or_else(|_| Box::new([BlockId::NONE; BINS]));
        Ok(Self { roots, occupied: [0; WORDS], summary: 0, len: 0, fingerprint: Fingerprint::default(), counted_from })
    }

    /// Returns the number of blocks in the index.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    #[inline]
    fn count(&mut self, (size, address): (u64, u64)) {
        if size >= self.counted_from {
            self.fingerprint.flip(address, size);
        }
    }

    /// Adds a block. The block's size and address must not change while the block is in the index.
    pub(super) fn insert(&mut self, table: &mut BlockTable, id: BlockId) {
        let key = key_of(table, id);
        let bin = bin_of(key.0);
        let mut link = Link::Root(bin);
        let mut at = self.get(table, link);
        while at.is_some() && priority(at) >= priority(id) {
            link = if key < key_of(table, at) { Link::Left(at) } else { Link::Right(at) };
            at = self.get(table, link);
        }
        self.set(table, link, id);
        // Split the subtree at `at` by the new key: smaller blocks go to the left, larger blocks to the right.
        let (mut smaller, mut larger) = (Link::Left(id), Link::Right(id));
        while at.is_some() {
            if key_of(table, at) < key {
                self.set(table, smaller, at);
                smaller = Link::Right(at);
                at = table[at].right;
            } else {
                self.set(table, larger, at);
                larger = Link::Left(at);
                at = table[at].left;
            }
        }
        self.set(table, smaller, BlockId::NONE);
        self.set(table, larger, BlockId::NONE);
        self.occupied[bin / 64] |= 1 << (bin % 64);
        self.summary |= 1 << (bin / 64);
        self.len += 1;
        self.count(key);
    }

    /// Removes a block. Returns whether the index held the block.
    pub(super) fn remove(&mut self, table: &mut BlockTable, id: BlockId) -> bool {
        let key = key_of(table, id);
        let bin = bin_of(key.0);
        let mut link = Link::Root(bin);
        let mut at = self.get(table, link);
        while at != id {
            if at.is_none() {
                return false;
            }
            link = if key < key_of(table, at) { Link::Left(at) } else { Link::Right(at) };
            at = self.get(table, link);
        }
        // Merge the block's two subtrees into the block's place, the higher priority on top.
        let (mut left, mut right) = (table[id].left, table[id].right);
        while left.is_some() && right.is_some() {
            if priority(left) >= priority(right) {
                self.set(table, link, left);
                link = Link::Right(left);
                left = table[left].right;
            } else {
                self.set(table, link, right);
                link = Link::Left(right);
                right = table[right].left;
            }
        }
        self.set(table, link, if left.is_some() { left } else { right });
        table[id].left = BlockId::NONE;
        table[id].right = BlockId::NONE;
        if self.roots[bin].is_none() {
            self.occupied[bin / 64] &= !(1 << (bin % 64));
            if self.occupied[bin / 64] == 0 {
                self.summary &= !(1 << (bin / 64));
            }
        }
        self.len -= 1;
        self.count(key);
        true
    }

    /// Returns whether a search for the block's size and address finds the block.
    pub(super) fn holds(&self, table: &BlockTable, id: BlockId) -> bool {
        let (size, address) = key_of(table, id);
        self.at_or_after(table, (size, address)) == id
    }

    /// Returns the smallest block of at least `size` bytes, at the lowest address among equal blocks, or
    /// [`BlockId::NONE`].
    pub(super) fn best_fit(&self, table: &BlockTable, size: u64) -> BlockId {
        self.at_or_after(table, (size, 0))
    }

    /// Returns the next block in the order of size and address, or [`BlockId::NONE`].
    pub(super) fn successor(&self, table: &BlockTable, id: BlockId) -> BlockId {
        let (size, address) = key_of(table, id);
        self.at_or_after(table, (size, address + 1))
    }

    /// Returns the last block in the order of size and address, or [`BlockId::NONE`].
    pub(super) fn largest(&self, table: &BlockTable) -> BlockId {
        let Some(word) = 63u32.checked_sub(self.summary.leading_zeros()) else { return BlockId::NONE };
        let word = word as usize;
        let bin = word * 64 + (63 - self.occupied[word].leading_zeros() as usize);
        let mut at = self.roots[bin];
        while table[at].right.is_some() {
            at = table[at].right;
        }
        at
    }

    /// Returns every block, in the order of size and address. The method allocates, so it is not for the hot path.
    pub(super) fn in_order(&self, table: &BlockTable) -> Grown<Vec<BlockId>> {
        let mut out = with_room(self.len)?;
        self.visit_from(table, 0, |id| out.try_push(id))?;
        Ok(out)
    }

    /// Visits every block of at least `size` bytes, in the order of size and address, each in constant time on average.
    /// The method allocates, so it is not for the hot path.
    pub(super) fn visit_from(
        &self,
        table: &BlockTable,
        size: u64,
        mut visit: impl FnMut(BlockId) -> Grown<()>,
    ) -> Grown<()> {
        // The ancestors of the present block that come after the block in the order of size and address.
        let mut above = Vec::new();
        let mut bin = bin_of(size);
        loop {
            let mut at = self.roots[bin];
            while at.is_some() || !above.is_empty() {
                while at.is_some() {
                    above.try_push(at)?;
                    at = table[at].left;
                }
                let Some(id) = above.pop() else { break };
                if table[id].size >= size {
                    visit(id)?;
                }
                at = table[id].right;
            }
            match self.next_occupied(bin) {
                Some(next) => bin = next,
                None => return Ok(()),
            }
        }
    }

    fn at_or_after(&self, table: &BlockTable, key: (u64, u64)) -> BlockId {
        let bin = bin_of(key.0);
        let mut found = BlockId::NONE;
        let mut at = self.roots[bin];
        while at.is_some() {
            if key_of(table, at) >= key {
                found = at;
                at = table[at].left;
            } else {
                at = table[at].right;
            }
        }
        if found.is_some() {
            return found;
        }
        let Some(bin) = self.next_occupied(bin) else { return BlockId::NONE };
        at = self.roots[bin];
        while table[at].left.is_some() {
            at = table[at].left;
        }
        at
    }

    /// Returns the first bin after `bin` that holds a block.
    fn next_occupied(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let rest = self.occupied[word] & (!0u64 << (bin % 64) << 1);
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let words = self.summary & (!0u64 << word << 1);
        if words == 0 {
            return None;
        }
        let word = words.trailing_zeros() as usize;
        Some(word * 64 + self.occupied[word].trailing_zeros() as usize)
    }

    fn get(&self, table: &BlockTable, link: Link) -> BlockId {
        match link {
            Link::Root(bin) => self.roots[bin],
            Link::Left(id) => table[id].left,
            Link::Right(id) => table[id].right,
        }
    }

    fn set(&mut self, table: &mut BlockTable, link: Link, to: BlockId) {
        match link {
            Link::Root(bin) => self.roots[bin] = to,
            Link::Left(id) => table[id].left = to,
            Link::Right(id) => table[id].right = to,
        }
    }
}

fn key_of(table: &BlockTable, id: BlockId) -> (u64, u64) {
    let block = &table[id];
    (block.size, block.address)
}

/// Returns a hash of the id. The hash keeps trees balanced whatever the order of frees.
fn priority(id: BlockId) -> u32 {
    let x = id.0.wrapping_mul(0x9E37_79B1);
    x ^ (x >> 15)
}

/// Returns the bin of a size. The function is monotonic: a larger block never has a lower bin.
fn bin_of(size: u64) -> usize {
    let units = size / MIN_BLOCK;
    if units < PER_OCTAVE as u64 {
        return units as usize;
    }
    let exponent = 63 - units.leading_zeros();
    let mantissa = (units >> (exponent - MANTISSA_BITS)) as usize & (PER_OCTAVE - 1);
    let bin = (exponent - MANTISSA_BITS + 1) as usize * PER_OCTAVE + mantissa;
    bin.min(BINS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::blocks::block::{Block, Kind, State};
    use crate::ids::{PoolIndex, SegmentId};
    use crate::span::Span;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn block(address: u64, size: u64) -> Block {
        Block::new(Span::new(address, size), PoolIndex::DEFAULT, SegmentId(0), Kind::Malloc, State::Free)
    }

    #[test]
    fn bins_grow_with_size_and_stay_in_range() {
        let mut last = 0;
        for power in 9..63 {
            for step in 0..64u64 {
                let bin = bin_of((1 << power) + (step << power) / 64);
                assert!(bin >= last && bin < BINS, "2^{power} step {step}: bin {bin} after {last}");
                last = bin;
            }
        }
    }

    proptest! {
        /// Compares the index with a sorted set: both give the same answers after any sequence of inserts and removes.
        #[test]
        fn agrees_with_a_sorted_set(ops in proptest::collection::vec((0u8..4, 1u64..5000, 0u64..40), 1..400)) {
            let mut table = BlockTable::new().unwrap();
            let mut index = FreeIndex::new(0).unwrap();
            let mut model = BTreeSet::new();
            let mut ids = Vec::new();
            for (step, (op, units, shift)) in ops.into_iter().enumerate() {
                let size = (units * MIN_BLOCK) << (shift / 4);
                match op {
                    0 | 1 => {
                        let block = block(step as u64 * MIN_BLOCK, size);
                        let id = table.insert(block).unwrap();
                        index.insert(&mut table, id);
                        model.insert((size, block.address, id));
                        ids.push(id);
                    }
                    2 if !ids.is_empty() => {
                        let id = ids.swap_remove(units as usize % ids.len());
                        let block = table[id];
                        prop_assert!(index.remove(&mut table, id));
                        prop_assert!(!index.remove(&mut table, id));
                        model.remove(&(block.size, block.address, id));
                        table.remove(id);
                    }
                    _ => {
                        let found = index.best_fit(&table, size);
                        let want = model.range((size, 0, BlockId::NONE)..).next();
                        prop_assert_eq!(want.map_or(BlockId::NONE, |w| w.2), found);
                        if let Some(want) = want {
                            let after = model.range((want.0, want.1 + 1, BlockId::NONE)..).next();
                            prop_assert_eq!(after.map_or(BlockId::NONE, |w| w.2), index.successor(&table, found));
                        }
                    }
                }
                prop_assert_eq!(index.len(), model.len());
                prop_assert_eq!(index.largest(&table), model.last().map_or(BlockId::NONE, |w| w.2));
            }
            prop_assert_eq!(index.in_order(&table).unwrap(), model.iter().map(|w| w.2).collect::<Vec<_>>());
            for least in model.iter().map(|w| w.0 + 1).chain([0, u64::MAX]) {
                let mut visited = Vec::new();
                index.visit_from(&table, least, |id| visited.try_push(id)).unwrap();
                prop_assert_eq!(visited, model.range((least, 0, BlockId::NONE)..).map(|w| w.2).collect::<Vec<_>>());
            }
        }
    }

    /// All blocks are in one bin, and therefore in one tree. They are added in an order by which the tree has long
    /// branches.
    #[test]
    fn the_largest_of_many_in_one_bin_is_the_last_of_its_tree() {
        let mut table = BlockTable::new().unwrap();
        let mut index = FreeIndex::new(0).unwrap();
        let blocks = (0..500u64).map(|step| block((step * 7919 % 500) * MIN_BLOCK, 1 << 30));
        let mut ids: Vec<_> = blocks.map(|block| table.insert(block).unwrap()).collect();
        ids.iter().for_each(|id| index.insert(&mut table, *id));
        ids.sort_by_key(|id| table[*id].address);
        for id in ids.into_iter().rev() {
            assert_eq!(index.largest(&table), id);
            assert!(index.remove(&mut table, id));
        }
        assert!(index.largest(&table).is_none());
    }

    #[test]
    fn ten_thousand_equal_blocks_are_found_by_lowest_address() {
        let mut table = BlockTable::new().unwrap();
        let mut index = FreeIndex::new(0).unwrap();
        for step in 0..10_000u64 {
            let address = (step * 7919 % 10_000) * MIN_BLOCK;
            let id = table.insert(block(address, MIN_BLOCK)).unwrap();
            index.insert(&mut table, id);
        }
        for step in 0..10_000u64 {
            let id = index.best_fit(&table, 1);
            assert_eq!(table[id].address, step * MIN_BLOCK);
            assert!(index.remove(&mut table, id));
        }
        assert!(index.best_fit(&table, 1).is_none());
    }
}
