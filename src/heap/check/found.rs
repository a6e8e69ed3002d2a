//! The result of a walk over the heap: its sums, or a broken rule.

use crate::heap::blocks::block::{Block, State};

/// The result of a check: `Ok`, or a text with the broken rule and its place.
pub(in crate::heap) type Checked = std::result::Result<(), String>;

/// The sums of the walk over the blocks.
#[derive(Default)]
pub(super) struct Found {
    /// The number of live blocks, by class.
    pub(super) live: [u64; 2],
    pub(super) live_bytes: [u64; 2],
    pub(super) pending_bytes: [u64; 2],
    /// The bytes of memory that the allocator holds, by class. A slab counts as small.
    pub(super) held: [u64; 2],
    pub(super) blocks: usize,
    /// The bytes in pieces of stitched blocks. `stitched` has the bytes of the stitched blocks themselves.
    pub(super) pieces: u64,
    pub(super) stitched: u64,
    pub(super) stitched_blocks: u32,
    /// The bytes of blocks at home.
    pub(super) at_home: u64,
}

impl Found {
    /// Adds the bytes of a block that is handed out or pending.
    pub(super) fn add_used(&mut self, block: &Block) {
        let class = block.pool.class() as usize;
        match block.state {
            State::Allocated => {
                self.live[class] += 1;
                self.live_bytes[class] += block.size;
            }
            State::Pending => self.pending_bytes[class] += block.size,
            _ => {}
        }
    }
}
