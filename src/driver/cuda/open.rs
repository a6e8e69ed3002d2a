//! Opening a device: what it is, and what it and its driver can do.
//!
//! Owns: the order of questions before the context is retained, and which missing entry points a device can do without.

use std::ffi::c_int;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::access::Access;
use super::api::CudaApi;
use super::calls::CallCounters;
use super::context::PrimaryContext;
use super::device::{CudaDriver, failed, succeeded};
use super::error::CudaOpenError;
use super::ffi::{self, CUdevice, MemAllocationProp};
use crate::driver::{DeviceProperties, Status};

/// Used where the driver cannot be asked: 2 MiB on every NVIDIA GPU so far (measured on an H200).
const USUAL_GRANULARITY: u64 = 2 << 20;

/// Without any one of them a device has no virtual memory.
const VIRTUAL_MEMORY_CALLS: [&str; 8] = [
    "cuMemGetAllocationGranularity",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
];

impl CudaDriver {
    /// Opens the device with this ordinal. libcuda counts the devices that `CUDA_VISIBLE_DEVICES` lets the process see, in
    /// that order: ordinal 0 is the first one named there.
    ///
    /// A device without virtual memory opens too, and so does one whose driver lacks the calls;
    /// [`DeviceProperties::virtual_memory`] says so.
    ///
    /// # Errors
    /// [`CudaOpenError`]: no driver, a driver that is too old, no such device, or a call that failed.
    pub fn open(ordinal: u32) -> Result<Self, CudaOpenError> {
        Self::open_with(CudaApi::load()?, ordinal)
    }

    pub(super) fn open_with(api: CudaApi, ordinal: u32) -> Result<Self, CudaOpenError> {
        // SAFETY: the only flags that exist are 0.
        match unsafe { api.init(0) }? {
            Status::NO_DEVICE => return Err(CudaOpenError::NoSuchDevice { ordinal, devices: 0 }),
            status => succeeded(&api, "cuInit", status)?,
        }
        let device = find(&api, ordinal)?;
        let direct_rdma = has_attribute(&api, ffi::ATTRIBUTE_DIRECT_RDMA_WITH_VIRTUAL_MEMORY, device).unwrap_or(false);
        let exportable = has_attribute(&api, ffi::ATTRIBUTE_POSIX_FD, device).unwrap_or(false);
        let mut properties = DeviceProperties {
            name: format!("cuda:{ordinal}"),
            ordinal,
            total_memory: 0,
            granularity: USUAL_GRANULARITY,
            recommended_granularity: USUAL_GRANULARITY,
            virtual_memory: has_virtual_memory(&api, device)?,
        };
        if properties.virtual_memory {
            let prop = MemAllocationProp::on_device(device, direct_rdma, false);
            properties.granularity = granularity(&api, &prop, ffi::MEM_GRANULARITY_MINIMUM)?;
            properties.recommended_granularity = granularity(&api, &prop, ffi::MEM_GRANULARITY_RECOMMENDED)?;
        }
        let mut total = 0;
        // SAFETY: the pointer is to a live integer.
        succeeded(&api, "cuDeviceTotalMem", unsafe { api.device_total_mem(&mut total, device) }?)?;
        properties.total_memory = total as u64;
        // Last, so that nothing above has to give it back.
        let context =
            PrimaryContext::retain(&api, device)?.map_err(|status| failed(&api, "cuDevicePrimaryCtxRetain", status))?;
        Ok(Self {
            api,
            device,
            context,
            properties,
            direct_rdma,
            exportable,
            access: Access::of(device),
            events: Mutex::default(),
            handles: Mutex::default(),
            streams: Mutex::default(),
            trusts_streams: AtomicBool::new(false),
            tells_streams_apart: AtomicBool::new(true),
            calls: CallCounters::default(),
        })
    }

    /// The ordinal in a device's name: `cuda:1` is 1, `cuda` alone is 0.
    ///
    /// # Errors
    /// [`CudaOpenError::BadName`] for anything else.
    pub fn parse_ordinal(name: &str) -> Result<u32, CudaOpenError> {
        let bad = || CudaOpenError::BadName { name: name.to_owned() };
        match name.strip_prefix("cuda").ok_or_else(bad)? {
            "" => Ok(0),
            // `parse` alone would take a sign.
            rest => rest
                .strip_prefix(':')
                .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|digits| digits.parse().ok())
                .ok_or_else(bad),
        }
    }
}

/// The device with that ordinal.
pub(super) fn find(api: &CudaApi, ordinal: u32) -> Result<CUdevice, CudaOpenError> {
    let mut devices: c_int = 0;
    // SAFETY: the pointer is to a live integer.
    succeeded(api, "cuDeviceGetCount", unsafe { api.device_get_count(&mut devices) }?)?;
    let devices = u32::try_from(devices).unwrap_or(0);
    let Some(index) = c_int::try_from(ordinal).ok().filter(|_| ordinal < devices) else {
        return Err(CudaOpenError::NoSuchDevice { ordinal, devices });
    };
    let mut device: CUdevice = 0;
    // SAFETY: the pointer is to a live integer.
    succeeded(api, "cuDeviceGet", unsafe { api.device_get(&mut device, index) }?)?;
    Ok(device)
}

pub(super) fn has_attribute(api: &CudaApi, attribute: u32, device: CUdevice) -> Result<bool, CudaOpenError> {
    let mut value = 0;
    // SAFETY: the pointer is to a live integer.
    match unsafe { api.device_get_attribute(&mut value, attribute, device) }? {
        // A driver older than the attribute does not know its number.
        Status::INVALID_VALUE => Ok(false),
        status => succeeded(api, "cuDeviceGetAttribute", status).map(|()| value != 0),
    }
}

/// Whether the device has virtual memory, and the driver all calls for it.
fn has_virtual_memory(api: &CudaApi, device: CUdevice) -> Result<bool, CudaOpenError> {
    if !has_attribute(api, ffi::ATTRIBUTE_VIRTUAL_MEMORY, device)? {
        return Ok(false);
    }
    let missing = VIRTUAL_MEMORY_CALLS.into_iter().find_map(|call| api.need(call).err());
    if let Some(missing) = missing {
        tracing::warn!(%missing, "this driver is too old for virtual memory: only the strategy `caching` works");
    }
    Ok(missing.is_none())
}

/// A granularity of memory like `prop`, in bytes.
pub(super) fn granularity(api: &CudaApi, prop: &MemAllocationProp, option: u32) -> Result<u64, CudaOpenError> {
    let mut bytes = 0;
    // SAFETY: both pointers are to live values.
    let status = unsafe { api.mem_get_allocation_granularity(&mut bytes, prop, option) }?;
    succeeded(api, "cuMemGetAllocationGranularity", status)?;
    Ok(bytes as u64)
}
