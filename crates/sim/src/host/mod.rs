//! The machine's own memory behind the driver's calls. Stitched addresses hold real bytes on any Linux machine.
//!
//! ```text
//! config.rs            HostConfig: how much host memory, and its text form
//! device.rs            HostDriver: what a program does with it, and how a call is made and counted
//! calls.rs             the driver's traits: which part serves which call
//! gate.rs              the same for streams that stand at a gate
//! process_sharing.rs   the same for memory that processes share       memory_pools.rs   refusals: there are no pools
//! state.rs             what is behind the lock of memory; streams have their own
//! chunk.rs             physical memory: parts of one sparse file in memory, and files of their own for what is exported
//! addresses.rs         mmap and its like: all that changes what lies at an address
//! words.rs             words and bytes read and written where addresses are known to be good
//! work.rs              work: fills, looks, copies, pauses, a step at a time
//! lane.rs              what one stream has been given          streams.rs   which lane goes on when, events, held work
//! workers.rs           the threads that carry work out
//! ```
//!
//! The host device shares the rules of the simulated GPU (`bookkeeping/`), and refuses the same calls. Streams run
//! behind the CPU, in threads, and independently of each other. Memory that is reused too early shows as wrong words.
//!
//! Owns: every system call about mapped memory. All `unsafe` code for it is in this folder, in `addresses.rs`,
//! `words.rs` and `work.rs`. Blocks and pools belong to the allocator.

#![allow(unsafe_code)]

mod addresses;
mod calls;
mod chunk;
mod config;
mod device;
mod gate;
mod lane;
mod memory_pools;
mod page_locked;
mod process_sharing;
mod state;
mod streams;
#[cfg(test)]
mod tests;
mod words;
mod work;
mod workers;

pub use crate::bookkeeping::{Fault, Leaks, Piece, Range};
pub use config::{HostConfig, HostConfigError};
pub use device::{HostDriver, HostGraph};
pub use streams::HostHold;
pub use work::{HostWork, LookAtWords, MakeWords};
