//! The target `broker` of seamalloc-fuzz-targets, run by libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| seamalloc_fuzz_targets::broker::run(data));
