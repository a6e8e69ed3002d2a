//! The heap as its users see it in a snapshot.

use super::{Backing, Heap};
use crate::blocks::{Block, Kind, State};
use crate::driver::StreamId;
use crate::snapshot::{BlockInfo, BlockState, SegmentInfo};
use crate::stats::Class;

impl Heap {
    /// The segments with their blocks, by address. Of an expandable segment, each contiguous mapped range; at home, what is
    /// for small blocks apart from what is for large ones, as the statistics count them, and what each private pool has
    /// for each stream.
    pub(crate) fn segment_infos(&self) -> Vec<SegmentInfo> {
        let mut out = Vec::new();
        for segment in self.segments.iter().flatten() {
            let expandable = !matches!(segment.backing, Backing::Malloc);
            let mut open: Option<SegmentInfo> = None;
            let mut open_for = 0;
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
                    // At home all lie side by side. The pools that serve everyone take from each other.
                    let whose = if self.is_private(block.pool) { block.pool } else { self.idle + (block.pool & 1) };
                    if open_for != whose {
                        out.extend(open.take());
                    }
                    open_for = whose;
                    let info = open.get_or_insert_with(|| SegmentInfo {
                        address: block.address,
                        total_size: 0,
                        // Of memory that is no stream's own, the stream that has its first block.
                        stream: if block.pool & !1 == self.idle {
                            StreamId::DEFAULT
                        } else {
                            self.pools[block.pool as usize].stream
                        },
                        small: self.pools[block.pool as usize].class == Class::Small,
                        expandable,
                        pool: self.owner_of(block.pool),
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
            let pool = &self.pools[block.pool as usize];
            let pending = block.state == State::Pending;
            let state = if pending { BlockState::ActivePendingFree } else { BlockState::ActiveAllocated };
            out.push(SegmentInfo {
                address,
                total_size: size,
                stream: pool.stream,
                small: false,
                expandable: true,
                pool: self.owner_of(block.pool),
                blocks: vec![BlockInfo { address, size, requested_size: requested, state }],
            });
        }
        out.sort_by_key(|segment| segment.address);
        out
    }
}
