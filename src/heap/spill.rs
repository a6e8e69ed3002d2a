//! Live memory that is spilled: its chunks keep their places, and their physical memory is the machine's.
//!
//! Owns: which chunks may be spilled and where they are cut, what is counted of them, and when they may come back.
//! `backing/spill.rs` chooses, and `backing/exchange.rs` makes the calls.
//!
//! ```text
//! home     |aaaaaaaabbbbbb....cc|     one chunk of the device: a, b and c are live
//! spilled  |aaaaaa|aa|bbbb|..|cc|     parts of one block each, and the granules that two share. Dots: no memory any more
//! ```
//! So a block that is freed leaves parts in which nothing else is live, and their memory goes back to the machine.

use super::block::{Freeing, Kind, State};
use super::chunk_map::{Chunk, ChunkMap, GRANULE};
use super::host_stock::HostStock;
use super::spilling::{MAX_DOUBLINGS, QUIET, Spilling};
use super::tables::Heap;
use crate::config::{Advice, SpillCandidate};
use crate::fallible::{Grown, TryPush};
use crate::ids::{BlockId, ChunkId, Class};
use crate::span::Span;
use rustc_hash::FxHashMap;

impl Heap {
    /// Returns the bytes of the machine's memory that are held.
    #[inline]
    pub(crate) fn spilled(&self) -> u64 {
        let Spilling { bytes, unsettled, .. } = &self.spilling;
        bytes.iter().sum::<u64>() + unsettled
    }

    /// Returns the memory of the machine that is kept for the next spill.
    #[inline]
    pub(crate) fn host_stock(&self) -> &HostStock {
        &self.spilling.stock
    }

    pub(crate) fn host_stock_mut(&mut self) -> &mut HostStock {
        &mut self.spilling.stock
    }

    /// Notes the bytes of the machine's memory that failed calls hold outside of all chunks: `now` instead of `before`.
    pub(super) fn pending_on_host(&mut self, now: u64, before: u64) {
        self.spilling.unsettled = self.spilling.unsettled + now - before;
        self.counters.spilled_bytes.add(Class::Large, now.saturating_sub(before));
        self.counters.spilled_bytes.sub(Class::Large, before.saturating_sub(now));
    }

    /// Counts the bytes of a chunk as spilled instead of held, or the other way round. As new memory they were counted when they were
    /// created, outside of all chunks.
    pub(super) fn count_spilled(&mut self, chunk: &Chunk, spilled: bool) {
        for (class, size) in self.bytes_by_class(chunk) {
            if spilled {
                self.counters.reserved_bytes.sub(class, size);
                self.spilling.bytes[class as usize] += size;
                self.counters.spilled_bytes.add_again(Class::Large, size);
            } else {
                self.counters.reserved_bytes.add_again(class, size);
                self.no_more_spilled(class, size);
            }
        }
    }

    /// Counts bytes no more that were spilled.
    pub(super) fn no_more_spilled(&mut self, class: Class, size: u64) {
        self.spilling.bytes[class as usize] -= size;
        self.counters.spilled_bytes.sub(Class::Large, size);
    }

    /// Notes what the program says of its use of a live block, which is a use too.
    pub(crate) fn advise(&mut self, id: BlockId, advice: Advice) {
        self.used_now(id);
        if self.rules.ages {
            self.blocks[id].advice = advice;
        }
    }

    /// Notes that the program uses a live block.
    pub(crate) fn used_now(&mut self, id: BlockId) {
        if self.rules.ages {
            self.blocks[id].freed_at = self.counters.operations();
        }
    }

    /// Returns the spans of home in which a block lies: its own, or those of its pieces. Other blocks have none.
    pub(super) fn home_spans(&self, id: BlockId) -> impl Iterator<Item = Span> + '_ {
        let first = match self.blocks[id].kind {
            Kind::Home => id,
            Kind::View => self.blocks[id].left,
            _ => BlockId::NONE,
        };
        let is_view = self.blocks[id].kind == Kind::View;
        let next = move |piece: &BlockId| if is_view { self.blocks[*piece].right.some() } else { None };
        std::iter::successors(first.some(), next).map(|piece| self.blocks[piece].span())
    }

    /// Returns home, if any of it is spilled: mostly nothing is, and then no chunk need be looked at.
    fn home_with_spilled(&self) -> Option<&ChunkMap> {
        self.home.as_ref().filter(|_| self.spilled() != 0)
    }

    /// Returns the spilled chunks of which a live block has a part.
    pub(crate) fn spilled_under(&self, id: BlockId) -> Grown<Vec<ChunkId>> {
        let mut chunks: Vec<ChunkId> = Vec::new();
        let Some(home) = self.home_with_spilled() else { return Ok(chunks) };
        for span in self.home_spans(id) {
            let mut at = span.start;
            while let Some((chunk, of)) = home.chunk_at(at).filter(|_| at < span.end()) {
                if of.spilled && !chunks.contains(&chunk) {
                    chunks.try_push(chunk)?;
                }
                at = of.end();
            }
        }
        Ok(chunks)
    }

    /// Returns whether any of a live block is spilled.
    pub(crate) fn is_spilled(&self, id: BlockId) -> bool {
        self.spilled_bytes_of(id) != 0
    }

    /// Returns the bytes of blocks that are spilled, and not free.
    pub(crate) fn live_spilled(&self) -> u64 {
        let live = |id: &BlockId| !matches!(self.blocks[*id].state, State::Free | State::Unmapped);
        let of = |chunk: Chunk| {
            let parts = self.blocks_over(chunk.span()).filter(live);
            parts.filter_map(move |id| self.blocks[id].span().intersection(&chunk.span())).map(|part| part.size)
        };
        self.spilled_chunks().flat_map(|(_, chunk)| of(chunk)).sum()
    }

    /// Returns whether freeing a live block takes more than merging, whoever uses it.
    pub(crate) fn frees_by_steps(&self, id: BlockId) -> bool {
        self.blocks[id].freeing == Freeing::OfNoStream
            || self.is_private(self.blocks[id].pool.large())
            || self.grown_in(id).is_some()
            || self.is_spilled(id)
    }

    /// Returns the bytes of a block that are spilled.
    pub(super) fn spilled_bytes_of(&self, id: BlockId) -> u64 {
        let Some(home) = self.home_with_spilled() else { return 0 };
        let mut bytes = 0;
        for span in self.home_spans(id) {
            let mut at = span.start;
            while let Some((_, chunk)) = home.chunk_at(at).filter(|_| at < span.end()) {
                let part = chunk.span().intersection(&span).map_or(0, |part| part.size);
                bytes += if chunk.spilled { part } else { 0 };
                at = chunk.end();
            }
        }
        bytes
    }

    /// Returns the live blocks that pieces of home belong to.
    pub(crate) fn owners_of_pieces(&self) -> Grown<FxHashMap<BlockId, BlockId>> {
        let mut owners = FxHashMap::default();
        for (id, block) in self.blocks.iter().filter(|(_, block)| block.kind == Kind::View) {
            for piece in std::iter::successors(block.left.some(), |piece| self.blocks[*piece].right.some()) {
                owners.try_reserve(1)?;
                owners.insert(piece, id);
            }
        }
        Ok(owners)
    }

    /// Returns what may be spilled of a chunk, with the owners of all pieces; `None` if it may not be.
    pub(crate) fn spill_candidate(
        &self,
        chunk: &Chunk,
        owners: &FxHashMap<BlockId, BlockId>,
    ) -> Option<SpillCandidate> {
        if chunk.fixed || chunk.slab || chunk.spilled {
            return None;
        }
        let now = self.counters.operations();
        let mut found = SpillCandidate { size: chunk.size, live: 0, largest: 0, age: u64::MAX, advice: Advice::Cold };
        for id in self.blocks_over(chunk.span()) {
            let block = &self.blocks[id];
            // Graphs rely on what private pools have, free memory included, and what sleeps is theirs too; small blocks are used and
            // reused all the time.
            if self.is_private(block.pool) || block.pool.is_small() {
                return None;
            }
            let owner = match block.state {
                State::Free => continue,
                State::Allocated => id,
                State::Piece => *owners.get(&id)?,
                _ => return None,
            };
            let owner = &self.blocks[owner];
            if owner.state != State::Allocated {
                return None;
            }
            found.largest = found.largest.max(owner.size);
            found.age = found.age.min(now.wrapping_sub(owner.freed_at));
            found.advice = found.advice.max(owner.advice);
        }
        found.live = self.spill_parts(chunk).filter(|(_, live)| *live).map(|(span, _)| span.size).sum();
        (found.live > 0).then_some(found)
    }

    /// Returns the parts that a chunk is cut into where it is spilled, as spans of home, and whether something in each is live.
    pub(crate) fn spill_parts(&self, chunk: &Chunk) -> impl Iterator<Item = (Span, bool)> + use<'_> {
        let whole = chunk.span();
        let is_free = |id: BlockId| self.blocks[id].state == State::Free;
        std::iter::successors(Some((Span::new(whole.start, 0), false)), move |(last, _)| {
            let start = last.end();
            if start >= whole.end() {
                return None;
            }
            let mut id = self.covering(start);
            let live = !is_free(id);
            // Of free blocks, as many as lie one behind the other.
            let mut end = self.blocks[id].end();
            while !live && end < whole.end() && is_free(self.blocks[id].next) {
                id = self.blocks[id].next;
                end = self.blocks[id].end();
            }
            let cut = (end / GRANULE * GRANULE).min(whole.end());
            if cut > start {
                return Some((Span::between(start, cut), live));
            }
            // A granule that is not of one block, or not free as a whole.
            Some((Span::new(start, GRANULE), true))
        })
        .skip(1)
    }

    /// Notes that the blocks over a chunk that was spilled are not freed like others: what nobody uses any more goes back.
    pub(crate) fn watch_spilled(&mut self, span: Span, owners: &FxHashMap<BlockId, BlockId>) {
        let mut id = self.covering(span.start);
        while id.is_some() && self.blocks[id].address < span.end() {
            let owner = owners.get(&id).copied().unwrap_or(id);
            if self.blocks[owner].state == State::Allocated {
                self.set_has_uses(owner);
            }
            id = self.blocks[id].next;
        }
    }

    /// Notes that a block waits for its own stream before it is free.
    pub(crate) fn waits_for_own(&mut self, id: BlockId) -> Grown<()> {
        self.spilling.waits_for_own.try_reserve(1)?;
        self.spilling.waits_for_own.insert(id);
        Ok(())
    }

    /// Takes back [`Self::waits_for_own`].
    pub(crate) fn waits_for_own_no_more(&mut self, id: BlockId) {
        self.spilling.waits_for_own.remove(&id);
    }

    /// Returns whether the memory of a pending block goes back to the machine once every stream has passed.
    pub(super) fn is_spilled_block(&self, id: BlockId) -> bool {
        self.spilling.waits_for_own.contains(&id)
    }

    /// Notes that every stream has passed a block which is about to be free, if it has waited for its own. That holds until the
    /// next operation: whoever polls drops what is spilled.
    pub(super) fn passed_spilled(&mut self, id: BlockId) {
        if !self.spilling.waits_for_own.remove(&id) {
            return;
        }
        let now = self.counters.operations();
        if self.spilling.passed_at != now {
            self.spilling.passed.clear();
            self.spilling.passed_at = now;
        }
        let mut passed = std::mem::take(&mut self.spilling.passed);
        if self.home_spans(id).try_for_each(|span| passed.try_push(span)).is_err() {
            // Its memory goes with the next epoch.
            passed.clear();
        }
        self.spilling.passed = passed;
    }

    /// Returns whether blocks have become free in this operation whose memory goes back to the machine.
    pub(crate) fn has_passed_spilled(&self) -> bool {
        self.spilling.passed_at == self.counters.operations()
    }

    /// Returns the chunks that are spilled, in which nothing is live any more, and that every stream has passed.
    pub(crate) fn spilled_and_free(&self) -> Grown<Vec<(ChunkId, u64)>> {
        let mut found = Vec::new();
        let passed = if self.has_passed_spilled() { &self.spilling.passed[..] } else { &[] };
        for (id, chunk) in self.spilled_chunks() {
            let all_free = || self.blocks_over(chunk.span()).all(|id| self.blocks[id].state == State::Free);
            let just_freed =
                || all_free() && passed.iter().any(|span| span.start <= chunk.address && span.end() >= chunk.end());
            if just_freed() || self.freed_at(&chunk).is_some() {
                found.try_push((id, chunk.size))?;
            }
        }
        Ok(found)
    }

    /// Returns the chunks that are spilled.
    pub(crate) fn spilled_chunks(&self) -> impl Iterator<Item = (ChunkId, Chunk)> + '_ {
        let home = self.home_with_spilled();
        home.into_iter().flat_map(|home| home.chunks()).filter(|(_, chunk)| chunk.spilled)
    }

    /// Notes that memory was spilled.
    pub(crate) fn has_spilled(&mut self) {
        let spilling = &mut self.spilling;
        if spilling.returned {
            spilling.doublings = (spilling.doublings + 1).min(MAX_DOUBLINGS);
        }
        (spilling.returned, spilling.quiet_since) = (false, self.counters.allocated_bytes.ever());
    }

    /// Notes that memory came back by itself.
    pub(crate) fn has_returned(&mut self) {
        (self.spilling.returned, self.spilling.quiet_since) = (true, self.counters.allocated_bytes.ever());
    }

    /// Returns whether nothing was spilled for so long that memory may come back by itself, of a device with so many bytes. Where what came back was spilled again,
    /// the next time is twice as far off: memory does not go to and fro.
    pub(crate) fn may_return(&self, total: u64) -> bool {
        let allocated = self.counters.allocated_bytes.ever().wrapping_sub(self.spilling.quiet_since);
        allocated >= total.saturating_mul(QUIET << self.spilling.doublings)
    }
}
