//! What is spilled, and what happened since: counts and lists, without the heap.
//!
//! Owns: [`Spilling`]. `spill.rs` writes it.

use super::host_stock::HostStock;
use crate::ids::BlockId;
use crate::span::Span;
use rustc_hash::FxHashSet;

/// How many times the device's memory the program allocates without a spill before memory may come back by itself: some steps of
/// a trainer, in each of which the peak comes again.
pub(super) const QUIET: u64 = 16;
/// How often that doubles, if what came back is spilled again.
pub(super) const MAX_DOUBLINGS: u32 = 20;

/// What is spilled, and what happened since.
#[derive(Debug, Default)]
pub(crate) struct Spilling {
    /// Bytes of blocks in chunks that are spilled. By [`Class`].
    pub(super) bytes: [u64; 2],
    /// Bytes of the machine's memory that are part of no chunk, because a call could not be undone yet.
    pub(super) unsettled: u64,
    /// Memory of the machine that is kept for the next time.
    pub(super) stock: HostStock,
    /// Blocks that wait for their own stream too, because they are spilled.
    pub(super) waits_for_own: FxHashSet<BlockId>,
    /// Ranges of home that were freed when there were so many operations, and that every stream has passed.
    pub(super) passed: Vec<Span>,
    pub(super) passed_at: u64,
    /// All bytes that were ever allocated when memory was last spilled, or came back by itself.
    pub(super) quiet_since: u64,
    /// Whether memory came back by itself since it was last spilled.
    pub(super) returned: bool,
    pub(super) doublings: u32,
}
