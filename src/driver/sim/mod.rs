//! The simulated GPU: bookkeeping and a cost model behind the [`Driver`](super::Driver) trait, for machines without a
//! GPU, for replays and for tests. Its addresses have no real memory.
//!
//! ```text
//! gpu.rs               SimGpu: its use by programs, and how a call is checked, charged and counted
//! calls.rs             the driver's traits: which part serves which call
//! process_sharing.rs   the same for memory that processes share
//! state.rs             all mutable state, behind one lock; failures that were asked for
//! memory.rs            reservations, handles and mappings       addresses.rs       which addresses are free
//! streams.rs           the clock, streams and events            completion.rs      when work completes
//! capture.rs           the rules of captures                   peers.rs           other devices
//! shared_memory.rs     how memory is named outside of its GPU  refusal.rs         why a call is refused
//! contents.rs          the bytes that were filled
//! config.rs            SimConfig: which GPU to simulate         cost.rs            what each call costs
//! faults.rs            reports beyond the driver's answers
//! ```
//!
//! It refuses what the real driver refuses, with the same status. In addition it reports, without refusing, what a real
//! GPU may punish later: memory that is used where none is mapped or that
//! the allocator has filled with marks of its own, memory that is unmapped while in use ([`Fault`]), and resources
//! still held at the end ([`Leaks`]). Where an H200's driver was seen to accept more than CUDA's documentation allows,
//! it follows the documentation: ranges of `unmap` and `set_access` may have no gap, and no call crosses the end of a
//! reservation. Streams are independent of each other; the default stream waits for no other.

mod addresses;
mod calls;
mod capture;
mod completion;
mod config;
mod contents;
mod cost;
mod faults;
mod gpu;
mod memory;
mod peers;
mod process_sharing;
mod refusal;
mod shared_memory;
mod state;
mod streams;
#[cfg(test)]
mod tests;

pub use super::CaptureMode;
pub use config::{MAX_CAPACITY, SimConfig, SimConfigError};
pub use contents::Piece;
pub use cost::Profile;
pub use faults::{Fault, Leaks, Range};
pub use gpu::SimGpu;
pub use streams::Hold;
