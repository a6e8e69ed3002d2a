//! Opening and closing a device. Opening queries the properties of the device, and the features of the device and its
//! driver.
//!
//! Owns: the order of queries before the context is retained, which missing entry points a device can do without, and
//! the parts that a device gives back when it is closed.

use std::ffi::c_int;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::access::Access;
use super::api::CudaApi;
use super::context::PrimaryContext;
use super::device::CudaDriver;
use super::error::CudaOpenError;
use super::ffi::{self, CUdevice};
use super::host_pages::HostPages;
use super::place::Place;
use super::query::{attribute, find, granularities, has_attribute, identity};
use crate::call_counters::CallCounters;
use crate::machine::memory;
use crate::{DeviceProperties, Status};

/// The granularity if the driver cannot be queried: 2 MiB on every NVIDIA GPU so far (measured on an H200).
const USUAL_GRANULARITY: u64 = 2 << 20;

/// The name of page-locked memory, before a device's number.
const PINNED: &str = "pinned";

/// Entry points for pools of stream-ordered memory (CUDA 11.2). A device that lacks one of them has no pools.
const MEMORY_POOL_CALLS: [&str; 7] = [
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolSetAttribute",
    "cuMemPoolGetAttribute",
    "cuMemPoolTrimTo",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
];

/// Entry points that only gates on streams need. A device that lacks one of them has no gates.
const GATE_CALLS: [&str; 6] = [
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuStreamGetFlags",
];

/// The least major compute capability of a GPU that runs the kernels of a gate.
const GATE_CAPABILITY: c_int = 7;

/// Entry points for virtual memory. A device that lacks one of them has no virtual memory.
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
    /// Opens the device with this ordinal. libcuda counts the devices that `CUDA_VISIBLE_DEVICES` lets the process see,
    /// in that order: ordinal 0 is the first device named there.
    ///
    /// A device without virtual memory opens too, and so does one whose driver lacks the calls: see
    /// [`DeviceProperties::virtual_memory`].
    ///
    /// # Errors
    /// [`CudaOpenError`]: no driver, a driver that is too old, no such device, or a call that failed.
    pub fn open(ordinal: u32) -> Result<Self, CudaOpenError> {
        Self::open_with(CudaApi::load()?, ordinal)
    }

    /// Opens page-locked host memory on one NUMA node (CUDA 12.2's virtual memory on `CU_MEM_LOCATION_TYPE_HOST_NUMA`).
    /// The CPU and the device with this ordinal use this memory at the same addresses. Without a node, the memory is on
    /// the node nearest to the device. Copies between this memory and the device are asynchronous, and as fast as
    /// copies of `cudaHostAlloc`'s memory.
    ///
    /// The CPU's accesses are in no stream's order, so an allocator of this memory must know which streams use an
    /// allocation before the memory serves again: `seamalloc::HostPool` handles that. The device's calls for contents
    /// ([`Contents`](crate::Contents)) cannot fill or copy this memory, and this memory cannot be exported to other
    /// processes.
    ///
    /// # Errors
    /// The errors of [`Self::open`]; [`CudaOpenError::UnknownMemory`].
    pub fn open_pinned(ordinal: u32, node: Option<u32>) -> Result<Self, CudaOpenError> {
        Self::open_pinned_with(CudaApi::load()?, ordinal, node)
    }

    pub(super) fn open_pinned_with(api: CudaApi, ordinal: u32, node: Option<u32>) -> Result<Self, CudaOpenError> {
        let mut opened = Self::open_without_gate(api, ordinal)?;
        let api = &opened.api;
        let nearest = || attribute(api, ffi::ATTRIBUTE_HOST_NUMA_ID, opened.device).map(|node| node.max(0));
        let node = node.and_then(|node| c_int::try_from(node).ok()).map_or_else(nearest, Ok)?;
        let place = Place::Node(node);
        let has_host_memory = has_attribute(api, ffi::ATTRIBUTE_HOST_VIRTUAL_MEMORY, opened.device)?;
        let may_have = opened.properties.virtual_memory && has_host_memory;
        let found = if may_have { granularities(api, &place.prop(opened.device))? } else { None };
        opened.properties.set_virtual_memory(found);
        opened.properties.memory_pools = false;
        opened.properties.stream_gates = false;
        // Page-locked memory belongs to the machine, and the system divides it among processes. So no other process has
        // the same memory as its device.
        opened.properties.identity = String::new();
        opened.properties.name = format!("{PINNED}:{ordinal}");
        opened.properties.total_memory = memory().ok_or(CudaOpenError::UnknownMemory)?.total;
        opened.access = Access::of(place.access(opened.device));
        opened.place = place;
        Ok(opened)
    }

    /// Returns the device's ordinal and the node in a name of page-locked memory: `pinned:1,node=0` is 1 and 0,
    /// `pinned:1` is 1 on the node nearest to the device, `pinned` alone is device 0.
    ///
    /// # Errors
    /// [`CudaOpenError::BadPinnedName`] for anything else.
    pub fn parse_pinned(name: &str) -> Result<(u32, Option<u32>), CudaOpenError> {
        let bad = || CudaOpenError::BadPinnedName { name: name.to_owned() };
        let rest = name.strip_prefix(PINNED).ok_or_else(bad)?;
        let (device, node) = rest.split_once(",node=").map_or((rest, None), |(device, node)| (device, Some(node)));
        let ordinal = if device.is_empty() { Some(0) } else { device.strip_prefix(':').and_then(number) };
        let node = node.map(|node| number(node).ok_or_else(bad)).transpose()?;
        Ok((ordinal.ok_or_else(bad)?, node))
    }

    /// Opens a device and makes its gate: later the device may have too little memory for one.
    pub(super) fn open_with(api: CudaApi, ordinal: u32) -> Result<Self, CudaOpenError> {
        let mut opened = Self::open_without_gate(api, ordinal)?;
        opened.properties.stream_gates &= opened.make_gate();
        Ok(opened)
    }

    fn open_without_gate(api: CudaApi, ordinal: u32) -> Result<Self, CudaOpenError> {
        // SAFETY: the call takes only flags, and 0 is their only valid value.
        match unsafe { api.init(0) }? {
            Status::NO_DEVICE => return Err(CudaOpenError::NoSuchDevice { ordinal, devices: 0 }),
            status => api.check("cuInit", status)?,
        }
        let device = find(&api, ordinal)?;
        let direct_rdma = has_attribute(&api, ffi::ATTRIBUTE_DIRECT_RDMA_WITH_VIRTUAL_MEMORY, device).unwrap_or(false);
        let exportable = has_attribute(&api, ffi::ATTRIBUTE_POSIX_FD, device).unwrap_or(false);
        let place = Place::Device { direct_rdma, exportable };
        let mut properties = DeviceProperties {
            name: format!("cuda:{ordinal}"),
            ordinal,
            identity: identity(&api, device).unwrap_or_default(),
            total_memory: 0,
            granularity: USUAL_GRANULARITY,
            recommended_granularity: USUAL_GRANULARITY,
            virtual_memory: has_virtual_memory(&api, device)?,
            memory_pools: has_memory_pools(&api, device),
            stream_gates: has_stream_gates(&api, device),
        };
        if properties.virtual_memory {
            let found = granularities(&api, &Place::Device { direct_rdma, exportable: false }.prop(device))?;
            if found.is_none() {
                tracing::warn!("this device claims virtual memory, and supports no call of it");
            }
            properties.set_virtual_memory(found);
        }
        let host_node = host_node(&api, device).filter(|_| properties.virtual_memory);
        let mut total = 0;
        // SAFETY: the pointer is to a live integer.
        api.check("cuDeviceTotalMem", unsafe { api.device_total_mem(&mut total, device) }?)?;
        properties.total_memory = total as u64;
        // The context is retained last, so that a failure of an earlier call does not have to release the context.
        let context =
            PrimaryContext::retain(&api, device)?.map_err(|status| api.failed("cuDevicePrimaryCtxRetain", status))?;
        Ok(Self {
            api,
            device,
            context,
            properties,
            place,
            host_node,
            access: Access::of(place.access(device)),
            events: Mutex::default(),
            handles: Mutex::default(),
            buffers: Mutex::default(),
            host_pages: HostPages::default(),
            registers_pages: AtomicBool::new(true),
            pools: Mutex::default(),
            streams: Mutex::default(),
            own_stream: Mutex::default(),
            gate: Mutex::default(),
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
            rest => rest.strip_prefix(':').and_then(number).ok_or_else(bad),
        }
    }
}

impl DeviceProperties {
    /// Records the least and the recommended granularity of virtual memory, if the device has virtual memory.
    fn set_virtual_memory(&mut self, granularities: Option<(u64, u64)>) {
        self.virtual_memory = granularities.is_some();
        if let Some((least, recommended)) = granularities {
            (self.granularity, self.recommended_granularity) = (least, recommended);
        }
    }
}

/// Reads a number. `parse` alone would accept a sign.
fn number(digits: &str) -> Option<u32> {
    Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
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

impl Drop for CudaDriver {
    fn drop(&mut self) {
        if let Some(stream) = self.own_stream.get_mut().take()
            && let Err(error) = self.destroy_stream(stream)
        {
            tracing::warn!(%error, "a stream for copies was not destroyed");
        }
        self.release_gate();
        self.access.release(&self.api);
        self.context.release(&self.api);
    }
}

/// Returns whether streams can be held at a gate: whether the device runs the gate's kernels, and the driver has all
/// calls for it.
fn has_stream_gates(api: &CudaApi, device: CUdevice) -> bool {
    let capability = attribute(api, ffi::ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device).unwrap_or(0);
    capability >= GATE_CAPABILITY && GATE_CALLS.into_iter().all(|call| api.need(call).is_ok())
}

/// Returns the NUMA node that is nearest to the device, if the device can use virtual memory there. Returns `None` if
/// the driver does not know the attributes.
fn host_node(api: &CudaApi, device: CUdevice) -> Option<c_int> {
    let has_memory = has_attribute(api, ffi::ATTRIBUTE_HOST_VIRTUAL_MEMORY, device).unwrap_or(false);
    let nearest = attribute(api, ffi::ATTRIBUTE_HOST_NUMA_ID, device).ok().filter(|_| has_memory);
    nearest.map(|node| node.max(0))
}

/// Returns whether the device has pools of stream-ordered memory, and the driver has all calls for them. Returns
/// `false` if the driver does not know the attribute.
fn has_memory_pools(api: &CudaApi, device: CUdevice) -> bool {
    MEMORY_POOL_CALLS.into_iter().all(|call| api.need(call).is_ok())
        && has_attribute(api, ffi::ATTRIBUTE_MEMORY_POOLS, device).unwrap_or(false)
}
