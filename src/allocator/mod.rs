//! The allocator: one device, one lock, any number of threads and streams.
//!
//! Owns: the public API. A hit involves only `allocate.rs` or `free.rs` and the heap; a miss goes through the steps of `miss.rs`.
//!
//! | file | what it does |
//! |---|---|
//! | core | the state behind the lock, and how a step that calls the driver is run |
//! | open | allocators on devices that are named |
//! | operations | the groups of operations beside those that every program needs |
//! | allocate, free | the operations that programs make all the time, for public and private pools alike |
//! | prepared, stream_names, serve | a request on its way to a block, also on the slow path |
//! | miss, search | the steps of a request that no free block fits, and what each of them may do |
//! | pressure | a step: programs are asked for memory |
//! | pending | two steps: the strategy is asked, and pending memory is waited for |
//! | borrowing, lending | a step: other processes on the device are asked for memory; and they ask |
//! | poll, freed | frees that have passed are completed; the ways on which a block becomes free |
//! | release | memory goes back: `empty_cache`, `trim`, limits, the end of the allocator |
//! | growing | allocations that grow in place |
//! | sleep | memory of tags goes, and comes again at the same addresses |
//! | sleep_change | programs are told of that, before and after |
//! | spill, spilled | live memory lies in host memory, and comes back |
//! | headroom | free memory goes back where others need the device's |
//! | idle | memory goes back while nobody uses the allocator |
//! | streams | `record_stream`, streams that end, and streams of others |
//! | private_pool, pool_end, own_segments, checkpoint | CUDA graphs and `MemPool` |
//! | report | statistics, snapshots, observers |
//! | guarded, watch | guard mode: what programs ask and say, and its steps in an allocation and a free |
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
