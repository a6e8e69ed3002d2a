//! Host memory that processes share: real bytes, through real descriptors.
//!
//! Owns: which parts of the device's state each call for shared memory uses, and the form of an IPC handle. The
//! descriptor of a handle is found through `/proc`, which requires only that both processes have the same user.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process;

use super::addresses::{Reserved, map_anywhere};
use super::chunk::{Chunk, file_number};
use super::device::HostDriver;
use crate::bookkeeping::{Answer, SharedMemory, refuse};
use seamalloc_driver::{Call, DriverResult, Exported, Handle, IpcMemory, ProcessSharing, Status};

/// The first bytes of an IPC handle.
const MAGIC: [u8; 8] = *b"hostmem1";
/// The bytes of an IPC handle that hold the numbers of the process and its descriptor, after the name of the memory.
const PROCESS: std::ops::Range<usize> = 32..36;
const DESCRIPTOR: std::ops::Range<usize> = 36..40;
/// The bytes of an IPC handle that hold the file's inode. The number shows whether the descriptor now belongs to
/// another file.
const INODE: std::ops::Range<usize> = 40..48;

impl ProcessSharing for HostDriver {
    fn export(&self, handle: Handle) -> DriverResult<Exported> {
        self.locked(Call::Export, |state| {
            let (number, _) = state.memory.of_handle(handle)?;
            state.own_file(number)
        })
    }

    fn import(&self, memory: &Exported, size: u64) -> DriverResult<Handle> {
        self.locked(Call::Import, |state| {
            let chunk = Chunk::imported(memory, size)?;
            let file = chunk.file_number();
            match state.memory.find(|known| known.file_number() == file) {
                Some(number) => state.memory.import(number),
                None => state.memory.import_foreign(size, chunk),
            }
        })
    }

    fn ipc_get(&self, address: u64) -> DriverResult<IpcMemory> {
        self.locked(Call::IpcGet, |state| {
            let (number, size) = state.memory.of_malloc(address)?;
            let file = state.own_file(number)?;
            let mut bytes = SharedMemory { identity: self.identity, number, size }.to_bytes(MAGIC);
            let descriptor = file.descriptor().as_raw_fd();
            put(&mut bytes, PROCESS, &process::id().to_le_bytes());
            put(&mut bytes, DESCRIPTOR, &descriptor.to_le_bytes());
            put(&mut bytes, INODE, &file_number(&file)?.1.to_le_bytes());
            Ok(IpcMemory(bytes))
        })
    }

    fn ipc_open(&self, memory: &IpcMemory) -> DriverResult<u64> {
        self.locked(Call::IpcOpen, |state| {
            let shared = SharedMemory::from_bytes(&memory.0, MAGIC).filter(|shared| shared.identity != self.identity);
            let own = || refuse(Status::INVALID_VALUE, "the memory of this device, or of none".to_owned());
            let shared = shared.ok_or_else(own)?;
            state.memory.open(shared, |size| {
                let chunk = Chunk::imported(&descriptor_of(&memory.0)?, size)?;
                Ok((map_anywhere(chunk.part(), size)?.address(), chunk))
            })
        })
    }

    fn ipc_close(&self, address: u64) -> DriverResult<()> {
        self.locked(Call::IpcClose, |state| {
            state.memory.close(address, |size| Reserved::known(address, size).give_back())
        })
    }
}

fn put(bytes: &mut [u8; 64], at: std::ops::Range<usize>, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at).filter(|place| place.len() == value.len()) {
        place.copy_from_slice(value);
    }
}

fn four(bytes: &[u8; 64], at: std::ops::Range<usize>) -> u32 {
    bytes.get(at).and_then(|part| part.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// Opens the file that a handle names, in any process.
fn descriptor_of(bytes: &[u8; 64]) -> Answer<Exported> {
    let (process, descriptor) = (four(bytes, PROCESS), four(bytes, DESCRIPTOR));
    let gone = |why: String| refuse(Status::INVALID_VALUE, format!("the memory of process {process} is gone: {why}"));
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file: File = OpenOptions::new().read(true).write(true).open(path).map_err(|error| gone(error.to_string()))?;
    let file = Exported::new(OwnedFd::from(file));
    let inode = bytes.get(INODE).and_then(|part| part.try_into().ok()).map_or(0, u64::from_le_bytes);
    if file_number(&file)?.1 != inode {
        return Err(gone("its descriptor is another file's".to_owned()));
    }
    Ok(file)
}
