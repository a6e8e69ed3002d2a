//! Memory shared with other processes, and memory of other processes opened here.
//!
//! Owns: the public operations. `features/sharing` keeps the opened ranges, and `ipc` passes the descriptors on.

use super::core::Core;
use super::operations::Sharing;
use crate::driver::{Driver, DriverResult, Exported, in_relaxed_capture_mode};
use crate::error::Result;
use crate::fallible::with_room;
use crate::features::sharing::OpenedRange;
use crate::heap::{Physical, PhysicalSpan};
use crate::ipc::{IpcError, IpcHandle, Place, SharedChunk, fetch, offer};

impl Sharing<'_> {
    /// Returns a handle with which another process can open a live allocation by [`Self::open`], as with CUDA's IPC for
    /// memory of `cudaMalloc`. Stitched memory can be shared too. The allocation must stay live until every process
    /// with the handle has closed it: otherwise its memory may be reused. A process that opens the handle can also
    /// access neighbouring allocations in the same chunks (2 MiB and more).
    ///
    /// The first call starts a thread that sends the memory to processes of the same user (and root) which have the
    /// handle. The thread needs an abstract socket of the process's network namespace. Sharing chunks works on Linux
    /// only.
    ///
    /// A shared allocation costs an open file descriptor (`ulimit -n`) for each chunk of memory that it touches, for
    /// example 1,536 descriptors for 3 GiB in chunks of 2 MiB. The first shared allocation costs one more descriptor,
    /// for the socket. Allocations in one chunk share a descriptor, and sharing an allocation again costs none. A
    /// descriptor is closed when the last of its allocations is freed; the handle is invalid from then on. Memory of
    /// `cudaMalloc` costs no descriptor.
    ///
    /// # Errors
    /// A call that fails leaves every descriptor as it was.
    /// [`Error::InvalidAddress`](crate::Error::InvalidAddress) if no live allocation starts there;
    /// [`Error::Ipc`](crate::Error::Ipc) if the socket or thread cannot be made;
    /// [`Error::Driver`](crate::Error::Driver) if the memory cannot be exported;
    /// [`Error::NotOfPools`](crate::Error::NotOfPools) with the strategy `malloc-async`, and
    /// [`Error::NotGrowable`](crate::Error::NotGrowable) for an allocation that grows in place, as for
    /// [`Self::pin_physical`] and [`Self::handle_len`].
    pub fn export(self, address: u64) -> Result<IpcHandle> {
        let core = &mut *self.0.core.lock();
        core.must_not_grow(address)?;
        let block = core.heap.live(address)?;
        core.must_not_be_pooled("sharing with other processes")?;
        core.must_be_on_device(block)?;
        let PhysicalSpan { memory, offset } = core.heap.physical(block)?;
        let place = match memory {
            Physical::Plain(address) => Place::Plain(core.allowed_in_captures(|driver| driver.ipc_get(address))?),
            Physical::Handles(handles) => {
                core.features.sharing.shares.reserve()?;
                let mut exported: Vec<Exported> = with_room(handles.len())?;
                let mut chunks = with_room(handles.len())?;
                core.allowed_in_captures(|driver| {
                    for (handle, size) in &handles {
                        let memory = driver.export(*handle)?;
                        chunks.push(SharedChunk { key: memory.number(), size: *size });
                        exported.push(memory);
                    }
                    Ok(())
                })?;
                let endpoint = offer(&exported)?;
                let place = Place::Chunks { endpoint, chunks };
                let handle = place.to_bytes()?;
                // It is early enough to pin the memory here: no other process knows the memory before the program has
                // the handle.
                core.heap.pin_physical(block);
                core.features.sharing.shares.keep(address, exported);
                return Ok(IpcHandle { handle, offset });
            }
        };
        Ok(IpcHandle { handle: place.to_bytes()?, offset })
    }

    /// Pins the physical memory of a live allocation for as long as the allocator holds the memory, also after the
    /// free. Pinned memory is not exchanged for other memory under the same addresses
    /// ([`Config::split`](crate::Config::split)). Memory must be pinned if a library registers physical memory, as NCCL
    /// and RDMA do. Memory that is [shared](Self::export) is pinned anyway.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`](crate::Error::InvalidAddress) if no live allocation starts there;
    /// [`Error::HostMemory`](crate::Error::HostMemory).
    pub fn pin_physical(self, address: u64) -> Result<()> {
        let core = &mut *self.0.core.lock();
        core.must_not_grow(address)?;
        let block = core.heap.live(address)?;
        core.must_not_be_pooled("registration elsewhere")?;
        core.heap.private().must_be_awake(core.heap.owner_of(core.heap.block(block).pool))?;
        core.must_be_on_device(block)?;
        core.heap.pin_physical(block);
        Ok(())
    }

    /// Returns the length in bytes of the handle of a live allocation ([`IpcHandle::handle`]), without sharing it.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`](crate::Error::InvalidAddress) if no live allocation starts there.
    pub fn handle_len(self, address: u64) -> Result<usize> {
        let core = self.0.core.lock();
        core.must_not_grow(address)?;
        core.must_not_be_pooled("sharing with other processes")?;
        Ok(match core.heap.physical(core.heap.live(address)?)?.memory {
            Physical::Plain(_) => Place::PLAIN_LEN,
            Physical::Handles(handles) => Place::len_of_chunks(handles.len()),
        })
    }

    /// Opens memory that a process shares, by [`IpcHandle::handle`]. Returns the start address of the memory that the
    /// handle names; the allocation itself begins [`IpcHandle::offset`] bytes later. The device may read and write the
    /// memory on any stream; the program must order these accesses with the other process. Chunks that are opened twice
    /// get two addresses; memory of `cudaMalloc` gets the same address twice. In both cases the memory must be closed
    /// twice.
    ///
    /// # Errors
    /// [`Error::Ipc`](crate::Error::Ipc) for a bad handle, for memory that its process has freed, and for a process
    /// that is gone or has not sent everything within 10 seconds of the call; [`Error::Driver`](crate::Error::Driver)
    /// if the memory cannot be imported or mapped. After an error no memory is open.
    pub fn open(self, handle: &[u8]) -> Result<u64> {
        match Place::from_bytes(handle)? {
            Place::Plain(memory) => {
                let core = &mut *self.0.core.lock();
                let mut range = OpenedRange::default();
                core.features.sharing.opened.reserve()?;
                range.address = core.allowed_in_captures(|driver| driver.ipc_open(&memory))?;
                range.plain = true;
                Ok(core.features.sharing.opened.add(range))
            }
            Place::Chunks { endpoint, chunks } => {
                // The lock is not held, since the call waits for the other process.
                let exported = fetch(&endpoint, chunks.iter().map(|chunk| chunk.key))?;
                let core = &mut *self.0.core.lock();
                let mut range = OpenedRange::of(chunks.len())?;
                core.features.sharing.opened.reserve()?;
                if let Err(error) = core.allowed_in_captures(|driver| range.map(driver, &exported, &chunks)) {
                    core.features.sharing.opened.undo(range, &*self.0.driver);
                    return Err(error.into());
                }
                Ok(core.features.sharing.opened.add(range))
            }
        }
    }

    /// Waits for all work of the device, and closes one opening of [`Self::open`] at this address. While a
    /// stream is being captured, the CPU cannot wait: the memory is then closed later, when other memory is closed, the
    /// cache is emptied, or the allocator is dropped.
    ///
    /// # Errors
    /// [`Error::Ipc`](crate::Error::Ipc) if nothing was opened there; [`Error::Driver`](crate::Error::Driver) if a call
    /// failed: the memory counts as closed for the program, and the allocator tries to close the rest at the occasions
    /// above.
    pub fn close(self, address: u64) -> Result<()> {
        let core = &mut *self.0.core.lock();
        if !core.features.sharing.opened.close(address) {
            return Err(IpcError::NotOpen { address }.into());
        }
        core.close_shared()
    }
}

impl Core {
    /// Gives back the memory that the program has closed.
    pub(super) fn close_shared(&mut self) -> Result<()> {
        if !self.features.sharing.opened.is_closing() || self.capturing() {
            return Ok(());
        }
        self.driver.synchronize()?;
        Ok(self.features.sharing.opened.give_back(&*self.driver)?)
    }

    /// Gives back the memory that the program has closed, at the end of the allocator. Memory that the program has not
    /// closed stays open.
    pub(super) fn close_shared_at_end(&mut self) {
        let open = self.features.sharing.opened.count();
        if open > 0 {
            tracing::warn!(open, "an allocator is dropped while shared memory is open; it stays open");
        }
        if let Err(error) = self.close_shared() {
            tracing::warn!(%error, "shared memory could not be closed");
        }
    }

    /// Makes calls that a stream capture forbids, in a mode that does not invalidate captures.
    fn allowed_in_captures<T>(&self, calls: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        let driver = &*self.driver;
        in_relaxed_capture_mode(driver, self.capturing(), || calls(driver))
    }
}
