//! The rules of each strategy: against PyTorch's documented behaviour and independent models, and where other allocators had
//! bugs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic fails the test")]

mod against_model;
mod bugs_of_others;
mod driver_pool;
mod families;
mod gmlake;
mod rules;
mod without_virtual_memory;

#[path = "../common/log.rs"]
#[allow(dead_code, reason = "of errors and warnings, those that are asked for")]
mod log;
#[path = "../common/random.rs"]
mod random;
#[path = "../common/simulated.rs"]
mod simulated;
