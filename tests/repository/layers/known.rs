//! Files that need each other. Both lists become shorter, and never longer.

/// Crates whose files import each other.
pub(crate) const CIRCLES_OF_IMPORTS: [&str; 0] = [];

/// Circles of imports and calls together, each with its files.
pub(crate) const KNOWN: &[&[&str]] =
    &[&["src/strategy/stitch/extend.rs", "src/strategy/stitch/last_resort.rs", "src/strategy/stitch/miss.rs"]];
