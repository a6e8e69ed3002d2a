//! Memory of other processes that is open in this process.
//!
//! Owns: the opened ranges, and the calls that map them and give them back. The memory does not belong to the
//! allocator: such memory is not counted as reserved or allocated, and serves no request.

use crate::driver::{Driver, DriverResult, Exported};
use crate::fallible::{Grown, with_room};
use crate::ids::Handle;
use crate::ipc::SharedChunk;

/// The opened ranges, and the ranges that could not be closed yet.
#[derive(Default)]
pub(crate) struct Opened {
    /// The open ranges, in the order in which they were opened. If plain memory (of `cudaMalloc`) is opened again, CUDA
    /// returns the same address and counts the openings.
    ranges: Vec<OpenedRange>,
    /// The ranges that the program has closed but that stay open because of a capture or a failed call. The list has
    /// room for every range.
    closing: Vec<OpenedRange>,
}

impl Opened {
    /// Makes room for one more range, before it is opened.
    pub(crate) fn reserve(&mut self) -> Grown<()> {
        self.ranges.try_reserve(1)?;
        self.closing.try_reserve(self.ranges.len() + 1)
    }

    pub(crate) fn add(&mut self, range: OpenedRange) -> u64 {
        let address = range.address;
        self.ranges.push(range);
        address
    }

    /// Closes one opening of the range at this address; the next [`Self::give_back`] gives the memory back. Returns
    /// whether the range was open.
    pub(crate) fn close(&mut self, address: u64) -> bool {
        let range = self.ranges.iter().rposition(|range| range.address == address).map(|at| self.ranges.remove(at));
        let found = range.is_some();
        self.closing.extend(range);
        found
    }

    /// Returns whether the program has closed memory that has not been given back.
    pub(crate) fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Gives back the memory that the program has closed. If a call fails, the rest stays for another attempt.
    pub(crate) fn give_back(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        while let Some(range) = self.closing.last_mut() {
            range.undo(driver)?;
            self.closing.pop();
        }
        Ok(())
    }

    /// Returns how many ranges are open.
    pub(crate) fn count(&self) -> usize {
        self.ranges.len()
    }

    /// Undoes an opening that failed before its end. No work has used the memory.
    pub(crate) fn undo(&mut self, mut range: OpenedRange, driver: &dyn Driver) {
        if let Err(error) = range.undo(driver) {
            tracing::error!(%error, address = range.address, "shared memory that could not be opened is left for later");
            self.closing.push(range);
        }
    }
}

/// An address range with memory of another process.
#[derive(Default)]
pub(crate) struct OpenedRange {
    pub(crate) address: u64,
    /// The bytes of reserved addresses. 0 for memory of `cudaMalloc`, and after the addresses were given back.
    reserved: u64,
    /// Bytes from the address on that are mapped.
    mapped: u64,
    handles: Vec<Handle>,
    /// Whether the range is open memory that another process got by `cudaMalloc`.
    pub(crate) plain: bool,
}

impl OpenedRange {
    /// Makes a range that is not open yet, with room for its chunks.
    pub(crate) fn of(chunks: usize) -> Grown<Self> {
        Ok(Self { handles: with_room(chunks)?, ..Self::default() })
    }

    /// Maps every chunk, at contiguous addresses. If a call fails, [`Self::undo`] undoes the calls made so far.
    pub(crate) fn map(
        &mut self,
        driver: &dyn Driver,
        exported: &[Exported],
        chunks: &[SharedChunk],
    ) -> DriverResult<()> {
        for (memory, chunk) in exported.iter().zip(chunks) {
            self.handles.push(driver.import(memory, chunk.size)?);
        }
        let size = chunks.iter().map(|chunk| chunk.size).sum();
        self.address = driver.reserve(size, 0)?;
        self.reserved = size;
        for (handle, chunk) in self.handles.iter().zip(chunks) {
            driver.map(self.address + self.mapped, chunk.size, 0, *handle)?;
            self.mapped += chunk.size;
        }
        driver.set_access(self.address, size)
    }

    /// Undoes the calls made so far. If a call fails, the rest stays for another attempt.
    pub(crate) fn undo(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        if self.plain {
            driver.ipc_close(self.address)?;
            self.plain = false;
        }
        if self.mapped > 0 {
            driver.unmap(self.address, self.mapped)?;
            self.mapped = 0;
        }
        while let Some(handle) = self.handles.last() {
            driver.release(*handle)?;
            self.handles.pop();
        }
        if self.reserved > 0 {
            driver.address_free(self.address, self.reserved)?;
            self.reserved = 0;
        }
        Ok(())
    }
}
