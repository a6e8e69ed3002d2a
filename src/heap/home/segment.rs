//! Segments. A segment is a contiguous range of addresses that blocks tile.

use crate::ids::{BlockId, Handle, PoolIndex};
use crate::span::Span;

/// The source of the memory at a segment's addresses.
#[derive(Debug)]
pub(crate) enum Backing {
    /// One allocation of the driver, or of the source of a private pool.
    Malloc,
    /// Reserved addresses, in which each unit of `unit` bytes is mapped or not. The list of units ends at the last unit
    /// that was ever mapped.
    Expandable { unit: u64, units: Vec<Option<Handle>> },
    /// A reserved range of home. The chunk map has the chunks.
    Home,
    /// The memory of one guarded block: its handle, and the addresses that were reserved around the memory.
    Guarded { handle: Handle, reservation: Span },
}

/// A contiguous range of addresses, tiled by its blocks.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) span: Span,
    pub(crate) pool: PoolIndex,
    pub(crate) backing: Backing,
    /// The block at the segment's first byte. The id of this block never changes, because splits and merges keep the id
    /// of the lower block.
    pub(crate) head: BlockId,
}
