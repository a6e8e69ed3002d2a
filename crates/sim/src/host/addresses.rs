//! The addresses of this process that the device uses: reserved addresses without memory, and files mapped there.
//!
//! Owns: `mmap`, `munmap` and `mprotect`. Reserved addresses stay taken until they are given back. When memory is
//! unmapped, the same call puts a reservation without access in its place, so that no other `mmap` of the process can
//! take the addresses.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use crate::bookkeeping::{Answer, GRANULARITY, Refusal, refuse};
use seamalloc_driver::Status;

/// A part of a file that can be mapped.
#[derive(Clone, Copy)]
pub(super) struct FilePart<'a> {
    pub(super) file: BorrowedFd<'a>,
    pub(super) offset: u64,
}

/// Addresses of this process that belong to the device alone. Every function below that changes mappings takes a part
/// of such a range.
///
/// No Rust reference ever points to these addresses: words.rs uses atomics. Code that uses an address as a pointer must
/// ensure that the use is valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserved {
    address: u64,
    size: u64,
}

/// Reserves addresses and returns them.
pub(super) fn reserve(size: u64, alignment: u64) -> Answer<Reserved> {
    let whole = size.checked_add(alignment).ok_or_else(|| none_left(size, "more than there are"))?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: without MAP_FIXED, the kernel chooses addresses that are free.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), length(whole)?, ProtFlags::empty(), flags) };
    let start = start.map_err(|error| none_left(size, error))?.expose_provenance() as u64;
    let address = start.next_multiple_of(alignment);
    let reserved = Reserved { address, size };
    let (before, after) = (address - start, whole - size - (address - start));
    // If the kernel allows no further address range, the whole reservation is given back, which creates no new range.
    let trimmed = Reserved { address: address + size, size: after }.give_back();
    trimmed.or_else(|refusal| Reserved { address: start, size: whole }.give_back().and(Err(refusal)))?;
    let trimmed = Reserved { address: start, size: before }.give_back();
    trimmed.or_else(|refusal| Reserved { address: start, size: before + size }.give_back().and(Err(refusal)))?;
    Ok(reserved)
}

impl Reserved {
    /// Makes the value for addresses that the bookkeeping knows as reserved, or as part of a reservation.
    pub(super) fn known(address: u64, size: u64) -> Self {
        Self { address, size }
    }

    pub(super) fn address(self) -> u64 {
        self.address
    }

    /// Gives back the addresses and the memory mapped there.
    pub(super) fn give_back(self) -> Answer<()> {
        if self.size == 0 {
            return Ok(());
        }
        // SAFETY: `reserve` made these addresses for this device, and no reference points there.
        let done = unsafe { munmap(ptr::with_exposed_provenance_mut(self.address as usize), length(self.size)?) };
        done.map_err(|error| failed("munmap", error))
    }

    /// Maps a part of a file. Other mappings of the part share its bytes.
    pub(super) fn map(self, part: FilePart<'_>, access: bool) -> Answer<()> {
        let protection = if access { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::empty() };
        let (at, flags) = (ptr::with_exposed_provenance_mut(self.address as usize), MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: `reserve` made these addresses for this device, and no reference points there.
        let done = unsafe { mmap(at, length(self.size)?, protection, flags, part.file.as_fd(), part.offset) };
        done.map(drop).map_err(|error| failed("mmap", error))
    }

    /// Unmaps the memory. The addresses stay reserved.
    pub(super) fn unmap(self) -> Answer<()> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let at = ptr::with_exposed_provenance_mut(self.address as usize);
        // SAFETY: as in `map`.
        let done = unsafe { mmap_anonymous(at, length(self.size)?, ProtFlags::empty(), flags) };
        done.map(drop).map_err(|error| failed("mmap", error))
    }

    /// Lets the process read and write the mapped memory.
    pub(super) fn open(self) -> Answer<()> {
        let at = ptr::with_exposed_provenance_mut(self.address as usize);
        // SAFETY: as in `map`; more access invalidates no assumption.
        let done = unsafe { mprotect(at, length(self.size)?, MprotectFlags::READ | MprotectFlags::WRITE) };
        done.map_err(|error| failed("mprotect", error))
    }
}

/// Reserves addresses and maps a part of a file there with access.
pub(super) fn map_anywhere(part: FilePart<'_>, size: u64) -> Answer<Reserved> {
    let reserved = reserve(size, GRANULARITY)?;
    if let Err(refusal) = reserved.map(part, true) {
        reserved.give_back()?;
        return Err(refusal);
    }
    Ok(reserved)
}

fn length(size: u64) -> Answer<usize> {
    usize::try_from(size).map_err(|_| none_left(size, "more than there are"))
}

fn none_left(size: u64, why: impl std::fmt::Display) -> Refusal {
    refuse(Status::OUT_OF_MEMORY, format!("{size} bytes of address space: {why}"))
}

/// Returns the kernel's error as a refusal of the device. Possible reasons are the kernel's limit on address ranges
/// (`vm.max_map_count`) and a process's limit on bytes of addresses.
pub(super) fn failed(what: &str, error: rustix::io::Errno) -> Refusal {
    let full = matches!(
        error,
        rustix::io::Errno::NOMEM | rustix::io::Errno::NOSPC | rustix::io::Errno::MFILE | rustix::io::Errno::NFILE
    );
    refuse(if full { Status::OUT_OF_MEMORY } else { Status::UNKNOWN }, format!("{what}: {error}"))
}
