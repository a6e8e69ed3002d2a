//! The heap: segments, the blocks that tile them, and the pools whose free blocks serve requests. The hot path touches
//! nothing else.
//!
//! Owns: every table of blocks, pools, segments, chunks and views, and their counters. The fields are private: callers
//! read through `&` and write by methods. The heap never calls the driver: `backing` does, and then notes the result in
//! the heap.
//!
//! | file | owns |
//! |---|---|
//! | block, free_index, pool, chunk_map, views, counters | one table each; none of them knows the heap |
//! | fingerprint | whether a table has the same contents as before |
//! | tables, new | [`Heap`] itself, and reading it |
//! | segment, segments | segments, and how they come, grow, shrink and go |
//! | request, fit, hand_out, free, returned | the hot path |
//! | links, merging | blocks beside each other, and which of them merge |
//! | pool_bytes, driver_pool | the bytes of the driver's stream-ordered pool, inside and outside of blocks |
//! | layout, placing | how memory is divided, for strategies that differ from PyTorch |
//! | baselines | what only the allocators of the literature do to blocks |
//! | stitched | blocks that are handed out through views |
//! | growing | parts of a view that grows for one allocation |
//! | sleep, saved | chunks of private pools that sleep, and their saved contents |
//! | spill, spilled, spilling | spilled chunks, and which chunks may be spilled |
//! | exchange | a chunk becomes several, at the same addresses |
//! | guarded | blocks with memory of their own, for guard mode |
//! | owners, stream_pools, private, private_pools, own_segments, checkpoint | the owners of pools |
//! | notify, observers, snapshot, measure, physical | the heap as observers, reports and other processes see it |
//! | flight, flight_log | the flight recorder: the last operations |
//! | check | the rules that always hold |
//!
//! Calls between methods of [`Heap`] form no cycle among files.

#[cfg(feature = "baselines")]
mod baselines;
mod block;
mod bulk_copy;
mod check;
mod checkpoint;
mod chunk_map;
mod counters;
#[cfg(feature = "baselines")]
mod driver_pool;
mod exchange;
mod fingerprint;
mod fit;
mod flight;
mod flight_log;
mod free;
mod free_index;
mod growing;
mod guarded;
mod hand_out;
mod host_bytes;
mod host_stock;
mod layout;
mod links;
mod measure;
mod merging;
mod new;
mod notify;
mod observers;
mod own_segments;
mod owners;
mod physical;
mod placing;
mod pool;
mod pool_bytes;
mod private;
mod private_pools;
mod request;
mod returned;
mod route;
mod saved;
mod segment;
mod segment_source;
mod segments;
mod sleep;
mod snapshot;
mod sorted;
mod spill;
mod spilled;
mod spilling;
mod stitched;
mod stream_pools;
mod tables;
mod view;
mod views;

pub(crate) use block::{Block, Kind, Slots, State};
pub(crate) use chunk_map::{Chunk, ChunkMap, GRANULE, MAX_HOME};
pub(crate) use flight_log::Kept;
pub(crate) use growing::Tail;
pub(crate) use guarded::GuardedMemory;
pub(crate) use host_bytes::map_bytes;
#[cfg(feature = "baselines")]
pub(crate) use layout::Merging;
pub(crate) use layout::{Layout, Placement};
pub(crate) use physical::{Physical, PhysicalSpan};
pub(crate) use private_pools::PrivatePool;
pub(crate) use request::{FitRules, Request};
pub use route::Route;
pub use saved::Backup;
pub(crate) use saved::{Locked, Saved};
pub(crate) use segment::Backing;
pub(crate) use segment_source::guarded;
pub use segment_source::{SegmentSource, Segments, SourceError};
pub(crate) use segments::NewMemory;
pub(crate) use sleep::Sleeper;
pub(crate) use stitched::Window;
pub(crate) use tables::{Heap, HeapRules};
pub(crate) use view::{PlanHash, View, ViewUsage};
