//! The name of a simulated GPU's memory outside of that GPU, in this process and in others.
//!
//! Owns: [`SharedMemory`], and its form in a descriptor or an IPC handle. A descriptor holds no bytes of the memory,
//! only its name.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use super::refusal::{Answer, refuse};
use crate::driver::{Exported, Status};

/// The name of memory: its simulated GPU, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedMemory {
    /// The identity of the simulated GPU.
    pub(super) identity: u64,
    pub(super) number: u64,
    pub(super) size: u64,
}

/// The first bytes of a descriptor's content and of an IPC handle.
const MAGIC: [u8; 8] = *b"simulate";

/// Returns a number that no other running simulated GPU has, in any process.
pub(super) fn new_identity() -> u64 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    u64::from(process::id()) << 32 | u64::from(COUNT.fetch_add(1, Ordering::Relaxed))
}

impl SharedMemory {
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

/// Returns a new descriptor that names this memory.
#[cfg(target_os = "linux")]
pub(super) fn descriptor_of(shared: SharedMemory) -> Answer<Exported> {
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    let failed = |error: std::io::Error| refuse(Status::UNKNOWN, format!("a descriptor cannot be had: {error}"));
    let file =
        File::from(memfd_create("seamalloc-simulated", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?);
    file.write_all_at(&shared.to_bytes(), 0).map_err(failed)?;
    Ok(Exported::new(file.into()))
}

/// Returns the memory that a descriptor names. It is read at a position: what another process sent instead, such as an event
/// counter or a pipe, has none, and a plain read of it might wait for ever.
#[cfg(target_os = "linux")]
pub(super) fn read(memory: &Exported) -> Answer<SharedMemory> {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    let unknown =
        |why: String| refuse(Status::INVALID_VALUE, format!("the descriptor is of no simulated memory: {why}"));
    let file = memory.descriptor().try_clone().map(File::from).map_err(|error| unknown(error.to_string()))?;
    let mut bytes = [0; 64];
    file.read_exact_at(&mut bytes, 0).map_err(|error| unknown(error.to_string()))?;
    SharedMemory::from_bytes(&bytes).ok_or_else(|| unknown("it says something else".to_owned()))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn descriptor_of(_: SharedMemory) -> Answer<Exported> {
    Err(refuse(Status::NOT_SUPPORTED, "memory is exported on Linux only".to_owned()))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn read(_: &Exported) -> Answer<SharedMemory> {
    Err(refuse(Status::NOT_SUPPORTED, "memory is imported on Linux only".to_owned()))
}
