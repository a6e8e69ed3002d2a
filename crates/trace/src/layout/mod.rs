//! The memory of a device at one moment, from a snapshot without a history.
//!
//! Owns: the figures of a [`Layout`]. `measure.rs` counts them, `largest.rs` finds the largest requests that they
//! allow, and `words.rs` has the verdict.

mod largest;
mod measure;
#[cfg(test)]
mod tests;
mod words;

pub use largest::LargestRequests;
pub use words::{LayoutVerdict, LayoutVerdictKind};

use crate::columns::{Column, gib};
use largest::Parts;
use seamalloc::PoolId;
use seamalloc::driver::StreamId;
use serde_json::{Value, json};

type Figure = Column<LayoutPool>;

/// The memory of one device at one moment, by stream and pool. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Layout {
    /// The name of the snapshot's file, without endings.
    pub name: String,
    /// The ordinal of the device.
    pub device: u32,
    /// The number of segments, which are ranges of addresses with memory.
    pub segments: u64,
    /// Whether any segment is a part of an expandable segment.
    pub expandable: bool,
    /// The memory of all pools together.
    pub held: Held,
    /// The free bytes of private pools.
    pub private_free: u64,
    /// The memory of each stream in each pool. The entry with the most bytes is the first.
    pub pools: Vec<LayoutPool>,
    /// The parts of free memory that determine the largest requests.
    parts: Parts,
}

/// The memory that is held, by its use. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// The bytes that the allocator holds of the device.
    pub reserved: u64,
    /// The bytes in blocks that the program has not freed (`active_allocated`).
    pub allocated: u64,
    /// The requested bytes of allocated and pending blocks.
    pub requested: u64,
    /// The bytes in blocks that the program has freed and other streams still use (`active_pending_free`).
    pub pending: u64,
    /// The bytes in free blocks.
    pub free: u64,
    /// The number of free blocks.
    pub holes: u64,
    /// The size of the largest free block.
    pub largest_hole: u64,
}

/// The memory that one stream holds of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayoutPool {
    /// The stream whose requests the memory serves.
    pub stream: StreamId,
    /// The private pool; [`PoolId::NONE`] for memory that serves all requests.
    pub pool: PoolId,
    /// Whether the memory serves requests of up to 1 MiB; otherwise it serves larger ones.
    pub small: bool,
    /// The number of segments.
    pub segments: u64,
    /// The memory of these segments, by its use.
    pub held: Held,
}

impl LayoutPool {
    /// The figures of a table.
    pub const COLUMNS: &'static [Figure] = &[
        Figure::run("stream", |pool| pool.stream.to_string().into())
            .text("stream", |pool| pool.stream.to_string().into()),
        Figure::run("pool", |pool| (pool.pool != PoolId::NONE).then(|| pool.pool.to_string()).into())
            .text("pool", |pool| if pool.pool == PoolId::NONE { "".into() } else { pool.pool.to_string().into() }),
        Figure::run("small", |pool| pool.small.into())
            .text("requests", |pool| if pool.small { "up to 1 MiB" } else { "larger" }.into()),
        Figure::result("segments", |pool| pool.segments.into())
            .figure("segments", |pool| pool.segments.into())
            .spare(2),
        Figure::result("reserved", |pool| pool.held.reserved.into())
            .figure("reserved\nGiB", |pool| gib(pool.held.reserved).into()),
        Figure::result("allocated", |pool| pool.held.allocated.into())
            .figure("allocated\nGiB", |pool| gib(pool.held.allocated).into()),
        Figure::result("requested", |pool| pool.held.requested.into()),
        Figure::result("pending", |pool| pool.held.pending.into())
            .figure("pending\nGiB", |pool| gib(pool.held.pending).into())
            .spare(3),
        Figure::result("free", |pool| pool.held.free.into()).figure("free\nGiB", |pool| gib(pool.held.free).into()),
        Figure::result("holes", |pool| pool.held.holes.into()).figure("holes", |pool| pool.held.holes.into()).spare(1),
        Figure::result("largest_hole", |pool| pool.held.largest_hole.into())
            .figure("largest hole\nGiB", |pool| gib(pool.held.largest_hole).into()),
    ];
}

impl Layout {
    /// Returns the largest request that each allocator could serve at the layout's moment, on a device with `capacity`
    /// bytes; without a capacity, the largest request that the reserved memory could serve. No request is larger than
    /// the device's memory less the blocks in use.
    #[must_use]
    pub fn largest_requests(&self, capacity: Option<u64>) -> LargestRequests {
        // If `capacity` is less than the reserved memory, such a device would not have a part of the free memory.
        let in_use = self.held.reserved.saturating_sub(self.held.free).saturating_add(self.private_free);
        let most = capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(in_use));
        self.parts.largest(self.room(capacity).unwrap_or(0)).at_most(most)
    }

    /// Returns the free bytes that PyTorch's allocator gives back to the driver before it refuses a request.
    #[must_use]
    pub fn releasable(&self) -> u64 {
        self.parts.releasable
    }

    /// Returns the bytes of a device with `capacity` bytes that the allocator has not reserved; `None` without a
    /// capacity.
    fn room(&self, capacity: Option<u64>) -> Option<u64> {
        capacity.map(|capacity| capacity.saturating_sub(self.held.reserved))
    }

    /// Returns the line that `--json` prints. `capacity` is the memory of the device, if it is known.
    #[must_use]
    pub fn to_json(&self, capacity: Option<u64>) -> Value {
        let Held { reserved, allocated, requested, pending, free, holes, largest_hole } = self.held;
        let largest = self.largest_requests(capacity);
        let pools = self.pools.iter().map(|pool| Value::from(crate::columns::line(LayoutPool::COLUMNS, pool)));
        json!({
            "layout": true,
            "trace": self.name,
            "device": self.device,
            "capacity": capacity,
            "segments": self.segments,
            "expandable": self.expandable,
            "reserved": reserved,
            "allocated": allocated,
            "requested": requested,
            "pending": pending,
            "free": free,
            "private_free": self.private_free,
            "releasable": self.releasable(),
            "holes": holes,
            "largest_hole": largest_hole,
            "largest_request": {
                "caching": largest.native,
                "expandable": largest.expandable,
                "stitch,split:off": largest.unsplit,
                "stitch": largest.stitch,
            },
            "pools": pools.collect::<Vec<_>>(),
            "verdict": self.verdict(capacity).to_json(),
        })
    }
}
