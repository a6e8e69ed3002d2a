//! Memory that simulated GPUs share, within a process and between processes.
//!
//! Owns: which parts of the device's state each call for shared memory uses. A GPU knows the size of another GPU's
//! memory, but not which other GPUs map that memory.

use super::gpu::SimGpu;
use super::shared_memory::{MAGIC, descriptor_of, read};
use super::state::State;
use crate::bookkeeping::{Answer, SharedMemory, refuse};
use seamalloc_driver::{Call, DriverResult, Exported, Handle, IpcMemory, ProcessSharing, Status, WeakExported};

impl ProcessSharing for SimGpu {
    fn export(&self, handle: Handle) -> DriverResult<Exported> {
        self.call(Call::Export, 0, |state| self.export_handle(state, handle))
    }

    fn import(&self, memory: &Exported, size: u64) -> DriverResult<Handle> {
        self.call(Call::Import, size, |state| self.import_handle(state, memory, size))
    }

    fn ipc_get(&self, address: u64) -> DriverResult<IpcMemory> {
        self.call(Call::IpcGet, 0, |state| {
            let (number, size) = state.memory.of_malloc(address)?;
            Ok(IpcMemory(SharedMemory { identity: self.identity, number, size }.to_bytes(MAGIC)))
        })
    }

    fn ipc_open(&self, memory: &IpcMemory) -> DriverResult<u64> {
        self.call(Call::IpcOpen, 0, |state| {
            let shared = SharedMemory::from_bytes(&memory.0, MAGIC).filter(|shared| shared.identity != self.identity);
            let own = || refuse(Status::INVALID_VALUE, "the memory of this GPU, or of none".to_owned());
            let State { memory, addresses, .. } = state;
            memory.open(shared.ok_or_else(own)?, |size| addresses.malloc(size))
        })
    }

    fn ipc_close(&self, address: u64) -> DriverResult<()> {
        self.call(Call::IpcClose, 0, |state| {
            let State { memory, addresses, .. } = state;
            memory.close(address, |size| {
                addresses.free(address, size);
                Ok(())
            })
        })
    }
}

impl SimGpu {
    fn export_handle(&self, state: &mut State, handle: Handle) -> Answer<Exported> {
        if let Some(exported) = state.exported.get(&handle).and_then(WeakExported::upgrade) {
            return Ok(exported);
        }
        let (number, size) = state.memory.of_handle(handle)?;
        let exported = descriptor_of(SharedMemory { identity: self.identity, number, size })?;
        state.exported.insert(handle, exported.downgrade());
        Ok(exported)
    }

    fn import_handle(&self, state: &mut State, memory: &Exported, size: u64) -> Answer<Handle> {
        let shared = read(memory)?;
        if shared.size != size {
            return Err(refuse(Status::INVALID_VALUE, format!("{size} bytes of memory of {}", shared.size)));
        }
        if shared.identity == self.identity {
            state.memory.import(shared.number)
        } else {
            state.memory.import_foreign(size, ())
        }
    }
}
