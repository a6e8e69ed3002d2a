//! An allocator's memory by its use (a [`Fragmentation`]), as JSON.

use crate::columns::{Column, line, round_to};
use seamalloc::Fragmentation;
use serde_json::{Value, json};

type Figure = Column<Fragmentation>;

/// The figures of a [`Fragmentation`].
pub const FRAGMENTATION_COLUMNS: &[Figure] = &[
    Figure::result("reserved", |memory| memory.reserved.into()),
    Figure::result("allocated", |memory| memory.allocated.into()),
    Figure::result("pending", |memory| memory.pending.into()),
    Figure::result("requested", |memory| memory.requested.into()),
    Figure::result("rounding_loss", |memory| memory.rounding_loss().into()),
    Figure::result("utilization", |memory| round_to(memory.utilization(), 6).into()),
    Figure::result("free", |memory| memory.free.into()),
    Figure::result("unsettled", |memory| memory.unsettled.into()),
    Figure::result("asleep", |memory| memory.asleep.into()),
    Figure::result("spilled", |memory| memory.spilled.into()),
    Figure::result("largest_free", |memory| memory.largest_free().into()),
    Figure::result("external", |memory| round_to(memory.external(), 6).into()),
    Figure::result("largest_reachable", |memory| memory.largest_reachable().into()),
    Figure::result("external_after_stitching", |memory| round_to(memory.external_after_stitching(), 6).into()),
    Figure::result("stranded", |memory| memory.stranded().into()),
    Figure::result("pools", pools),
    Figure::result("streams", streams),
    Figure::result("chunks", |memory| memory.chunks.into()),
    Figure::result("partly_free_chunks", |memory| memory.partly_free_chunks.into()),
    Figure::result("partly_free_bytes", |memory| memory.partly_free_bytes.into()),
    Figure::result("landlocked_bytes", |memory| memory.landlocked_bytes.into()),
    Figure::result("views", |memory| memory.views.into()),
    Figure::result("view_mappings", |memory| memory.view_mappings.into()),
    Figure::result("home_mappings", |memory| memory.home_mappings.into()),
];

/// Returns all fields of `memory`, and the figures computed from them, by name. Owners of free memory are printed as by
/// [`Owner`](seamalloc::fragmentation::Owner), streams as by [`StreamId`](seamalloc::driver::StreamId).
#[must_use]
pub fn fragmentation_json(memory: &Fragmentation) -> Value {
    line(FRAGMENTATION_COLUMNS, memory).into()
}

fn pools(memory: &Fragmentation) -> Value {
    let pools = memory.pools.iter().map(|pool| {
        json!({
            "owner": pool.owner.to_string(),
            "small": pool.small,
            "free": pool.free,
            "ranges": pool.ranges,
            "largest": pool.largest,
            "stranded": pool.stranded,
        })
    });
    pools.collect()
}

fn streams(memory: &Fragmentation) -> Value {
    let streams = memory.streams.iter().map(
        |stream| json!({"stream": stream.stream.to_string(), "largest": stream.largest, "reachable": stream.reachable}),
    );
    streams.collect()
}
