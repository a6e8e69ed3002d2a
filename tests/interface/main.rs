//! The interface beside allocating and freeing: blocks that end by themselves, pools of host memory, guard mode, the
//! flight recorder, snapshots, and memory of other processes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod devices;
mod flight;
mod guard;
mod host_pool;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod host_sharing;
mod owned;
#[cfg(target_os = "linux")]
mod sharing;
mod viewer;
mod viewer_rules;

#[path = "../common/log.rs"]
#[allow(dead_code, reason = "of errors and warnings, those that are asked for")]
mod log;
#[path = "../common/physical.rs"]
#[allow(dead_code, reason = "as much of it as random programs of blocks need")]
mod physical;
#[path = "../common/random.rs"]
mod random;
#[cfg(target_os = "linux")]
#[path = "../common/shared_blocks.rs"]
mod shared_blocks;
#[path = "../common/simulated.rs"]
mod simulated;
