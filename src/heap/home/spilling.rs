//! The state of spilling: counts and lists, without the heap.
//!
//! Owns: [`Spilling`]. `spill.rs` and `spilled.rs` change this state.

use super::host_stock::HostStock;
use crate::ids::BlockId;
use crate::span::Span;
use rustc_hash::FxHashSet;

/// Spilled memory may come back by itself once the program has allocated this many times the device's memory without a
/// spill. A training job allocates this much in a few steps, each of which reaches the peak.
pub(super) const QUIET: u64 = 16;
/// The most doublings of [`QUIET`], the wait before spilled memory returns. One doubling is added each time that
/// returned memory is spilled again.
pub(super) const MAX_DOUBLINGS: u32 = 20;

/// The state of spilling.
#[derive(Debug, Default)]
pub(crate) struct Spilling {
    /// The bytes of blocks in spilled chunks: one sum for each [`Class`].
    pub(in crate::heap) bytes: [u64; 2],
    /// The bytes of host memory that are part of no chunk, because a call could not be undone yet.
    pub(super) unsettled: u64,
    /// The host memory that is kept for the next spill.
    pub(in crate::heap) stock: HostStock,
    /// Pending blocks that wait for their own stream too, because they are spilled.
    pub(super) waits_for_own: FxHashSet<BlockId>,
    /// The ranges of home that were freed at the operation `passed_at` and that every stream has passed.
    pub(super) passed: Vec<Span>,
    pub(super) passed_at: u64,
    /// The bytes that had been allocated since the start, freed bytes included, when memory was last spilled, or
    /// spilled memory last came back by itself. With `None`, it may come back at the next opportunity.
    pub(super) quiet_since: Option<u64>,
    /// Whether spilled memory came back by itself since memory was last spilled.
    pub(super) returned: bool,
    pub(super) doublings: u32,
}
