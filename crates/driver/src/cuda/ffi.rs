//! CUDA's types and constants, as this crate passes them to libcuda.
//!
//! Owns: memory layouts and numbers. The file makes no calls. `cuda-driver-sys` provides the types that cannot be
//! wrong: integers and opaque pointers. Its structs and enums are not used: they come from CUDA 10.2, where a
//! `CUmemAllocationProp` for memory that is not exported cannot be written (its handle type has no value 0), and an
//! unknown status is undefined behaviour in a Rust enum. Here an enum is a `u32`; the tests compare with
//! `cuda-driver-sys`.

use std::ffi::{c_int, c_uchar, c_ushort, c_void};

use crate::{CaptureMode, PoolAttribute};

#[cfg(target_os = "linux")]
pub(super) use cuda_driver_sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUmemGenericAllocationHandle, CUstream};

/// The types of `cuda-driver-sys` for systems on which it does not build without a CUDA toolkit. No library is loaded
/// on these systems.
#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::ffi::{c_int, c_ulonglong, c_void};

    pub(in crate::cuda) type CUcontext = *mut c_void;
    pub(in crate::cuda) type CUdevice = c_int;
    pub(in crate::cuda) type CUdeviceptr = c_ulonglong;
    pub(in crate::cuda) type CUevent = *mut c_void;
    pub(in crate::cuda) type CUmemGenericAllocationHandle = c_ulonglong;
    pub(in crate::cuda) type CUstream = *mut c_void;
}
#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUmemGenericAllocationHandle, CUstream};

/// `CUresult`.
pub(super) type RawStatus = u32;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`: memory that stays where it was created.
pub(super) const MEM_ALLOCATION_TYPE_PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_NONE` (CUDA 11.0): the memory cannot be exported to another process.
pub(super) const MEM_HANDLE_TYPE_NONE: u32 = 0;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`: the memory can be exported as a file descriptor.
pub(super) const MEM_HANDLE_TYPE_POSIX_FD: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(super) const MEM_LOCATION_TYPE_DEVICE: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_HOST_NUMA` (CUDA 12.2): a NUMA node of the machine.
pub(super) const MEM_LOCATION_TYPE_HOST_NUMA: u32 = 3;
/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`.
pub(super) const MEM_ACCESS_NONE: u32 = 0;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub(super) const MEM_ACCESS_READ_WRITE: u32 = 3;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
pub(super) const MEM_GRANULARITY_MINIMUM: u32 = 0;
/// `CU_MEM_ALLOC_GRANULARITY_RECOMMENDED`.
pub(super) const MEM_GRANULARITY_RECOMMENDED: u32 = 1;
/// `CU_STREAM_LEGACY`, `cudaStreamLegacy`: the default stream by another name.
pub(super) const STREAM_LEGACY: u64 = 1;
/// `CU_STREAM_PER_THREAD`, `cudaStreamPerThread`: a different stream in each thread.
pub(super) const STREAM_PER_THREAD: u64 = 2;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED`.
pub(super) const ATTRIBUTE_POSIX_FD: u32 = 103;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
pub(super) const ATTRIBUTE_VIRTUAL_MEMORY: u32 = 102;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED` (CUDA 11.0).
pub(super) const ATTRIBUTE_DIRECT_RDMA_WITH_VIRTUAL_MEMORY: u32 = 110;
/// `CU_DEVICE_ATTRIBUTE_PCI_BUS_ID`.
pub(super) const ATTRIBUTE_PCI_BUS: u32 = 33;
/// `CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID`.
pub(super) const ATTRIBUTE_PCI_DEVICE: u32 = 34;
/// `CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID`.
pub(super) const ATTRIBUTE_PCI_DOMAIN: u32 = 50;
/// `CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED` (CUDA 11.2).
pub(super) const ATTRIBUTE_MEMORY_POOLS: u32 = 115;
/// `CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID` (CUDA 12.2): the node nearest to the device, -1 without any.
pub(super) const ATTRIBUTE_HOST_NUMA_ID: u32 = 134;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
pub(super) const ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: u32 = 75;
/// `CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED` (CUDA 12.2).
pub(super) const ATTRIBUTE_HOST_VIRTUAL_MEMORY: u32 = 141;
/// `CU_MEMHOSTALLOC_PORTABLE`: page-locked for all contexts.
pub(super) const HOST_ALLOC_PORTABLE: u32 = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`: devices reach the memory at an address of their own.
pub(super) const HOST_ALLOC_DEVICE_MAP: u32 = 2;
/// `CU_MEMHOSTREGISTER_PORTABLE`: page-locked for all contexts.
pub(super) const HOST_REGISTER_PORTABLE: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(super) const EVENT_DISABLE_TIMING: u32 = 2;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`: the only flag that cuIpcOpenMemHandle accepts.
pub(super) const IPC_LAZY_ENABLE_PEER_ACCESS: u32 = 1;
/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the default stream.
pub(super) const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
pub(super) const CAPTURE_STATUS_NONE: u32 = 0;

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
pub(super) const POOL_RELEASE_THRESHOLD: u32 = 4;

/// `CU_MEMPOOL_ATTR_*_MEM_*` of an attribute.
pub(super) const fn pool_attribute(attribute: PoolAttribute) -> u32 {
    match attribute {
        PoolAttribute::Reserved => 5,
        PoolAttribute::ReservedHigh => 6,
        PoolAttribute::Used => 7,
        PoolAttribute::UsedHigh => 8,
    }
}

/// Every mode that a thread can be in.
pub(super) const CAPTURE_MODES: [CaptureMode; 3] =
    [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

/// `CU_STREAM_CAPTURE_MODE_*` of a mode.
pub(super) const fn capture_mode(mode: CaptureMode) -> u32 {
    match mode {
        CaptureMode::Global => 0,
        CaptureMode::ThreadLocal => 1,
        CaptureMode::Relaxed => 2,
    }
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct MemLocation {
    /// `CUmemLocationType`.
    pub(super) kind: u32,
    /// The device's ordinal, if the location is a device; the number of the node, if the location is a node.
    pub(super) id: c_int,
}

impl MemLocation {
    pub(super) fn device(device: CUdevice) -> Self {
        Self { kind: MEM_LOCATION_TYPE_DEVICE, id: device }
    }

    /// Returns the location of a NUMA node of the machine.
    pub(super) fn node(node: c_int) -> Self {
        Self { kind: MEM_LOCATION_TYPE_HOST_NUMA, id: node }
    }
}

/// `CUmemAllocationProp` with the `allocFlags` that CUDA 10.2 still called `reserved`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct MemAllocationProp {
    /// `CUmemAllocationType`.
    pub(super) kind: u32,
    /// `CUmemAllocationHandleType`.
    pub(super) requested_handle_types: u32,
    pub(super) location: MemLocation,
    /// Null on Linux.
    pub(super) win32_handle_meta_data: *mut c_void,
    pub(super) alloc_flags: MemAllocFlags,
}

/// `CUmemAllocationProp::allocFlags`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemAllocFlags {
    pub(super) compression_type: c_uchar,
    /// 1: network cards may read and write the memory directly.
    pub(super) gpu_direct_rdma_capable: c_uchar,
    pub(super) usage: c_ushort,
    pub(super) reserved: [c_uchar; 4],
}

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IpcMemHandle {
    pub(super) reserved: [c_uchar; 64],
}

/// `CUmodule` and `CUfunction`, opaque pointers.
pub(super) type CUmodule = *mut c_void;
pub(super) type CUfunction = *mut c_void;

/// `CUmemoryPool`, an opaque pointer, which `cuda-driver-sys` does not have yet.
pub(super) type CUmemoryPool = *mut c_void;

/// `CUmemPoolProps`: 88 bytes in every version of CUDA that has this struct. The last fields were all reserved at
/// first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct MemPoolProps {
    /// `CUmemAllocationType`.
    pub(super) kind: u32,
    /// `CUmemAllocationHandleType`: the form in which the memory can be exported.
    pub(super) handle_types: u32,
    pub(super) location: MemLocation,
    /// Null on Linux.
    pub(super) win32_security_attributes: *mut c_void,
    /// The most bytes of the pool; 0: the driver's choice (CUDA 12.2).
    pub(super) max_size: usize,
    pub(super) usage: c_ushort,
    pub(super) reserved: [c_uchar; 54],
}

impl MemPoolProps {
    /// Describes a pool on one device, whose memory no other process can import.
    pub(super) fn on_device(device: CUdevice) -> Self {
        Self {
            kind: MEM_ALLOCATION_TYPE_PINNED,
            handle_types: MEM_HANDLE_TYPE_NONE,
            location: MemLocation::device(device),
            win32_security_attributes: std::ptr::null_mut(),
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct MemAccessDesc {
    pub(super) location: MemLocation,
    /// `CUmemAccess_flags`.
    pub(super) flags: u32,
}

impl MemAllocationProp {
    /// Describes page-locked host memory, on one NUMA node.
    pub(super) fn on_node(node: c_int) -> Self {
        Self { location: MemLocation::node(node), ..Self::on_device(0, false, false) }
    }

    /// Describes memory of one device, which other processes can import only if `exportable`.
    pub(super) fn on_device(device: CUdevice, direct_rdma: bool, exportable: bool) -> Self {
        Self {
            kind: MEM_ALLOCATION_TYPE_PINNED,
            requested_handle_types: if exportable { MEM_HANDLE_TYPE_POSIX_FD } else { MEM_HANDLE_TYPE_NONE },
            location: MemLocation::device(device),
            win32_handle_meta_data: std::ptr::null_mut(),
            alloc_flags: MemAllocFlags { gpu_direct_rdma_capable: u8::from(direct_rdma), ..MemAllocFlags::default() },
        }
    }
}

impl MemAccessDesc {
    /// Describes reading and writing by one device, or by the CPU.
    pub(super) fn read_write(location: MemLocation) -> Self {
        Self { location, flags: MEM_ACCESS_READ_WRITE }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use cuda_driver_sys as sys;

    use super::*;

    #[test]
    fn structs_are_laid_out_as_in_cuda() {
        assert_eq!(size_of::<MemLocation>(), size_of::<sys::CUmemLocation>());
        assert_eq!(offset_of!(MemLocation, kind), offset_of!(sys::CUmemLocation, type_));
        assert_eq!(offset_of!(MemLocation, id), offset_of!(sys::CUmemLocation, id));

        assert_eq!(size_of::<MemAllocationProp>(), size_of::<sys::CUmemAllocationProp>());
        assert_eq!(align_of::<MemAllocationProp>(), align_of::<sys::CUmemAllocationProp>());
        assert_eq!(offset_of!(MemAllocationProp, kind), offset_of!(sys::CUmemAllocationProp, type_));
        assert_eq!(
            offset_of!(MemAllocationProp, requested_handle_types),
            offset_of!(sys::CUmemAllocationProp, requestedHandleTypes)
        );
        assert_eq!(offset_of!(MemAllocationProp, location), offset_of!(sys::CUmemAllocationProp, location));
        assert_eq!(
            offset_of!(MemAllocationProp, win32_handle_meta_data),
            offset_of!(sys::CUmemAllocationProp, win32HandleMetaData)
        );
        assert_eq!(offset_of!(MemAllocationProp, alloc_flags), offset_of!(sys::CUmemAllocationProp, reserved));
        assert_eq!(size_of::<MemAllocFlags>(), size_of::<u64>());
        assert_eq!(offset_of!(MemAllocFlags, gpu_direct_rdma_capable), 1);

        assert_eq!(size_of::<IpcMemHandle>(), size_of::<sys::CUipcMemHandle>());
        assert_eq!(align_of::<IpcMemHandle>(), align_of::<sys::CUipcMemHandle>());

        assert_eq!(size_of::<MemAccessDesc>(), size_of::<sys::CUmemAccessDesc>());
        assert_eq!(align_of::<MemAccessDesc>(), align_of::<sys::CUmemAccessDesc>());
        assert_eq!(offset_of!(MemAccessDesc, location), offset_of!(sys::CUmemAccessDesc, location));
        assert_eq!(offset_of!(MemAccessDesc, flags), offset_of!(sys::CUmemAccessDesc, flags));
    }

    /// `cuda-driver-sys` has no such struct; these are the offsets of cuda.h 12.2.
    #[test]
    fn a_pools_description_is_laid_out_as_in_cuda() {
        assert_eq!((size_of::<MemPoolProps>(), align_of::<MemPoolProps>()), (88, 8));
        assert_eq!(offset_of!(MemPoolProps, handle_types), 4);
        assert_eq!(offset_of!(MemPoolProps, location), 8);
        assert_eq!(offset_of!(MemPoolProps, win32_security_attributes), 16);
        assert_eq!(offset_of!(MemPoolProps, max_size), 24);
        assert_eq!(offset_of!(MemPoolProps, usage), 32);
        assert_eq!(PoolAttribute::ALL.map(pool_attribute), [5, 6, 7, 8]);
    }

    #[test]
    fn constants_are_cudas() {
        assert_eq!(MEM_ALLOCATION_TYPE_PINNED, sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as u32);
        assert_eq!(MEM_LOCATION_TYPE_DEVICE, sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32);
        assert_eq!(MEM_ACCESS_READ_WRITE, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32);
        assert_eq!(
            MEM_GRANULARITY_MINIMUM,
            sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM as u32
        );
        assert_eq!(
            ATTRIBUTE_VIRTUAL_MEMORY,
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED as u32
        );
        assert_eq!(MEM_ACCESS_NONE, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE as u32);
        assert_eq!(
            MEM_GRANULARITY_RECOMMENDED,
            sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED as u32
        );
        assert_eq!(
            ATTRIBUTE_POSIX_FD,
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as u32
        );
        assert_eq!(IPC_LAZY_ENABLE_PEER_ACCESS, sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32);
        assert_eq!(EVENT_DISABLE_TIMING, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32);
        assert_eq!(HOST_ALLOC_PORTABLE, sys::CU_MEMHOSTALLOC_PORTABLE);
        assert_eq!(HOST_REGISTER_PORTABLE, sys::CU_MEMHOSTREGISTER_PORTABLE);
        assert_eq!(CAPTURE_STATUS_NONE, sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32);
        use sys::CUstreamCaptureMode as Mode;
        let modes = [
            Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
        ];
        assert_eq!(CAPTURE_MODES.map(capture_mode), modes.map(|mode| mode as u32));
    }

    #[test]
    fn statuses_are_cudas() {
        use crate::Status;
        use sys::CUresult as R;

        let pairs = [
            (Status::SUCCESS, R::CUDA_SUCCESS),
            (Status::INVALID_VALUE, R::CUDA_ERROR_INVALID_VALUE),
            (Status::OUT_OF_MEMORY, R::CUDA_ERROR_OUT_OF_MEMORY),
            (Status::NOT_INITIALIZED, R::CUDA_ERROR_NOT_INITIALIZED),
            (Status::DEINITIALIZED, R::CUDA_ERROR_DEINITIALIZED),
            (Status::NO_DEVICE, R::CUDA_ERROR_NO_DEVICE),
            (Status::INVALID_DEVICE, R::CUDA_ERROR_INVALID_DEVICE),
            (Status::INVALID_CONTEXT, R::CUDA_ERROR_INVALID_CONTEXT),
            (Status::ECC_UNCORRECTABLE, R::CUDA_ERROR_ECC_UNCORRECTABLE),
            (Status::PEER_ACCESS_UNSUPPORTED, R::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED),
            (Status::LAUNCH_TIMEOUT, R::CUDA_ERROR_LAUNCH_TIMEOUT),
            (Status::PEER_ACCESS_ALREADY_ENABLED, R::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
            (Status::CONTEXT_IS_DESTROYED, R::CUDA_ERROR_CONTEXT_IS_DESTROYED),
            (Status::ASSERT, R::CUDA_ERROR_ASSERT),
            (Status::HARDWARE_STACK_ERROR, R::CUDA_ERROR_HARDWARE_STACK_ERROR),
            (Status::ILLEGAL_INSTRUCTION, R::CUDA_ERROR_ILLEGAL_INSTRUCTION),
            (Status::MISALIGNED_ADDRESS, R::CUDA_ERROR_MISALIGNED_ADDRESS),
            (Status::INVALID_ADDRESS_SPACE, R::CUDA_ERROR_INVALID_ADDRESS_SPACE),
            (Status::INVALID_PC, R::CUDA_ERROR_INVALID_PC),
            (Status::LAUNCH_FAILED, R::CUDA_ERROR_LAUNCH_FAILED),
            (Status::INVALID_HANDLE, R::CUDA_ERROR_INVALID_HANDLE),
            (Status::NOT_FOUND, R::CUDA_ERROR_NOT_FOUND),
            (Status::NOT_READY, R::CUDA_ERROR_NOT_READY),
            (Status::ILLEGAL_ADDRESS, R::CUDA_ERROR_ILLEGAL_ADDRESS),
            (Status::NOT_SUPPORTED, R::CUDA_ERROR_NOT_SUPPORTED),
            (Status::STREAM_CAPTURE_UNSUPPORTED, R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
            (Status::STREAM_CAPTURE_INVALIDATED, R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            (Status::UNKNOWN, R::CUDA_ERROR_UNKNOWN),
        ];
        for (ours, theirs) in pairs {
            assert_eq!(ours.0, theirs as u32);
            assert_eq!(ours.name(), Some(format!("{theirs:?}").as_str()));
        }
    }

    #[test]
    fn plain_memory_is_not_exportable() {
        let prop = MemAllocationProp::on_device(3, true, false);
        assert_eq!(prop.requested_handle_types, 0);
        assert_eq!(prop.location.id, 3);
        assert_eq!(prop.alloc_flags.gpu_direct_rdma_capable, 1);
        assert_eq!(MemAllocationProp::on_device(0, false, false).alloc_flags.gpu_direct_rdma_capable, 0);
        let exportable = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as u32;
        assert_eq!(MemAllocationProp::on_device(0, false, true).requested_handle_types, exportable);
    }
}
