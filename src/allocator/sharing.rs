//! Memory shared with other processes, and theirs opened here.
//!
//! Owns: what was opened, and the calls that map it and give it back. It is no memory of this allocator: nothing is counted
//! as reserved or allocated, and no request is served from it.

use super::{Allocator, Core};
use crate::driver::{Driver, DriverResult, Exported, Handle, in_relaxed_capture_mode};
use crate::error::Result;
use crate::heap::{Behind, Memory};
use crate::ipc::{IpcError, Place, Shared, SharedChunk, fetch, offer};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// What was opened, and what could not be closed yet.
#[derive(Default)]
pub(super) struct Opened {
    /// By address. CUDA gives plain memory that is opened again the same one, and counts.
    ranges: BTreeMap<u64, Vec<Range>>,
    /// A capture was under way, or a call failed.
    closing: Vec<Range>,
}

impl Opened {
    fn add(&mut self, range: Range) -> u64 {
        let address = range.address;
        self.ranges.entry(address).or_default().push(range);
        address
    }

    /// Takes what was opened at this address out, once.
    fn take(&mut self, address: u64) -> Option<Range> {
        let Entry::Occupied(mut entry) = self.ranges.entry(address) else { return None };
        let range = entry.get_mut().pop();
        if entry.get().is_empty() {
            entry.remove();
        }
        range
    }

    /// Undoes what failed halfway. Nothing has used it.
    fn undo(&mut self, mut range: Range, driver: &dyn Driver) {
        if let Err(error) = range.undo(driver) {
            tracing::error!(%error, address = range.address, "shared memory that could not be opened is left for later");
            self.closing.push(range);
        }
    }
}

/// An address range with memory of another process.
#[derive(Default)]
struct Range {
    address: u64,
    /// Bytes of addresses; 0 once they were given back, and for plain memory.
    reserved: u64,
    /// Bytes from the address on that are mapped.
    mapped: u64,
    handles: Vec<Handle>,
    /// Whether it is plain memory that is open.
    plain: bool,
}

impl Range {
    /// Maps every chunk, one behind the other. After a failed call what was done is there to be undone.
    fn map(&mut self, driver: &dyn Driver, exported: &[Exported], chunks: &[SharedChunk]) -> DriverResult<()> {
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

    /// Undoes what was done so far. After a failed call the rest is left to be undone.
    fn undo(&mut self, driver: &dyn Driver) -> DriverResult<()> {
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

impl Allocator {
    /// Names a live allocation so that another process can open it with [`Self::open_shared`], as CUDA's IPC does for memory
    /// of `cudaMalloc`; also where it is stitched. The allocation must stay live until everyone who got the name has
    /// closed it: nobody else keeps its memory from being used for something else. Neighbours in the same chunks of memory
    /// (2 MiB and more) are within the reach of whoever opens it.
    ///
    /// The first time, a thread is started that gives the memory away, to processes of the same user (and root) which know
    /// the name; it needs an abstract socket of the process's network namespace. Linux only.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`](crate::Error::InvalidAddress) if no live allocation starts there;
    /// [`Error::Ipc`](crate::Error::Ipc) where there can be no socket or thread;
    /// [`Error::Driver`](crate::Error::Driver) where the memory cannot be exported.
    pub fn share(&self, address: u64) -> Result<Shared> {
        let core = &*self.core.lock();
        let Behind { memory, offset } = core.heap.behind(core.heap.live(address)?)?;
        let place = match memory {
            Memory::Plain(address) => Place::Plain(core.in_relaxed_capture_mode(|driver| driver.ipc_get(address))?),
            Memory::Handles(handles) => {
                let export = |driver: &dyn Driver| handles.iter().map(|(handle, _)| driver.export(*handle)).collect();
                let exported: Vec<Exported> = core.in_relaxed_capture_mode(export)?;
                let office = offer(&exported)?;
                let chunk = |(exported, (_, size)): (&Exported, &(_, u64))| {
                    let key = exported.number();
                    SharedChunk { key, size: *size }
                };
                Place::Chunks { office, chunks: exported.iter().zip(&handles).map(chunk).collect() }
            }
        };
        Ok(Shared { handle: place.to_bytes(), offset })
    }

    /// Opens memory that a process shares, by [`Shared::handle`]: the address at which all that it lies in begins here. The
    /// allocation itself begins [`Shared::offset`] bytes later. The device may read and write it, on any stream; in which
    /// order with the other process is the program's to see to. Opening it twice gives two addresses, for plain memory the
    /// same one twice; either way it is closed twice.
    ///
    /// # Errors
    /// [`Error::Ipc`](crate::Error::Ipc) for a bad handle, a process that is gone or does not answer within 10 seconds,
    /// or memory that it has freed; [`Error::Driver`](crate::Error::Driver) where the memory cannot be imported or
    /// mapped. Nothing is opened then.
    pub fn open_shared(&self, handle: &[u8]) -> Result<u64> {
        let mut range = Range::default();
        match Place::from_bytes(handle)? {
            Place::Plain(memory) => {
                let core = &mut *self.core.lock();
                range.address = core.in_relaxed_capture_mode(|driver| driver.ipc_open(&memory))?;
                range.plain = true;
                Ok(core.opened.add(range))
            }
            Place::Chunks { office, chunks } => {
                // Not under the lock: it waits for the other process.
                let exported = fetch(&office, chunks.iter().map(|chunk| chunk.key))?;
                let core = &mut *self.core.lock();
                if let Err(error) = core.in_relaxed_capture_mode(|driver| range.map(driver, &exported, &chunks)) {
                    core.opened.undo(range, &*self.driver);
                    return Err(error.into());
                }
                Ok(core.opened.add(range))
            }
        }
    }

    /// Closes what [`Self::open_shared`] opened at this address, once the device has done all its work: the CPU waits for
    /// it. While a stream is being captured nothing can be waited for: it is closed later then, when something else is
    /// closed, the cache is emptied, or the allocator is dropped.
    ///
    /// # Errors
    /// [`Error::Ipc`](crate::Error::Ipc) if nothing was opened there; [`Error::Driver`](crate::Error::Driver) where a
    /// call failed: it is closed for the program, and what is left is tried again likewise.
    pub fn close_shared(&self, address: u64) -> Result<()> {
        let core = &mut *self.core.lock();
        let range = core.opened.take(address).ok_or(IpcError::NotOpen { address })?;
        core.opened.closing.push(range);
        core.close_shared()
    }
}

impl Core {
    /// Closes what the program has closed.
    pub(super) fn close_shared(&mut self) -> Result<()> {
        if self.opened.closing.is_empty() || self.heap.private.capturing() {
            return Ok(());
        }
        self.driver.synchronize()?;
        while let Some(range) = self.opened.closing.last_mut() {
            range.undo(&*self.driver)?;
            self.opened.closing.pop();
        }
        Ok(())
    }

    /// Before the allocator goes. What the program has not closed stays open.
    pub(super) fn leave_shared(&mut self) {
        let open = self.opened.ranges.len();
        if open > 0 {
            tracing::warn!(open, "an allocator is dropped while shared memory is open; it stays open");
        }
        if let Err(error) = self.close_shared() {
            tracing::warn!(%error, "shared memory could not be closed");
        }
    }

    /// Makes calls that captures forbid so that none is harmed.
    fn in_relaxed_capture_mode<T>(&self, calls: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        let driver = &*self.driver;
        in_relaxed_capture_mode(driver, self.heap.private.capturing(), || calls(driver))
    }
}
