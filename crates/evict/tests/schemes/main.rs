//! Schemes of eviction against a model of their own, against bounds of the literature, and with input that is refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod against_model;
mod bounds;
mod input;
