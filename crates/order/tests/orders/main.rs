//! The orders that each method finds, and problems that are refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod input;
#[path = "../../../../tests/common/length.rs"]
mod length;
mod models;
mod small;
