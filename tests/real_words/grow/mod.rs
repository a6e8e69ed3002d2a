//! Allocations that grow in place: the address stays, every word keeps, and memory is accounted to the byte.
//!
//! On the host's memory, where they hold real words, and on a simulated H200 for sizes and driver calls.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a panic fails the test")]

mod contents;
mod failures;
mod figures;
mod model;
mod pools;
#[path = "../common/random.rs"]
mod random;
#[path = "../real_words/mod.rs"]
mod real_words;
mod rules;
mod streams;
mod world;
