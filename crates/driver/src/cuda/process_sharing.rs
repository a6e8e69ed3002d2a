//! Memory that processes share: exported as file descriptors, or opened by CUDA's IPC.
//!
//! Owns: the rule that a handle has one open export at a time, and which descriptors the driver gets. The crate
//! `seamalloc-ipc` sends descriptors.

use super::device::{CudaDriver, handle_text, unknown_handle};
use super::ffi::{self, IpcMemHandle};
use super::place::Place;
use crate::{Call, DriverError, DriverResult, Exported, Handle, IpcMemory, ProcessSharing, Status, WeakExported};

impl ProcessSharing for CudaDriver {
    fn export(&self, handle: Handle) -> DriverResult<Exported> {
        self.export_handle(handle)
    }

    fn import(&self, memory: &Exported, size: u64) -> DriverResult<Handle> {
        self.import_handle(memory, size)
    }

    fn ipc_get(&self, address: u64) -> DriverResult<IpcMemory> {
        let mut memory = IpcMemHandle { reserved: [0; 64] };
        self.demand(
            Call::IpcGet,
            || format!("{address:#x}"),
            // SAFETY: the pointer is to a live value; the driver checks the address against its allocations.
            |api| unsafe { api.ipc_get_mem_handle(&mut memory, address) },
        )?;
        Ok(IpcMemory(memory.reserved))
    }

    fn ipc_open(&self, memory: &IpcMemory) -> DriverResult<u64> {
        let mut address = 0;
        let memory = IpcMemHandle { reserved: memory.0 };
        // SAFETY: the pointer is to a live integer; what the bytes name is looked up by the driver, in its own tables.
        self.demand(Call::IpcOpen, String::new, |api| unsafe {
            api.ipc_open_mem_handle(&mut address, memory, ffi::IPC_LAZY_ENABLE_PEER_ACCESS)
        })?;
        Ok(address)
    }

    fn ipc_close(&self, address: u64) -> DriverResult<()> {
        // SAFETY: an address is an integer to the driver, which checks it against what was opened.
        self.demand(Call::IpcClose, || format!("{address:#x}"), |api| unsafe { api.ipc_close_mem_handle(address) })
    }
}

impl CudaDriver {
    #[cfg(unix)]
    fn export_handle(&self, handle: Handle) -> DriverResult<Exported> {
        use std::os::fd::{FromRawFd, OwnedFd};

        // The lock is held during the call, so that the handle is neither released nor exported twice meanwhile.
        let mut handles = self.handles.lock();
        let known = handles.get_mut(&handle).ok_or_else(|| unknown_handle(Call::Export, handle))?;
        if let Some(exported) = known.as_ref().and_then(WeakExported::upgrade) {
            return Ok(exported);
        }
        if !matches!(self.place, Place::Device { exportable: true, .. }) {
            let detail = format!("{} exports no memory as POSIX file descriptors", self.properties.name);
            return Err(DriverError::new(Call::Export, Status::NOT_SUPPORTED, detail));
        }
        let mut descriptor = -1;
        let place = (&raw mut descriptor).cast();
        self.demand(
            Call::Export,
            || handle_text(handle),
            // SAFETY: the handle is alive. The pointer is to a live integer, and a descriptor is an integer.
            |api| unsafe { api.mem_export_to_shareable_handle(place, handle.0, ffi::MEM_HANDLE_TYPE_POSIX_FD, 0) },
        )?;
        if descriptor < 0 {
            let detail = format!("{}: {descriptor} is no descriptor", handle_text(handle));
            return Err(DriverError::new(Call::Export, Status::UNKNOWN, detail));
        }
        // SAFETY: the driver has just opened it for this caller, and nothing else knows it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // Programs that this process starts must not keep the memory open. If this call fails, such programs keep the
        // memory open.
        #[cfg(target_os = "linux")]
        let _ = rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC);
        let exported = Exported::new(descriptor);
        *known = Some(exported.downgrade());
        Ok(exported)
    }

    #[cfg(unix)]
    fn import_handle(&self, memory: &Exported, size: u64) -> DriverResult<Handle> {
        use std::os::fd::AsRawFd;

        let descriptor = memory.descriptor().as_raw_fd();
        let mut handle = 0;
        let value = std::ptr::without_provenance_mut(descriptor as usize);
        self.demand(
            Call::Import,
            || format!("descriptor {descriptor}, {size} bytes"),
            // SAFETY: the pointer is to a live integer. The driver takes the descriptor as a pointer's value, looks up
            // its memory, and does not keep it.
            |api| unsafe { api.mem_import_from_shareable_handle(&mut handle, value, ffi::MEM_HANDLE_TYPE_POSIX_FD) },
        )?;
        let handle = Handle(handle);
        self.handles.lock().insert(handle, None);
        Ok(handle)
    }

    #[cfg(not(unix))]
    fn export_handle(&self, handle: Handle) -> DriverResult<Exported> {
        Err(DriverError::new(Call::Export, Status::NOT_SUPPORTED, handle_text(handle)))
    }

    #[cfg(not(unix))]
    fn import_handle(&self, memory: &Exported, size: u64) -> DriverResult<Handle> {
        Err(DriverError::new(Call::Import, Status::NOT_SUPPORTED, format!("{size} bytes of {memory:?}")))
    }
}
