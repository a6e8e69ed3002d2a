//! Physical memory: pages of files that exist only in memory.
//!
//! Owns: the file of each piece of physical memory, and the release of its pages when the piece is dropped.
//!
//! ```text
//!   the device's file   | chunk | hole | chunk        | hole ...     one descriptor, however many chunks
//!   a file of its own   | chunk |                                    exported memory, or memory of another process
//! ```
//!
//! All memory begins in the device's file, since a process may have only a limited number of descriptors (1,024 by
//! default on many systems). A descriptor gives access to a whole file. Memory that is exported therefore first moves
//! to a file of its own, which lives as long as any process has it mapped.
//!
//! Pages are added at their first use, as zeros. Memory that is never touched costs only its bookkeeping.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::{Errno, retry_on_intr};

use super::addresses::{FilePart, failed};
use crate::bookkeeping::{Addresses, Answer, GRANULARITY, Memory, refuse};
use seamalloc_driver::{Exported, Status};

/// Memory whose physical pieces are chunks.
pub(super) type HostMemory = Memory<Chunk>;

/// The bytes of the device's file, which are all holes at first. The size is four times the largest capacity of a
/// device, so that a hole of any size is found between chunks.
const FILE_SIZE: u64 = 64 << 40;
/// The bytes that one step copies when memory moves to a file of its own.
const COPIED: usize = 1 << 20;
/// The seals of a shared file, which keep its size fixed. A process that truncated the file would end other processes
/// by SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The file in which a device's memory begins.
#[derive(Debug)]
pub(super) struct DeviceFile {
    file: File,
    free: Mutex<Addresses>,
}

impl DeviceFile {
    pub(super) fn new() -> Answer<Arc<Self>> {
        Ok(Arc::new(Self { file: new_file(FILE_SIZE)?, free: Mutex::new(Addresses::new(0, FILE_SIZE)) }))
    }

    #[cfg(test)]
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Returns `size` bytes of zeros.
    pub(super) fn chunk(self: &Arc<Self>, size: u64) -> Answer<Chunk> {
        let offset = self.free.lock().allocate(size, GRANULARITY);
        let offset = offset.ok_or_else(|| refuse(Status::OUT_OF_MEMORY, format!("{size} bytes of the file")))?;
        Ok(Chunk(Place::Part(FileRange { of: Arc::clone(self), offset, size })))
    }
}

/// A part of the device's file.
#[derive(Debug)]
struct FileRange {
    of: Arc<DeviceFile>,
    offset: u64,
    size: u64,
}

impl Drop for FileRange {
    fn drop(&mut self) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| fallocate(&self.of.file, mode, self.offset, self.size)) {
            Ok(()) => self.of.free.lock().release(self.offset, self.size),
            // The chunk's place in the device's file is not used again, since its bytes would not be zeros.
            Err(error) => tracing::error!(%error, size = self.size, "memory was not given back to the machine"),
        }
    }
}

#[derive(Debug)]
enum Place {
    Part(FileRange),
    Whole(Exported, FileNumber),
}

/// A piece of physical memory. The piece's pages are released when the piece is dropped and no process has it mapped.
#[derive(Debug)]
pub(super) struct Chunk(Place);

impl Chunk {
    /// Takes memory that this process or another one exported, after checking its size and seals.
    pub(super) fn imported(memory: &Exported, size: u64) -> Answer<Self> {
        let wrong = |why: String| refuse(Status::INVALID_VALUE, format!("the descriptor is of no host memory: {why}"));
        let seals = fcntl_get_seals(memory.descriptor()).map_err(|error| wrong(error.to_string()))?;
        if !seals.contains(SEALS) {
            return Err(wrong("its size may change".to_owned()));
        }
        let status = fstat(memory.descriptor()).map_err(|error| wrong(error.to_string()))?;
        if u64::try_from(status.st_size) != Ok(size) {
            return Err(wrong(format!("it has {} bytes, not {size}", status.st_size)));
        }
        Self::of_file(memory.clone())
    }

    pub(super) fn part(&self) -> FilePart<'_> {
        match &self.0 {
            Place::Part(range) => FilePart { file: range.of.file.as_fd(), offset: range.offset },
            Place::Whole(file, _) => FilePart { file: file.descriptor().as_fd(), offset: 0 },
        }
    }

    /// Returns the chunk's own file; `None` if the chunk lies in the device's file.
    pub(super) fn file(&self) -> Option<&Exported> {
        match &self.0 {
            Place::Part(_) => None,
            Place::Whole(file, _) => Some(file),
        }
    }

    /// Returns the number of the chunk's own file; `None` if the chunk lies in the device's file.
    pub(super) fn file_number(&self) -> Option<FileNumber> {
        match &self.0 {
            Place::Part(_) => None,
            Place::Whole(_, number) => Some(*number),
        }
    }

    fn of_file(file: Exported) -> Answer<Self> {
        let number = file_number(&file)?;
        Ok(Self(Place::Whole(file, number)))
    }

    /// Returns a copy of the chunk in a file of its own. Mappings of the chunk must be made again.
    pub(super) fn in_own_file(&self) -> Answer<Self> {
        match &self.0 {
            Place::Whole(file, number) => Ok(Self(Place::Whole(file.clone(), *number))),
            Place::Part(range) => {
                let file = new_file(range.size)?;
                copy(&range.of.file, range.offset, &file, range.size)?;
                fcntl_add_seals(&file, SEALS).map_err(|error| failed("F_ADD_SEALS", error))?;
                Self::of_file(Exported::new(OwnedFd::from(file)))
            }
        }
    }
}

/// The number of a file on the machine: its device, and its inode.
pub(super) type FileNumber = (u64, u64);

pub(super) fn file_number(file: &Exported) -> Answer<FileNumber> {
    let status = fstat(file.descriptor()).map_err(|error| failed("fstat", error))?;
    Ok((status.st_dev, status.st_ino))
}

fn new_file(size: u64) -> Answer<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("seamalloc-host", flags).map_err(|error| failed("memfd_create", error))?);
    retry_on_intr(|| ftruncate(&file, size)).map_err(|error| failed("ftruncate", error))?;
    Ok(file)
}

/// Copies `size` bytes to the beginning of a file. Pages of zeros stay holes in the copy.
fn copy(from: &File, offset: u64, to: &File, size: u64) -> Answer<()> {
    let failed = |error: std::io::Error| failed("copy", Errno::from_io_error(&error).unwrap_or(Errno::IO));
    let mut bytes = vec![0; COPIED];
    let mut done = 0;
    while done < size {
        let most = usize::try_from(size - done).map_or(COPIED, |left| left.min(COPIED));
        let Some(part) = bytes.get_mut(..most) else { break };
        from.read_exact_at(part, offset + done).map_err(failed)?;
        if part.iter().any(|byte| *byte != 0) {
            to.write_all_at(part, done).map_err(failed)?;
        }
        done += most as u64;
    }
    Ok(())
}
