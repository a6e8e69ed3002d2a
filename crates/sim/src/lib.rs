//! The simulated GPU: bookkeeping and a cost model behind the [`Driver`](seamalloc_driver::Driver) trait, for machines
//! without a GPU, for replays and for tests. The simulated addresses have no real memory.
//!
//! ```text
//! gpu.rs               SimGpu: its use by programs, and how a call is checked, charged and counted
//! calls.rs             the driver's traits: which part serves which call
//! stream_gate.rs       the same for streams that stand at a gate  gate.rs    what no thread may do meanwhile
//! process_sharing.rs   the same for memory that processes share
//! state.rs             all mutable state, behind one lock; failures that were asked for
//! streams.rs           the clock, streams and events            completion.rs      when work completes
//! contents.rs          the bytes that were filled               addresses.rs      where addresses lie
//! shared_memory.rs     how memory is named in a descriptor      peers.rs          other devices
//! pool_calls.rs        calls of stream-ordered memory        pool.rs           one pool: what it holds, and reuse
//! memory_pools.rs      which pools there are
//! config.rs            SimConfig: which GPU to simulate         cost.rs           what each call costs
//! ```
//!
//! `bookkeeping/` has the rules of memory and captures. [`host`] offers the machine's own memory behind the same calls,
//! under the same rules. Programs find this crate as `seamalloc::driver::sim` and `seamalloc::driver::host`.
//!
//! The simulated GPU refuses the calls that the real driver refuses, with the same status. The simulated GPU also
//! reports, without refusing, uses that fail later on a real GPU: memory that is used where none is mapped, memory that
//! is used although the allocator has filled it with marks, memory that is unmapped while in use ([`Fault`]), and
//! resources still held at the end ([`Leaks`]). An H200's driver was seen to accept some calls that CUDA's
//! documentation does not allow. In these cases the simulated GPU follows the documentation: ranges of `unmap` and
//! `set_access` may have no gap, and no call crosses the end of a reservation. Streams are independent of each other;
//! the default stream waits for no other.

#![deny(unsafe_code)]

mod addresses;
mod bookkeeping;
mod calls;
mod completion;
mod config;
mod contents;
mod copies;
mod cost;
mod gate;
mod gpu;
#[cfg_attr(not(all(target_os = "linux", target_pointer_width = "64")), path = "no_host.rs")]
pub mod host;
mod memory_pools;
mod page_locked;
mod peers;
mod pool;
mod pool_calls;
mod process_sharing;
mod shared_memory;
mod state;
mod stream_gate;
mod streams;
#[cfg(test)]
mod tests;

pub use bookkeeping::{Fault, Leaks, Piece, Range};
pub use config::{MAX_CAPACITY, SimConfig, SimConfigError};
pub use cost::Profile;
pub use gpu::SimGpu;
pub use seamalloc_driver::CaptureMode;
pub use streams::Hold;
