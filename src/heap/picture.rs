//! The heap as its users see it in a snapshot. What they see changing, told.rs tells.

use super::{Backing, Heap};
use crate::blocks::{Block, Kind, State};
use crate::ids::PoolId;
use crate::ids::StreamId;
use crate::snapshot::{BlockInfo, BlockState, SegmentInfo};
use crate::stats::Class;

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
    pub(super) fn shown(&self, kind: Kind, pool: u32) -> Shown {
        let of = &self.pools[pool as usize];
        // The viewer joins mapped ranges of one stream only, and at home memory goes from stream to stream all the time; when
        // a private pool ends, also where blocks are live.
        let nobodys = kind == Kind::Home && self.home_is_shared;
        let stream = if nobodys || pool & !1 == self.idle { StreamId::DEFAULT } else { of.stream };
        let owner = self.owner_of(pool);
        let serves = if owner == PoolId::NONE { StreamId::DEFAULT } else { of.stream };
        Shown { class: of.class, stream, pool: owner, serves }
    }

    /// The segments with their blocks, by address. Of an expandable segment, each contiguous mapped range; at home, what is
    /// for small blocks apart from what is for large ones, as the statistics count them, and what each private pool has.
    pub(crate) fn segment_infos(&self) -> Vec<SegmentInfo> {
        let mut out = Vec::new();
        for segment in self.segments.iter().flatten() {
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
                    let info = open.get_or_insert_with(|| SegmentInfo {
                        address: block.address,
                        total_size: 0,
                        stream: shown.stream,
                        small: shown.class == Class::Small,
                        expandable,
                        pool: shown.pool,
                        blocks: Vec::new(),
                    });
                    info.total_size += block.size;
                    let Block { address, size, requested, .. } = *block;
                    info.blocks.push(BlockInfo { address, size, requested_size: requested, state });
                } else {
                    out.extend(open.take());
                }
                id = block.next;
            }
            out.extend(open);
        }
        // A stitched block is a segment of its own, and its pieces are no part of another: every byte is shown once.
        for (_, block) in self.blocks.iter().filter(|(_, block)| block.kind == Kind::View) {
            let Block { address, size, requested, .. } = *block;
            let shown = self.shown(Kind::View, block.pool);
            let pending = block.state == State::Pending;
            let state = if pending { BlockState::ActivePendingFree } else { BlockState::ActiveAllocated };
            out.push(SegmentInfo {
                address,
                total_size: size,
                stream: shown.stream,
                small: false,
                expandable: true,
                pool: shown.pool,
                blocks: vec![BlockInfo { address, size, requested_size: requested, state }],
            });
        }
        out.sort_by_key(|segment| segment.address);
        out
    }
}
