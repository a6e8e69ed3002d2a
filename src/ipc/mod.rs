//! Memory of one process in another: CUDA IPC for stitched memory.
//!
//! Owns: how a live allocation is named in bytes that any process can receive (`handle.rs`), and how the descriptors of
//! its chunks are sent, through a socket (`fd_server.rs`). The allocator makes and opens them
//! ([`Allocator::share`](crate::Allocator::share)).
//!
//! CUDA's own IPC (`cuIpcGetMemHandle`) works for memory of `cuMemAlloc` alone. Memory of `cuMemCreate` is exported
//! chunk by chunk, as file descriptors, and the receiver maps the chunks in the same order.

mod error;
#[cfg_attr(not(target_os = "linux"), path = "no_fd_server.rs")]
mod fd_server;
mod handle;

pub use error::IpcError;
pub(crate) use fd_server::{fetch, offer};
pub use handle::IpcHandle;
pub(crate) use handle::{Place, SharedChunk};
