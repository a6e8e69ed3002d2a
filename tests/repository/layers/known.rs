//! Files that need each other. Both lists become shorter, and never longer.

/// Crates whose files import each other.
pub(crate) const CIRCLES_OF_IMPORTS: [&str; 1] = ["fuzz/targets/src"];

/// Circles of imports and calls together, each with its files.
pub(crate) const KNOWN: &[&[&str]] = &[
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
    &["src/strategy/stitch/extend.rs", "src/strategy/stitch/last_resort.rs", "src/strategy/stitch/miss.rs"],
];
