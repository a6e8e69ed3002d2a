//! Tags sleep and wake: contents are equal to the bit, addresses stay, and memory is accounted to the byte.
//!
//! On the host's memory, where blocks hold real words.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a panic fails the test")]

mod contents;
mod ends;
mod failures;
mod links;
#[path = "../common/random.rs"]
mod random;
#[path = "../real_words/mod.rs"]
mod real_words;
mod rules;
mod told;
mod world;
