//! Files that need each other. Both lists become shorter, and never longer.

/// Crates whose files import each other.
pub(crate) const CIRCLES_OF_IMPORTS: [&str; 4] = ["evict/src", "fuzz/targets/src", "order/src", "plan/src"];

/// Circles of imports and calls together, each with its files.
pub(crate) const KNOWN: &[&[&str]] = &[
    &["evict/src/read/list.rs", "evict/src/read/log.rs", "evict/src/read/mod.rs"],
    &[
        "evict/src/scheme/coop.rs",
        "evict/src/scheme/dte.rs",
        "evict/src/scheme/dtr.rs",
        "evict/src/scheme/dtr_eq.rs",
        "evict/src/scheme/mod.rs",
        "evict/src/scheme/plain.rs",
        "evict/src/scheme/stitched.rs",
    ],
    &[
        "fuzz/targets/src/c_library/arguments.rs",
        "fuzz/targets/src/c_library/attack.rs",
        "fuzz/targets/src/c_library/callbacks.rs",
        "fuzz/targets/src/c_library/calls.rs",
        "fuzz/targets/src/c_library/mod.rs",
    ],
    &["fuzz/targets/src/exercise.rs", "fuzz/targets/src/traces.rs"],
    &[
        "fuzz/targets/src/operations/blocks.rs",
        "fuzz/targets/src/operations/pools.rs",
        "fuzz/targets/src/operations/rest.rs",
        "fuzz/targets/src/operations/world.rs",
    ],
    &["fuzz/targets/src/operations/program.rs", "fuzz/targets/src/operations/scenarios.rs"],
    &["order/src/branches.rs", "order/src/roam.rs"],
    &["plan/src/exact/mod.rs", "plan/src/exact/search.rs"],
    &["src/strategy/stitch/extend.rs", "src/strategy/stitch/last_resort.rs", "src/strategy/stitch/miss.rs"],
];
