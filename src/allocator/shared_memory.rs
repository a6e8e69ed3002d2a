//! Memory shared with other processes, and theirs opened here.
//!
//! Owns: the public operations. What is open is kept in `opened.rs`, and how descriptors are passed on in `ipc`.

use super::core::{Allocator, Core};
use super::opened::OpenedRange;
use crate::driver::{Driver, DriverResult, Exported, in_relaxed_capture_mode};
use crate::error::Result;
use crate::heap::{Physical, PhysicalSpan};
use crate::ipc::{IpcError, IpcHandle, Place, SharedChunk, fetch, offer};

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
    pub fn share(&self, address: u64) -> Result<IpcHandle> {
        let core = &*self.core.lock();
        let PhysicalSpan { memory, offset } = core.heap.physical(core.heap.live(address)?)?;
        let place = match memory {
            Physical::Plain(address) => Place::Plain(core.allowed_in_captures(|driver| driver.ipc_get(address))?),
            Physical::Handles(handles) => {
                let export = |driver: &dyn Driver| handles.iter().map(|(handle, _)| driver.export(*handle)).collect();
                let exported: Vec<Exported> = core.allowed_in_captures(export)?;
                let endpoint = offer(&exported)?;
                let chunk = |(exported, (_, size)): (&Exported, &(_, u64))| {
                    let key = exported.number();
                    SharedChunk { key, size: *size }
                };
                Place::Chunks { endpoint, chunks: exported.iter().zip(&handles).map(chunk).collect() }
            }
        };
        Ok(IpcHandle { handle: place.to_bytes(), offset })
    }

    /// Opens memory that a process shares, by [`IpcHandle::handle`]: the address at which all that it lies in begins here. The
    /// allocation itself begins [`IpcHandle::offset`] bytes later. The device may read and write it, on any stream; in which
    /// order with the other process is the program's to see to. Opening it twice gives two addresses, for plain memory the
    /// same one twice; either way it is closed twice.
    ///
    /// # Errors
    /// [`Error::Ipc`](crate::Error::Ipc) for a bad handle, a process that is gone or does not answer within 10 seconds,
    /// or memory that it has freed; [`Error::Driver`](crate::Error::Driver) where the memory cannot be imported or
    /// mapped. Nothing is opened then.
    pub fn open_shared(&self, handle: &[u8]) -> Result<u64> {
        let mut range = OpenedRange::default();
        match Place::from_bytes(handle)? {
            Place::Plain(memory) => {
                let core = &mut *self.core.lock();
                range.address = core.allowed_in_captures(|driver| driver.ipc_open(&memory))?;
                range.plain = true;
                Ok(core.opened.add(range))
            }
            Place::Chunks { endpoint, chunks } => {
                // Not under the lock: it waits for the other process.
                let exported = fetch(&endpoint, chunks.iter().map(|chunk| chunk.key))?;
                let core = &mut *self.core.lock();
                if let Err(error) = core.allowed_in_captures(|driver| range.map(driver, &exported, &chunks)) {
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
        if self.opened.closing.is_empty() || self.capturing() {
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
    fn allowed_in_captures<T>(&self, calls: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        let driver = &*self.driver;
        in_relaxed_capture_mode(driver, self.capturing(), || calls(driver))
    }
}
