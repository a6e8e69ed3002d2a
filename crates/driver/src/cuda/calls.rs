//! The methods of the driver's traits, each of which is one call of libcuda.
//!
//! Owns: the entry point and the arguments of each call. device.rs handles contexts, errors and counting; streams,
//! peers and other processes have files of their own.

use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::api::CudaApi;
use super::device::{
    CudaDriver, LiveEvent, event_text, handle_text, host_size, range_text, stream_text, unknown_event, unknown_handle,
};
use super::ffi;
use super::place::Place;
use crate::contract::in_relaxed_capture_mode;
use crate::machine::{UNKNOWN_MEMORY, memory};
use crate::{
    Call, CallStats, CaptureMode, DeviceProperties, Driver, DriverError, DriverResult, EventId, Events, Handle,
    MemoryInfo, PlainMemory, Status, StreamCapture, StreamId, VirtualMemory,
};

impl VirtualMemory for CudaDriver {
    fn reserve(&self, size: u64, alignment: u64) -> DriverResult<u64> {
        let arguments = || format!("{size} bytes, alignment {alignment}");
        let (bytes, aligned) = (host_size(Call::Reserve, size)?, host_size(Call::Reserve, alignment)?);
        let mut address = 0;
        // SAFETY: the pointer is to a live integer; sizes are checked by the driver.
        self.demand(Call::Reserve, arguments, |api| unsafe {
            api.mem_address_reserve(&mut address, bytes, aligned, 0, 0)
        })?;
        Ok(address)
    }

    fn address_free(&self, address: u64, size: u64) -> DriverResult<()> {
        let bytes = host_size(Call::AddressFree, size)?;
        // SAFETY: an address is an integer to the driver, which checks it against its reservations.
        self.demand(
            Call::AddressFree,
            || range_text(address, size),
            |api| unsafe { api.mem_address_free(address, bytes) },
        )
    }

    fn create(&self, size: u64) -> DriverResult<Handle> {
        let bytes = host_size(Call::Create, size)?;
        let prop = self.place.prop(self.device);
        let arguments = || format!("{size} bytes");
        let mut handle = 0;
        // SAFETY: both pointers are to live values.
        self.demand(Call::Create, arguments, |api| unsafe { api.mem_create(&mut handle, bytes, &prop, 0) })?;
        let handle = Handle(handle);
        self.handles.lock().insert(handle, None);
        Ok(handle)
    }

    fn create_on_host(&self, size: u64) -> DriverResult<Handle> {
        let bytes = host_size(Call::CreateOnHost, size)?;
        let arguments = || format!("{size} bytes");
        let Some(node) = self.host_node else {
            let why = "the device has no virtual memory on the machine's nodes";
            return Err(DriverError::new(Call::CreateOnHost, Status::NOT_SUPPORTED, why));
        };
        let prop = Place::Node(node).prop(self.device);
        let mut handle = 0;
        // SAFETY: both pointers are to live values.
        self.demand(Call::CreateOnHost, arguments, |api| unsafe { api.mem_create(&mut handle, bytes, &prop, 0) })?;
        let handle = Handle(handle);
        self.handles.lock().insert(handle, None);
        Ok(handle)
    }

    fn release(&self, handle: Handle) -> DriverResult<()> {
        // The handle leaves the table before the call, so that no `map` can use the handle any more.
        let Some(exported) = self.handles.lock().remove(&handle) else {
            return Err(unknown_handle(Call::Release, handle));
        };
        // SAFETY: the handle came from cuMemCreate and is released for the first time.
        let result = self.demand(Call::Release, || handle_text(handle), |api| unsafe { api.mem_release(handle.0) });
        if result.is_err() {
            self.handles.lock().insert(handle, exported);
        }
        result
    }

    fn map(&self, address: u64, size: u64, offset: u64, handle: Handle) -> DriverResult<()> {
        let (bytes, start) = (host_size(Call::Map, size)?, host_size(Call::Map, offset)?);
        let arguments = || format!("{}, offset {offset}, {}", range_text(address, size), handle_text(handle));
        // The lock is held during the call, so that the handle is not released meanwhile.
        let handles = self.handles.lock();
        if !handles.contains_key(&handle) {
            return Err(unknown_handle(Call::Map, handle));
        }
        // SAFETY: the handle is alive; addresses are checked by the driver.
        self.demand(Call::Map, arguments, |api| unsafe { api.mem_map(address, bytes, start, handle.0, 0) })
    }

    fn unmap(&self, address: u64, size: u64) -> DriverResult<()> {
        self.unmap_range(address, host_size(Call::Unmap, size)?, || range_text(address, size))
    }

    fn set_access(&self, address: u64, size: u64) -> DriverResult<()> {
        self.access_range(address, host_size(Call::SetAccess, size)?, || range_text(address, size))
    }
}

impl PlainMemory for CudaDriver {
    fn malloc(&self, size: u64) -> DriverResult<u64> {
        let bytes = host_size(Call::Malloc, size)?;
        if !self.place.is_on_device() {
            let mut address = ptr::null_mut();
            let flags = ffi::HOST_ALLOC_PORTABLE;
            // SAFETY: the pointer is to a live pointer.
            let issue = |api: &CudaApi| unsafe { api.mem_host_alloc(&mut address, bytes, flags) };
            self.demand(Call::Malloc, || format!("{size} bytes"), issue)?;
            return Ok(address.expose_provenance() as u64);
        }
        let mut address = 0;
        // SAFETY: the pointer is to a live integer.
        self.demand(Call::Malloc, || format!("{size} bytes"), |api| unsafe { api.mem_alloc(&mut address, bytes) })?;
        Ok(address)
    }

    fn free(&self, address: u64) -> DriverResult<()> {
        if !self.place.is_on_device() {
            let pointer = ptr::with_exposed_provenance_mut(host_size(Call::Free, address)?);
            // SAFETY: the driver checks the pointer against its allocations.
            let issue = |api: &CudaApi| unsafe { api.mem_free_host(pointer) };
            return self.demand(Call::Free, || format!("{address:#x}"), issue);
        }
        // SAFETY: an address is an integer to the driver, which checks it against its allocations.
        self.demand(Call::Free, || format!("{address:#x}"), |api| unsafe { api.mem_free(address) })
    }
}

impl Events for CudaDriver {
    fn event_create(&self) -> DriverResult<EventId> {
        let mut event = ptr::null_mut();
        // SAFETY: the pointer is to a live pointer.
        self.demand(Call::EventCreate, String::new, |api| unsafe {
            api.event_create(&mut event, ffi::EVENT_DISABLE_TIMING)
        })?;
        let event = EventId(event.expose_provenance() as u64);
        self.events.lock().insert(event, Arc::new(LiveEvent(event)));
        Ok(event)
    }

    fn event_destroy(&self, event: EventId) -> DriverResult<()> {
        let Some(live) = self.events.lock().remove(&event) else {
            return Err(unknown_event(Call::EventDestroy, event));
        };
        Arc::into_inner(live).map_or(Ok(()), |last| self.destroy(&last))
    }

    fn event_record(&self, event: EventId, stream: StreamId) -> DriverResult<()> {
        let raw = self.raw_stream(Call::EventRecord, stream)?;
        // SAFETY: the event is alive, and so is the stream (`raw_stream`).
        self.demand_event(Call::EventRecord, event, |api, event| unsafe { api.event_record(event, raw) })
    }

    fn event_query(&self, event: EventId) -> DriverResult<bool> {
        // An allocator of page-locked memory does not know whether a stream of the GPU is being captured, so its
        // queries are always made in relaxed mode.
        let anywhere = !self.place.is_on_device();
        // SAFETY: the event is alive.
        let ask = || self.ask_event(Call::EventQuery, event, |api, event| unsafe { api.event_query(event) });
        match in_relaxed_capture_mode(self, anywhere, ask)? {
            Status::SUCCESS => Ok(true),
            Status::NOT_READY => Ok(false),
            status => Err(self.refusal(Call::EventQuery, status, event_text(event))),
        }
    }

    fn event_synchronize(&self, event: EventId) -> DriverResult<()> {
        // SAFETY: the event is alive.
        self.demand_event(Call::EventSynchronize, event, |api, event| unsafe { api.event_synchronize(event) })
    }

    fn stream_wait(&self, stream: StreamId, event: EventId) -> DriverResult<()> {
        let raw = self.raw_stream(Call::StreamWait, stream)?;
        // SAFETY: the event is alive, and so is the stream (`raw_stream`).
        self.demand_event(Call::StreamWait, event, |api, event| unsafe { api.stream_wait_event(raw, event, 0) })
    }
}

impl StreamCapture for CudaDriver {
    fn is_capturing(&self, stream: StreamId) -> DriverResult<bool> {
        let mut capture = ffi::CAPTURE_STATUS_NONE;
        let raw = self.raw_stream(Call::IsCapturing, stream)?;
        // SAFETY: the pointer is to a live integer, and the stream is alive (`raw_stream`).
        let issue = |api: &CudaApi| unsafe { api.stream_is_capturing(raw, &mut capture) };
        self.demand(Call::IsCapturing, || stream_text(stream), issue)?;
        // An invalidated capture lasts until it is ended.
        Ok(capture != ffi::CAPTURE_STATUS_NONE)
    }

    fn exchange_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        let mut raw = ffi::capture_mode(mode);
        let arguments = || format!("{mode:?}");
        // SAFETY: the pointer is to a live integer.
        self.demand(Call::ExchangeCaptureMode, arguments, |api| unsafe {
            api.thread_exchange_stream_capture_mode(&mut raw)
        })?;
        // An unknown mode counts as the strictest mode.
        Ok(ffi::CAPTURE_MODES.into_iter().find(|mode| ffi::capture_mode(*mode) == raw).unwrap_or_default())
    }
}

impl Driver for CudaDriver {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        if !self.place.is_on_device() {
            let start = Instant::now();
            let found = memory();
            self.calls.add(Call::MemoryInfo, start);
            let unknown = || DriverError::new(Call::MemoryInfo, Status::NOT_SUPPORTED, UNKNOWN_MEMORY);
            return found.ok_or_else(unknown);
        }
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are to live integers.
        self.demand(Call::MemoryInfo, String::new, |api| unsafe { api.mem_get_info(&mut free, &mut total) })?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn synchronize(&self) -> DriverResult<()> {
        // SAFETY: the call takes nothing.
        self.demand(Call::Synchronize, String::new, |api| unsafe { api.ctx_synchronize() })
    }

    fn call_stats(&self) -> CallStats {
        self.calls.snapshot()
    }

    fn busy_ns(&self) -> u64 {
        self.calls.busy_ns()
    }

    fn clock_ns(&self) -> u64 {
        self.calls.clock_ns()
    }

    fn rest(&self, ns: u64) {
        thread::sleep(Duration::from_nanos(ns));
    }
}
