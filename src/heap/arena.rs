//! Memory of one stream moves into a heap of its own, an arena, and back.
//!
//! Owns: which memory may move, and the accounting of both moves.
//!
//! An arena is a [`Heap`] without a home: its blocks are those of whole granules that one stream alone has, live ones and
//! free ones. In the heap that lent them, one block stands for each stretch of them ([`State::Lent`]):
//! ```text
//! heap    |aaaaa|LLLLLLLLLLLLLLLLLL|bbbbb|LLLLLL|     a, b: blocks of other streams
//! arena         |xxxx|....|yy|.....|     |zz|...|     x, y, z: live blocks of the stream
//! ```
//! Addresses stay as they are, and so does all that is said of chunks and views, which an arena never looks at.

use super::block::{Block, Kind, Slots, State};
use super::chunk_map::GRANULE;
use super::segment::{Backing, Segment};
use super::tables::Heap;
use crate::error::Result;
use crate::fallible::{Grown, TryPush};
use crate::ids::{BlockId, PoolIndex, SegmentId};
use crate::span::Span;

/// The large pool of an arena.
const OWN: PoolIndex = PoolIndex::DEFAULT;

/// What it took to lend memory.
pub(crate) struct Lent {
    /// Blocks that moved.
    pub(crate) moved: usize,
    /// Blocks that were looked at.
    pub(crate) walked: usize,
}

/// What an arena is lent, and the slots for it in both heaps.
struct Loan<'a> {
    arena: &'a mut Heap,
    /// For the rests of free blocks that are lent in part.
    rests: Slots,
    blocks: Slots,
}

impl Heap {
    /// Moves all memory to `arena`, which is empty, that the stream of a large pool has alone: free blocks and live ones, in
    /// whole granules.
    ///
    /// # Errors
    /// The host has no memory for the tables. Nothing has changed.
    pub(crate) fn lend(&mut self, large: PoolIndex, arena: &mut Self) -> Result<Lent> {
        let (spans, walked) = self.lendable(large)?;
        let [mut blocks, mut live] = [0, 0];
        for span in &spans {
            for id in self.blocks_over(*span) {
                blocks += 1;
                live += usize::from(self.blocks[id].state == State::Allocated);
            }
        }
        arena.segments.try_reserve(spans.len())?;
        arena.addresses.try_reserve(live)?;
        let mut loan =
            Loan { rests: self.reserve_slots(2 * spans.len())?, blocks: arena.reserve_slots(blocks)?, arena };
        for span in spans {
            self.lend_span(span, &mut loan);
        }
        Ok(Lent { moved: blocks, walked })
    }

    /// Takes all memory back that was lent to the arena of a large pool's stream. What is free counts as freed in the open
    /// epoch. Returns how many blocks moved.
    ///
    /// # Errors
    /// The host has no memory for the tables. Nothing has changed.
    pub(crate) fn take_back(&mut self, large: PoolIndex, arena: &mut Self) -> Result<usize> {
        let moved = arena.blocks.len();
        let mut slots = self.reserve_slots(moved)?;
        self.addresses.try_reserve(arena.addresses.len())?;
        let pool = &mut self.pools[large];
        pool.freed_in_epoch = true;
        if pool.ended {
            // The arena has served the handle's next stream since then, for all that is known: it has asked nobody.
            (pool.ended, pool.number) = (false, None);
        }
        for segment in std::mem::take(&mut arena.segments).into_iter().flatten() {
            let mut lent = self.covering(segment.span.start);
            let mut theirs = segment.head;
            while theirs.is_some() {
                let block = arena.blocks[theirs];
                lent = self.take_back_block(lent, &block, large, &mut slots);
                if block.state == State::Free {
                    arena.take_free(theirs);
                }
                arena.blocks.remove(theirs);
                theirs = block.next;
            }
        }
        arena.addresses.clear();
        self.counters.take_back(&mut arena.counters);
        self.flight.take_over(&mut arena.flight, large);
        Ok(moved)
    }

    /// Returns the spans that the blocks of an arena tile.
    pub(crate) fn lent_spans(&self) -> impl Iterator<Item = Span> + '_ {
        self.segments.iter().flatten().map(|segment| segment.span)
    }

    /// Returns the longest runs of whole granules at home that a stream alone has, and that are mapped there, and how
    /// many blocks there are at home.
    fn lendable(&self, large: PoolIndex) -> Grown<(Vec<Span>, usize)> {
        let (mut spans, mut walked) = (Vec::new(), 0);
        let Some(home) = &self.home else { return Ok((spans, walked)) };
        // Of the present run: where it begins, and the last place where it may end.
        let mut run: Option<Span> = None;
        for id in self.blocks_over(home.span) {
            walked += 1;
            let block = &self.blocks[id];
            let is_free = block.state == State::Free;
            let is_live = block.state == State::Allocated && !block.has_uses && block.capture == 0;
            let moves = (is_free || is_live) && block.pool.large() == large && !home.is_bare(block.address, block.size);
            if !moves {
                push(&mut spans, run.take())?;
                continue;
            }
            // A free block may be cut, a live one may not.
            let [begin, end] = if is_free {
                [block.address.next_multiple_of(GRANULE), block.end() - block.end() % GRANULE]
            } else {
                [block.address, block.end()]
            };
            if run.is_none() && begin.is_multiple_of(GRANULE) && begin <= block.end() {
                run = Some(Span::new(begin, 0));
            }
            if let Some(run) = &mut run
                && end.is_multiple_of(GRANULE)
                && end >= block.address
            {
                run.size = run.size.max(end.saturating_sub(run.start));
            }
        }
        push(&mut spans, run)?;
        Ok((spans, walked))
    }

    fn lend_span(&mut self, span: Span, loan: &mut Loan<'_>) {
        let segment = SegmentId(loan.arena.segments.len() as u32);
        // The block that stands for those of its class so far, and the last block of the arena.
        let (mut lent, mut last) = (BlockId::NONE, BlockId::NONE);
        let (mut at, mut id) = (span.start, self.covering(span.start));
        while let Some(part) = self.blocks[id].span().intersection(&Span::new(at, span.end() - at)) {
            id = self.leave_tables(id, part, loan);
            at = part.end();
            let block = self.blocks[id];
            let new = Block {
                requested: block.requested,
                ..Block::new(part, OWN.of(block.pool.class()), segment, Kind::Home, block.state)
            };
            let new = loan.arena.blocks.insert_reserved(&mut loan.blocks, new);
            match last.is_some() {
                true => loan.arena.blocks.link_after(last, new),
                false => loan.arena.segments.push(Some(Segment { span, pool: OWN, backing: Backing::Lent, head: new })),
            }
            last = new;
            if block.state == State::Free {
                loan.arena.insert_free(new);
            } else {
                loan.arena.addresses.insert(part.start, new);
                self.counters.lend(&mut loan.arena.counters, &block);
            }
            self.blocks[id].state = State::Lent;
            if lent.is_some() && self.blocks[lent].pool == block.pool {
                self.absorb_next(lent);
            } else {
                lent = id;
            }
            if at == span.end() {
                return;
            }
            id = self.blocks[lent].next;
        }
    }

    /// Takes a part of a block out of the table of its state: of a free block, or all of a live one. Returns its block.
    fn leave_tables(&mut self, id: BlockId, part: Span, loan: &mut Loan<'_>) -> BlockId {
        if self.blocks[id].state == State::Free {
            self.take_free(id);
            return self.cut(id, part, &mut loan.rests, Self::insert_free);
        }
        self.addresses.remove(&part.start);
        id
    }

    /// Makes a block of what begins a lent one, as it is in the arena. Returns the block behind it.
    fn take_back_block(&mut self, lent: BlockId, theirs: &Block, large: PoolIndex, slots: &mut Slots) -> BlockId {
        let pool = large.of(theirs.pool.class());
        let id = self.cut(lent, theirs.span(), slots, |_, _| {});
        let (after, epoch) = (self.blocks[id].next, self.pools[large].epoch);
        let block = &mut self.blocks[id];
        (block.pool, block.state, block.requested, block.freed_at) = (pool, theirs.state, theirs.requested, epoch);
        if theirs.state == State::Free {
            let (id, ..) = self.merge_free(id);
            self.insert_free(id);
            if pool.is_small() {
                self.return_slab(id);
            }
        } else {
            self.addresses.insert(theirs.address, id);
        }
        after
    }
}

fn push(spans: &mut Vec<Span>, run: Option<Span>) -> Grown<()> {
    run.filter(|run| run.size > 0).map_or(Ok(()), |run| spans.try_push(run))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Allocator;
    use crate::config::Config;
    use crate::driver::StreamId;
    use crate::driver::sim::{SimConfig, SimGpu};
    use crate::heap::{HeapRules, Layout};
    use proptest::prelude::*;
    use std::sync::Arc;

    const MAIN: StreamId = StreamId::DEFAULT;
    const SIDE: StreamId = StreamId(7);

    fn home(heap: &Heap) -> Vec<Block> {
        heap.blocks_over(heap.home.as_ref().unwrap().span).map(|id| heap.blocks[id]).collect()
    }

    /// What a program sees of blocks. What was asked for free ones is of no use.
    fn shown(blocks: impl IntoIterator<Item = Block>) -> Vec<(Span, State, PoolIndex, u64)> {
        let requested = |block: &Block| if block.state == State::Free { 0 } else { block.requested };
        blocks.into_iter().map(|block| (block.span(), block.state, block.pool, requested(&block))).collect()
    }

    /// Returns what may be lent, found the long way: of each run of blocks that may move, the granules between the first and the
    /// last boundary that is inside of no live block.
    fn expected(heap: &Heap, large: PoolIndex) -> Vec<Span> {
        let is_lent = |block: &Block| {
            let is_live = block.state == State::Allocated && !block.has_uses;
            let is_mapped = !heap.home.as_ref().unwrap().is_bare(block.address, block.size);
            block.pool.large() == large && is_mapped && (block.state == State::Free || is_live)
        };
        let bounds = |block: &Block| -> Vec<u64> {
            let (from, to) = (block.address.next_multiple_of(GRANULE), block.end());
            let at_ends = |at: &u64| block.state == State::Free || [block.address, to].contains(at);
            (from..=to).step_by(GRANULE as usize).filter(at_ends).collect()
        };
        let blocks = home(heap);
        let runs = blocks.chunk_by(|one, next| is_lent(one) == is_lent(next)).filter(|run| is_lent(&run[0]));
        let bounds = runs.map(|run| run.iter().flat_map(bounds).collect::<Vec<_>>());
        let spans = bounds.filter_map(|of| Some(Span::between(*of.first()?, *of.last()?)));
        spans.filter(|span| span.size > 0).collect()
    }

    proptest! {
        /// Whatever two streams have, all of it that may move does, and comes back as it was.
        #[test]
        fn all_that_may_move_does_and_comes_back(
            steps in proptest::collection::vec((0u8..8, 0usize..64, 1u64..8_000_000), 1..80),
        ) {
            let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
            let allocator = Allocator::new(gpu, Config::parse("chunk_size_mb:16").unwrap()).unwrap();
            let mut live = Vec::new();
            for (what, which, size) in steps {
                let stream = if which % 4 == 0 { SIDE } else { MAIN };
                // One block in seven is small, some end with a granule.
                let size = [size / 20 + 1, size, size, size.next_multiple_of(GRANULE)][usize::from(what % 4)];
                if what < 5 || live.is_empty() {
                    live.push(allocator.allocate(size, stream).unwrap());
                } else if what < 7 {
                    allocator.free(live.swap_remove(which % live.len())).unwrap();
                } else {
                    allocator.record_stream(live[which % live.len()], SIDE).unwrap();
                }
            }
            for stream in [MAIN, SIDE] {
                allocator.with_heap(|heap| -> Result<()> {
                    let Some(large) = heap.pool_of.get(&stream).copied() else { return Ok(()) };
                    let (before, spans) = (home(heap), expected(heap, large));
                    let rules = HeapRules { oversize_from: u64::MAX, adopts_idle: false, home_is_shared: false, layout: Layout::PYTORCH, flight: 0, ages: false };
                    let mut arena = Heap::new(rules)?;
                    let lent = heap.lend(large, &mut arena)?;
                    assert_eq!(arena.lent_spans().collect::<Vec<_>>(), spans);
                    assert_eq!((lent.moved, lent.walked), (arena.blocks.len(), before.len()));
                    assert_eq!(arena.check(), Ok(()));
                    assert_eq!(heap.take_back(large, &mut arena)?, lent.moved);
                    assert_eq!(arena.blocks.len(), 0);
                    assert_eq!(shown(home(heap)), shown(before));
                    assert_eq!(heap.check(), Ok(()));
                    Ok(())
                }).unwrap();
            }
        }
    }
}
