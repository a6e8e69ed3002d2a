//! The rules of one block.

use super::found::Checked;
use crate::config::rounding::MIN_BLOCK;
use crate::heap::blocks::block::{Block, Kind, State};
use crate::heap::home::segment::Segment;
use crate::heap::tables::Heap;
use crate::ids::BlockId;

impl Heap {
    /// Checks a block against all rules. `index` is the number of the block's segment, and `previous` is the block
    /// before `id`.
    pub(super) fn check_block(&self, index: usize, segment: &Segment, previous: BlockId, id: BlockId) -> Checked {
        let block = &self.blocks[id];
        let broken = [
            is_whole_units(block),
            is_linked(block, index, segment, previous),
            self.is_merged(previous, id),
            self.is_in_its_table(id),
            self.is_found_at_home(id),
        ];
        match broken.into_iter().flatten().next() {
            Some(what) => Err(format!("{what}: segment {index}, block {id:?} {block:?}")),
            None => Ok(()),
        }
    }

    /// Two neighbours are never both free in one pool, or both unmapped.
    fn is_merged(&self, previous: BlockId, id: BlockId) -> Option<&'static str> {
        let both_unmapped = [previous, id].iter().all(|id| self.blocks[*id].state == State::Unmapped);
        (self.joins(previous, id) || both_unmapped).then_some("two neighbours of the same kind are not merged")
    }

    /// A block is in the table of its state: free index, address table, or set of unmapped blocks.
    fn is_in_its_table(&self, id: BlockId) -> Option<&'static str> {
        let block = &self.blocks[id];
        match block.state {
            State::Vacant => Some("a vacant slot is linked"),
            State::Free => (!self.is_indexed(id)).then_some("a free block is not in the index"),
            State::Allocated => {
                let known = self.live(block.address) == Ok(id);
                (!known).then_some("a live block is not in the address table")
            }
            State::Unmapped => {
                let known = self.pools[block.pool].unmapped.contains(&(block.address, id));
                (!known).then_some("an unmapped block is not in its set")
            }
            State::Pending | State::Piece => None,
            State::Slack | State::Retired => {
                (block.kind != Kind::Guarded).then_some("a block that is not guarded has the state of one")
            }
        }
    }

    /// Returns whether the free index of the block's pool finds the block by its size.
    fn is_indexed(&self, id: BlockId) -> bool {
        self.blocks.is_indexed(id)
    }

    /// Home finds a block by its first byte and by its last byte.
    fn is_found_at_home(&self, id: BlockId) -> Option<&'static str> {
        let block = &self.blocks[id];
        let found = |address| self.covering(address) == id;
        let lost =
            self.home.map().is_some() && block.kind == Kind::Home && !(found(block.address) && found(block.end() - 1));
        lost.then_some("home does not find a block by its address")
    }

    /// The pieces of a stitched block belong to the block's pool, and their sizes add up to the block's size.
    pub(super) fn pieces_make_up_a_stitched_block(&self, id: BlockId, block: &Block) -> Checked {
        let mut held = 0;
        let mut piece = block.left;
        while piece.is_some() && held <= block.size {
            if self.blocks[piece].state != State::Piece || self.blocks[piece].pool != block.pool {
                return Err(format!("a piece of {id:?} {block:?} is not one: {:?}", self.blocks[piece]));
            }
            held += self.blocks[piece].size;
            piece = self.blocks[piece].right;
        }
        if held != block.size {
            return Err(format!("the pieces of {id:?} {block:?} are {held} bytes"));
        }
        Ok(())
    }

    /// A stitched block is live or pending. Once freed, a stitched block no longer exists.
    pub(super) fn a_stitched_block_is_in_use(&self, id: BlockId, block: &Block) -> Checked {
        match block.state {
            State::Allocated if self.live(block.address) == Ok(id) => Ok(()),
            State::Pending => Ok(()),
            _ => Err(format!("a stitched block is neither live nor pending: {block:?}")),
        }
    }
}

/// The size of a block is a multiple of 512 bytes, and is not 0.
fn is_whole_units(block: &Block) -> Option<&'static str> {
    (block.size == 0 || !block.size.is_multiple_of(MIN_BLOCK)).then_some("a block has an odd size")
}

/// A block is linked to the previous block. A block belongs to its segment and, except at home, to the segment's pool.
fn is_linked(block: &Block, index: usize, segment: &Segment, previous: BlockId) -> Option<&'static str> {
    let right_pool = block.kind == Kind::Home || block.pool == segment.pool;
    let linked = block.prev == previous && block.segment.0 as usize == index && right_pool;
    (!linked).then_some("a block is linked or assigned wrongly")
}
