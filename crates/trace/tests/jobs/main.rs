//! Recorded jobs are replayed: each comes to the figures that were measured of it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod driver_pool;
mod iterations;
mod persistent;
mod recorded_jobs;
mod timelines;
mod tinytorch;
mod verdicts;
