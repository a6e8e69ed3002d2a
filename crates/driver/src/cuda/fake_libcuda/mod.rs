//! A fake libcuda for tests, just complete enough to show that [`CudaDriver`] calls it correctly.
//!
//! Owns: the fake, for two devices. The fake models no memory; the simulated GPU does. Its state is per thread, since
//! each test runs on a thread of its own. The other files of this folder are tests that need no GPU.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests alone use it")]
#![cfg_attr(not(test), allow(dead_code, unused_imports, reason = "the tests beside it use all of it"))]

mod calls;
mod gates;
mod mappings;
pub mod old_drivers;
mod page_locked;
#[cfg(target_os = "linux")]
mod page_locking;
mod peers;
mod pinned;
mod pools;
mod streams;

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::ptr;

use super::CudaDriver;
use super::api::{CudaApi, EntryPoints};
use super::ffi::*;
use crate::Status;

const GRANULARITY: usize = 2 << 20;
const RECOMMENDED_GRANULARITY: usize = 2 * GRANULARITY;
const MEMORY: usize = 1 << 30;
const DEVICES: c_int = 2;
/// The NUMA node nearest to every device.
const NEAREST_NODE: c_int = 2;
/// The address at which every reservation begins.
const RESERVED: CUdeviceptr = 1 << 40;
/// An address that cannot be unmapped.
const UNMAPPABLE: CUdeviceptr = 0x20_0000;
/// A status that CUDA 10.2 did not know: `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`.
const NEWER_STATUS: RawStatus = 222;

#[derive(Default)]
struct State {
    contexts: Vec<usize>,
    releases: u32,
    /// The number of calls that were made with another context than they need.
    misplaced: u32,
    events: Vec<usize>,
    streams: Vec<usize>,
    created: usize,
    query: RawStatus,
    capture: u32,
    /// The capture mode of the thread.
    mode: u32,
    synchronized: u32,
    /// The handle of a stream that has work; 0 for none.
    busy: usize,
    /// Descriptors that were imported.
    imported: Vec<usize>,
    properties: Option<MemAllocationProp>,
    /// The calls of `cuMemSetAccess`: the address, and the access of each device.
    access: Vec<(CUdeviceptr, Vec<(CUdevice, u32)>)>,
    /// The access that NUMA nodes were given.
    nodes: Vec<(c_int, u32)>,
    /// Page-locked allocations: their sizes and flags, and how many were freed.
    page_locked: (Vec<(usize, c_uint)>, usize),
    /// Registered host memory: its address, bytes and flags; and how often memory was registered and unregistered.
    registered: Vec<(usize, usize, c_uint)>,
    registrations: (u32, u32),
    /// The status that registering host memory returns, and the status that unregistering returns.
    register: RawStatus,
    unregister: RawStatus,
    /// The status that `cuMemHostAlloc` returns.
    host_alloc: RawStatus,
    /// The bytes of the live page-locked allocations.
    host: Vec<Box<[u8]>>,
    /// The numbers of event records and of waits for events.
    behind: (u32, u32),
    /// The address from which on `cuMemSetAccess` is refused.
    access_fails_from: Option<CUdeviceptr>,
    /// The mappings, in the order of the calls: address, bytes and handle.
    maps: Vec<(CUdeviceptr, usize, CUmemGenericAllocationHandle)>,
    /// Memory whose first mapping was removed: it refuses access of further devices until it is mapped once more.
    closed: Vec<CUmemGenericAllocationHandle>,
    /// Retained handles that were not released, and addresses that were reserved and not freed.
    retained: Vec<CUmemGenericAllocationHandle>,
    reservations: usize,
    /// Whether `cuMemMap` fails.
    no_more_maps: bool,
    /// Contexts that were given peer access to device 1's memory of `cuMemAlloc`.
    peers: Vec<usize>,
    /// Attributes that the device lacks.
    lacks: Vec<u32>,
    /// Fills: the address, the value, the size, the stream.
    fills: Vec<(CUdeviceptr, u8, usize, usize)>,
    /// The streams on which memory was copied to the CPU.
    copies: Vec<usize>,
    /// Copies from the CPU: the address, and the bytes.
    written: Vec<(CUdeviceptr, Vec<u8>)>,
    /// Copies inside of the device: from, to and bytes.
    copied: Vec<(CUdeviceptr, CUdeviceptr, usize)>,
    /// The live pools, with their release thresholds, and the properties they were made with.
    pools: Vec<(usize, u64)>,
    pool_props: Option<MemPoolProps>,
    /// Whether attributes of pools cannot be set.
    no_thresholds: bool,
    /// Allocations of pools: pool, bytes, stream; frees: address, stream; trims: pool, bytes.
    pooled: Vec<(usize, usize, usize)>,
    pool_frees: Vec<(CUdeviceptr, usize)>,
    trims: Vec<(usize, usize)>,
    /// The number that distinguishes streams which have the same handle one after the other.
    generation: u64,
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

/// Runs `change` as [`with`] does, for a call that needs device 1's context.
fn in_context(change: impl FnOnce(&mut State) -> RawStatus) -> RawStatus {
    in_context_of(1, change)
}

fn in_context_of(device: CUdevice, change: impl FnOnce(&mut State) -> RawStatus) -> RawStatus {
    with(|state| {
        if state.contexts.last() != Some(&context_of(device)) {
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
    let known = [ATTRIBUTE_VIRTUAL_MEMORY, ATTRIBUTE_POSIX_FD, ATTRIBUTE_HOST_VIRTUAL_MEMORY, ATTRIBUTE_MEMORY_POOLS];
    if attribute == ATTRIBUTE_HOST_NUMA_ID {
        put(value, NEAREST_NODE)
    } else if known.contains(&attribute) {
        put(value, c_int::from(with(|state| !state.lacks.contains(&attribute))))
    } else {
        Status::INVALID_VALUE.0
    }
}
unsafe extern "C" fn device_total_mem(bytes: *mut usize, _: CUdevice) -> RawStatus {
    put(bytes, MEMORY)
}
unsafe extern "C" fn mem_get_allocation_granularity(
    bytes: *mut usize,
    _: *const MemAllocationProp,
    option: u32,
) -> RawStatus {
    put(bytes, if option == MEM_GRANULARITY_RECOMMENDED { RECOMMENDED_GRANULARITY } else { GRANULARITY })
}
unsafe extern "C" fn coarse_granularity(bytes: *mut usize, _: *const MemAllocationProp, _: u32) -> RawStatus {
    put(bytes, 16 * GRANULARITY)
}
unsafe extern "C" fn no_granularity(_: *mut usize, _: *const MemAllocationProp, _: u32) -> RawStatus {
    Status::NOT_SUPPORTED.0
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
unsafe extern "C" fn mem_export_to_shareable_handle(
    shareable: *mut c_void,
    _: CUmemGenericAllocationHandle,
    kind: u32,
    _: c_ulonglong,
) -> RawStatus {
    assert_eq!(kind, MEM_HANDLE_TYPE_POSIX_FD);
    in_context(|state| {
        state.created += 1;
        let (reader, _) = std::io::pipe().unwrap();
        put(shareable.cast(), OwnedFd::from(reader).into_raw_fd())
    })
}
unsafe extern "C" fn mem_import_from_shareable_handle(
    handle: *mut CUmemGenericAllocationHandle,
    shareable: *mut c_void,
    kind: u32,
) -> RawStatus {
    assert_eq!(kind, MEM_HANDLE_TYPE_POSIX_FD);
    in_context(|state| {
        state.created += 1;
        state.imported.push(shareable.addr());
        put(handle, state.created as CUmemGenericAllocationHandle)
    })
}
unsafe extern "C" fn ipc_get_mem_handle(memory: *mut IpcMemHandle, address: CUdeviceptr) -> RawStatus {
    in_context(|_| put(memory, IpcMemHandle { reserved: [address as u8; 64] }))
}
unsafe extern "C" fn ipc_open_mem_handle(address: *mut CUdeviceptr, memory: IpcMemHandle, flags: c_uint) -> RawStatus {
    assert_eq!(flags, 1, "the only flag that there is");
    in_context(|_| put(address, CUdeviceptr::from(memory.reserved[63]) << 32))
}
unsafe extern "C" fn ipc_close_mem_handle(address: CUdeviceptr) -> RawStatus {
    in_context(|_| if address == UNMAPPABLE { NEWER_STATUS } else { Status::SUCCESS.0 })
}
unsafe extern "C" fn mem_release(handle: CUmemGenericAllocationHandle) -> RawStatus {
    in_context(|state| {
        if let Some(at) = state.retained.iter().position(|retained| *retained == handle) {
            state.retained.remove(at);
        }
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn mem_alloc(address: *mut CUdeviceptr, _: usize) -> RawStatus {
    in_context(|state| {
        state.created += 1;
        put(address, (state.created * MEMORY) as CUdeviceptr)
    })
}
unsafe extern "C" fn mem_free(_: CUdeviceptr) -> RawStatus {
    in_context(|_| Status::SUCCESS.0)
}
unsafe extern "C" fn mem_host_alloc(address: *mut *mut c_void, size: usize, flags: c_uint) -> RawStatus {
    in_context(|state| {
        if state.host_alloc != Status::SUCCESS.0 {
            return state.host_alloc;
        }
        state.page_locked.0.push((size, flags));
        let mut bytes = vec![0_u8; size].into_boxed_slice();
        let pointer = bytes.as_mut_ptr();
        state.host.push(bytes);
        put(address, pointer.cast())
    })
}
unsafe extern "C" fn mem_free_host(address: *mut c_void) -> RawStatus {
    in_context(|state| {
        state.host.retain(|bytes| bytes.as_ptr() != address.cast());
        state.page_locked.1 += 1;
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn mem_host_register(address: *mut c_void, size: usize, flags: c_uint) -> RawStatus {
    in_context(|state| {
        let range = address.addr()..address.addr() + size;
        let taken = |of: &(usize, usize, c_uint)| of.0 < range.end && range.start < of.0 + of.1;
        assert!(!state.registered.iter().any(taken), "memory that is registered already");
        if state.register != Status::SUCCESS.0 {
            return state.register;
        }
        state.registered.push((address.addr(), size, flags));
        state.registrations.0 += 1;
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn mem_host_unregister(address: *mut c_void) -> RawStatus {
    in_context(|state| {
        assert!(state.registered.iter().any(|of| of.0 == address.addr()), "memory that is not registered");
        if state.unregister != Status::SUCCESS.0 {
            return state.unregister;
        }
        state.registered.retain(|of| of.0 != address.addr());
        state.registrations.1 += 1;
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn device_can_access_peer(can: *mut c_int, device: CUdevice, peer: CUdevice) -> RawStatus {
    put(can, c_int::from(device != peer))
}
unsafe extern "C" fn device_cannot_access_peer(can: *mut c_int, _: CUdevice, _: CUdevice) -> RawStatus {
    put(can, 0)
}
unsafe extern "C" fn ctx_enable_peer_access(context: CUcontext, _: c_uint) -> RawStatus {
    in_context_of(0, |state| {
        if state.peers.contains(&context.addr()) {
            return Status::PEER_ACCESS_ALREADY_ENABLED.0;
        }
        state.peers.push(context.addr());
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn ctx_disable_peer_access(context: CUcontext) -> RawStatus {
    in_context_of(0, |state| {
        state.peers.retain(|of| *of != context.addr());
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
        // Handles below 0x100 mean default streams.
        let handle = 0x100 + state.created;
        state.streams.push(handle);
        put(stream, ptr::without_provenance_mut(handle))
    })
}
unsafe extern "C" fn stream_destroy(stream: CUstream) -> RawStatus {
    in_context(|state| {
        state.streams.retain(|&live| live != stream.addr());
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn memset_d8_async(address: CUdeviceptr, value: c_uchar, size: usize, stream: CUstream) -> RawStatus {
    in_context(|state| {
        state.fills.push((address, value, size, stream.addr()));
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn memcpy_async(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream) -> RawStatus {
    in_context(|state| {
        state.copies.push(stream.addr());
        state.copied.push((from, to, size));
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn memcpy_dtoh_async(host: *mut c_void, _: CUdeviceptr, size: usize, stream: CUstream) -> RawStatus {
    in_context(|state| {
        state.copies.push(stream.addr());
        // SAFETY: the driver under test passes a buffer of its own with `size` bytes.
        unsafe { host.cast::<u8>().write_bytes(0x5a, size) };
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn memcpy_htod_async(
    to: CUdeviceptr,
    host: *const c_void,
    size: usize,
    stream: CUstream,
) -> RawStatus {
    in_context(|state| {
        state.copies.push(stream.addr());
        // SAFETY: the driver under test passes a buffer of its own with `size` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(host.cast::<u8>(), size) };
        state.written.push((to, bytes.to_vec()));
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
unsafe extern "C" fn event_record(_: CUevent, _: CUstream) -> RawStatus {
    in_context(|state| {
        state.behind.0 += 1;
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn event_synchronize(_: CUevent) -> RawStatus {
    in_context(|state| {
        state.behind.1 += 1;
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn stream_synchronize(_: CUstream) -> RawStatus {
    in_context(|state| {
        state.synchronized += 1;
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn stream_query(stream: CUstream) -> RawStatus {
    in_context(|state| if state.busy == stream.addr() { Status::NOT_READY.0 } else { Status::SUCCESS.0 })
}
unsafe extern "C" fn stream_get_id(stream: CUstream, id: *mut c_ulonglong) -> RawStatus {
    in_context(|state| put(id, 1000 * state.generation + stream.addr() as u64))
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
        mem_export_to_shareable_handle: Some(mem_export_to_shareable_handle),
        mem_import_from_shareable_handle: Some(mem_import_from_shareable_handle),
        ipc_get_mem_handle: Some(ipc_get_mem_handle),
        ipc_open_mem_handle: Some(ipc_open_mem_handle),
        ipc_close_mem_handle: Some(ipc_close_mem_handle),
        mem_release: Some(mem_release),
        mem_address_reserve: Some(mappings::mem_address_reserve),
        mem_address_free: Some(mappings::mem_address_free),
        mem_map: Some(mappings::mem_map),
        mem_alloc: Some(mem_alloc),
        mem_pool_create: Some(pools::mem_pool_create),
        mem_pool_destroy: Some(pools::mem_pool_destroy),
        mem_pool_set_attribute: Some(pools::mem_pool_set_attribute),
        mem_pool_get_attribute: Some(pools::mem_pool_get_attribute),
        mem_pool_trim_to: Some(pools::mem_pool_trim_to),
        mem_alloc_from_pool_async: Some(pools::mem_alloc_from_pool_async),
        mem_free_async: Some(pools::mem_free_async),
        mem_get_address_range: Some(mappings::mem_get_address_range),
        mem_retain_allocation_handle: Some(mappings::mem_retain_allocation_handle),
        mem_host_alloc: Some(mem_host_alloc),
        mem_free_host: Some(mem_free_host),
        mem_host_register: Some(mem_host_register),
        mem_host_unregister: Some(mem_host_unregister),
        mem_free: Some(mem_free),
        device_can_access_peer: Some(device_can_access_peer),
        ctx_enable_peer_access: Some(ctx_enable_peer_access),
        ctx_disable_peer_access: Some(ctx_disable_peer_access),
        event_record: Some(event_record),
        event_synchronize: Some(event_synchronize),
        stream_synchronize: Some(stream_synchronize),
        stream_query: Some(stream_query),
        stream_get_id: Some(stream_get_id),
        mem_unmap: Some(mappings::mem_unmap),
        mem_set_access: Some(mappings::mem_set_access),
        mem_get_info: Some(mem_get_info),
        memset_d8_async: Some(memset_d8_async),
        memcpy_dtoh_async: Some(memcpy_dtoh_async),
        memcpy_htod_async: Some(memcpy_htod_async),
        memcpy_async: Some(memcpy_async),
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
