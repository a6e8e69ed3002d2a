//! Addresses, the memory mapped at them, and the devices with access.
//!
//! Owns: the calls for virtual memory, and the driver's rule for memory that is mapped at two addresses
//! (`reopening.rs`).

use super::*;

pub(super) unsafe extern "C" fn mem_address_reserve(
    address: *mut CUdeviceptr,
    _: usize,
    _: usize,
    _: CUdeviceptr,
    _: c_ulonglong,
) -> RawStatus {
    in_context(|state| {
        state.reservations += 1;
        put(address, RESERVED)
    })
}
pub(super) unsafe extern "C" fn mem_address_free(_: CUdeviceptr, _: usize) -> RawStatus {
    in_context(|state| {
        state.reservations = state.reservations.saturating_sub(1);
        Status::SUCCESS.0
    })
}
pub(super) unsafe extern "C" fn mem_map(
    address: CUdeviceptr,
    size: usize,
    _: usize,
    handle: CUmemGenericAllocationHandle,
    _: c_ulonglong,
) -> RawStatus {
    in_context(|state| {
        if state.no_more_maps {
            return Status::OUT_OF_MEMORY.0;
        }
        state.maps.push((address, size, handle));
        state.closed.retain(|closed| *closed != handle);
        Status::SUCCESS.0
    })
}
pub(super) unsafe extern "C" fn mem_unmap(address: CUdeviceptr, size: usize) -> RawStatus {
    if address == UNMAPPABLE {
        return NEWER_STATUS;
    }
    in_context(|state| {
        let end = address + size as CUdeviceptr;
        while let Some(at) = state.maps.iter().position(|(start, ..)| (address..end).contains(start)) {
            let (_, _, handle) = state.maps.remove(at);
            let next = state.maps.iter().position(|(.., of)| *of == handle);
            // The removed mapping is the first of several mappings of the memory.
            if next.is_some_and(|next| next >= at) {
                state.closed.push(handle);
            }
        }
        Status::SUCCESS.0
    })
}
pub(super) unsafe extern "C" fn mem_get_address_range(
    start: *mut CUdeviceptr,
    size: *mut usize,
    address: CUdeviceptr,
) -> RawStatus {
    in_context(|state| {
        let over = |map: &&(CUdeviceptr, usize, _)| map.0 <= address && address < map.0 + map.1 as CUdeviceptr;
        let Some(&(at, bytes, _)) = state.maps.iter().find(over) else { return Status::INVALID_VALUE.0 };
        put(size, bytes);
        put(start, at)
    })
}
pub(super) unsafe extern "C" fn mem_retain_allocation_handle(
    handle: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> RawStatus {
    in_context(|state| {
        let at = address.addr() as CUdeviceptr;
        let Some(&(.., of)) = state.maps.iter().find(|map| map.0 == at) else { return Status::INVALID_VALUE.0 };
        state.retained.push(of);
        put(handle, of)
    })
}
pub(super) unsafe extern "C" fn mem_set_access(
    address: CUdeviceptr,
    size: usize,
    access: *const MemAccessDesc,
    count: usize,
) -> RawStatus {
    in_context(|state| {
        if state.access_fails_from.is_some_and(|from| address >= from) {
            return Status::OUT_OF_MEMORY.0;
        }
        // SAFETY: the driver under test passes a pointer to its own live values and their number.
        let list = unsafe { std::slice::from_raw_parts(access, count) };
        let (devices, nodes): (Vec<&MemAccessDesc>, Vec<&MemAccessDesc>) =
            list.iter().partition(|desc| desc.location.kind == MEM_LOCATION_TYPE_DEVICE);
        assert!(nodes.iter().all(|desc| desc.location.kind == MEM_LOCATION_TYPE_HOST_NUMA));
        let end = address + size as CUdeviceptr;
        let refuses = |map: &(CUdeviceptr, usize, _)| (address..end).contains(&map.0) && state.closed.contains(&map.2);
        if list.len() > 1 && state.maps.iter().any(refuses) {
            return Status::INVALID_VALUE.0;
        }
        state.access.push((address, devices.iter().map(|desc| (desc.location.id, desc.flags)).collect()));
        state.nodes.extend(nodes.iter().map(|desc| (desc.location.id, desc.flags)));
        Status::SUCCESS.0
    })
}
