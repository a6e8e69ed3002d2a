//! The division of a heap's memory: the size that a request gets, the pool that serves the request, and when free
//! neighbours become one block. [`Layout::PYTORCH`] is PyTorch's layout. The strategies in `strategy/baselines` have
//! other layouts.
//!
//! Owns: [`Layout`]. `placing.rs` carries out merging and placing by a layout.

use super::rounding::Rounding;
use crate::config::rounding::SMALL_LIMIT;
use crate::ids::Class;

/// The rule by which two free neighbours of one pool become one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merging {
    /// All free neighbours of one pool merge.
    Neighbours,
    /// No free neighbours merge. Blocks keep the size to which they were cut, until their whole segment is free and is
    /// joined ([`Heap::join_free_segments`]).
    Never,
    /// Buddies merge: the two halves of one block of twice their size. The sizes of segments are powers of two.
    #[cfg(feature = "baselines")]
    Buddies,
}

/// The place of a request in its block, and the use of the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// The request lies at the front. The rest is one block, if large enough.
    Front,
    /// The request lies at the front, unless another place keeps more granules whole. The rest is a block on each side.
    ByGranule,
    /// The request lies at the back. All of the rest is one block.
    #[cfg(feature = "baselines")]
    Back,
    /// The request lies at the front of the block, which is halved until its size is the request's.
    #[cfg(feature = "baselines")]
    Halves,
}

/// The rules by which a heap divides its memory. The layout does not change while the heap exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) rounding: Rounding,
    /// The most bytes of a block that belongs to the small pool; with 0, no block is small.
    pub(crate) small_limit: u64,
    pub(crate) merging: Merging,
    /// The least bytes of a segment that is released to the driver as soon as the segment is wholly free.
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

    /// Returns the class of a block of `size` bytes.
    #[inline]
    pub(crate) fn class_of(&self, size: u64) -> Class {
        Class::of(size <= self.small_limit)
    }
}
