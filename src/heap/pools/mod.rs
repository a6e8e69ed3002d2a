//! Pools: which free memory a request may take, by the request's stream and private pool.
//!
//! Owns: the pools of every stream, their epochs, and the private pools with their uses and routes. The free blocks of
//! a pool are in `blocks`. [`Pools`](table::Pools) keeps the contents of pools that sleep (`home/saved.rs`), and calls
//! no other part of the heap. The methods of `Heap` in these files call all parts.
//!
//! | file | owns |
//! |---|---|
//! | pool, table | one pool, and the table of all |
//! | stream_pools | how a stream gets its pools, and what happens to the pools when the stream ends |
//! | owners | which pools are public, and which belong to a private pool |
//! | shown | pools as snapshots and events show them |
//! | private, private_pools, route | private pools, and the choice of requests for them |
//! | segment_source, own_segments | private pools with segments of their own |
//! | checkpoint | blocks of a private pool at the addresses that they had |

pub(super) mod checkpoint;
pub(super) mod own_segments;
pub(super) mod owners;
pub(super) mod pool;
pub(super) mod private;
pub(super) mod private_pools;
pub(super) mod route;
pub(super) mod segment_source;
pub(super) mod shown;
pub(super) mod stream_pools;
pub(super) mod table;
