//! Opening a device: its properties, and what it and its driver support.
//!
//! Owns: the order of queries before the context is retained, and which missing entry points a device can do without.

use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::access::Access;
use super::api::CudaApi;
use super::context::PrimaryContext;
use super::device::CudaDriver;
use super::error::CudaOpenError;
use super::ffi::{self, CUdevice, MemAllocationProp};
use super::query::{find, granularity, has_attribute};
use crate::driver::call_counters::CallCounters;
use crate::driver::{DeviceProperties, Status};

/// The granularity if the driver cannot be queried: 2 MiB on every NVIDIA GPU so far (measured on an H200).
const USUAL_GRANULARITY: u64 = 2 << 20;

/// Entry points without any one of which a device has no virtual memory.
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
    /// A device without virtual memory opens too, and so does one whose driver lacks the calls: see
    /// [`DeviceProperties::virtual_memory`].
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
            status => api.check("cuInit", status)?,
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
        api.check("cuDeviceTotalMem", unsafe { api.device_total_mem(&mut total, device) }?)?;
        properties.total_memory = total as u64;
        // This comes last, so that no earlier failure has to release it.
        let context =
            PrimaryContext::retain(&api, device)?.map_err(|status| api.failed("cuDevicePrimaryCtxRetain", status))?;
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
            own_stream: Mutex::default(),
            trusts_streams: AtomicBool::new(false),
            tells_streams_apart: AtomicBool::new(true),
            calls: CallCounters::default(),
        })
    }

    /// Returns the ordinal in a device's name: `cuda:1` is 1, `cuda` alone is 0.
    ///
    /// # Errors
    /// [`CudaOpenError::BadName`] for anything else.
    pub fn parse_ordinal(name: &str) -> Result<u32, CudaOpenError> {
        let bad = || CudaOpenError::BadName { name: name.to_owned() };
        match name.strip_prefix("cuda").ok_or_else(bad)? {
            "" => Ok(0),
            // `parse` alone would accept a sign.
            rest => rest
                .strip_prefix(':')
                .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|digits| digits.parse().ok())
                .ok_or_else(bad),
        }
    }
}

/// Returns whether the device has virtual memory, and the driver has all calls for it.
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
