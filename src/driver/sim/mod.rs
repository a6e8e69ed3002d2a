//! The simulated GPU: bookkeeping and a cost model behind the [`Driver`](super::Driver) trait, for machines without a
//! GPU, for replays and for tests. There is no memory behind its addresses.
//!
//! ```text
//! gpu.rs               SimGpu: what a program does with it, and how a call is checked, charged and counted
//! calls.rs             the driver's traits: which part serves which call
//! process_sharing.rs   the same for memory that processes share
//! state.rs             all that changes, behind one lock; failures that were asked for
//! memory.rs            reservations, handles and mappings       addresses.rs       which addresses are free
//! streams.rs           the clock, streams and events            completion.rs      when work completes
//! capture.rs           what captures forbid                     peers.rs           other devices
//! shared_memory.rs     the name of memory outside of its GPU    refusal.rs         why a call is refused
//! config.rs            SimConfig: which GPU to simulate         cost.rs            what each call costs
//! faults.rs            what is reported beyond the driver's answers
//! ```
//!
//! It refuses what the real driver refuses, with the same status. Beyond that it reports, without refusing, what a real
//! GPU may punish later: memory used where none is, or unmapped while in use ([`Fault`]), and what is held at the end
//! ([`Leaks`]). Where an H200's driver was seen to be laxer than CUDA's documentation, it keeps to the documentation:
//! ranges of `unmap` and `set_access` may have no gap, and no call reaches beyond one reservation. Streams are
//! independent of each other; the default stream waits for no other.

mod addresses;
mod calls;
mod capture;
mod completion;
mod config;
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
pub use cost::Profile;
pub use faults::{Fault, Leaks, Range};
pub use gpu::SimGpu;
pub use memory::Piece;
pub use streams::Hold;
