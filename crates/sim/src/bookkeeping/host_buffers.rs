//! Page-locked host memory: the live buffers, and the buffers that a copy may be using.
//!
//! Owns: the checks of calls that name a buffer. The driver keeps a buffer's contents.

use rustc_hash::FxHashMap;

use super::refusal::{Answer, refuse};
use seamalloc_driver::{HostBuffer, Status};

/// The buffers of a device, each with a value that the device keeps for it: the bytes, or the end of the last copy.
#[derive(Debug)]
pub(crate) struct HostBuffers<T> {
    buffers: FxHashMap<HostBuffer, Buffer<T>>,
    made: u64,
}

/// A live buffer.
#[derive(Debug)]
struct Buffer<T> {
    size: u64,
    /// Whether a copy was issued for which the CPU has not waited.
    busy: bool,
    of: T,
}

impl<T> HostBuffers<T> {
    pub(crate) fn new() -> Self {
        Self { buffers: FxHashMap::default(), made: 0 }
    }

    /// Returns the number of live buffers.
    pub(crate) fn count(&self) -> usize {
        self.buffers.len()
    }

    /// Makes a buffer. `make` gets the buffer's number.
    pub(crate) fn add(&mut self, size: u64, make: impl FnOnce(u64) -> Answer<T>) -> Answer<HostBuffer> {
        if size == 0 {
            return Err(refuse(Status::INVALID_VALUE, "0 bytes".to_owned()));
        }
        let of = make(self.made + 1)?;
        self.made += 1;
        let buffer = HostBuffer(self.made);
        self.buffers.insert(buffer, Buffer { size, busy: false, of });
        Ok(buffer)
    }

    /// Removes a buffer. Returns its bytes, and the value kept for it.
    pub(crate) fn remove(&mut self, buffer: HostBuffer) -> Answer<(u64, T)> {
        self.buffers.remove(&buffer).map(|gone| (gone.size, gone.of)).ok_or_else(|| unknown(buffer))
    }

    /// Notes that a copy of `size` bytes begins at `offset`. Returns the value kept for the buffer.
    pub(crate) fn copying(&mut self, buffer: HostBuffer, offset: u64, size: u64) -> Answer<&mut T> {
        let entry = self.part(buffer, offset, size)?;
        entry.busy = true;
        Ok(&mut entry.of)
    }

    /// Notes that all copies of a buffer have ended. Returns the value kept for the buffer.
    pub(crate) fn waited(&mut self, buffer: HostBuffer) -> Answer<&mut T> {
        let entry = self.buffers.get_mut(&buffer).ok_or_else(|| unknown(buffer))?;
        entry.busy = false;
        Ok(&mut entry.of)
    }

    /// Returns the value kept for a buffer. Refuses a buffer without these bytes, or with a copy under way.
    pub(crate) fn bytes(&mut self, buffer: HostBuffer, offset: u64, size: u64) -> Answer<&mut T> {
        let entry = self.part(buffer, offset, size)?;
        if entry.busy {
            return Err(refuse(Status::NOT_READY, format!("buffer {:#x}: nobody waited for its copies", buffer.0)));
        }
        Ok(&mut entry.of)
    }

    /// Refuses a part that is empty or outside of a buffer.
    pub(crate) fn check(&self, buffer: HostBuffer, offset: u64, size: u64) -> Answer<()> {
        let entry = self.buffers.get(&buffer).ok_or_else(|| unknown(buffer))?;
        if size > 0 && offset.checked_add(size).is_some_and(|end| end <= entry.size) {
            return Ok(());
        }
        let detail = format!("{size} bytes from {offset} on, of a buffer of {}", entry.size);
        Err(refuse(Status::INVALID_VALUE, detail))
    }

    fn part(&mut self, buffer: HostBuffer, offset: u64, size: u64) -> Answer<&mut Buffer<T>> {
        self.check(buffer, offset, size)?;
        self.buffers.get_mut(&buffer).ok_or_else(|| unknown(buffer))
    }
}

fn unknown(buffer: HostBuffer) -> super::refusal::Refusal {
    refuse(Status::INVALID_VALUE, format!("buffer {:#x} is not one of this device, or was freed", buffer.0))
}
