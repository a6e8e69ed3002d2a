//! The rules that always hold, one function for each. The functions walk every table, for tests and the feature
//! `paranoid`.
//!
//! Owns: the order of the walk. `found.rs` has the sums of the walk, `block.rs` the rules of a block, and `private.rs`
//! the rules of private pools.

mod block;
mod found;
mod private;
mod spill;
#[cfg(test)]
mod tests;

use super::tables::Heap;
use crate::heap::blocks::block::{Block, Freeing, Kind, State};
use crate::heap::home::segment::{Backing, Segment};
use crate::heap::home::view::Extent;
use crate::ids::{BlockId, ChunkId, Class, SegmentId};
pub(super) use found::Checked;
use found::Found;

impl Heap {
    /// Checks every rule that always holds. The time is O(n log n) in the number of blocks, because of the free index.
    ///
    /// # Errors
    /// The text of the error names the broken rule and its place.
    pub(crate) fn check(&self) -> Checked {
        let mut found = Found { held: self.home.pending_rollback(), ..Found::default() };
        found.held[Class::Large as usize] += self.home.idle_in_driver_pool();
        for (SegmentId(index), segment) in self.home.segments() {
            self.blocks_tile_their_segment(index as usize, segment, &mut found)?;
        }
        for (id, block) in self.blocks.iter().filter(|(_, block)| block.kind == Kind::View) {
            self.pieces_make_up_a_stitched_block(id, block)?;
            self.a_stitched_block_is_in_use(id, block)?;
            found.add_used(block);
            found.stitched += block.size;
            found.stitched_blocks += 1;
            found.blocks += 1;
        }
        self.what_sleeps_is_not_held(&mut found)?;
        self.what_is_spilled_is_not_held(&mut found)?;
        self.pairs_of_private_pools_are_their_own()?;
        self.vacant_pools_are_empty()?;
        self.blocks_of_private_pools_stay_theirs()?;
        self.pins_are_of_private_pools()?;
        self.what_an_ended_stream_left_is_nobodys()?;
        self.pieces_are_all_stitched(&found)?;
        self.views_are_their_chunks()?;
        self.chunks_are_what_lies_at_home(&found)?;
        self.no_block_is_lost(&found)?;
        self.counters_count_what_is_there(&found)
    }

    /// The live blocks of a stream that has ended belong to no stream.
    fn what_an_ended_stream_left_is_nobodys(&self) -> Checked {
        let left = |block: &Block| block.state == State::Allocated && self.pools[block.pool.large()].ended;
        match self.blocks.iter().find(|(_, block)| left(block) && block.freeing != Freeing::OfNoStream) {
            Some((id, block)) => Err(format!("{id:?} {block:?} belongs to a stream that has ended")),
            None => Ok(()),
        }
    }

    /// The blocks of a segment lie at contiguous addresses from the segment's first byte to its last byte. Each block
    /// keeps the rules of a block.
    fn blocks_tile_their_segment(&self, index: usize, segment: &Segment, found: &mut Found) -> Checked {
        let mut at = segment.span.start;
        let mut previous = BlockId::NONE;
        let mut id = segment.head;
        while id.is_some() {
            let block = &self.blocks[id];
            if block.address != at {
                return Err(format!(
                    "a block does not begin where the last one ends: segment {index}, {id:?} {block:?}"
                ));
            }
            self.check_block(index, segment, previous, id)?;
            if block.state != State::Unmapped {
                let home = self.home.map().filter(|_| block.kind == Kind::Home);
                // The part of a slab that a large block holds still counts as small memory.
                let slab = home.is_some_and(|home| home.is_slab(at));
                found.held[if slab { Class::Small } else { block.pool.class() } as usize] += block.size;
                found.at_home += if block.kind == Kind::Home { block.size } else { 0 };
            }
            found.add_used(block);
            found.pieces += if block.state == State::Piece { block.size } else { 0 };
            found.blocks += 1;
            at = block.end();
            previous = id;
            id = block.next;
        }
        if at != segment.span.end() {
            return Err(format!("the blocks of segment {index} do not fill it: {at:#x}"));
        }
        Ok(())
    }

    /// Every piece belongs to one stitched block, and every stitched block uses a view.
    fn pieces_are_all_stitched(&self, found: &Found) -> Checked {
        let Found { stitched, stitched_blocks: users, pieces, .. } = found;
        let using: u32 = self.home.views().iter().map(|(_, view)| view.users).sum();
        if stitched != pieces || *users != using {
            return Err(format!("{stitched} bytes stitched of {pieces} in pieces, {users} blocks of {using} users"));
        }
        Ok(())
    }

    /// The chunks of a view, each of which occurs once, and the holes between them make up the view's size. The parts
    /// of a growing view lie at its start, at contiguous addresses.
    fn views_are_their_chunks(&self) -> Checked {
        for (id, view) in self.home.views().iter().filter(|(_, view)| !view.chunks.is_empty() || view.growing.is_some())
        {
            let mut chunks: Vec<ChunkId> =
                view.chunks.iter().copied().filter(|chunk| *chunk != ChunkId::NONE).collect();
            chunks.sort_unstable();
            if !chunks.is_sorted_by(|one, next| one < next) {
                return Err(format!("view {id:?} maps a chunk twice: {:?}", view.chunks));
            }
            let bytes = view.offset_of(view.chunks.len(), |chunk| Some(self.home.map()?.chunk(chunk)?.size));
            if bytes != view.size || view.size > view.addresses {
                return Err(format!("view {id:?} has {} bytes of {}, its chunks {bytes}", view.size, view.addresses));
            }
            let Some(Extent { bytes, parts }) = view.growing else { continue };
            let of_view = |block: &&Block| block.kind == Kind::View && block.view() == id;
            let live = self.blocks.iter().map(|(_, block)| block).filter(of_view);
            let (mut live_bytes, mut live_parts) = (0, 0);
            for block in live.filter(|block| block.state == State::Allocated) {
                live_bytes += block.size;
                live_parts += 1;
                if block.end() > view.address + bytes || !block.has_uses() {
                    return Err(format!("a part of view {id:?}, which has {bytes} bytes of parts, is {block:?}"));
                }
            }
            if (live_bytes, live_parts) != (bytes, parts) || view.users < parts {
                return Err(format!(
                    "view {id:?} has {live_parts} parts of {live_bytes} bytes, counted {parts} of {bytes}"
                ));
            }
        }
        Ok(())
    }

    /// The blocks with memory at home have as many bytes as the chunks.
    fn chunks_are_what_lies_at_home(&self, found: &Found) -> Checked {
        let chunks: u64 = self.home.map().into_iter().flat_map(|home| home.chunks()).map(|(_, chunk)| chunk.size).sum();
        let has_home = self.home.segments().any(|(_, segment)| matches!(segment.backing, Backing::Home));
        if has_home && chunks != found.at_home {
            return Err(format!("{chunks} bytes in chunks, {} in blocks at home", found.at_home));
        }
        Ok(())
    }

    /// Every block is in a segment or a view, and every free block is in an index.
    fn no_block_is_lost(&self, found: &Found) -> Checked {
        let free: usize = self.pools.iter().map(|(pool, _)| self.blocks.free_count(pool)).sum();
        let free_blocks = self.blocks.iter().filter(|(_, block)| block.state == State::Free).count();
        let (seen, all) = (found.blocks, self.blocks.len());
        if seen != all || free != free_blocks {
            return Err(format!("{seen} blocks seen of {all}, {free} indexed of {free_blocks} free"));
        }
        Ok(())
    }

    /// The counters agree with the blocks, to the byte.
    fn counters_count_what_is_there(&self, found: &Found) -> Checked {
        let [live, live_bytes, pending] =
            [found.live, found.live_bytes, found.pending_bytes].map(|by_class| by_class.iter().sum::<u64>());
        let counted = self.journal.counters();
        let figures = [
            ("allocations", live, counted.allocation.current()),
            ("addresses", live, self.blocks.live_count() as u64),
            ("allocated bytes", live_bytes, counted.allocated_bytes.current()),
            ("active bytes", live_bytes + pending, counted.active_bytes.current()),
            ("large reserved bytes", found.held[0], counted.reserved_bytes.of(Class::Large)),
            ("small reserved bytes", found.held[1], counted.reserved_bytes.of(Class::Small)),
        ];
        match figures.into_iter().find(|(_, is, counted)| is != counted) {
            Some((name, is, counted)) => Err(format!("{name}: {is} found, {counted} counted")),
            None => Ok(()),
        }
    }
}
