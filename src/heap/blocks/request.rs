//! A request for a free block, and the rules by which a block is chosen.
//!
//! Owns: [`FitRules`], the rules of a strategy as plain data, so that the hot path makes no dynamic call.

use super::layout::Placement;
use crate::config::rounding::MIN_BLOCK;
use crate::ids::{Class, PoolIndex, ViewId};

/// The rules by which a request finds its block, and by which the rest of the block is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FitRules {
    /// Whether the unmapped addresses after a block at the growing edge of an expandable segment count as part of the
    /// block's size.
    pub(crate) growing_edge: bool,
    /// Requests smaller than this size may not take a block of at least this size. Larger requests take such a block
    /// whole.
    pub(crate) max_split_size: u64,
    /// The most bytes by which a block may exceed a request of at least `max_split_size`.
    pub(crate) max_non_split_rounding: u64,
    /// The smallest rest that becomes a block of its own, by [`Class`].
    pub(crate) min_rest: [u64; 2],
    /// Requests of at least this size take a larger block whole.
    pub(crate) no_split_from: u64,
    /// Whether the heap counts searches as a clock for the ages of free blocks.
    pub(crate) count_ages: bool,
    /// Whether a large request that its own pool cannot serve may take idle memory.
    pub(crate) takes_idle: bool,
    /// The place of a request in its block.
    pub(crate) placement: Placement,
}

impl FitRules {
    /// The rules of plain best fit: the smallest block that fits serves a request, wherever the block lies, and all of
    /// its rest becomes a free block.
    pub(crate) const BEST: Self = Self {
        growing_edge: false,
        max_split_size: u64::MAX,
        max_non_split_rounding: u64::MAX,
        min_rest: [MIN_BLOCK; 2],
        no_split_from: u64::MAX,
        count_ages: false,
        takes_idle: false,
        placement: Placement::Front,
    };

    /// Only a block of exactly the request's size serves the request. A block that is a byte larger is refused.
    #[cfg(feature = "baselines")]
    pub(crate) const EXACT: Self = Self { max_split_size: 0, max_non_split_rounding: 1, ..Self::BEST };

    /// Returns a copy of these rules by which blocks are placed so that whole granules stay free.
    pub(crate) const fn by_granule(self) -> Self {
        Self { placement: Placement::ByGranule, ..self }
    }

    /// Returns whether blocks are placed so that whole granules stay free.
    pub(crate) fn is_by_granule(&self) -> bool {
        self.placement == Placement::ByGranule
    }
}

/// A request for a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The rounded size, in bytes.
    pub(crate) size: u64,
    /// The size that the program requested, in bytes.
    pub(crate) requested: u64,
    pub(crate) pool: PoolIndex,
    pub(crate) class: Class,
    /// The view after whose last part the bytes are to lie, in whole chunks; [`ViewId::NONE`] if the bytes may lie
    /// anywhere.
    pub(crate) extends: ViewId,
}
