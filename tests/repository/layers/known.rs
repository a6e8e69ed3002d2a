//! Files that need each other. Both lists become shorter, and never longer.

/// Crates whose files import each other.
pub(crate) const CIRCLES_OF_IMPORTS: [&str; 4] =
    ["crates/evict/src", "crates/order/src", "crates/plan/src", "fuzz/targets/src"];

/// Circles of imports and calls together, each with its files.
pub(crate) const KNOWN: &[&[&str]] = &[
    &["crates/evict/src/read/list.rs", "crates/evict/src/read/log.rs", "crates/evict/src/read/mod.rs"],
    &[
        "crates/evict/src/scheme/coop.rs",
        "crates/evict/src/scheme/dte.rs",
        "crates/evict/src/scheme/dtr.rs",
        "crates/evict/src/scheme/dtr_eq.rs",
        "crates/evict/src/scheme/mod.rs",
        "crates/evict/src/scheme/plain.rs",
        "crates/evict/src/scheme/stitched.rs",
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
    &["crates/order/src/branches.rs", "crates/order/src/roam.rs"],
    &["crates/plan/src/exact/mod.rs", "crates/plan/src/exact/search.rs"],
    &["src/strategy/stitch/extend.rs", "src/strategy/stitch/last_resort.rs", "src/strategy/stitch/miss.rs"],
];
