//! The short and the long form of tests that repeat a random program, or a fault at every call.

/// Returns how often a test repeats: `short` times by default, `long` times where the environment has `SEAMALLOC_TESTS=long`.
pub(crate) fn rounds(short: u64, long: u64) -> u64 {
    if std::env::var_os("SEAMALLOC_TESTS").is_some_and(|length| length == "long") { long } else { short }
}
