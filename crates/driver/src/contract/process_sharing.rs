//! Memory that processes share.
//!
//! Owns: the contract of [`ProcessSharing`], the two forms in which memory leaves a process, and how long a descriptor
//! stays open.

#[cfg(unix)]
use std::os::fd::OwnedFd;
#[cfg(unix)]
use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use crate::error::DriverResult;
use crate::ids::Handle;

/// Memory of `cuMemAlloc` in a form that another process can open: a `CUipcMemHandle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpcMemory(pub [u8; 64]);

/// Memory of `cuMemCreate` in a form that other processes can import: a file descriptor, which is closed with its last
/// copy.
#[derive(Clone, Debug)]
pub struct Exported {
    #[cfg(unix)]
    descriptor: Arc<OwnedFd>,
    number: u64,
}

impl Exported {
    /// Wraps a descriptor that a driver returned, or that came from another process.
    #[cfg(unix)]
    #[must_use]
    pub fn new(descriptor: OwnedFd) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Self { descriptor: Arc::new(descriptor), number: NUMBERS.fetch_add(1, Ordering::Relaxed) }
    }

    /// Returns the descriptor.
    #[cfg(unix)]
    #[must_use]
    pub fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.descriptor
    }

    /// Returns a number that no other `Exported` of the process has or will have. The numbers of descriptors, by
    /// contrast, are reused.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns a weak reference to this export, which keeps no descriptor open.
    #[must_use]
    pub fn downgrade(&self) -> WeakExported {
        WeakExported {
            #[cfg(unix)]
            descriptor: Arc::downgrade(&self.descriptor),
            number: self.number,
        }
    }
}

/// A weak reference to an [`Exported`], by which a driver returns the same export again while that export is open.
#[derive(Clone, Debug)]
pub struct WeakExported {
    #[cfg(unix)]
    descriptor: Weak<OwnedFd>,
    number: u64,
}

impl WeakExported {
    /// Returns the export; `None` once its last copy was dropped.
    #[cfg(unix)]
    #[must_use]
    pub fn upgrade(&self) -> Option<Exported> {
        self.descriptor.upgrade().map(|descriptor| Exported { descriptor, number: self.number })
    }

    /// Returns the export; `None` once its last copy was dropped.
    #[cfg(not(unix))]
    #[must_use]
    pub fn upgrade(&self) -> Option<Exported> {
        Some(Exported { number: self.number })
    }
}

/// Memory that processes share: memory of `cuMemCreate` through file descriptors, memory of `cuMemAlloc` through CUDA's
/// IPC handles. The driver does not send the descriptors or handles to the other process.
///
/// A driver that cannot share memory answers every call with [`Status::NOT_SUPPORTED`](crate::Status::NOT_SUPPORTED).
pub trait ProcessSharing {
    /// `cuMemExportToShareableHandle`: returns memory of `create` as a file descriptor, which other processes can
    /// import. Further calls return the same descriptor while a copy of the returned [`Exported`] exists. The
    /// descriptor is closed with the last copy; the driver keeps no copy.
    ///
    /// pre: `handle` was not released.
    fn export(&self, handle: Handle) -> DriverResult<Exported>;

    /// `cuMemImportFromShareableHandle`: returns a handle for memory that this process or another one exported. The
    /// handle is mapped and released like one of `create`. The memory lives until every process has released and
    /// unmapped it.
    ///
    /// pre: `size` is the size with which the memory was created (unchecked on a real GPU).
    fn import(&self, memory: &Exported, size: u64) -> DriverResult<Handle>;

    /// `cuIpcGetMemHandle`: returns a handle with which other processes can open the allocation at `address`.
    ///
    /// pre: `address` came from `malloc`, and was not freed.
    fn ipc_get(&self, address: u64) -> DriverResult<IpcMemory>;

    /// `cuIpcOpenMemHandle`: returns the address in this process of an allocation of another process. An allocation
    /// that is opened again has the same address, and must be closed once for each opening.
    ///
    /// pre: `memory` is of another process; a process cannot open its own memory.
    fn ipc_open(&self, memory: &IpcMemory) -> DriverResult<u64>;

    /// `cuIpcCloseMemHandle`: ends one opening of `ipc_open`. The call does not wait for the GPU.
    ///
    /// pre: no work of the GPU uses the memory any more (unchecked).
    fn ipc_close(&self, address: u64) -> DriverResult<()>;
}
