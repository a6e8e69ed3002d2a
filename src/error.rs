//! Errors of an allocator, typed by what the caller can do about them.

use crate::driver::cuda::CudaOpenError;
use crate::driver::{DriverError, OpenError};
use crate::ids::PoolId;
use crate::ipc::NotDone;
use crate::report::guard::Finding;
use crate::report::out_of_memory::OutOfMemoryReport;
use std::collections::TryReserveError;

/// The result of an allocator's operation.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why an operation failed. Live allocations are unchanged, except after [`Error::NotRestorable`], and after
/// a checkpoint that was restored in part before [`Error::HostMemory`]. Free memory may have gone back to the driver.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is not enough memory. Free some memory and try again; the report says how much memory is held, and where.
    #[error("{0}")]
    OutOfMemory(OutOfMemoryReport),
    /// The host, not the device, has too little memory: for the tables of the allocator, or for the report of a
    /// refusal. The same call can succeed once the host has memory.
    #[error("the host has too little memory for the tables of the allocator")]
    HostMemory,
    /// The request is larger than the memory of any device.
    #[error("a request of {size} bytes is larger than any allocation may be (2^60 bytes)")]
    RequestTooLarge {
        /// Bytes asked for.
        size: u64,
    },
    /// No live allocation of this allocator starts at the address: the allocation was freed already, or the address was
    /// never handed out.
    #[error("{address:#x} is not the address of a live allocation (freed twice, or of another allocator?)")]
    InvalidAddress {
        /// The address.
        address: u64,
    },
    /// No live allocation starts at the address, and guard mode knows which allocation was there.
    #[error("{address:#x} is not the address of a live allocation; {finding}")]
    WrongFree {
        /// The address.
        address: u64,
        /// The allocation that was there, and the mistake.
        finding: Box<Finding>,
    },
    /// The private pool does not exist, or has no use left.
    #[error("there is no private pool {pool} (released, or never created?)")]
    UnknownPool {
        /// The pool.
        pool: PoolId,
    },
    /// Requests are already routed to the private pool: that route must end before another begins.
    #[error("requests are routed to private pool {pool} already")]
    PoolRouted {
        /// The pool.
        pool: PoolId,
    },
    /// No requests are routed to the private pool: there is no route to end.
    #[error("no requests are routed to private pool {pool}")]
    PoolNotRouted {
        /// The pool.
        pool: PoolId,
    },
    /// The private pool has memory or segments of its own already; the source of its segments must be chosen before the
    /// pool has memory.
    #[error("private pool {pool} has memory already, or segments of its own: they are chosen once, before it has any")]
    PoolInUse {
        /// The pool.
        pool: PoolId,
    },
    /// The segment source of a private pool failed for another reason than too little memory, or returned an invalid
    /// address. Memory at such an address is not given back.
    #[error("the segment source of private pool {pool} failed: {detail}")]
    Source {
        /// The pool.
        pool: PoolId,
        /// The error, in words.
        detail: String,
    },
    /// The private pool sleeps. [`Tags::wake`](crate::operations::Tags::wake) must wake the pool before its memory is
    /// requested or shared.
    #[error("private pool {pool} sleeps: its memory was given back; wake it first")]
    PoolAsleep {
        /// The pool.
        pool: PoolId,
    },
    /// The private pool cannot sleep, or cannot sleep now. The pool is unchanged.
    #[error("private pool {pool} cannot sleep: {why}")]
    NotSleepable {
        /// The pool.
        pool: PoolId,
        /// The reason, and what to do.
        why: &'static str,
    },
    /// The contents of a private pool could not be written to a file, or read from the file. The pool is unchanged.
    #[error("the contents of a private pool in the file {path:?}: {detail}")]
    Backup {
        /// The file.
        path: std::path::PathBuf,
        /// The error of the system.
        detail: String,
    },
    /// An allocation cannot grow in place, or cannot grow now: it was not reserved for growth, the strategy or an
    /// option forbids growth, or the operation is impossible with an allocation that grows. The allocation is
    /// unchanged.
    #[error("the allocation at {address:#x} cannot grow in place, or this cannot be done with one that does: {why}")]
    NotGrowable {
        /// The address of the allocation; 0 if it has none yet.
        address: u64,
        /// The reason, and what to do.
        why: &'static str,
    },
    /// An allocation was to grow beyond the addresses that were reserved for it. The allocation is unchanged.
    #[error("{size} bytes are more than the {capacity} that were reserved at {address:#x}")]
    BeyondCapacity {
        /// The address of the allocation.
        address: u64,
        /// Bytes asked for.
        size: u64,
        /// Bytes reserved.
        capacity: u64,
    },
    /// A block cannot be handed out again at its address, because its private pool does not hold that memory free. The
    /// blocks before this block in the list were handed out.
    #[error(
        "the block at {address:#x} cannot be restored: it is not free memory of its private pool (of another pool, \
         released since, or waiting for other streams), or the strategy is not `stitch`, or the pool has segments of \
         its own"
    )]
    NotRestorable {
        /// The block's address.
        address: u64,
    },
    /// An option is outside of its range.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The device cannot do what the strategy needs.
    #[error(
        "strategy `{strategy}` needs virtual memory management, which {device} does not have; `caching` works without: give \
         strategy:caching, or no strategy"
    )]
    NoVirtualMemory {
        /// The strategy's name.
        strategy: &'static str,
        /// The device's name.
        device: String,
    },
    /// The device has no pools of stream-ordered memory, which the strategy needs.
    #[error(
        "strategy `{strategy}` needs pools of stream-ordered memory (CUDA 11.2 and newer), which {device} does not have; \
         `caching` works without"
    )]
    NoMemoryPools {
        /// The strategy's name.
        strategy: &'static str,
        /// The device's name.
        device: String,
    },
    /// The operation cannot be done with memory of the driver's pools of stream-ordered memory.
    #[error("{what} is not possible with strategy `malloc-async`: memory of the driver's pools is not exportable")]
    NotOfPools {
        /// The operation that was asked for.
        what: &'static str,
    },
    /// The device's granularity is larger than the allocator supports.
    #[error("memory of {device} comes in multiples of {granularity} bytes, which do not divide 2 MiB; `caching` works")]
    Granularity {
        /// The device's name.
        device: String,
        /// The device's granularity: sizes and addresses must be multiples of it, in bytes.
        granularity: u64,
    },
    /// The device could not be opened.
    #[error(transparent)]
    Device(#[from] CudaOpenError),
    /// No device could be opened by that name.
    #[error(transparent)]
    Open(Box<OpenError>),
    /// The driver failed for another reason than too little memory.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Memory could not be shared with another process, or memory of another process could not be opened.
    #[error(transparent)]
    Ipc(#[from] crate::ipc::IpcError),
    /// An internal rule of the allocator is broken. Please report the message.
    #[error("internal error in seamalloc: {0}")]
    Internal(&'static str),
}

impl From<TryReserveError> for Error {
    fn from(_: TryReserveError) -> Self {
        Self::HostMemory
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Cuda(error) => Self::Device(error),
            OpenError::Driver(error) => Self::Driver(error),
            error => Self::Open(Box::new(error)),
        }
    }
}

impl From<NotDone> for Error {
    fn from(error: NotDone) -> Self {
        match error {
            NotDone::HostMemory => Self::HostMemory,
            NotDone::Ipc(error) => Self::Ipc(error),
        }
    }
}

impl Error {
    /// Returns whether the error is [`Error::OutOfMemory`]. Freeing memory and trying again may then help.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory(_))
    }

    /// Returns whether the device's context is lost, so that only a new process helps
    /// ([`DriverError::is_context_lost`]).
    #[must_use]
    pub fn is_context_lost(&self) -> bool {
        matches!(self, Self::Driver(error) if error.is_context_lost())
    }
}
