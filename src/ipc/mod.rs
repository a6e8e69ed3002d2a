//! Memory of one process in another: CUDA IPC for stitched memory.
//!
//! Owns: how a live allocation is named in bytes that any process can be sent, and what can be wrong with such a name.
//! The allocator makes and opens them ([`Allocator::share`](crate::Allocator::share)); what is passed on beside them, the
//! descriptors of chunks, goes through a socket (`fd_server.rs`).
//!
//! CUDA's own IPC (`cuIpcGetMemHandle`) knows memory of `cuMemAlloc` alone. Memory of `cuMemCreate` is exported chunk by
//! chunk, as file descriptors, and whoever opens it maps the chunks in the same order.

#[cfg(target_os = "linux")]
mod fd_server;
mod handle;

use crate::driver::IpcMemory;
pub(crate) use fd_server::{fetch, offer};
use std::fmt;

#[cfg(not(target_os = "linux"))]
mod fd_server {
    use super::{IpcError, Office};
    use crate::driver::Exported;

    pub(crate) fn offer(_: &[Exported]) -> Result<Office, IpcError> {
        Err(IpcError::Unavailable { why: "it is built for Linux only".to_owned() })
    }

    pub(crate) fn fetch(_: &Office, _: impl Iterator<Item = u64>) -> Result<Vec<Exported>, IpcError> {
        Err(IpcError::Unavailable { why: "it is built for Linux only".to_owned() })
    }
}

/// A live allocation, as other processes can open it: [`Allocator::share`](crate::Allocator::share).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The memory that the allocation lies in, in bytes to be sent as they are: some dozens, and 16 for each chunk. The
    /// same memory has the same ones every time, so that who gets them twice can see that.
    pub handle: Vec<u8>,
    /// Where in it the allocation begins, in bytes.
    pub offset: u64,
}

/// Why memory could not be shared, or what was shared not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpcError {
    /// The bytes are not those of [`Shared::handle`].
    #[error("these {size} bytes name no shared memory of seamalloc: {why}")]
    BadHandle {
        /// How many there are.
        size: usize,
        /// What is wrong with them.
        why: &'static str,
    },
    /// The process that shared the memory does not answer.
    #[error(
        "process {pid}, which shared the memory, cannot be asked for it: {why} (has it ended? Both processes must be in \
         one network namespace, and of one user)"
    )]
    Unreachable {
        /// Its number, as it knows itself.
        pid: u32,
        /// What the system says.
        why: String,
    },
    /// The process has given the memory back to the driver since.
    #[error(
        "process {pid} has freed the memory that it shared; an allocation must stay until it was opened and closed"
    )]
    Gone {
        /// Its number.
        pid: u32,
    },
    /// This process cannot pass memory on.
    #[error("memory cannot be shared with other processes: {why}")]
    Unavailable {
        /// What the system says.
        why: String,
    },
    /// Nothing that was opened begins at the address.
    #[error("no shared memory was opened at {address:#x} (closed twice, or of another allocator?)")]
    NotOpen {
        /// The address.
        address: u64,
    },
}

/// What an allocation lies in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Chunks one behind the other.
    Chunks {
        /// Who has them.
        office: Office,
        chunks: Vec<SharedChunk>,
    },
    /// What `malloc` gave.
    Plain(IpcMemory),
}

/// A chunk of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedChunk {
    /// What its process calls it.
    pub(crate) key: u64,
    /// Bytes.
    pub(crate) size: u64,
}

/// A process that passes memory on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Office {
    pub(crate) pid: u32,
    /// Chosen at random. The first half is in the socket's name, which everyone on the machine can read
    /// (`/proc/net/unix`); the second is told to the process before it gives anything.
    pub(crate) secret: [u8; 16],
}

impl Office {
    /// The abstract name of its socket.
    fn name(&self) -> String {
        let name: String = self.secret[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("seamalloc-{}-{name}", self.pid)
    }

    /// What says that its name came from a handle.
    fn password(&self) -> &[u8] {
        &self.secret[8..]
    }
}

impl fmt::Debug for Office {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Office").field("pid", &self.pid).finish_non_exhaustive()
    }
}
