//! Memory that simulated GPUs share, in one process and between processes.
//!
//! Owns: how memory is named outside of its GPU: a descriptor holds no bytes of it, only whose it is. Between two GPUs its
//! size alone is known, and nothing of who else maps it.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use super::memory::Memory;
use super::{Answer, SimGpu, State, refuse};
use crate::driver::{Exported, Handle, Status};

/// What a descriptor, or an IPC handle, says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    /// Of the simulated GPU.
    pub(super) identity: u64,
    pub(super) number: u64,
    pub(super) size: u64,
}

/// Begins what a descriptor says.
const MAGIC: [u8; 8] = *b"simulate";

/// A number that no other simulated GPU of a running process has.
pub(super) fn new_identity() -> u64 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    u64::from(process::id()) << 32 | u64::from(COUNT.fetch_add(1, Ordering::Relaxed))
}

impl Shared {
    pub(super) fn to_bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        let fields = [MAGIC, self.identity.to_le_bytes(), self.number.to_le_bytes(), self.size.to_le_bytes()];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field);
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; 64]) -> Option<Self> {
        let (fields, _) = bytes.as_chunks::<8>();
        let [magic, identity, number, size, ..] = fields else { return None };
        let [identity, number, size] = [identity, number, size].map(|field| u64::from_le_bytes(*field));
        (*magic == MAGIC).then_some(Self { identity, number, size })
    }
}

impl SimGpu {
    pub(super) fn export_handle(&self, state: &mut State, handle: Handle) -> Answer<Exported> {
        if let Some(exported) = state.exported.get(&handle) {
            return Ok(exported.clone());
        }
        let (number, size) = state.memory.of_handle(handle)?;
        let exported = descriptor_of(Shared { identity: self.identity, number, size })?;
        state.exported.insert(handle, exported.clone());
        Ok(exported)
    }

    pub(super) fn import_handle(&self, state: &mut State, memory: &Exported, size: u64) -> Answer<Handle> {
        let shared = read(memory)?;
        if shared.size != size {
            return Err(refuse(Status::INVALID_VALUE, format!("{size} bytes of memory of {}", shared.size)));
        }
        let memory: &mut Memory = &mut state.memory;
        if shared.identity == self.identity { memory.import(shared.number) } else { memory.import_foreign(size) }
    }
}

#[cfg(target_os = "linux")]
fn descriptor_of(shared: Shared) -> Answer<Exported> {
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    let failed = |error: std::io::Error| refuse(Status::UNKNOWN, format!("a descriptor cannot be had: {error}"));
    let file =
        File::from(memfd_create("seamalloc-simulated", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?);
    file.write_all_at(&shared.to_bytes(), 0).map_err(failed)?;
    Ok(Exported::new(file.into()))
}

#[cfg(target_os = "linux")]
fn read(memory: &Exported) -> Answer<Shared> {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    let unknown =
        |why: String| refuse(Status::INVALID_VALUE, format!("the descriptor is of no simulated memory: {why}"));
    let file = memory.descriptor().try_clone().map(File::from).map_err(|error| unknown(error.to_string()))?;
    let mut bytes = [0; 64];
    file.read_exact_at(&mut bytes, 0).map_err(|error| unknown(error.to_string()))?;
    Shared::from_bytes(&bytes).ok_or_else(|| unknown("it says something else".to_owned()))
}

#[cfg(not(target_os = "linux"))]
fn descriptor_of(_: Shared) -> Answer<Exported> {
    Err(refuse(Status::NOT_SUPPORTED, "memory is exported on Linux only".to_owned()))
}

#[cfg(not(target_os = "linux"))]
fn read(_: &Exported) -> Answer<Shared> {
    Err(refuse(Status::NOT_SUPPORTED, "memory is imported on Linux only".to_owned()))
}
