//! The heap in the form that a snapshot shows. `notify.rs` reports the changes.

use super::blocks::block::{Block, Kind, State};
use super::home::segment::{Backing, Segment};
use super::pools::shown::Shown;
use super::tables::Heap;
use crate::error::Result;
use crate::fallible::{Grown, TryPush};
use crate::ids::{BlockId, Class};
use crate::report::snapshot::{BlockInfo, BlockState, SegmentInfo};

impl Heap {
    /// Returns the segments with their blocks, in the order of addresses. An expandable segment is shown as one segment
    /// for each contiguous mapped range. At home, small memory, large memory and the memory of each private pool are
    /// separate segments, as the statistics count them.
    pub(crate) fn segment_infos(&self) -> Result<Vec<SegmentInfo>> {
        let mut out = Vec::new();
        for (_, segment) in self.home.segments() {
            self.add_segment_infos(segment, &mut out)?;
        }
        // A stitched block is a segment of its own, and no other segment shows its pieces. So every byte is shown once.
        for (id, block) in self.blocks.iter().filter(|(_, block)| block.kind == Kind::View) {
            let pending = block.state == State::Pending;
            let state = if pending { BlockState::ActivePendingFree } else { BlockState::ActiveAllocated };
            let mut info = segment_info(self.shown(Kind::View, block.pool), block, true);
            (info.total_size, info.small) = (block.size, false);
            info.blocks.try_push(self.block_info(id, state))?;
            out.try_push(info)?;
        }
        out.sort_unstable_by_key(|segment| segment.address);
        Ok(out)
    }

    fn block_info(&self, id: BlockId, state: BlockState) -> BlockInfo {
        let Block { address, size, requested, pool, .. } = self.blocks[id];
        BlockInfo {
            address,
            size,
            requested_size: requested,
            state,
            spilled: self.spilled_bytes_of(id),
            asleep: self.is_asleep(pool),
        }
    }

    /// Adds the segments that a snapshot shows for one segment of the heap. A new segment begins wherever the class
    /// (small, large), the stream or the private pool of the memory changes.
    fn add_segment_infos(&self, segment: &Segment, out: &mut Vec<SegmentInfo>) -> Grown<()> {
        let expandable = !matches!(segment.backing, Backing::Malloc);
        let mut open: Option<SegmentInfo> = None;
        let mut open_for = None;
        let mut id = segment.head;
        while id.is_some() {
            let block = &self.blocks[id];
            let state = match block.state {
                State::Allocated => Some(BlockState::ActiveAllocated),
                State::Pending => Some(BlockState::ActivePendingFree),
                State::Free | State::Slack | State::Retired => Some(BlockState::Inactive),
                State::Unmapped | State::Vacant | State::Piece => None,
            };
            if let Some(state) = state {
                // At home, memory that snapshots show in different segments lies side by side.
                let shown = self.shown(block.kind, block.pool);
                if open_for != Some(shown) {
                    close(&mut open, out)?;
                }
                open_for = Some(shown);
                let info = open.get_or_insert_with(|| segment_info(shown, block, expandable));
                info.total_size += block.size;
                info.blocks.try_push(self.block_info(id, state))?;
            } else {
                close(&mut open, out)?;
            }
            id = block.next;
        }
        close(&mut open, out)
    }
}

/// Appends the open segment to the list, if there is one.
fn close(open: &mut Option<SegmentInfo>, out: &mut Vec<SegmentInfo>) -> Grown<()> {
    open.take().map_or(Ok(()), |info| out.try_push(info))
}

/// Returns an empty segment that begins with `block`.
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
