//! Independent models of the classic allocators and of Paddle's: their rules written down once more, simple and slow. Every
//! question is answered by looking at every block. They share no code with the library but the simulated GPU, which gives
//! a model its addresses.

use seamalloc::driver::PlainMemory;
use seamalloc::driver::sim::SimGpu;
use std::collections::BTreeMap;

pub(crate) const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;

/// Which allocator, with what of its options the rules depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rules {
    Exact {
        buffer: u64,
    },
    Buddy {
        tree: u64,
    },
    /// Of objects of 32 KiB and more, of which a slab is cut at once.
    Slab,
    Tiny,
    AutoGrowth {
        chunk: u64,
        small_pool: u64,
        small_chunk: u64,
        large_chunk: u64,
        idle_goes: bool,
        miss_frees: bool,
    },
    NaiveBestFit {
        initial: u64,
        later: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Block {
    size: u64,
    free: bool,
    /// Whether it was handed out since its segment came.
    used: bool,
    /// The address of its segment.
    segment: u64,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    size: u64,
    small: bool,
}

pub(crate) struct Model {
    rules: Rules,
    gpu: SimGpu,
    blocks: BTreeMap<u64, Block>,
    segments: BTreeMap<u64, Segment>,
}

fn up(size: u64, to: u64) -> u64 {
    size.div_ceil(to) * to
}

impl Model {
    pub(crate) fn new(rules: Rules, gpu: SimGpu) -> Self {
        Self { rules, gpu, blocks: BTreeMap::new(), segments: BTreeMap::new() }
    }

    pub(crate) fn held(&self) -> u64 {
        self.segments.values().map(|segment| segment.size).sum()
    }

    pub(crate) fn size_of(&self, address: u64) -> u64 {
        self.blocks[&address].size
    }

    fn block_size(&self, size: u64) -> u64 {
        match self.rules {
            Rules::Exact { .. } => up(size, 1024),
            Rules::Buddy { .. } => size.next_power_of_two().max(1024),
            Rules::Slab => {
                let octave = 1 << size.ilog2();
                up(size, (octave / 8).max(512))
            }
            Rules::Tiny | Rules::AutoGrowth { .. } => up(size, 512),
            Rules::NaiveBestFit { .. } => up(size + 64, 512),
        }
    }

    fn is_small(&self, size: u64) -> bool {
        match self.rules {
            Rules::Tiny => size <= MIB,
            Rules::AutoGrowth { small_pool, .. } => size <= small_pool,
            _ => false,
        }
    }

    /// Returns the address of the block for a request, or `None`.
    pub(crate) fn allocate(&mut self, requested: u64) -> Option<u64> {
        let size = self.block_size(requested);
        let found = self.fit(size).or_else(|| self.grow(size)).or_else(|| {
            self.release();
            self.grow(size).or_else(|| self.fit(size))
        })?;
        Some(self.hand_out(found, size))
    }

    /// The smallest free block that serves, the lowest of equals.
    fn fit(&self, size: u64) -> Option<u64> {
        let exact = matches!(self.rules, Rules::Exact { .. } | Rules::Slab);
        let small = self.is_small(size);
        let serves = |block: &Block| {
            block.free
                && self.segments[&block.segment].small == small
                && if exact { block.size == size } else { block.size >= size }
        };
        let found = self.blocks.iter().filter(|(_, block)| serves(block)).map(|(at, block)| (block.size, *at)).min()?;
        Some(found.1)
    }

    fn grow(&mut self, size: u64) -> Option<u64> {
        let least = up(size, PAGE);
        match self.rules {
            Rules::Exact { buffer } => {
                let fresh = self.blocks.iter().filter(|(_, block)| block.free && !block.used && block.size >= size);
                let fresh = fresh.map(|(at, block)| (block.size, *at)).min();
                fresh.map(|(_, at)| at).or_else(|| self.largest(buffer, least))
            }
            Rules::Buddy { tree } => self.largest(tree, size.max(PAGE)),
            Rules::Slab => {
                let mut slab = least;
                while slab % size > slab / 8 {
                    slab += PAGE;
                }
                let at = self.segment(slab, size).or_else(|| self.segment(least, size))?;
                let objects = self.segments[&at].size / size;
                (1..objects).for_each(|object| self.cut(at + (object - 1) * size, size));
                if self.segments[&at].size > objects * size {
                    self.cut(at + (objects - 1) * size, size);
                }
                Some(at)
            }
            Rules::Tiny => {
                let segment = match size {
                    0..=MIB => PAGE,
                    _ if size < 10 * MIB => 20 * MIB,
                    _ => least,
                };
                self.segment(segment, size)
            }
            Rules::AutoGrowth { chunk, small_pool, small_chunk, large_chunk, miss_frees, .. } => {
                if miss_frees {
                    self.release();
                }
                let floor = match () {
                    () if small_pool == 0 => chunk,
                    () if size <= small_pool => small_chunk,
                    () => large_chunk,
                };
                self.segment(up(size.max(floor), PAGE), size)
            }
            Rules::NaiveBestFit { initial, later } => {
                let chunk = if self.segments.is_empty() { initial } else { later };
                let chunk = if size > initial.max(later) { least } else { chunk.max(least) };
                self.segment(chunk, size).or_else(|| self.segment(least, size))
            }
        }
    }

    /// A segment of `most` bytes, or of half as many, and so on, but of `least` at least.
    fn largest(&mut self, most: u64, least: u64) -> Option<u64> {
        let mut size = most.max(least);
        loop {
            if let Some(at) = self.segment(size, least) {
                return Some(at);
            }
            if size == least {
                return None;
            }
            size = up(size / 2, PAGE).max(least);
        }
    }

    fn segment(&mut self, size: u64, request: u64) -> Option<u64> {
        let at = self.gpu.malloc(size).ok()?;
        self.segments.insert(at, Segment { size, small: self.is_small(request) });
        self.blocks.insert(at, Block { size, free: true, used: false, segment: at });
        Some(at)
    }

    /// Cuts a block after `size` bytes.
    fn cut(&mut self, at: u64, size: u64) {
        let block = self.blocks.get_mut(&at).unwrap();
        let rest = Block { size: block.size - size, used: false, ..*block };
        block.size = size;
        self.blocks.insert(at + size, rest);
    }

    fn hand_out(&mut self, mut at: u64, size: u64) -> u64 {
        let Block { size: whole, segment, .. } = self.blocks[&at];
        let rest = whole - size;
        match self.rules {
            Rules::Buddy { .. } => {
                while self.blocks[&at].size > size {
                    self.cut(at, self.blocks[&at].size / 2);
                }
            }
            Rules::AutoGrowth { .. } if rest > 0 => {
                self.cut(at, rest);
                at += rest;
            }
            Rules::Tiny if rest < 512 || (!self.segments[&segment].small && rest <= MIB) => {}
            Rules::Slab => {}
            _ if rest > 0 => self.cut(at, size),
            _ => {}
        }
        let block = self.blocks.get_mut(&at).unwrap();
        (block.free, block.used) = (false, true);
        at
    }

    pub(crate) fn free(&mut self, address: u64) {
        let mut at = address;
        self.blocks.get_mut(&at).unwrap().free = true;
        while let Some(first) = self.partner(at) {
            let (_, second) = self.blocks.range(first + 1..).next().map(|(at, block)| (*at, *block)).unwrap();
            let next = first + self.blocks[&first].size;
            self.blocks.remove(&next);
            self.blocks.get_mut(&first).unwrap().size += second.size;
            at = first;
        }
        let Block { size, segment, .. } = self.blocks[&at];
        let whole = size == self.segments[&segment].size;
        let goes = match self.rules {
            Rules::AutoGrowth { idle_goes, .. } => idle_goes,
            Rules::NaiveBestFit { initial, later } => size > initial.max(later),
            _ => false,
        };
        if whole && goes {
            self.give_back(segment);
        }
    }

    /// The first of two free neighbours of which `at` is one, and which become one.
    fn partner(&self, at: u64) -> Option<u64> {
        let block = self.blocks[&at];
        let before = self.blocks.range(..at).next_back().map(|(at, block)| (*at, *block));
        let after = self.blocks.get(&(at + block.size)).map(|after| (at, *after));
        let joins = |first: u64, other: &Block| {
            let beside = other.free && other.segment == block.segment;
            beside
                && match self.rules {
                    Rules::Exact { .. } | Rules::Slab => false,
                    Rules::Buddy { .. } => {
                        other.size == block.size && (first - block.segment).is_multiple_of(2 * block.size)
                    }
                    _ => true,
                }
        };
        [before, after].into_iter().flatten().find(|(first, other)| joins(*first, other)).map(|(first, _)| first)
    }

    /// Gives back every segment in which nothing is live: the large ones first, by size and address.
    pub(crate) fn release(&mut self) {
        let mut whole: Vec<_> = self.segments.iter().map(|(at, segment)| (segment.small, segment.size, *at)).collect();
        whole.sort_unstable();
        for (.., at) in whole {
            if self.blocks.values().all(|block| block.segment != at || block.free) {
                self.give_back(at);
            }
        }
    }

    fn give_back(&mut self, segment: u64) {
        self.gpu.free(segment).unwrap();
        self.segments.remove(&segment);
        self.blocks.retain(|_, block| block.segment != segment);
    }
}
