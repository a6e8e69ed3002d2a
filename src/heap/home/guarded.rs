//! Guarded blocks. Each guarded block has physical memory of its own, between addresses without memory.
//!
//! ```text
//! reservation   | no memory | slack         | block         | no memory |
//!                2 MiB        whole units of 2 MiB           2 MiB
//! ```
//! A block ends where its memory ends, so that an access beyond the block is an illegal address. The slack before the
//! block serves no request.
//!
//! Owns: the segments of guarded blocks, and the freed blocks whose memory is to be unmapped. `guard/` decides when the
//! memory is unmapped.

use super::segment::Backing;
use crate::error::Result;
use crate::heap::blocks::block::{Block, Kind, Slots, State};
use crate::heap::blocks::request::Request;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, Handle, PoolId, PoolIndex};
use crate::report::pool::PoolBlock;
use crate::span::Span;

/// The memory of a guarded block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuardedMemory {
    pub(crate) handle: Handle,
    /// The addresses at which the memory is mapped.
    pub(crate) mapped: Span,
    /// All addresses that were reserved for the block.
    pub(crate) reservation: Span,
}

impl Heap {
    /// Makes room for a guarded block and its slack.
    pub(crate) fn reserve_guarded(&mut self, pool: PoolIndex) -> Result<Slots> {
        self.home.retired.try_reserve(1)?;
        // The two slots reserved below include the segment's slot.
        drop(self.reserve_segment(pool)?);
        self.blocks.reserve(2)
    }

    /// Adds memory for one block of a request's size. The block ends where the memory ends. Returns the block, which is
    /// in no index. [`Self::reserve_guarded`] has made room.
    pub(crate) fn add_guarded_segment(
        &mut self,
        request: &Request,
        memory: GuardedMemory,
        slots: &mut Slots,
    ) -> BlockId {
        let GuardedMemory { handle, mapped, reservation } = memory;
        let head = self.add_segment(request.pool, mapped, Backing::Guarded { handle, reservation }, slots);
        self.journal.mappings_added(1);
        let range = self.range(Kind::Guarded, mapped, request.pool);
        self.journal.memory_mapped(range, &self.pools);
        let slack = mapped.size - request.size;
        if slack == 0 {
            return head;
        }
        let span = Span::new(mapped.start + slack, request.size);
        let part = self.blocks[head].part(span, State::Retired);
        self.blocks[head].size = slack;
        self.blocks[head].state = State::Slack;
        let id = self.blocks.insert_reserved(slots, part);
        self.blocks.link_after(head, id);
        id
    }

    /// Returns the memory of a guarded block, or `None` for any other block.
    pub(crate) fn guarded_memory(&self, id: BlockId) -> Option<GuardedMemory> {
        let block = &self.blocks[id];
        if block.kind != Kind::Guarded || block.state == State::Vacant {
            return None;
        }
        let segment = self.segment(block.segment)?;
        match segment.backing {
            Backing::Guarded { handle, reservation } => {
                Some(GuardedMemory { handle, mapped: segment.span, reservation })
            }
            _ => None,
        }
    }

    /// Removes a freed guarded block, whose memory was unmapped and is about to be released.
    pub(crate) fn remove_guarded_segment(&mut self, id: BlockId, mapped: Span) {
        let Block { pool, segment, .. } = self.blocks[id];
        let head = self.head_of(segment);
        if head != id {
            self.blocks.unlink(id);
            self.blocks.remove(id);
        }
        self.remove_segment(head, segment);
        self.journal.mappings_removed(1);
        let range = self.range(Kind::Guarded, mapped, pool);
        self.journal.memory_unmapped(range, &self.pools);
    }

    /// Notes that a guarded block was freed and no stream named by `record_stream` uses it any more. The block's memory
    /// can be unmapped once the block's own stream has passed the free.
    pub(in crate::heap) fn retire(&mut self, id: BlockId) {
        self.blocks[id].state = State::Retired;
        self.home.retired.push(id);
    }

    /// Takes the freed guarded blocks whose memory is to be unmapped. A block that a graph of an existing private pool
    /// may use stays in the list until the pool ends.
    pub(crate) fn take_retired(&mut self) -> Vec<BlockId> {
        let all = std::mem::take(&mut self.home.retired);
        let (held, taken) = all.into_iter().partition(|id| self.may_be_launched(*id));
        self.home.retired = held;
        taken
    }

    /// Puts freed guarded blocks back into the list, for a later call of [`Self::take_retired`].
    pub(crate) fn put_retired(&mut self, ids: impl IntoIterator<Item = BlockId>) {
        self.home.retired.extend(ids);
    }

    /// Returns whether a graph that was captured with the block's private pool may still be launched.
    fn may_be_launched(&self, id: BlockId) -> bool {
        self.pools.private().get(self.owner_of(self.blocks[id].pool)).is_some_and(|pool| pool.captured)
    }

    /// Takes a freed guarded block of a private pool, for the block of a checkpoint that lay at the same addresses.
    /// Returns `None` if there is no such block.
    pub(in crate::heap) fn retake_guarded(&mut self, owner: PoolId, block: &PoolBlock) -> Option<BlockId> {
        let same = |id: &BlockId| {
            let Block { address, size, pool, .. } = self.blocks[*id];
            (address, size, self.owner_of(pool)) == (block.address, block.size, owner)
        };
        let at = self.home.retired.iter().position(same)?;
        Some(self.home.retired.swap_remove(at))
    }
}
