//! Live memory that does not fit the device is spilled to the machine's: a job that would die runs, contents are equal to the
//! bit, addresses stay, and memory is accounted to the byte.
//!
//! On the host's memory, where blocks hold real words; `jobs.rs` replays recorded jobs on a simulated GPU.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a panic fails the test")]

mod bounds;
mod contents;
mod failures;
mod frees;
mod growth;
mod jobs;
mod kept;
#[path = "../common/random.rs"]
mod random;
#[path = "../real_words/mod.rs"]
mod real_words;
mod return_trip;
mod rules;
mod world;
