//! Errors of sharing memory with other processes.

use std::collections::TryReserveError;

/// The reason why memory could not be shared, or shared memory could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IpcError {
    /// The bytes are not a handle ([`crate::IpcHandle::handle`]).
    #[error("these {size} bytes name no shared memory of seamalloc: {why}")]
    BadHandle {
        /// The number of bytes.
        size: usize,
        /// The error in the bytes.
        why: &'static str,
    },
    /// The process that shared the memory does not answer.
    #[error(
        "process {pid}, which shared the memory, cannot be asked for it: {why} (has it ended? Both processes must be in \
         one network namespace, and of one user)"
    )]
    Unreachable {
        /// The process id, in the namespace of that process.
        pid: u32,
        /// The error of the system.
        why: String,
    },
    /// The process that shared the memory has given it back to the driver meanwhile.
    #[error(
        "process {pid} has freed the memory that it shared; an allocation must stay until it was opened and closed"
    )]
    Gone {
        /// The process id.
        pid: u32,
    },
    /// This process cannot pass memory to others.
    #[error("memory cannot be shared with other processes: {why}")]
    Unavailable {
        /// The error of the system.
        why: String,
    },
    /// No opened memory begins at the address.
    #[error("no shared memory was opened at {address:#x} (closed twice, or of another allocator?)")]
    NotOpen {
        /// The address.
        address: u64,
    },
}

/// The reason why a step failed. `seamalloc::Error` has a variant for each reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// The host has too little memory for a list.
    HostMemory,
    /// Another reason.
    Ipc(IpcError),
}

impl From<TryReserveError> for NotDone {
    fn from(_: TryReserveError) -> Self {
        Self::HostMemory
    }
}

impl From<IpcError> for NotDone {
    fn from(error: IpcError) -> Self {
        Self::Ipc(error)
    }
}
