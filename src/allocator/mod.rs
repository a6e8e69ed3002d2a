//! The allocator: one device, one lock, any number of threads and streams.
//!
//! Owns: the public API. A hit involves only `allocate.rs` or `free.rs` and the heap; a miss goes to the strategy.
//!
//! | file | what it does |
//! |---|---|
//! | core | the state behind the lock, and how a step that calls the driver is run |
//! | open | allocators on devices that are named |
//! | operations | the groups of operations beside those that every program needs |
//! | allocate, free | the operations that programs make all the time, for public and private pools alike |
//! | release | memory goes back: `empty_cache`, `trim`, limits, the end of the allocator |
//! | growing, growths | allocations that grow in place, and which there are |
//! | sleep | memory of tags goes, and comes again at the same addresses |
//! | headroom, looks | free memory goes back where others need the device's |
//! | sleep_change, sleep_callbacks | programs are told of that, before and after |
//! | idle | memory goes back while nobody uses the allocator |
//! | lender, lending | other processes on the device are asked for memory, and ask |
//! | pressure, callbacks | programs are asked for memory before a request is refused |
//! | streams | `record_stream`, streams that end, and streams of others |
//! | private_pool, own_segments, checkpoint | CUDA graphs and `MemPool` |
//! | report | statistics, snapshots, observers |
//! | guarded | guard mode: `explain`, `findings`, what the program says of its streams |
//! | peers, shared_memory | other devices, other processes; `shares` and `opened` keep what is open |

mod allocate;
mod callbacks;
mod checkpoint;
mod core;
mod free;
mod growing;
mod growths;
mod guarded;
mod headroom;
mod idle;
mod lender;
mod lending;
mod looks;
#[cfg(test)]
mod old_drivers;
mod open;
mod opened;
pub mod operations;
mod own_segments;
mod peers;
mod pending;
mod prepared;
mod pressure;
mod private_pool;
mod release;
mod report;
mod shared_memory;
mod shares;
mod sleep;
mod sleep_callbacks;
mod sleep_change;
mod spill;
mod streams;

pub use self::core::Allocator;
pub use callbacks::CallbackId;
pub use growths::Extent;
pub use idle::IdleRelease;
pub use lender::Lender;
