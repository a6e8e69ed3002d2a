//! The orders that each method finds, and problems that are refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod input;
mod models;
mod small;

/// Returns a number of repetitions, or another extent: `SEAMALLOC_TESTS=long` asks for the long form.
fn extent<T>(short: T, long: T) -> T {
    if std::env::var_os("SEAMALLOC_TESTS").is_some_and(|form| form == "long") { long } else { short }
}
