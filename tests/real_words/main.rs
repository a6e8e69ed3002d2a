//! Live memory keeps every word while it grows, is spilled, sleeps and wakes.
//!
//! On host memory, where blocks hold real words, and on a simulated GPU for sizes, times and recorded jobs.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a panic fails the test"
)]

mod device;
mod failures;
mod grow;
#[path = "../common/length.rs"]
mod length;
#[path = "../common/log.rs"]
#[allow(dead_code, reason = "of errors and warnings, those that are asked for")]
mod log;
#[path = "../common/physical.rs"]
mod physical;
mod program;
#[path = "../common/random.rs"]
mod random;
mod sleep;
mod spill;
mod together;
mod world;
