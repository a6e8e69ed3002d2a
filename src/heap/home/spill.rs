//! Live memory that is spilled: the chunks keep their places, and their physical memory is host memory.
//!
//! Owns: which chunks may be spilled and where they are cut, how they are counted, and when they may come back.
//! `backing/spill.rs` chooses the chunks, and `backing/exchange.rs` makes the calls.
//!
//! ```text
//! home     |aaaaaaaabbbbbb....cc|     one chunk of the device: a, b and c are live
//! spilled  |aaaaaa|ab|bbbb|..|cc|     parts of one block each, and a granule that a and b share. Dots: no memory
//! ```
//! So the parts of a freed block, except granules that a live block shares, have no live bytes, and their host memory
//! is given back.

use super::chunk_map::Chunk;
use super::spilling::{MAX_DOUBLINGS, QUIET, Spilling};
use crate::config::{Advice, SpillCandidate};
use crate::fallible::{Grown, TryPush};
use crate::heap::blocks::block::{Freeing, Kind, State};
use crate::heap::blocks::starts::GRANULE;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, ChunkId};
use crate::span::Span;
use rustc_hash::FxHashMap;

impl Heap {
    /// Notes the program's advice on its use of a live block. The call counts as a use of the block.
    pub(crate) fn advise(&mut self, id: BlockId, advice: Advice) {
        self.used_now(id);
        if self.rules.ages {
            self.blocks[id].advice = advice;
        }
    }

    /// Notes that the program uses a live block.
    pub(crate) fn used_now(&mut self, id: BlockId) {
        if self.rules.ages {
            self.blocks[id].freed_at = self.journal.counters().operations();
        }
    }

    /// Returns the spilled bytes of blocks that are not free.
    pub(crate) fn live_spilled(&self) -> u64 {
        let live = |id: &BlockId| !matches!(self.blocks[*id].state, State::Free | State::Unmapped);
        let of = |chunk: Chunk| {
            let parts = self.blocks_over(chunk.span()).filter(live);
            parts.filter_map(move |id| self.blocks[id].span().intersection(&chunk.span())).map(|part| part.size)
        };
        self.spilled_chunks().flat_map(|(_, chunk)| of(chunk)).sum()
    }

    /// Returns whether the free of a live block takes more steps than merging, whichever streams use the block.
    pub(crate) fn frees_by_steps(&self, id: BlockId) -> bool {
        self.blocks[id].freeing == Freeing::OfNoStream
            || self.is_private(self.blocks[id].pool.large())
            || self.grown_in(id).is_some()
            || self.is_spilled(id)
    }

    /// Returns, for each piece (a range at home) of a stitched block, the live block that owns the piece.
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

    /// Returns a chunk's figures for spilling the chunk, or `None` if the chunk may not be spilled. `owners` has the
    /// live block of each piece.
    pub(crate) fn spill_candidate(
        &self,
        chunk: &Chunk,
        owners: &FxHashMap<BlockId, BlockId>,
    ) -> Option<SpillCandidate> {
        if chunk.pinned || chunk.slab || chunk.spilled {
            return None;
        }
        let now = self.journal.counters().operations();
        let mut found = SpillCandidate::new(chunk.size);
        for id in self.blocks_over(chunk.span()) {
            let block = &self.blocks[id];
            // Graphs rely on the memory of private pools, free memory included. Sleeping chunks belong to private pools
            // too. Small blocks are used and reused all the time.
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

    /// Returns the parts into which a chunk is cut when spilled: spans of home, and whether each span has live bytes.
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
            // Contiguous free blocks are one part.
            let mut end = self.blocks[id].end();
            while !live && end < whole.end() && is_free(self.blocks[id].next) {
                id = self.blocks[id].next;
                end = self.blocks[id].end();
            }
            let cut = (end / GRANULE * GRANULE).min(whole.end());
            if cut > start {
                return Some((Span::between(start, cut), live));
            }
            // A granule with parts of several blocks counts as live.
            Some((Span::new(start, GRANULE), true))
        })
        .skip(1)
    }

    /// Notes that the free of a live block over a spilled chunk takes more steps than merging: the block's host memory
    /// is given back once no stream uses the block.
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

    /// Notes that a block waits for its own stream before the block becomes free.
    pub(crate) fn waits_for_own(&mut self, id: BlockId) -> Grown<()> {
        self.home.spilling.waits_for_own.try_reserve(1)?;
        self.home.spilling.waits_for_own.insert(id);
        Ok(())
    }

    /// Undoes [`Self::waits_for_own`].
    pub(crate) fn waits_for_own_no_more(&mut self, id: BlockId) {
        self.home.spilling.waits_for_own.remove(&id);
    }

    /// Returns the spilled chunks that have no live blocks and that every stream has passed, with the bytes of each
    /// chunk.
    pub(crate) fn spilled_and_free(&self) -> Grown<Vec<(ChunkId, u64)>> {
        let mut found = Vec::new();
        let passed = if self.has_passed_spilled() { &self.home.spilling.passed[..] } else { &[] };
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

    /// Returns the spilled chunks with their numbers.
    pub(crate) fn spilled_chunks(&self) -> impl Iterator<Item = (ChunkId, Chunk)> + '_ {
        let home = self.home_with_spilled();
        home.into_iter().flat_map(|home| home.chunks()).filter(|(_, chunk)| chunk.spilled)
    }

    /// Notes that memory was spilled.
    pub(crate) fn has_spilled(&mut self) {
        let spilling = &mut self.home.spilling;
        if spilling.returned {
            spilling.doublings = (spilling.doublings + 1).min(MAX_DOUBLINGS);
        }
        (spilling.returned, spilling.quiet_since) = (false, Some(self.journal.counters().allocated_bytes.ever()));
    }

    /// Notes that a chunk was split whose parts stay in host memory. The parts may come back at the next opportunity; if
    /// that fails, as late as other spilled memory.
    pub(crate) fn has_left_parts(&mut self) {
        self.home.spilling.quiet_since = None;
    }

    /// Notes that spilled memory came back to the device by itself, not for a request.
    pub(crate) fn has_returned(&mut self) {
        (self.home.spilling.returned, self.home.spilling.quiet_since) =
            (true, Some(self.journal.counters().allocated_bytes.ever()));
    }

    /// Returns whether spilled memory may come back by itself on a device with `total` bytes: the program has allocated
    /// [`QUIET`] times `total` bytes since memory was last spilled, or parts of a split chunk stay in host memory. Each
    /// time that returned memory is spilled again, this amount doubles, so that memory does not move to and fro.
    pub(crate) fn may_return(&self, total: u64) -> bool {
        let Spilling { quiet_since, doublings, .. } = self.home.spilling;
        let allocated = |since| self.journal.counters().allocated_bytes.ever().wrapping_sub(since);
        quiet_since.is_none_or(|since| allocated(since) >= total.saturating_mul(QUIET << doublings))
    }
}
