//! The heap as its users see it in a snapshot. What they see changing, `notify.rs` tells.

use super::block::{Block, Kind, State};
use super::segment::{Backing, Segment};
use super::tables::Heap;
use crate::ids::{Class, PoolId, PoolIndex, StreamId};
use crate::report::snapshot::{BlockInfo, BlockState, SegmentInfo};

/// What a snapshot says of a segment: memory of different kinds is in different ones.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    class: Class,
    pub(super) stream: StreamId,
    pub(super) pool: PoolId,
    /// Within a private pool, whose requests it serves: as in PyTorch, each stream of a pool has segments of its own.
    serves: StreamId,
}

impl Heap {
    /// How a snapshot shows the memory of a pool.
    pub(super) fn shown(&self, kind: Kind, pool: PoolIndex) -> Shown {
        let of = &self.pools[pool];
        // The viewer joins mapped ranges of one stream only, and at home memory goes from stream to stream all the time; when
        // a private pool ends, also where blocks are live.
        let nobodys = kind == Kind::Home && self.rules.home_is_shared;
        let stream = if nobodys || pool.large() == self.idle { StreamId::DEFAULT } else { of.stream };
        let owner = self.owner_of(pool);
        let serves = if owner == PoolId::NONE { StreamId::DEFAULT } else { of.stream };
        Shown { class: of.class, stream, pool: owner, serves }
    }

    /// Returns the segments with their blocks, by address. Of an expandable segment, each contiguous mapped range; at home,
    /// what is for small blocks apart from what is for large ones, as the statistics count them, and what each private pool
    /// has.
    pub(crate) fn segment_infos(&self) -> Vec<SegmentInfo> {
        let mut out = Vec::new();
        for segment in self.segments.iter().flatten() {
            self.add_segment_infos(segment, &mut out);
        }
        // A stitched block is a segment of its own, and its pieces are no part of another: every byte is shown once.
        for (_, block) in self.blocks.iter().filter(|(_, block)| block.kind == Kind::View) {
            let pending = block.state == State::Pending;
            let state = if pending { BlockState::ActivePendingFree } else { BlockState::ActiveAllocated };
            let mut info = segment_info(self.shown(Kind::View, block.pool), block, true);
            (info.total_size, info.small) = (block.size, false);
            info.blocks.push(block_info(block, state));
            out.push(info);
        }
        out.sort_by_key(|segment| segment.address);
        out
    }

    /// Adds what a snapshot shows of a segment: its blocks, as often as memory of another kind begins.
    fn add_segment_infos(&self, segment: &Segment, out: &mut Vec<SegmentInfo>) {
        let expandable = !matches!(segment.backing, Backing::Malloc);
        let mut open: Option<SegmentInfo> = None;
        let mut open_for = None;
        let mut id = segment.head;
        while id.is_some() {
            let block = &self.blocks[id];
            let state = match block.state {
                State::Allocated => Some(BlockState::ActiveAllocated),
                State::Pending => Some(BlockState::ActivePendingFree),
                State::Free => Some(BlockState::Inactive),
                State::Unmapped | State::Vacant | State::Piece => None,
            };
            if let Some(state) = state {
                // At home all lie side by side.
                let shown = self.shown(block.kind, block.pool);
                if open_for != Some(shown) {
                    out.extend(open.take());
                }
                open_for = Some(shown);
                let info = open.get_or_insert_with(|| segment_info(shown, block, expandable));
                info.total_size += block.size;
                info.blocks.push(block_info(block, state));
            } else {
                out.extend(open.take());
            }
            id = block.next;
        }
        out.extend(open);
    }
}

/// A segment that begins with a block and is empty yet.
fn segment_info(shown: Shown, block: &Block, expandable: bool) -> SegmentInfo {
    SegmentInfo {
        address: block.address,
        total_size: 0,
        stream: shown.stream,
        small: shown.class == Class::Small,
        expandable,
        pool: shown.pool,
        blocks: Vec::new(),
    }
}

fn block_info(block: &Block, state: BlockState) -> BlockInfo {
    let Block { address, size, requested, .. } = *block;
    BlockInfo { address, size, requested_size: requested, state }
}
