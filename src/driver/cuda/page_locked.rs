//! Page-locked memory of the host, and copies that run by themselves.
//!
//! Owns: the calls of [`PageLocked`], and the live buffers. Each has an event behind its last copy.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::api::CudaApi;
use super::calls::{host_size, range_text};
use super::device::{CudaDriver, raw_event};
use super::ffi::{self, CUstream};
use super::locked_buffer::LockedBuffer;
use crate::driver::{Call, DriverError, DriverResult, EventId, HostBuffer, PageLocked, Status};

impl CudaDriver {
    fn locked_buffer(&self, call: Call, buffer: HostBuffer) -> DriverResult<Arc<Mutex<LockedBuffer>>> {
        self.buffers.lock().get(&buffer).cloned().ok_or_else(|| {
            let detail = format!("buffer {:#x} is not one of this device, or was freed", buffer.0);
            DriverError::new(call, Status::INVALID_VALUE, detail)
        })
    }

    /// Gives the copies' stream a copy of a buffer, and the event behind it.
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
            // No event stands behind this copy, so it is waited for at once.
            // SAFETY: the stream is alive.
            self.demand(call, String::new, |api| unsafe { api.stream_synchronize(raw) })?;
        }
        answer
    }

    /// Lets the CPU wait for the copies of a buffer, under its lock.
    fn wait_for_buffer(&self, call: Call, of: &mut LockedBuffer) -> DriverResult<()> {
        let event = raw_event(of.event);
        // SAFETY: the event is alive, since the buffer's lock is held and it was not freed. One that was never recorded has passed.
        self.demand(call, || format!("buffer {:#x}", of.address), |api| unsafe { api.event_synchronize(event) })?;
        of.busy = false;
        Ok(())
    }
}

impl PageLocked for CudaDriver {
    fn host_malloc(&self, size: u64) -> DriverResult<HostBuffer> {
        let bytes = host_size(Call::HostMalloc, size)?;
        let (mut pointer, mut event) = (ptr::null_mut(), ptr::null_mut());
        let issue = |api: &CudaApi| {
            // SAFETY: both pointers are to live pointers; memory that got no event is freed, and nobody has it.
            unsafe {
                let made = api.mem_host_alloc(&mut pointer, bytes, ffi::HOST_ALLOC_PORTABLE)?;
                if made != Status::SUCCESS {
                    return Ok(made);
                }
                let of_event = api.event_create(&mut event, ffi::EVENT_DISABLE_TIMING);
                if !matches!(of_event, Ok(Status::SUCCESS)) {
                    api.mem_free_host(pointer)?;
                }
                of_event
            }
        };
        self.demand(Call::HostMalloc, || format!("{size} bytes"), issue)?;
        let (address, event) = (pointer.expose_provenance() as u64, EventId(event.expose_provenance() as u64));
        let of = LockedBuffer { address, size: bytes, event, busy: false, freed: false };
        self.buffers.lock().insert(HostBuffer(address), Arc::new(Mutex::new(of)));
        Ok(HostBuffer(address))
    }

    fn host_free(&self, buffer: HostBuffer) -> DriverResult<()> {
        let of = self.locked_buffer(Call::HostFree, buffer)?;
        let mut of = of.lock();
        if of.freed {
            return Err(DriverError::new(Call::HostFree, Status::INVALID_VALUE, "it was freed meanwhile"));
        }
        self.wait_for_buffer(Call::HostFree, &mut of)?;
        let pointer = of.pointer(0).cast::<c_void>();
        let detail = || format!("buffer {:#x}", buffer.0);
        // SAFETY: the memory came from cuMemHostAlloc, no copy of it is under way, and the lock keeps the CPU from its bytes.
        self.demand(Call::HostFree, detail, |api| unsafe { api.mem_free_host(pointer) })?;
        of.freed = true;
        self.buffers.lock().remove(&buffer);
        let event = raw_event(of.event);
        // SAFETY: the event came from cuEventCreate, and nobody else has it.
        let destroyed = self.demand(Call::HostFree, detail, |api| unsafe { api.event_destroy(event) });
        if let Err(error) = destroyed {
            tracing::warn!(%error, "the event of page-locked memory was not destroyed");
        }
        Ok(())
    }

    fn copy_out(&self, from: u64, buffer: HostBuffer, offset: u64, size: u64) -> DriverResult<()> {
        self.copy_of_buffer(Call::CopyOut, (buffer, offset), (from, size), |api, host, bytes, raw| {
            // SAFETY: the part lies in a live buffer, whose bytes the CPU uses only after a wait; the driver checks the address.
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
        // SAFETY: the part lies in a live buffer of cuMemHostAlloc, whose bytes the system has set. No copy is under way, and while
        // the lock is held none begins, nor does anybody else use the bytes.
        with(unsafe { std::slice::from_raw_parts_mut(of.pointer(from), bytes) });
        Ok(())
    }
}
