//! Backing: how memory is taken from the driver, mapped, and given back. All strategies share this code.
//!
//! Owns: every driver call for memory, the order of these calls, and how they are undone when one call fails. The
//! strategy chooses which memory is taken or given back, and when. A step that fails has changed nothing, or has noted
//! its changes in the heap.

mod backup;
#[cfg(feature = "baselines")]
mod baselines;
mod chunks;
mod context;
#[cfg(feature = "baselines")]
mod driver_pool;
mod exchange;
mod gate;
mod growing;
mod guarded;
mod home;
mod host_stock;
mod mapping;
mod place;
mod release_plan;
mod rollback;
mod segments;
mod sleep;
mod spill;
mod units;
mod verbs;
mod view;

#[cfg(feature = "baselines")]
pub(crate) use baselines::{malloc_largest, move_units};
pub(crate) use chunks::{ChunkPlace, add_chunks, map_home, release_chunks};
pub(crate) use context::{AllocatorContext, Exchanges, InTurn, Miss, MissResult, Served, Spill, StrategyContext};
#[cfg(feature = "baselines")]
pub(crate) use driver_pool::DriverPool;
pub(crate) use exchange::{Cut, Fate, Part, exchange, lost_spans};
pub(crate) use growing::{map_part, release_addresses, reserve_addresses, settled_tail};
pub(crate) use guarded::{GUARD_RANGE, map_guarded, unmap_guarded};
pub(crate) use home::{grow_home, release_home, reserve_home};
pub(crate) use host_stock::{bound_backups, release_backups, release_host_stock};
pub(crate) use release_plan::choose;
pub(crate) use rollback::PendingRollback;
pub(crate) use segments::{
    malloc_segment, reclaim_private_pools, release_own_segments, release_segment, release_segments_from,
    release_whole_segments, whole_segments,
};
pub(crate) use sleep::{sleep, wake};
pub(crate) use spill::{drop_spilled, has_host_memory, spill, split_through_host, unspill};
pub(crate) use units::{
    Units, UnmappedPart, map_units, release_empty_segments, release_unused, reserve_segment, unmap_units, whole_units,
};
pub(crate) use view::{ViewPlan, build_view, cut_view, drop_view, finish_drops, make_room, usage_of_kept_views};
