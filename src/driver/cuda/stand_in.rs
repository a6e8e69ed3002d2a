//! A libcuda for tests: as much of one as shows that [`CudaDriver`] calls it rightly.
//!
//! Owns: the stand-in, for two devices, and the tests of device.rs, driver.rs and context.rs that need no GPU. It knows
//! nothing of memory; the simulated GPU does. Its state is the thread's, as a test is.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::ptr;

use super::api::{CudaApi, EntryPoints};
use super::ffi::*;
use super::{CudaDriver, CudaOpenError};
use crate::driver::{Call, CaptureMode, Driver, EventId, Handle, MemoryInfo, Status, StreamId};

const GRANULARITY: usize = 2 << 20;
const MEMORY: usize = 1 << 30;
const DEVICES: c_int = 2;
/// A status that CUDA 10.2 did not know: `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`.
const NEWER_STATUS: RawStatus = 222;

#[derive(Default)]
struct State {
    contexts: Vec<usize>,
    releases: u32,
    /// Calls that were made with another context than device 1's.
    misplaced: u32,
    events: Vec<usize>,
    streams: Vec<usize>,
    created: usize,
    query: RawStatus,
    capture: u32,
    /// The thread's capture mode.
    mode: u32,
    synchronized: u32,
    properties: Option<MemAllocationProp>,
    access: Option<MemAccessDesc>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

fn with<T>(change: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(change)
}

fn context_of(device: CUdevice) -> usize {
    0x1000 * (device as usize + 1)
}

/// As [`with`], for a call that needs device 1's context.
fn in_context(change: impl FnOnce(&mut State) -> RawStatus) -> RawStatus {
    with(|state| {
        if state.contexts.last() != Some(&context_of(1)) {
            state.misplaced += 1;
            return Status::INVALID_CONTEXT.0;
        }
        change(state)
    })
}

/// Writes through a pointer that the caller vouches for.
fn put<T>(pointer: *mut T, value: T) -> RawStatus {
    // SAFETY: the driver under test passes pointers to its own live values.
    unsafe { pointer.write(value) };
    Status::SUCCESS.0
}

unsafe extern "C" fn init(_: c_uint) -> RawStatus {
    Status::SUCCESS.0
}
unsafe extern "C" fn init_without_gpu(_: c_uint) -> RawStatus {
    Status::NO_DEVICE.0
}
unsafe extern "C" fn get_error_name(status: RawStatus, name: *mut *const c_char) -> RawStatus {
    if status == NEWER_STATUS { put(name, c"CUDA_ERROR_NEWER".as_ptr()) } else { Status::INVALID_VALUE.0 }
}
unsafe extern "C" fn device_get_count(count: *mut c_int) -> RawStatus {
    put(count, DEVICES)
}
unsafe extern "C" fn device_get(device: *mut CUdevice, ordinal: c_int) -> RawStatus {
    put(device, ordinal)
}
unsafe extern "C" fn device_get_attribute(value: *mut c_int, attribute: u32, _: CUdevice) -> RawStatus {
    if attribute == ATTRIBUTE_VIRTUAL_MEMORY { put(value, 1) } else { Status::INVALID_VALUE.0 }
}
unsafe extern "C" fn device_total_mem(bytes: *mut usize, _: CUdevice) -> RawStatus {
    put(bytes, MEMORY)
}
unsafe extern "C" fn mem_get_allocation_granularity(
    bytes: *mut usize,
    _: *const MemAllocationProp,
    _: u32,
) -> RawStatus {
    put(bytes, GRANULARITY)
}
unsafe extern "C" fn device_primary_ctx_retain(context: *mut CUcontext, device: CUdevice) -> RawStatus {
    put(context, ptr::without_provenance_mut(context_of(device)))
}
unsafe extern "C" fn device_primary_ctx_release(_: CUdevice) -> RawStatus {
    with(|state| state.releases += 1);
    Status::SUCCESS.0
}
unsafe extern "C" fn ctx_get_current(context: *mut CUcontext) -> RawStatus {
    put(context, ptr::without_provenance_mut(with(|state| state.contexts.last().copied().unwrap_or(0))))
}
unsafe extern "C" fn ctx_push_current(context: CUcontext) -> RawStatus {
    with(|state| state.contexts.push(context.addr()));
    Status::SUCCESS.0
}
unsafe extern "C" fn ctx_push_refused(_: CUcontext) -> RawStatus {
    Status::INVALID_CONTEXT.0
}
unsafe extern "C" fn ctx_pop_current(context: *mut CUcontext) -> RawStatus {
    put(context, ptr::without_provenance_mut(with(|state| state.contexts.pop().unwrap_or(0))))
}
unsafe extern "C" fn mem_create(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    prop: *const MemAllocationProp,
    _: c_ulonglong,
) -> RawStatus {
    in_context(|state| {
        // SAFETY: the driver under test passes a pointer to its own live value.
        state.properties = Some(unsafe { prop.read() });
        if size > MEMORY {
            return Status::OUT_OF_MEMORY.0;
        }
        state.created += 1;
        put(handle, state.created as CUmemGenericAllocationHandle)
    })
}
unsafe extern "C" fn mem_release(_: CUmemGenericAllocationHandle) -> RawStatus {
    in_context(|_| Status::SUCCESS.0)
}
unsafe extern "C" fn mem_unmap(_: CUdeviceptr, _: usize) -> RawStatus {
    in_context(|_| NEWER_STATUS)
}
unsafe extern "C" fn mem_set_access(_: CUdeviceptr, _: usize, access: *const MemAccessDesc, count: usize) -> RawStatus {
    in_context(|state| {
        assert_eq!(count, 1);
        // SAFETY: the driver under test passes a pointer to its own live value.
        state.access = Some(unsafe { access.read() });
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn mem_get_info(free: *mut usize, total: *mut usize) -> RawStatus {
    in_context(|_| put(free, MEMORY / 2) | put(total, MEMORY))
}
unsafe extern "C" fn stream_create(stream: *mut CUstream, flags: c_uint) -> RawStatus {
    assert_eq!(flags, STREAM_NON_BLOCKING);
    in_context(|state| {
        state.created += 1;
        state.streams.push(state.created);
        put(stream, ptr::without_provenance_mut(state.created))
    })
}
unsafe extern "C" fn stream_destroy(stream: CUstream) -> RawStatus {
    in_context(|state| {
        state.streams.retain(|&live| live != stream.addr());
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn event_create(event: *mut CUevent, flags: c_uint) -> RawStatus {
    assert_eq!(flags, EVENT_DISABLE_TIMING);
    in_context(|state| {
        state.created += 1;
        state.events.push(state.created);
        put(event, ptr::without_provenance_mut(state.created))
    })
}
unsafe extern "C" fn event_destroy(event: CUevent) -> RawStatus {
    in_context(|state| {
        state.events.retain(|&live| live != event.addr());
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn event_query(event: CUevent) -> RawStatus {
    in_context(|state| if state.events.contains(&event.addr()) { state.query } else { Status::INVALID_HANDLE.0 })
}
unsafe extern "C" fn stream_is_capturing(_: CUstream, capture: *mut u32) -> RawStatus {
    in_context(|state| put(capture, state.capture))
}
unsafe extern "C" fn thread_exchange_stream_capture_mode(mode: *mut u32) -> RawStatus {
    in_context(|state| {
        // SAFETY: the driver under test passes a pointer to its own live value.
        let wanted = unsafe { mode.read() };
        put(mode, std::mem::replace(&mut state.mode, wanted))
    })
}
unsafe extern "C" fn ctx_synchronize() -> RawStatus {
    in_context(|state| {
        state.synchronized += 1;
        Status::SUCCESS.0
    })
}

fn entry_points() -> EntryPoints {
    EntryPoints {
        init: Some(init),
        get_error_name: Some(get_error_name),
        device_get_count: Some(device_get_count),
        device_get: Some(device_get),
        device_get_attribute: Some(device_get_attribute),
        device_total_mem: Some(device_total_mem),
        mem_get_allocation_granularity: Some(mem_get_allocation_granularity),
        device_primary_ctx_retain: Some(device_primary_ctx_retain),
        device_primary_ctx_release: Some(device_primary_ctx_release),
        ctx_get_current: Some(ctx_get_current),
        ctx_push_current: Some(ctx_push_current),
        ctx_pop_current: Some(ctx_pop_current),
        mem_create: Some(mem_create),
        mem_release: Some(mem_release),
        mem_unmap: Some(mem_unmap),
        mem_set_access: Some(mem_set_access),
        mem_get_info: Some(mem_get_info),
        event_create: Some(event_create),
        stream_create: Some(stream_create),
        stream_destroy: Some(stream_destroy),
        event_destroy: Some(event_destroy),
        event_query: Some(event_query),
        stream_is_capturing: Some(stream_is_capturing),
        thread_exchange_stream_capture_mode: Some(thread_exchange_stream_capture_mode),
        ctx_synchronize: Some(ctx_synchronize),
        ..EntryPoints::default()
    }
}

fn open() -> CudaDriver {
    CudaDriver::open_with(CudaApi::of(entry_points()), 1).unwrap()
}

#[test]
fn opening_asks_the_device_and_dropping_releases_it_once() {
    let driver = open();
    let properties = driver.properties();
    assert_eq!(properties.name, "cuda:1");
    assert_eq!((properties.granularity, properties.total_memory), (GRANULARITY as u64, MEMORY as u64));
    assert!(properties.virtual_memory);
    drop(driver);
    assert_eq!(with(|state| state.releases), 1);
}

#[test]
fn a_device_that_is_not_there_is_told_from_no_device() {
    let error = CudaDriver::open_with(CudaApi::of(entry_points()), 2).unwrap_err();
    assert_eq!(error, CudaOpenError::NoSuchDevice { ordinal: 2, devices: 2 });
    let none = EntryPoints { init: Some(init_without_gpu), ..entry_points() };
    let error = CudaDriver::open_with(CudaApi::of(none), 0).unwrap_err();
    assert_eq!(error, CudaOpenError::NoSuchDevice { ordinal: 0, devices: 0 });
    let old = EntryPoints { device_total_mem: None, ..entry_points() };
    let error = CudaDriver::open_with(CudaApi::of(old), 0).unwrap_err();
    assert_eq!(error.to_string(), "libcuda has no cuDeviceTotalMem_v2 (CUDA 3.2 or newer is needed)");
    // None of them had retained the context yet.
    assert_eq!(with(|state| state.releases), 0);
}

#[test]
fn calls_run_in_the_devices_context_and_the_thread_keeps_its_own() {
    let driver = open();
    let foreign = 0xf000;
    for own in [vec![], vec![foreign], vec![foreign, context_of(1)]] {
        with(|state| state.contexts.clone_from(&own));
        assert_eq!(driver.memory_info(), Ok(MemoryInfo { free: MEMORY as u64 / 2, total: MEMORY as u64 }));
        assert!(driver.create(u64::MAX / 2).is_err());
        with(|state| assert_eq!(state.contexts, own));
    }
    assert_eq!(with(|state| state.misplaced), 0);
}

#[test]
fn a_refused_context_is_an_error_of_the_call() {
    let refusing = EntryPoints { ctx_push_current: Some(ctx_push_refused), ..entry_points() };
    let driver = CudaDriver::open_with(CudaApi::of(refusing), 1).unwrap();
    let error = driver.create(GRANULARITY as u64).unwrap_err();
    assert_eq!((error.call, error.status), (Call::Create, Status::INVALID_CONTEXT));
    assert!(error.detail.contains("cuCtxPushCurrent"), "{error}");
    assert_eq!(with(|state| state.created), 0);
}

#[test]
fn errors_say_the_call_the_status_and_the_arguments() {
    let driver = open();
    let error = driver.create(MEMORY as u64 + 1).unwrap_err();
    assert!(error.is_out_of_memory());
    assert_eq!(error.to_string(), "cuMemCreate failed with CUDA_ERROR_OUT_OF_MEMORY (2): 1073741825 bytes");
    let error = driver.unmap(0x20_0000, 4096).unwrap_err();
    assert_eq!(error.status, Status(NEWER_STATUS));
    assert_eq!(error.to_string(), "cuMemUnmap failed with CUDA error 222: CUDA_ERROR_NEWER; 4096 bytes at 0x200000");
    let error = driver.reserve(GRANULARITY as u64, 0).unwrap_err();
    assert_eq!(error.status, Status::NOT_FOUND);
    assert!(error.detail.contains("libcuda has no cuMemAddressReserve"), "{error}");
}

#[test]
fn every_call_is_counted_failed_ones_too() {
    let driver = open();
    let handle = driver.create(GRANULARITY as u64).unwrap();
    driver.create(u64::MAX / 2).unwrap_err();
    driver.release(handle).unwrap();
    let stats = driver.call_stats();
    assert_eq!(stats.get(Call::Create).count, 2);
    assert_eq!(stats.get(Call::Release).count, 1);
    assert_eq!(stats.get(Call::Map).count, 0);
    assert_eq!(driver.busy_ns(), stats.total_ns());
}

#[test]
fn memory_is_plain_and_of_this_device() {
    let driver = open();
    driver.create(GRANULARITY as u64).unwrap();
    driver.set_access(0x20_0000, GRANULARITY as u64).unwrap();
    let (prop, access) = with(|state| (state.properties.unwrap(), state.access.unwrap()));
    assert_eq!((prop.kind, prop.requested_handle_types), (MEM_ALLOCATION_TYPE_PINNED, MEM_HANDLE_TYPE_NONE));
    assert_eq!((prop.location.kind, prop.location.id), (MEM_LOCATION_TYPE_DEVICE, 1));
    assert_eq!(prop.alloc_flags.gpu_direct_rdma_capable, 0);
    assert_eq!((access.location.id, access.flags), (1, MEM_ACCESS_READ_WRITE));
}

#[test]
fn what_is_gone_or_foreign_never_reaches_libcuda() {
    let driver = open();
    let handle = driver.create(GRANULARITY as u64).unwrap();
    driver.release(handle).unwrap();
    let event = driver.event_create().unwrap();
    driver.event_destroy(event).unwrap();
    let before = driver.call_stats();
    for gone in [handle, Handle(0), Handle(77)] {
        assert_eq!(driver.release(gone).unwrap_err().status, Status::INVALID_VALUE);
        assert_eq!(driver.map(0, 0, 0, gone).unwrap_err().status, Status::INVALID_VALUE);
    }
    for gone in [event, EventId(0), EventId(u64::MAX)] {
        assert_eq!(driver.event_query(gone).unwrap_err().status, Status::INVALID_HANDLE);
        assert_eq!(driver.event_record(gone, StreamId::DEFAULT).unwrap_err().status, Status::INVALID_HANDLE);
        assert_eq!(driver.event_destroy(gone).unwrap_err().status, Status::INVALID_HANDLE);
    }
    assert_eq!(driver.call_stats(), before);
}

#[test]
fn only_streams_made_here_are_destroyed_and_once() {
    let driver = open();
    let (a, b) = (driver.create_stream().unwrap(), driver.create_stream().unwrap());
    assert_ne!(a, b);
    driver.destroy_stream(a).unwrap();
    for other in [a, StreamId::DEFAULT, StreamId(77)] {
        let error = driver.destroy_stream(other).unwrap_err();
        assert!(matches!(error, CudaOpenError::Call { status: Status::INVALID_HANDLE, .. }), "{error}");
    }
    assert_eq!(with(|state| state.streams.clone()), [b.0 as usize]);
    assert_eq!(driver.busy_ns(), 0, "no calls of an allocator");
    assert_eq!(with(|state| state.misplaced), 0);
}

#[test]
fn a_query_tells_not_ready_from_failed() {
    let driver = open();
    let event = driver.event_create().unwrap();
    assert_eq!(driver.event_query(event), Ok(true));
    with(|state| state.query = Status::NOT_READY.0);
    assert_eq!(driver.event_query(event), Ok(false));
    with(|state| state.query = Status::ILLEGAL_ADDRESS.0);
    assert_eq!(driver.event_query(event).unwrap_err().status, Status::ILLEGAL_ADDRESS);
    driver.event_destroy(event).unwrap();
    assert!(with(|state| state.events.is_empty()));
}

#[test]
fn an_invalidated_capture_still_goes_on() {
    let driver = open();
    for (capture, expected) in [(0, false), (1, true), (2, true)] {
        with(|state| state.capture = capture);
        assert_eq!(driver.is_capturing(StreamId::DEFAULT), Ok(expected));
    }
}

#[test]
fn a_threads_capture_mode_is_exchanged() {
    let driver = open();
    assert_eq!(driver.exchange_capture_mode(CaptureMode::Relaxed), Ok(CaptureMode::Global));
    assert_eq!(with(|state| state.mode), 2);
    assert_eq!(driver.exchange_capture_mode(CaptureMode::ThreadLocal), Ok(CaptureMode::Relaxed));
    assert_eq!(driver.exchange_capture_mode(CaptureMode::Global), Ok(CaptureMode::ThreadLocal));
}

#[test]
fn the_device_is_waited_for_in_its_context() {
    let driver = open();
    driver.synchronize().unwrap();
    assert_eq!(with(|state| (state.synchronized, state.misplaced)), (1, 0));
}
