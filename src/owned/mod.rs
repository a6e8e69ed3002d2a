//! Types by which a program owns memory and other resources of an allocator. Dropping a value ends its resource.
//!
//! Owns: [`Block`], a live allocation; [`Growing`], an allocation that grows in place; [`Pool`] and [`PoolRoute`], the
//! use of a private pool and its route; [`Stream`], a stream until it is forgotten. Each value consists of a pointer to
//! the allocator and a few numbers, without a table.
//!
//! # Note: the pointer to the allocator
//!
//! **Rationale.** A value that frees itself must know its allocator. A borrow costs nothing, and cannot be stored in a
//! program's long-lived types; a counted pointer can, and costs two atomic operations for each block.
//!
//! **Approach.** Every type is generic over the pointer: `&Allocator`, `Arc<Allocator>`, `Rc<Allocator>`, or a pointer
//! type of the program. The pointer's type decides the cost, and whether the value may go to other threads.
//!
//! **Limitations.** A value that is dropped under the allocator's lock, in an observer or in a filter of a route,
//! deadlocks, like any other call made there. Errors in a drop go to the log.

mod block;
#[cfg(feature = "cudarc")]
mod cudarc;
mod growing;
mod last_use;
mod pool;
mod raw_block;
mod stream;

pub use block::Block;
#[cfg(feature = "cudarc")]
pub use cudarc::{CudaBlock, CudaBlockError};
pub use growing::Growing;
pub use pool::{Pool, PoolRoute};
pub use raw_block::RawBlock;
pub use stream::Stream;
