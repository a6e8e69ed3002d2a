//! Memory of one process in another: CUDA IPC for stitched memory.
//!
//! Owns: the bytes that name a live allocation and that any process can receive (`handle.rs`), and the socket through
//! which the file descriptors of the allocation's chunks are sent (`fd_protocol.rs`: the protocol; `fd_server.rs` and
//! `fd_questions.rs`: the sender's end; `fd_client.rs`: the receiver's end). The allocator makes and opens handles
//! (`Sharing::export`).
//!
//! CUDA's own IPC (`cuIpcGetMemHandle`) works only for memory of `cuMemAlloc`. Memory of `cuMemCreate` is exported
//! chunk by chunk, as file descriptors, and the receiver maps the chunks in the same order.

#![deny(unsafe_code)]

mod error;
#[cfg(target_os = "linux")]
mod fd_client;
#[cfg(target_os = "linux")]
mod fd_protocol;
#[cfg(target_os = "linux")]
mod fd_questions;
#[cfg(target_os = "linux")]
mod fd_server;
mod handle;
#[cfg(not(target_os = "linux"))]
mod no_descriptors;

pub use error::{IpcError, NotDone};
pub use handle::{Endpoint, IpcHandle, Place, SharedChunk};
#[cfg(not(target_os = "linux"))]
pub use no_descriptors::{fetch, offer};
#[cfg(target_os = "linux")]
pub use {fd_client::fetch, fd_server::offer};
