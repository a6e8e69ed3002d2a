//! The promises of every strategy: one suite, and a short file for each strategy that runs it.
//!
//! A new strategy gets all of it by a file of its own with the line `contract!(Subject::of(…))`, and a `mod` line below. What
//! each strategy does in its own way is in `tests/strategies` and `tests/stitching`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

/// The promises that need other devices beside the one that allocates: only simulated GPUs have any.
macro_rules! promises_among_peers {
    () => {
        promises!(peers:
            a_peer_can_use_every_block_whenever_it_was_enabled,
            a_peer_that_is_refused_has_nothing_then_or_later,
            devices_that_may_use_the_memory_may_use_a_pools_own,
        );
    };
}

/// The promises among peers that count bytes.
macro_rules! promises_among_peers_by_bytes {
    () => {
        promises!(peers as peers_by_bytes: a_lost_context_is_a_typed_error_everywhere_and_the_end_is_clean);
    };
}

/// The promises that need to know when a kernel begins that waits on the GPU.
macro_rules! promises_by_the_clock {
    () => {
        promises!(handles_again:
            the_new_stream_of_a_handle_does_not_own_what_the_old_one_left,
            the_new_stream_of_a_handle_is_waited_for_where_it_is_named,
            no_memory_is_used_too_early_whoever_has_the_handle,
        );
    };
}

#[macro_use]
mod suite;

mod buddy;
mod caching;
mod exact;
mod expandable;
mod gmlake;
mod malloc_async;
mod paddle_auto_growth;
mod paddle_naive_best_fit;
mod paddle_thread_local;
mod paddle_vmm;
mod slab;
mod split;
mod stitch;
mod tiny;

mod blocks;
mod captures;
mod ended_streams;
mod failures;
mod figures;
mod graphs;
mod handles_again;
mod hostile;
mod limits;
mod peers;
mod pool_segments;
mod pool_sources;
mod pools;
mod pressure;
mod release;
mod released_pools;
#[cfg(target_os = "linux")]
mod sharing;
mod shortage;
mod streams;
mod threads;
mod trim;
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
mod setup;
#[cfg(target_os = "linux")]
#[path = "../common/shared_blocks.rs"]
mod shared_blocks;
#[path = "../common/simulated.rs"]
mod simulated;
mod source;
#[path = "../common/step.rs"]
mod step;

use seamalloc::StrategyKind;
use setup::{
    CHUNK, MAIN, MIB, SHORTER, SIDE, SMALL_CHUNKS, balanced, calls, config_of, in_small_chunks, on, reserved, text_of,
    with_options,
};
use std::path::Path;
use suite::Subject;

#[test]
fn every_strategy_has_its_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contract");
    for kind in StrategyKind::ALL {
        let file = kind.name().replace('-', "_");
        assert!(folder.join(format!("{file}.rs")).exists(), "{kind} has no file: nothing holds it to the contract");
        assert!(include_str!("main.rs").contains(&format!("\nmod {file};\n")), "{file}.rs is not part of the tests");
    }
}
