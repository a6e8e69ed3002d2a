//! The promises of every strategy, on host memory: the same suite, with real addresses and streams.
//!
//! Left out is what needs other devices (`peers.rs`): host memory has none.

#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

/// Host memory has no peers.
macro_rules! promises_among_peers {
    () => {};
}
macro_rules! promises_among_peers_by_bytes {
    () => {};
}

/// The clock of these tests knows no waits on the GPU.
macro_rules! promises_by_the_clock {
    () => {};
}

#[macro_use]
#[path = "../contract/suite.rs"]
mod suite;

#[path = "../contract/caching.rs"]
mod caching;
#[path = "../contract/expandable.rs"]
mod expandable;
#[path = "../contract/gmlake.rs"]
mod gmlake;
#[path = "../contract/paddle_auto_growth.rs"]
mod paddle_auto_growth;
#[path = "../contract/paddle_vmm.rs"]
mod paddle_vmm;
#[path = "../contract/split.rs"]
mod split;
#[path = "../contract/stitch.rs"]
mod stitch;
#[path = "../contract/tiny.rs"]
mod tiny;

#[path = "../contract/blocks.rs"]
mod blocks;
#[path = "../contract/captures.rs"]
mod captures;
#[path = "../contract/ended_streams.rs"]
mod ended_streams;
#[path = "../contract/failures.rs"]
mod failures;
#[path = "../contract/figures.rs"]
mod figures;
#[path = "../contract/graphs.rs"]
mod graphs;
#[path = "../contract/hostile.rs"]
mod hostile;
#[path = "../contract/limits.rs"]
mod limits;
#[path = "../contract/pool_segments.rs"]
mod pool_segments;
#[path = "../contract/pool_sources.rs"]
mod pool_sources;
#[path = "../contract/pools.rs"]
mod pools;
#[path = "../contract/pressure.rs"]
mod pressure;
#[path = "../contract/release.rs"]
mod release;
#[path = "../contract/released_pools.rs"]
mod released_pools;
#[path = "../contract/sharing.rs"]
mod sharing;
#[path = "../contract/shortage.rs"]
mod shortage;
#[path = "../contract/streams.rs"]
mod streams;
#[path = "../contract/threads.rs"]
mod threads;
#[path = "../contract/trim.rs"]
mod trim;
#[path = "../contract/unreliable_sources.rs"]
mod unreliable_sources;

#[path = "../common/graph.rs"]
mod graph;
#[path = "../common/length.rs"]
mod length;
#[path = "../common/liar.rs"]
mod liar;
#[path = "../common/long_kernels.rs"]
mod long_kernels;
#[path = "../common/physical.rs"]
mod physical;
#[path = "../common/random.rs"]
mod random;
#[path = "../common/script.rs"]
mod script;
#[path = "../contract/setup.rs"]
mod setup;
#[path = "../common/shared_blocks.rs"]
mod shared_blocks;
#[path = "../common/on_host.rs"]
mod simulated;
#[path = "../contract/source.rs"]
mod source;
#[path = "../common/step.rs"]
mod step;

use setup::{
    CHUNK, MAIN, MIB, SHORTER, SIDE, SMALL_CHUNKS, balanced, calls, config_of, in_small_chunks, on, reserved, text_of,
    with_options,
};
use suite::Subject;
