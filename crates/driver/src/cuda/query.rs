//! Queries of a device that need no context: which devices exist, and what each supports.
//!
//! Owns: the queries. The callers decide when to make them.

use std::ffi::c_int;

use super::api::CudaApi;
use super::error::CudaOpenError;
use super::ffi::{
    ATTRIBUTE_PCI_BUS, ATTRIBUTE_PCI_DEVICE, ATTRIBUTE_PCI_DOMAIN, CUdevice, MEM_GRANULARITY_MINIMUM,
    MEM_GRANULARITY_RECOMMENDED, MemAllocationProp,
};
use crate::Status;

/// Returns the device with that ordinal.
pub(super) fn find(api: &CudaApi, ordinal: u32) -> Result<CUdevice, CudaOpenError> {
    let mut devices: c_int = 0;
    // SAFETY: the pointer is to a live integer.
    api.check("cuDeviceGetCount", unsafe { api.device_get_count(&mut devices) }?)?;
    let devices = u32::try_from(devices).unwrap_or(0);
    let Some(index) = c_int::try_from(ordinal).ok().filter(|_| ordinal < devices) else {
        return Err(CudaOpenError::NoSuchDevice { ordinal, devices });
    };
    let mut device: CUdevice = 0;
    // SAFETY: the pointer is to a live integer.
    api.check("cuDeviceGet", unsafe { api.device_get(&mut device, index) }?)?;
    Ok(device)
}

/// Returns whether the device has an attribute.
pub(super) fn has_attribute(api: &CudaApi, number: u32, device: CUdevice) -> Result<bool, CudaOpenError> {
    Ok(attribute(api, number, device)? != 0)
}

/// Returns the value of an attribute, 0 if the driver is older than the attribute.
pub(super) fn attribute(api: &CudaApi, number: u32, device: CUdevice) -> Result<c_int, CudaOpenError> {
    let mut value = 0;
    // SAFETY: the pointer is to a live integer.
    match unsafe { api.device_get_attribute(&mut value, number, device) }? {
        // A driver older than the attribute returns this status.
        Status::INVALID_VALUE => Ok(0),
        status => api.check("cuDeviceGetAttribute", status).map(|()| value),
    }
}

/// Returns the device's place on the PCI bus, which is the same whatever `CUDA_VISIBLE_DEVICES` shows. Returns `None`
/// if the driver does not report it.
pub(super) fn identity(api: &CudaApi, device: CUdevice) -> Option<String> {
    let of = |number| attribute(api, number, device).ok();
    let (domain, bus, slot) = (of(ATTRIBUTE_PCI_DOMAIN)?, of(ATTRIBUTE_PCI_BUS)?, of(ATTRIBUTE_PCI_DEVICE)?);
    ((domain, bus, slot) != (0, 0, 0)).then(|| format!("{domain:04x}:{bus:02x}:{slot:02x}"))
}

/// Returns the least and the recommended granularity of memory like `prop`, in bytes; `None` if the device refuses the
/// query: some vGPUs claim to have virtual memory, but support no call for it.
pub(super) fn granularities(api: &CudaApi, prop: &MemAllocationProp) -> Result<Option<(u64, u64)>, CudaOpenError> {
    let least = granularity(api, prop, MEM_GRANULARITY_MINIMUM)?;
    let recommended = granularity(api, prop, MEM_GRANULARITY_RECOMMENDED)?;
    Ok(least.zip(recommended))
}

fn granularity(api: &CudaApi, prop: &MemAllocationProp, option: u32) -> Result<Option<u64>, CudaOpenError> {
    let mut bytes = 0;
    // SAFETY: both pointers are to live values.
    let status = unsafe { api.mem_get_allocation_granularity(&mut bytes, prop, option) }?;
    if status == Status::NOT_SUPPORTED {
        return Ok(None);
    }
    api.check("cuMemGetAllocationGranularity", status)?;
    Ok(Some(bytes as u64))
}
