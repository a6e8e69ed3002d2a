//! A layer over the simulated GPU that notes the memory that is created, released and mapped.

use parking_lot::Mutex;
use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Driver, DriverResult, ForwardingDriver, Handle, MemoryPool, StreamId};
use std::sync::Arc;

/// A driver call that changed memory or mappings. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// Physical memory was made.
    Created { handle: Handle, size: u64 },
    /// The allocator released a handle. The memory is freed when no mapping is left.
    Released { handle: Handle },
    /// Memory was mapped, from the byte at `offset` on.
    Mapped { address: u64, size: u64, offset: u64, handle: Handle },
    /// All mappings in the range ended.
    Unmapped { address: u64, size: u64 },
    /// Plain memory was taken by `malloc`.
    Taken { address: u64, size: u64 },
    /// Plain memory was given back.
    Given { address: u64 },
    /// Memory of the driver's own pool was taken.
    Pooled { address: u64, size: u64 },
    /// Memory was given back to the driver's pool.
    Returned { address: u64 },
    /// Addresses were reserved.
    Reserved { address: u64, size: u64 },
}

/// The layer. A failed call changes no state, and is not noted.
pub(crate) struct Tap {
    gpu: Arc<SimGpu>,
    notes: Mutex<Vec<Note>>,
}

impl Tap {
    pub(crate) fn new(gpu: Arc<SimGpu>) -> Self {
        Self { gpu, notes: Mutex::default() }
    }

    /// Moves the notes since the last call into `out`, which must be empty.
    pub(crate) fn take(&self, out: &mut Vec<Note>) {
        out.clear();
        std::mem::swap(&mut *self.notes.lock(), out);
    }

    fn note(&self, note: Note) {
        self.notes.lock().push(note);
    }
}

impl ForwardingDriver for Tap {
    fn inner(&self) -> &dyn Driver {
        &*self.gpu
    }

    fn reserve(&self, size: u64, alignment: u64) -> DriverResult<u64> {
        let address = self.inner().reserve(size, alignment)?;
        self.note(Note::Reserved { address, size });
        Ok(address)
    }

    fn create(&self, size: u64) -> DriverResult<Handle> {
        let handle = self.inner().create(size)?;
        self.note(Note::Created { handle, size });
        Ok(handle)
    }

    fn create_on_host(&self, size: u64) -> DriverResult<Handle> {
        let handle = self.inner().create_on_host(size)?;
        self.note(Note::Created { handle, size });
        Ok(handle)
    }

    fn release(&self, handle: Handle) -> DriverResult<()> {
        self.inner().release(handle)?;
        self.note(Note::Released { handle });
        Ok(())
    }

    fn map(&self, address: u64, size: u64, offset: u64, handle: Handle) -> DriverResult<()> {
        self.inner().map(address, size, offset, handle)?;
        self.note(Note::Mapped { address, size, offset, handle });
        Ok(())
    }

    fn unmap(&self, address: u64, size: u64) -> DriverResult<()> {
        self.inner().unmap(address, size)?;
        self.note(Note::Unmapped { address, size });
        Ok(())
    }

    fn malloc(&self, size: u64) -> DriverResult<u64> {
        let address = self.inner().malloc(size)?;
        self.note(Note::Taken { address, size });
        Ok(address)
    }

    fn free(&self, address: u64) -> DriverResult<()> {
        self.inner().free(address)?;
        self.note(Note::Given { address });
        Ok(())
    }

    fn pool_malloc(&self, pool: MemoryPool, size: u64, stream: StreamId) -> DriverResult<u64> {
        let address = self.inner().pool_malloc(pool, size, stream)?;
        self.note(Note::Pooled { address, size });
        Ok(address)
    }

    fn pool_free(&self, address: u64, stream: StreamId) -> DriverResult<()> {
        self.inner().pool_free(address, stream)?;
        self.note(Note::Returned { address });
        Ok(())
    }
}
