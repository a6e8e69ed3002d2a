//! How long suites that repeat themselves run: a short form by default, and all of it with `SEAMALLOC_TESTS=long`.

#![allow(dead_code, reason = "not every program has both kinds of suites")]

/// Returns whether the long form was asked for.
pub(crate) fn is_long() -> bool {
    std::env::var_os("SEAMALLOC_TESTS").is_some_and(|form| form == "long")
}

/// Returns how often a suite repeats itself, or another extent of it.
pub(crate) fn rounds<T>(short: T, long: T) -> T {
    if is_long() { long } else { short }
}

/// Returns whether the fault at the `nth` of `made` calls is tried, counted from 1. The long form tries each. The short form
/// tries the first two, the last two, and every `step`-th between them, from an offset that differs from test to test.
pub(crate) fn is_tried(nth: u64, made: u64, step: u64, offset: u64) -> bool {
    is_long() || nth <= 2 || nth + 2 > made || (nth + offset).is_multiple_of(step)
}
