//! Home: the one address range in which every chunk of physical memory has its permanent place.
//!
//! Owns: where the chunks are, and which block covers an address. Both are answered in constant time from tables with
//! an entry for each 2 MiB granule, which splits and merges keep up by touching one entry each.
//!
//! ```text
//! granule    |0     |1     |2     |3     |
//! blocks     |aa bbbbbbbbbbbb cccccccc dd|
//! first      |a     |-     |c     |d     |   the first block that begins in the granule; - none
//! ```

use crate::blocks::{BlockId, BlockTable};
use crate::driver::Handle;

/// The size of a granule in bytes: the granularity of the driver's virtual-memory calls on every GPU so far.
pub(crate) const GRANULE: u64 = 2 << 20;

/// Which chunk: an index into the chunks of [`Home`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ChunkId(pub(crate) u32);

/// Physical memory at its place at home.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) handle: Handle,
}

impl Chunk {
    pub(crate) fn end(&self) -> u64 {
        self.address + self.size
    }
}

/// The home of one device.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Its number among the segments.
    pub(crate) segment: u32,
    /// The first block that begins in each granule; 0 is none. Untouched parts of the tables take no host memory.
    first: Vec<u32>,
    /// One bit a granule: a block begins in it.
    begun: Vec<u64>,
    /// The chunk that holds each granule, plus one; 0 is none.
    chunk_of: Vec<u32>,
    chunks: Vec<Option<Chunk>>,
    vacant: Vec<u32>,
    /// From here on lie the slabs for small blocks.
    slabs_from: u64,
}

impl Home {
    pub(crate) fn new(address: u64, size: u64, segment: u32, head: BlockId) -> Self {
        let granules = (size / GRANULE) as usize;
        let mut home = Self {
            address,
            size,
            segment,
            first: vec![0; granules],
            begun: vec![0; granules.div_ceil(64)],
            chunk_of: vec![0; granules],
            chunks: Vec::new(),
            vacant: Vec::new(),
            slabs_from: address + size,
        };
        home.begins(head, address, BlockId::NONE, 0);
        home
    }

    /// Bytes of host memory in the tables.
    pub(crate) fn host_bytes(&self) -> usize {
        self.first.capacity() * 8 + self.begun.capacity() * 8 + self.chunks.capacity() * size_of::<Option<Chunk>>()
    }

    fn granule(&self, address: u64) -> usize {
        (address.wrapping_sub(self.address) / GRANULE) as usize
    }

    /// A block begins at `address` now; the block before it begins at `before_address`.
    pub(crate) fn begins(&mut self, id: BlockId, address: u64, before: BlockId, before_address: u64) {
        let granule = self.granule(address);
        if before.is_some() && self.granule(before_address) == granule {
            return;
        }
        if let Some(first) = self.first.get_mut(granule) {
            *first = id.0;
            self.begun[granule / 64] |= 1 << (granule % 64);
        }
    }

    /// The block at `address` is gone: absorbed by the one before it. `next` begins behind it.
    pub(crate) fn ends(&mut self, id: BlockId, address: u64, next: BlockId, next_address: u64) {
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

    /// The block that covers `address`.
    pub(crate) fn covering(&self, blocks: &BlockTable, address: u64) -> BlockId {
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

    /// A block that begins in the nearest granule before this one in which any does.
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

    /// The chunk at `address`, if there is one.
    pub(crate) fn chunk_at(&self, address: u64) -> Option<(ChunkId, Chunk)> {
        let slot = self.chunk_of.get(self.granule(address)).copied().unwrap_or(0).checked_sub(1)?;
        Some((ChunkId(slot), self.chunks.get(slot as usize).copied().flatten()?))
    }

    /// The chunk of that number.
    pub(crate) fn chunk(&self, id: ChunkId) -> Option<Chunk> {
        self.chunks.get(id.0 as usize).copied().flatten()
    }

    /// Puts a chunk in its place.
    pub(crate) fn add_chunk(&mut self, chunk: Chunk) -> ChunkId {
        let slot = self.vacant.pop().unwrap_or(self.chunks.len() as u32);
        match self.chunks.get_mut(slot as usize) {
            Some(vacant) => *vacant = Some(chunk),
            None => self.chunks.push(Some(chunk)),
        }
        let first = self.granule(chunk.address);
        let count = (chunk.size / GRANULE) as usize;
        for granule in self.chunk_of.iter_mut().skip(first).take(count) {
            *granule = slot + 1;
        }
        ChunkId(slot)
    }

    /// Takes a chunk out; its place stays empty.
    pub(crate) fn remove_chunk(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get_mut(id.0 as usize).and_then(Option::take) else { return };
        let first = self.granule(chunk.address);
        let count = (chunk.size / GRANULE) as usize;
        for granule in self.chunk_of.iter_mut().skip(first).take(count) {
            *granule = 0;
        }
        self.vacant.push(id.0);
    }

    /// Slabs lie from `address` on now.
    pub(crate) fn slabs_reach(&mut self, address: u64) {
        self.slabs_from = self.slabs_from.min(address);
    }

    /// Whether the address lies among the slabs.
    pub(crate) fn is_slab(&self, address: u64) -> bool {
        address >= self.slabs_from
    }

    /// Every chunk.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (ChunkId, Chunk)> + '_ {
        (0..).map(ChunkId).zip(&self.chunks).filter_map(|(id, chunk)| chunk.map(|chunk| (id, chunk)))
    }
}
