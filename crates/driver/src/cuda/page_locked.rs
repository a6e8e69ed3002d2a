//! Page-locked host memory, and its asynchronous copies.
//!
//! Owns: the calls of [`PageLocked`], and the live buffers. Each buffer has an event, which is recorded after each of
//! its copies. `registration.rs` takes the memory.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::api::CudaApi;
use super::device::{CudaDriver, host_size, range_text, raw_event};
use super::ffi::{self, CUstream};
use super::locked_buffer::{LockedBuffer, Origin};
use crate::{Call, DriverError, DriverResult, EventId, HostBuffer, PageLocked, Status};

impl CudaDriver {
    fn locked_buffer(&self, call: Call, buffer: HostBuffer) -> DriverResult<Arc<Mutex<LockedBuffer>>> {
        self.buffers.lock().get(&buffer).cloned().ok_or_else(|| unknown_buffer(call, buffer))
    }

    /// Issues a copy of a buffer on the copies' stream, and records the buffer's event after the copy.
    fn copy_of_buffer(
        &self,
        call: Call,
        (buffer, offset): (HostBuffer, u64),
        (address, size): (u64, u64),
        copy: impl FnOnce(&CudaApi, *mut c_void, usize, CUstream) -> Result<Status, super::error::MissingEntryPoint>,
    ) -> DriverResult<()> {
        let of = self.locked_buffer(call, buffer)?;
        let mut of = of.lock();
        let (from, bytes) = of.part(call, offset, size)?;
        let raw = self.raw_stream(call, self.own_stream(call)?)?;
        let (host, event) = (of.pointer(from).cast::<c_void>(), raw_event(of.event));
        let mut given = false;
        let issue = |api: &CudaApi| {
            let copied = copy(api, host, bytes, raw)?;
            if copied != Status::SUCCESS {
                return Ok(copied);
            }
            given = true;
            // SAFETY: the event is alive, since the buffer's lock is held and it was not freed; so is the stream.
            unsafe { api.event_record(event, raw) }
        };
        let answer = self.demand(call, || range_text(address, size), issue);
        of.busy |= given;
        if given && answer.is_err() {
            // No event was recorded after this copy, so the CPU waits for the copy here. SAFETY: the stream is alive.
            self.demand(call, String::new, |api| unsafe { api.stream_synchronize(raw) })?;
        }
        answer
    }

    /// Waits on the CPU for the copies of a buffer, under its lock.
    fn wait_for_buffer(&self, call: Call, of: &mut LockedBuffer) -> DriverResult<()> {
        let event = raw_event(of.event);
        // SAFETY: the event is alive, since the buffer's lock is held and it was not freed. An event that was never
        // recorded counts as complete.
        self.demand(call, || format!("buffer {:#x}", of.address), |api| unsafe { api.event_synchronize(event) })?;
        of.busy = false;
        Ok(())
    }

    /// Gives the memory of a buffer back, under its lock. If the driver refuses, the buffer is unchanged.
    fn free_buffer(&self, of: &mut LockedBuffer) -> DriverResult<()> {
        self.wait_for_buffer(Call::HostFree, of)?;
        let detail = || format!("{} of buffer {:#x}", of.origin.given_back_by(), of.address);
        let memory = (of.pointer(0).cast::<c_void>(), of.origin);
        // SAFETY: no copy of the memory is under way, and the lock keeps the CPU from its bytes until the buffer is
        // noted as freed.
        self.demand(Call::HostFree, detail, |api| unsafe { self.unlock_memory(api, memory) })?;
        let event = raw_event(of.event);
        // SAFETY: the event came from cuEventCreate, and nobody else has it.
        let destroyed = self.demand(Call::HostFree, detail, |api| unsafe { api.event_destroy(event) });
        if let Err(error) = destroyed {
            tracing::warn!(%error, "the event of page-locked memory was not destroyed");
        }
        of.freed = true;
        Ok(())
    }
}

fn unknown_buffer(call: Call, buffer: HostBuffer) -> DriverError {
    let detail = format!("buffer {:#x} is not one of this device, or was freed", buffer.0);
    DriverError::new(call, Status::INVALID_VALUE, detail)
}

impl PageLocked for CudaDriver {
    fn host_malloc(&self, size: u64) -> DriverResult<HostBuffer> {
        let bytes = host_size(Call::HostMalloc, size)?;
        if bytes == 0 {
            return Err(DriverError::new(Call::HostMalloc, Status::INVALID_VALUE, "0 bytes"));
        }
        let mut event = ptr::null_mut();
        let mut memory = (ptr::null_mut(), Origin::Driver);
        let issue = |api: &CudaApi| {
            // The event is made before the memory: if the second step fails, destroying an event is cheaper than giving
            // memory back. SAFETY: the pointer is to a live pointer.
            let of_event = unsafe { api.event_create(&mut event, ffi::EVENT_DISABLE_TIMING) }?;
            if of_event != Status::SUCCESS {
                return Ok(of_event);
            }
            let locked = self.lock_memory(api, bytes);
            if let Ok(Ok(locked)) = locked {
                memory = locked;
                return Ok(Status::SUCCESS);
            }
            // SAFETY: the event came from cuEventCreate, and nobody else has it.
            let destroyed = unsafe { api.event_destroy(event) };
            if destroyed != Ok(Status::SUCCESS) {
                tracing::warn!(?destroyed, "the event of page-locked memory that was refused was not destroyed");
            }
            locked.map(|answer| answer.map_or_else(|status| status, |_| Status::SUCCESS))
        };
        self.demand(Call::HostMalloc, || format!("{size} bytes"), issue)?;
        let (pointer, origin) = memory;
        let (address, event) = (pointer.expose_provenance() as u64, EventId(event.expose_provenance() as u64));
        let of = LockedBuffer { address, size: bytes, origin, event, busy: false, freed: false };
        self.buffers.lock().insert(HostBuffer(address), Arc::new(Mutex::new(of)));
        Ok(HostBuffer(address))
    }

    fn host_free(&self, buffer: HostBuffer) -> DriverResult<()> {
        // The buffer leaves the table before its memory is given back, since another buffer may get the same addresses
        // right after.
        let live = self.buffers.lock().remove(&buffer);
        let live = live.ok_or_else(|| unknown_buffer(Call::HostFree, buffer))?;
        let freed = self.free_buffer(&mut live.lock());
        if freed.is_err() {
            self.buffers.lock().insert(buffer, live);
        }
        freed
    }

    fn copy_out(&self, from: u64, buffer: HostBuffer, offset: u64, size: u64) -> DriverResult<()> {
        self.copy_of_buffer(Call::CopyOut, (buffer, offset), (from, size), |api, host, bytes, raw| {
            // SAFETY: the part lies in a live buffer, whose bytes the CPU uses only after a wait; the driver checks the
            // address.
            unsafe { api.memcpy_dtoh_async(host, from, bytes, raw) }
        })
    }

    fn copy_in(&self, buffer: HostBuffer, offset: u64, to: u64, size: u64) -> DriverResult<()> {
        self.copy_of_buffer(Call::CopyIn, (buffer, offset), (to, size), |api, host, bytes, raw| {
            // SAFETY: as above.
            unsafe { api.memcpy_htod_async(to, host, bytes, raw) }
        })
    }

    fn host_wait(&self, buffer: HostBuffer) -> DriverResult<()> {
        let of = self.locked_buffer(Call::HostWait, buffer)?;
        let mut of = of.lock();
        if of.freed {
            return Err(DriverError::new(Call::HostWait, Status::INVALID_VALUE, "it was freed meanwhile"));
        }
        self.wait_for_buffer(Call::HostWait, &mut of)
    }

    fn host_bytes(
        &self,
        buffer: HostBuffer,
        offset: u64,
        size: u64,
        with: &mut dyn FnMut(&mut [u8]),
    ) -> DriverResult<()> {
        let of = self.locked_buffer(Call::HostWait, buffer)?;
        let of = of.lock();
        let (from, bytes) = of.part(Call::HostWait, offset, size)?;
        if of.busy {
            let detail = format!("buffer {:#x}: nobody waited for its copies", buffer.0);
            return Err(DriverError::new(Call::HostWait, Status::NOT_READY, detail));
        }
        // SAFETY: the part lies in a live buffer, whose bytes the system or the driver has set. No copy is under way,
        // and while the lock is held none begins, nor does anybody else use the bytes.
        with(unsafe { std::slice::from_raw_parts_mut(of.pointer(from), bytes) });
        Ok(())
    }
}
