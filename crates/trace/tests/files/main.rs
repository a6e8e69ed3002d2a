//! Files of traces: real ones, damaged ones and chosen ones are read, and what an allocator recorded is written and read back.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod flight;
mod formats;
mod hostile_traces;
mod layouts;
mod many_of_a_kind;
mod owners;
mod recording;

#[path = "../../../../tests/common/length.rs"]
mod length;
#[path = "../../../../tests/common/random.rs"]
mod random;
#[path = "../../../../tests/common/simulated.rs"]
mod simulated;
