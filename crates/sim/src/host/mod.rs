//! The machine's own memory behind the driver's calls. Stitched addresses hold real bytes on any Linux machine.
//!
//! ```text
//! config.rs            HostConfig: the capacity, and its text form
//! device.rs            HostDriver: its use by programs, and the timing and counting of calls
//! calls.rs             the driver's traits, with the part that serves each call
//! gate.rs              the trait of stream gates
//! process_sharing.rs   the trait of memory that processes share       memory_pools.rs   refusals: there are no pools
//! state.rs             the state behind the lock of memory; streams have a lock of their own
//! chunk.rs             physical memory: parts of one sparse file in memory, and one file for each exported piece
//! addresses.rs         mmap and similar calls: all changes of the mappings
//! words.rs             reads and writes words and bytes at addresses that were checked
//! work.rs              work: fills, reads, copies, pauses, a step at a time
//! lane.rs              the work of one stream                   streams.rs   the order of the lanes, events, held work
//! workers.rs           the threads that do the work
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
