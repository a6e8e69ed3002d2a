//! A snapshot of all memory that an allocator holds: segments, and the blocks that divide them without gaps.
//!
//! Owns: the plain values. The fields and their meanings are those of PyTorch's memory snapshots
//! (`torch.cuda.memory._snapshot()["segments"]`). `seamalloc-trace` writes snapshots as JSON or pickle.

use crate::pool::PoolId;
use seamalloc_driver::StreamId;

/// The state of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum BlockState {
    /// The block is handed out.
    ActiveAllocated,
    /// The program has freed the block, and other streams still use it.
    ActivePendingFree,
    /// The block is free.
    #[default]
    Inactive,
}

impl BlockState {
    /// Returns the name in PyTorch's snapshots.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ActiveAllocated => "active_allocated",
            Self::ActivePendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }
}

/// A block of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct BlockInfo {
    /// The address of the first byte.
    pub address: u64,
    /// The size in bytes, with rounding.
    pub size: u64,
    /// The requested size in bytes; for a free block the size of its last request, or 0.
    pub requested_size: u64,
    /// The state of the block.
    pub state: BlockState,
    /// Bytes of the block that are spilled to host memory: no figure of held device memory counts these bytes.
    /// PyTorch's snapshots have no such key; the key is written if it is not 0.
    pub spilled: u64,
    /// Whether the block is of a private pool that sleeps, and has no memory at present. PyTorch has no such key; the
    /// key is written if it is true.
    pub asleep: bool,
}

/// A contiguous range of addresses for which the allocator holds memory, except for blocks that are spilled or sleep.
/// Its blocks divide the range without gaps, in address order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SegmentInfo {
    /// The address of the first byte.
    pub address: u64,
    /// Bytes.
    pub total_size: u64,
    /// The stream whose requests the segment serves; the default stream where memory goes from stream to stream.
    pub stream: StreamId,
    /// Whether the segment serves requests of up to 1 MiB (PyTorch: `small`) or larger ones (`large`).
    pub small: bool,
    /// Whether the segment is a mapped range of a larger reservation (PyTorch: `is_expandable`).
    pub expandable: bool,
    /// The private pool that the segment serves; [`PoolId::NONE`] if it serves all requests (PyTorch:
    /// `segment_pool_id`).
    pub pool: PoolId,
    /// The blocks.
    pub blocks: Vec<BlockInfo>,
}

impl SegmentInfo {
    /// Returns the bytes of blocks that are handed out.
    #[must_use]
    pub fn allocated_size(&self) -> u64 {
        self.blocks
            .iter()
            .filter(|b| b.state == BlockState::ActiveAllocated)
            .map(|b| b.size)
            .fold(0, u64::saturating_add)
    }

    /// Returns the bytes of blocks that are handed out or wait for other streams.
    #[must_use]
    pub fn active_size(&self) -> u64 {
        self.blocks.iter().filter(|b| b.state != BlockState::Inactive).map(|b| b.size).fold(0, u64::saturating_add)
    }

    /// Returns the requested bytes of the blocks counted in [`Self::active_size`].
    #[must_use]
    pub fn requested_size(&self) -> u64 {
        self.blocks
            .iter()
            .filter(|b| b.state != BlockState::Inactive)
            .map(|b| b.requested_size)
            .fold(0, u64::saturating_add)
    }
}

/// All memory that an allocator holds at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Snapshot {
    /// The ordinal of the device, 0 on a simulated one.
    pub device: u32,
    /// The segments, by address.
    pub segments: Vec<SegmentInfo>,
    /// The settings in force, in PyTorch's syntax (`max_split_size_mb:512,expandable_segments:True`).
    pub settings: String,
}
