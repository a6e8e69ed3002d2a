//! The simulated GPU: bookkeeping and a cost model behind the [`Driver`](seamalloc_driver::Driver) trait, for machines
//! without a GPU, for replays and for tests. The simulated addresses have no real memory.
//!
//! ```text
//! gpu.rs               SimGpu: its use by programs; calls are checked, charged and counted
//! calls.rs             the driver's traits, with the part that serves each call
//! stream_gate.rs       the trait of stream gates
//! gate.rs              the calls that wait or are refused while a gate is closed
//! process_sharing.rs   the trait of memory that processes share
//! state.rs             all mutable state, behind one lock; requested failures
//! streams.rs           the clock, streams and events            completion.rs      the time at which work completes
//! contents.rs          the bytes that were filled               addresses.rs      the choice of addresses
//! shared_memory.rs     the name of memory in a descriptor       peers.rs          other devices
//! pool_calls.rs        calls of stream-ordered memory        pool.rs           one pool: its memory, and reuse
//! memory_pools.rs      the existing pools
//! config.rs            SimConfig: the GPU to simulate           cost.rs           the time of each call
//! ```
//!
//! `bookkeeping/` has the rules of memory and captures. [`host`] offers host memory behind the same calls,
//! under the same rules. Programs find this crate as `seamalloc::driver::sim` and `seamalloc::driver::host`.
//!
//! The simulated GPU refuses the calls that the real driver refuses, with the same status. The simulated GPU also
//! reports, without refusing, uses that fail later on a real GPU: a use of addresses at which no memory is mapped, a
//! use of memory that guard mode has filled with marks, an unmap of memory that is in use ([`Fault`]), and resources
//! still held at the end ([`Leaks`]). An H200's driver was seen to accept some calls that CUDA's documentation does not
//! allow. In these cases the simulated GPU follows the documentation: a range of `unmap` or `set_access` may have no
//! gap, and no range may reach beyond the end of a reservation. Streams are independent of each other; the default
//! stream waits for no other.

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
