//! The strategy `stitch`: rule by rule, at its edges, where chunks are split, and at scale.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod corners;
mod gate;
mod rules;
#[cfg(not(feature = "paranoid"))]
mod scale;
#[cfg(target_os = "linux")]
mod split;
mod split_scale;

#[cfg(target_os = "linux")]
#[path = "../common/length.rs"]
mod length;
#[cfg(target_os = "linux")]
#[path = "../common/random.rs"]
mod random;
#[path = "../common/simulated.rs"]
mod simulated;
