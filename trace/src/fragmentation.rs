//! How an allocator's memory is divided up, as JSON.

use seamalloc::Fragmentation;
use serde_json::{Value, json};

/// Returns all fields of `memory`, and the figures that follow from them, by their names. Owners of free memory are as
/// [`Owner`](seamalloc::fragmentation::Owner) prints them, streams as [`StreamId`](seamalloc::driver::StreamId) does.
#[must_use]
pub fn fragmentation_json(memory: &Fragmentation) -> Value {
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
    let streams = memory.streams.iter().map(
        |stream| json!({"stream": stream.stream.to_string(), "largest": stream.largest, "reachable": stream.reachable}),
    );
    json!({
        "reserved": memory.reserved,
        "requested": memory.requested,
        "allocated": memory.allocated,
        "pending": memory.pending,
        "free": memory.free,
        "unsettled": memory.unsettled,
        "utilization": round_to(memory.utilization(), 6),
        "rounding_loss": memory.rounding_loss(),
        "largest_free": memory.largest_free(),
        "largest_reachable": memory.largest_reachable(),
        "external": round_to(memory.external(), 6),
        "external_after_stitching": round_to(memory.external_after_stitching(), 6),
        "stranded": memory.stranded(),
        "pools": pools.collect::<Vec<_>>(),
        "streams": streams.collect::<Vec<_>>(),
        "chunks": memory.chunks,
        "partly_free_chunks": memory.partly_free_chunks,
        "partly_free_bytes": memory.partly_free_bytes,
        "landlocked_bytes": memory.landlocked_bytes,
        "views": memory.views,
        "view_mappings": memory.view_mappings,
        "home_mappings": memory.home_mappings,
    })
}

pub(crate) fn round_to(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}
