//! Home: segments, the chunks at their permanent places, and the views over them.
//!
//! Owns: which memory the heap has, at which addresses, and which of it sleeps or is spilled. `backing` makes the
//! driver calls. [`Home`](table::Home) calls only `blocks` of the heap's parts. The methods of `Heap` in these files
//! call all parts.
//!
//! | file | owns |
//! |---|---|
//! | table | the tables that the files below change |
//! | chunk_map | the chunks, and which of them are mapped at their places |
//! | view, views | ranges in which chunks are mapped at contiguous addresses |
//! | segment, segments | segments, and how they come, grow, shrink and go |
//! | stitched | blocks that are handed out through views: their pieces and slabs |
//! | placing | cutting and joining of blocks by the heap's layout |
//! | baselines | cuts of blocks that only the allocators of the literature make |
//! | growing | parts of a view that grows for one allocation |
//! | exchange | a chunk becomes several chunks, at the same addresses |
//! | sleep, saved, bulk_copy | chunks of private pools that sleep, and their saved contents |
//! | spill, spilled, spilling, host_stock | spilled chunks, and which chunks may be spilled |
//! | guarded | blocks with memory of their own, for guard mode |
//! | pool_bytes, driver_pool | the bytes of the driver's stream-ordered pool, inside and outside of blocks |
//! | physical | the physical memory of a live block |

#[cfg(feature = "baselines")]
mod baselines;
pub(super) mod bulk_copy;
pub(super) mod chunk_map;
#[cfg(feature = "baselines")]
pub(super) mod driver_pool;
pub(super) mod exchange;
pub(super) mod growing;
pub(super) mod guarded;
pub(super) mod host_stock;
pub(super) mod physical;
pub(super) mod placing;
pub(super) mod pool_bytes;
pub(super) mod saved;
pub(super) mod segment;
pub(super) mod segments;
pub(super) mod sleep;
pub(super) mod spill;
pub(super) mod spilled;
pub(super) mod spilling;
pub(super) mod stitched;
pub(super) mod table;
pub(super) mod view;
pub(super) mod views;
