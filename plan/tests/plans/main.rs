//! The plans that each method makes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod methods;
mod small;
