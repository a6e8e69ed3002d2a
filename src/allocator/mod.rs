//! The allocator: one device, one lock, any number of threads and streams.
//!
//! Owns: the public API. A hit involves only `allocate.rs` or `free.rs` and the heap. A miss goes through the steps of
//! `miss.rs`.
//!
//! | file | what it does |
//! |---|---|
//! | core | the state behind the lock, and how a step that calls the driver is run |
//! | open | opening an allocator by a device's name |
//! | operations | the groups of operations beside those that every program needs |
//! | allocate, free | the operations that programs make all the time, for public and private pools alike |
//! | prepared, stream_names, serve | the steps of a request until it has a block, also on the slow path |
//! | miss, search | the steps of a request that no free block fits, and the means of each step |
//! | pressure | a step of a miss: callbacks of the program are asked to free memory |
//! | pending | two steps of a miss: the strategy is asked, and the CPU waits for pending memory |
//! | borrowing, lending | a step of a miss: other processes are asked for memory; memory is lent to them |
//! | retry | a step of a miss: a wait for memory that other threads or processes give back |
//! | poll, freed | completing frees that the GPU has passed; the ways in which a block becomes free |
//! | release | giving memory back: `empty_cache`, `trim`, limits, the end of the allocator |
//! | growing | allocations that grow in place |
//! | sleep | giving the memory of a tag back, and taking it again at the same addresses |
//! | sleep_change | the callbacks before and after a tag sleeps or wakes |
//! | spill, spilled | moving live memory to host memory, and back |
//! | headroom | giving free memory back when others need memory of the device |
//! | idle | giving memory back while the program does not use the allocator |
//! | streams | `record_stream`, streams that end, and external streams |
//! | private_pool, pool_end, own_segments, checkpoint | CUDA graphs and `MemPool` |
//! | report | statistics, snapshots, observers |
//! | guarded, watch | guard mode: the operations for programs, and the steps in an allocation and a free |
//! | peers, shared_memory | other devices, other processes |
//!
//! The features among these have their state in `features/`. Calls between methods of `Core` go one way: a file calls
//! only files that do not call it.

mod allocate;
mod borrowing;
mod checkpoint;
mod core;
mod free;
mod freed;
mod growing;
mod guarded;
mod headroom;
mod idle;
mod lending;
mod miss;
#[cfg(test)]
mod old_drivers;
mod open;
pub mod operations;
mod own_segments;
mod peers;
mod pending;
mod poll;
mod pool_end;
mod prepared;
mod pressure;
mod private_pool;
mod release;
mod report;
mod retry;
mod search;
mod serve;
mod shared_memory;
mod sleep;
mod sleep_change;
mod spill;
mod spilled;
mod stream_names;
mod streams;
mod watch;

pub use self::core::Allocator;
pub use crate::features::growing::Extent;
pub use crate::features::lending::Lender;
pub use crate::features::pressure::CallbackId;
pub use idle::IdleRelease;
