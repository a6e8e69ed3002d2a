//! The plans that each method makes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

#[path = "../../../../tests/common/length.rs"]
mod length;
mod methods;
mod small;
