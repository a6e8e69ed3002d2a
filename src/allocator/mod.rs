//! The allocator: one device, one lock, any number of threads and streams.
//!
//! Owns: the public API. A hit involves only `allocate.rs` or `free.rs` and the heap; a miss goes through the steps of `miss.rs`.
//!
//! | file | what it does |
//! |---|---|
//! | core | the state behind the lock, and how a step that calls the driver is run |
//! | open | allocators on devices that are named |
//! | allocate, free | the operations that programs make all the time, for public and private pools alike |
//! | prepared, serve | a request on its way to a block, on the slow path too |
//! | miss, search | the steps of a request that no free block fits, and what each may do |
//! | pressure, callbacks | a step: programs are asked for memory |
//! | pending | two steps: the strategy is asked, and pending memory is waited for |
//! | release | memory goes back: `empty_cache`, `trim`, limits, the end of the allocator |
//! | growing, growths | allocations that grow in place, and which there are |
//! | sleep | memory of tags goes, and comes again at the same addresses |
//! | headroom, looks | free memory goes back where others need the device's |
//! | sleep_change, sleep_callbacks | programs are told of that, before and after |
//! | idle | memory goes back while nobody uses the allocator |
//! | lender, lending | a step: other processes on the device are asked for memory; and they ask |
//! | streams | `record_stream`, `forget_stream` |
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
mod miss;
#[cfg(test)]
mod old_drivers;
mod open;
mod opened;
mod own_segments;
mod peers;
mod pending;
mod prepared;
mod pressure;
mod private_pool;
mod release;
mod report;
mod search;
mod serve;
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
