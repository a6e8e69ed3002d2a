//! Computes from a snapshot how each device's memory is divided (its layout).
//!
//! Owns: the sums. The bytes of the tables for these sums count against the memory limit of the file's reader
//! (`memory.rs`).

use super::largest::PartsCounter;
use super::{Held, Layout, LayoutPool};
use crate::memory::{Memory, MemoryError, SeededMap};
use seamalloc::PoolId;
use seamalloc::snapshot::{BlockInfo, BlockState, SegmentInfo, Snapshot};
use std::cmp::Reverse;

impl Layout {
    /// Returns the layout of each device that holds memory.
    pub(crate) fn of(name: &str, snapshots: &[Snapshot], memory: &mut Memory) -> Result<Vec<Self>, MemoryError> {
        let mut layouts = Vec::new();
        for snapshot in snapshots.iter().filter(|snapshot| !snapshot.segments.is_empty()) {
            let layout = Self::of_device(name, snapshot, memory)?;
            memory.push(&mut layouts, layout)?;
        }
        Ok(layouts)
    }

    fn of_device(name: &str, snapshot: &Snapshot, memory: &mut Memory) -> Result<Self, MemoryError> {
        let mut layout = Self { name: name.to_owned(), device: snapshot.device, ..Self::default() };
        let mut places: SeededMap<_, usize> = SeededMap::default();
        let mut parts = PartsCounter::default();
        for segment in &snapshot.segments {
            let held = Held::of(segment);
            let SegmentInfo { stream, pool, small, .. } = *segment;
            memory.room_in_map(&mut places)?;
            let place = *places.entry((stream, pool, small)).or_insert(layout.pools.len());
            if place == layout.pools.len() {
                memory.push(&mut layout.pools, LayoutPool { stream, pool, small, ..LayoutPool::default() })?;
            }
            if let Some(of) = layout.pools.get_mut(place) {
                of.segments += 1;
                of.held.add(&held);
            }
            layout.segments += 1;
            layout.expandable |= segment.expandable;
            layout.held.add(&held);
            if pool == PoolId::NONE {
                let free = segment.blocks.iter().filter(|block| is_free(block));
                parts.add(
                    segment,
                    free.map(|block| (block.address, block.address.saturating_add(block.size))),
                    memory,
                )?;
            } else {
                layout.private_free = layout.private_free.saturating_add(held.free);
            }
        }
        layout.parts = parts.finish();
        layout.pools.sort_by_key(|pool| Reverse(pool.held.reserved));
        Ok(layout)
    }
}

/// Returns whether a block is free memory of the device.
fn is_free(block: &BlockInfo) -> bool {
    block.state == BlockState::Inactive && !block.asleep && block.spilled == 0 && block.size > 0
}

impl Held {
    fn of(segment: &SegmentInfo) -> Self {
        let mut held = Self { reserved: segment.total_size, ..Self::default() };
        for block in &segment.blocks {
            // Sleeping and spilled memory is not on the device.
            let absent = if block.asleep { block.size } else { block.spilled };
            held.reserved = held.reserved.saturating_sub(absent);
            let size = block.size.saturating_sub(absent);
            let sum = match block.state {
                BlockState::ActiveAllocated => &mut held.allocated,
                BlockState::ActivePendingFree => &mut held.pending,
                BlockState::Inactive => &mut held.free,
            };
            *sum = sum.saturating_add(size);
            if block.state != BlockState::Inactive {
                held.requested = held.requested.saturating_add(block.requested_size);
            } else if is_free(block) {
                held.holes += 1;
                held.largest_hole = held.largest_hole.max(size);
            }
        }
        held
    }

    fn add(&mut self, other: &Self) {
        let sums = [
            (&mut self.reserved, other.reserved),
            (&mut self.allocated, other.allocated),
            (&mut self.requested, other.requested),
            (&mut self.pending, other.pending),
            (&mut self.free, other.free),
            (&mut self.holes, other.holes),
        ];
        sums.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
        self.largest_hole = self.largest_hole.max(other.largest_hole);
    }
}
