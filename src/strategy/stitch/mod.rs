//! Strategy `stitch`: a request gets contiguous addresses as long as enough memory is free anywhere.
//!
//! Owns: the steps on a miss and their order. `choose.rs` chooses the ranges to join; [`backing`](crate::backing) makes
//! the driver calls for views and chunks.
//!
//! # Note: stitching
//!
//! **Rationale.** Free memory in pieces ends many runs with "20 GB reserved but unallocated". Expandable segments avoid
//! a part of this: a segment grows at its end, but free memory inside it serves only requests that fit there.
//! `cuMemMap` can map a chunk of physical memory twice, so pieces can be made contiguous where they lie, without moving
//! bytes.
//!
//! **Approach.** Every chunk has one place at *home*, where physical memory is counted. A block is one range of home,
//! or several ranges that a *view* maps at contiguous addresses:
//! ```text
//! home  |1 XX..|2 YYYY|3 ....|4 .ZZZ|      four chunks; X, Y, Z live, dots free; no seven free in a row
//! view  |1 --##|3 ####|4 #---|             a block of seven: the tail of chunk 1, chunk 3, the head of chunk 4
//! ```
//! A miss tries, in this order: memory that every stream has passed; one range at home; a view that served a request
//! for the same free ranges before; another view that fits; a range or a view that includes memory of other streams,
//! for which the stream waits on the GPU; a new view; more memory of other streams, after more waits; growth by the
//! missing bytes. The last resort waits for the device, releases free chunks that the request cannot use where they
//! lie, and takes as much new memory. Unless `split:off` is set, it also splits chunks that are partly in use. A freed
//! block returns to its ranges, and its view stays for the next such request. So a program that repeats itself makes
//! the same choices again, and maps hardly any memory from its third step on.
//!
//! Building a view needs no wait, since it maps only bytes that the requesting stream may use already. Unmapping needs
//! no wait either: a view is dropped, and a chunk released, only when every stream that used it has passed its last
//! use.
//!
//! **Limitations.**
//! - A chunk is mapped whole. In a chunk that is partly in use, free bytes serve a view only at the two ends, unless
//!   the chunk is split (`split.rs`) as a last resort.
//! - A mapping costs some 22 us, so the first pass is slower than with expandable segments. Smaller chunks waste less
//!   memory and cost more time; `chunk_size_mb` sets the size.
//! - If sizes never repeat, or streams run far behind the CPU, views are built again and again.
//! - Views are bounded (`max_views`, `max_view_mappings`, `max_view_address_space`). At a bound, memory grows in one
//!   piece.
//! - `cuIpcGetMemHandle` does not support this memory, so it is sent to other processes chunk by chunk.
//!
//! docs/decisions/ has the figures, and the rules that were tried and dropped.

mod at_home;
mod choose;
mod estimate;
mod extend;
mod grow;
mod last_resort;
mod miss;
mod others;
mod release;
mod remembered;
mod serve;
mod split;
mod whole;

use crate::heap::ViewUsage;
use crate::ids::{BlockId, ChunkId};
use crate::streams::Until;
use remembered::Remembered;

/// The state of the present request, and choices of earlier requests. The heap has the free memory.
#[derive(Default)]
pub(crate) struct Stitch {
    /// The chunks that were added for the request, which are released if the request fails.
    added: Vec<ChunkId>,
    /// If a bound on views forbade a view when memory was last joined: the usage that all views would have had together
    /// with that view. Otherwise `None`.
    refused: Option<ViewUsage>,
    /// The choices of free ranges for earlier requests.
    remembered: Remembered,
    /// Whether a growth may take the room that is reserved for splitting chunks (`SPLIT_RESERVE`).
    spends_reserve: bool,
    /// Whether chunks can be split through host memory, so that no room is reserved. `None` until this was tried.
    has_host_memory: Option<bool>,
    /// The work for which the request may wait on the GPU.
    until: Until,
    /// Whether views leave wholly free slabs to small requests.
    spares_slabs: bool,
}

/// The result of joining free memory.
enum Joined {
    Block(BlockId),
    /// The number of missing bytes.
    Missing(u64),
}
