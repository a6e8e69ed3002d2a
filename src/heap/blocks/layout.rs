//! The division of a heap's memory: the size that a request gets, the pool that serves it, and when free neighbours
//! become one. PyTorch's way is [`Layout::PYTORCH`]; those of `strategy/baselines` have others.
//!
//! Owns: [`Layout`]. `placing.rs` carries out merging and placing by a layout.

use super::rounding::Rounding;
use crate::config::rounding::SMALL_LIMIT;
use crate::ids::Class;

/// When two free neighbours of one pool become one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merging {
    /// Always.
    Neighbours,
    /// Never: blocks keep the size that they were cut to, until their whole segment is free and is joined
    /// ([`Heap::join_free_segments`]).
    Never,
    /// If they are buddies: the two halves of one block of twice their size. Segments are powers of two.
    #[cfg(feature = "baselines")]
    Buddies,
}

/// The place of a request in its block, and the use of the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// At the front; the rest is one block, if it is large enough.
    Front,
    /// At the front, unless whole granules stay whole elsewhere. The rest is a block on each side.
    ByGranule,
    /// At the back; all of the rest is one block.
    #[cfg(feature = "baselines")]
    Back,
    /// At the front of the block, which is halved until it has the size of the request.
    #[cfg(feature = "baselines")]
    Halves,
}

/// How a heap divides its memory. The layout does not change while the heap exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) rounding: Rounding,
    /// Blocks of up to this many bytes belong to the small pool; with 0, no block is small.
    pub(crate) small_limit: u64,
    pub(crate) merging: Merging,
    /// Segments of at least this many bytes are released to the driver once they are wholly free.
    pub(crate) release_from: u64,
}

impl Layout {
    /// The layout of PyTorch's allocator.
    pub(crate) const PYTORCH: Self = Self {
        rounding: Rounding::PyTorch,
        small_limit: SMALL_LIMIT,
        merging: Merging::Neighbours,
        release_from: u64::MAX,
    };

    /// Returns the class of a block of so many bytes.
    #[inline]
    pub(crate) fn class_of(&self, size: u64) -> Class {
        Class::of(size <= self.small_limit)
    }
}
