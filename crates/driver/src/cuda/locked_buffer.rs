//! The record that a device keeps of each buffer of page-locked host memory.
//!
//! Owns: [`LockedBuffer`], its bounds, and where its memory came from. `page_locked.rs` makes the calls.

use std::ptr;

use super::host_pages::Pages;
use crate::{Call, DriverError, DriverResult, EventId, Status};

/// The source of a buffer's memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    /// Pages of the system, which are registered with the driver.
    System(Pages),
    /// Memory of the driver, by `cuMemHostAlloc`.
    Driver,
}

impl Origin {
    /// Returns the name of the call that gives the memory back.
    pub(super) fn given_back_by(self) -> &'static str {
        match self {
            Self::System(_) => "cuMemHostUnregister",
            Self::Driver => "cuMemFreeHost",
        }
    }
}

/// A live buffer. Its bytes are used only under its lock.
#[derive(Debug)]
pub(super) struct LockedBuffer {
    pub(super) address: u64,
    pub(super) size: usize,
    pub(super) origin: Origin,
    pub(super) event: EventId,
    /// Whether a copy was issued after the last wait.
    pub(super) busy: bool,
    pub(super) freed: bool,
}

impl LockedBuffer {
    /// Returns the address of a byte.
    pub(super) fn pointer(&self, offset: usize) -> *mut u8 {
        ptr::with_exposed_provenance_mut::<u8>(self.address as usize).wrapping_add(offset)
    }

    /// Returns the offset and the size of a part as `usize`. Returns an error if the part is outside of the buffer.
    pub(super) fn part(&self, call: Call, offset: u64, size: u64) -> DriverResult<(usize, usize)> {
        let (from, bytes) =
            (usize::try_from(offset).unwrap_or(usize::MAX), usize::try_from(size).unwrap_or(usize::MAX));
        if !self.freed && bytes > 0 && from.checked_add(bytes).is_some_and(|end| end <= self.size) {
            return Ok((from, bytes));
        }
        let detail = format!("{size} bytes from {offset} on, of a buffer of {}", self.size);
        Err(DriverError::new(call, Status::INVALID_VALUE, detail))
    }
}
