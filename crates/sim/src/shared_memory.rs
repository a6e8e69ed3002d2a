//! The name of a simulated GPU's memory in a descriptor.
//!
//! Owns: the descriptor's content. The descriptor holds the memory's name, not its bytes.

use crate::bookkeeping::{Answer, SharedMemory, refuse};
use seamalloc_driver::{Exported, Status};

/// The first bytes of a descriptor's content and of an IPC handle.
pub(super) const MAGIC: [u8; 8] = *b"simulate";

/// Returns a new descriptor that names this memory.
#[cfg(target_os = "linux")]
pub(super) fn descriptor_of(shared: SharedMemory) -> Answer<Exported> {
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    let failed = |error: std::io::Error| refuse(Status::UNKNOWN, format!("a descriptor cannot be had: {error}"));
    let file =
        File::from(memfd_create("seamalloc-simulated", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?);
    file.write_all_at(&shared.to_bytes(MAGIC), 0).map_err(failed)?;
    Ok(Exported::new(file.into()))
}

/// Returns the memory that a descriptor names. The read is at a position, since another process may have sent an event
/// counter or a pipe. A plain read of these might wait for ever, and a read at a position fails.
#[cfg(target_os = "linux")]
pub(super) fn read(memory: &Exported) -> Answer<SharedMemory> {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    let unknown =
        |why: String| refuse(Status::INVALID_VALUE, format!("the descriptor is of no simulated memory: {why}"));
    let file = memory.descriptor().try_clone().map(File::from).map_err(|error| unknown(error.to_string()))?;
    let mut bytes = [0; 64];
    file.read_exact_at(&mut bytes, 0).map_err(|error| unknown(error.to_string()))?;
    SharedMemory::from_bytes(&bytes, MAGIC).ok_or_else(|| unknown("it says something else".to_owned()))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn descriptor_of(_: SharedMemory) -> Answer<Exported> {
    Err(refuse(Status::NOT_SUPPORTED, "memory is exported on Linux only".to_owned()))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn read(_: &Exported) -> Answer<SharedMemory> {
    Err(refuse(Status::NOT_SUPPORTED, "memory is imported on Linux only".to_owned()))
}
