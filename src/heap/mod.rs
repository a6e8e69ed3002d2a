//! The heap: segments, the blocks that tile them, and the pools whose free blocks serve requests. The hot path touches
//! only the heap.
//!
//! Owns: every table of blocks, pools, segments, chunks and views, and the journal of their changes. The heap never
//! calls the driver: `backing` makes the calls and then notes the results in the heap.
//!
//! Each part keeps its fields private. Other files of the heap call the part's methods. Callers above read through `&`
//! and write by methods of [`Heap`]. Each of these verbs changes the tables and reports the change to the journal once.
//!
//! ```text
//!  verbs of Heap: hand_out, free, merging, ...     and those in home/ and pools/
//!       |             |             |            |
//!    blocks/        pools/        home/       journal/
//! ```
//!
//! | part | owns |
//! |---|---|
//! | [`blocks`] | the table of blocks, the free index, splits and merges; knows no other part |
//! | [`pools`] | the pools of streams and of private pools |
//! | [`home`] | segments, chunks and views, and what sleeps or is spilled |
//! | [`journal`] | counters, observers and the flight recorder; knows no other part |
//!
//! | file beside them | owns |
//! |---|---|
//! | tables, new | [`Heap`] itself, and reading it |
//! | fit, hand_out, free, returned, merging | the hot path: from a free block to a live one, and back |
//! | notify, snapshot, measure | the heap as events, snapshots and reports show it |
//! | check | the rules that always hold |
//! | fingerprint, sorted, host_bytes | whether a table's contents are as before; sorted lists; bytes of hash maps |
//!
//! The feature `baselines` adds operations on blocks for the allocators of the literature: `home/baselines.rs` and
//! others.
//!
//! Calls between methods of [`Heap`] form no cycle among files.

mod blocks;
mod check;
mod fingerprint;
mod fit;
mod free;
mod hand_out;
mod home;
mod host_bytes;
mod journal;
mod measure;
mod merging;
mod new;
mod notify;
mod pools;
mod returned;
mod snapshot;
mod sorted;
mod tables;

pub(crate) use blocks::block::{Block, Kind, Slots, State};
#[cfg(feature = "baselines")]
pub(crate) use blocks::layout::Merging;
pub(crate) use blocks::layout::{Layout, Placement};
pub(crate) use blocks::request::{FitRules, Request};
#[cfg(feature = "baselines")]
pub(crate) use blocks::rounding::Rounding;
pub(crate) use blocks::starts::GRANULE;
pub(crate) use home::chunk_map::{Chunk, ChunkMap, MAX_HOME};
pub(crate) use home::exchange::ExchangeRoom;
pub(crate) use home::growing::Tail;
pub(crate) use home::guarded::GuardedMemory;
pub(crate) use home::physical::{Physical, PhysicalSpan};
pub use home::saved::Backup;
pub(crate) use home::saved::{Locked, Saved};
pub(crate) use home::segment::Backing;
pub(crate) use home::segments::NewMemory;
pub(crate) use home::sleep::Sleeper;
pub(crate) use home::stitched::Window;
pub(crate) use home::view::{PlanHash, View, ViewUsage};
pub(crate) use host_bytes::map_bytes;
pub(crate) use journal::flight_log::Kept;
pub(crate) use pools::private_pools::PrivatePool;
pub use pools::route::Route;
pub(crate) use pools::segment_source::guarded;
pub use pools::segment_source::{SegmentSource, Segments, SourceError};
pub(crate) use tables::{Heap, HeapRules};
