//! Memory of one process in another: CUDA IPC for stitched memory.
//!
//! Owns: how a live allocation is named in bytes that any process can receive (`handle.rs`), and how the descriptors of
//! its chunks are sent, through a socket (`fd_protocol.rs`: `fd_server.rs` with `fd_questions.rs` at one end,
//! `fd_client.rs` at the other). The allocator makes and opens handles (`Sharing::export`).
//!
//! CUDA's own IPC (`cuIpcGetMemHandle`) works for memory of `cuMemAlloc` alone. Memory of `cuMemCreate` is exported
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
