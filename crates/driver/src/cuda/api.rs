//! libcuda's entry points, looked up at run time.
//!
//! Owns: the loaded library and its function pointers. The caller must make the device's context current before a call.
//! An old driver lacks newer entry points, so each entry point is optional, and a call of a missing entry point is an
//! error.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::fmt;

use libloading::Library;

use super::error::{CudaLoadError, CudaOpenError, MissingEntryPoint};
use super::ffi::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmemGenericAllocationHandle, CUmemoryPool, CUmodule,
    CUstream, IpcMemHandle, MemAccessDesc, MemAllocationProp, MemPoolProps, RawStatus,
};
use crate::Status;

/// The first name is the name of the driver's library, the second the name in a development package.
#[cfg(target_os = "linux")]
const LIBRARY_NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
#[cfg(not(target_os = "linux"))]
const LIBRARY_NAMES: [&str; 0] = [];

macro_rules! entry_points {
    ($($method:ident = $symbol:literal, $since:literal, ($($argument:ident: $kind:ty),*);)*) => {
        /// The function pointers; `None` where the driver has no such symbol.
        #[derive(Default)]
        pub(super) struct EntryPoints {
            $(pub(super) $method: Option<unsafe extern "C" fn($($kind),*) -> RawStatus>,)*
        }

        impl EntryPoints {
            fn look_up(library: &Library) -> Self {
                Self {
                    $(
                        // SAFETY: the symbol is libcuda's, and the type is that of its declaration in cuda.h, with
                        // enums as the unsigned integers that C passes them as.
                        $method: unsafe { library.get(concat!($symbol, "\0").as_bytes()) }.ok().map(|symbol| *symbol),
                    )*
                }
            }
        }

        #[allow(clippy::too_many_arguments, reason = "the signatures are CUDA's")]
        impl CudaApi {
            $(
                #[doc = concat!("`", $symbol, "`.\n\n# Safety\nAs CUDA demands of the caller: pointers must be valid for")]
                /// what the call reads or writes, and handles be live.
                pub(super) unsafe fn $method(&self $(, $argument: $kind)*) -> Result<Status, MissingEntryPoint> {
                    match self.entry_points.$method {
                        // SAFETY: the library stays loaded for ever; the arguments are the caller's promise.
                        Some(call) => Ok(Status(unsafe { call($($argument),*) })),
                        None => Err(MissingEntryPoint { name: $symbol, since: $since }),
                    }
                }
            )*

            /// Returns an error if the driver lacks this entry point. Returns no error for an entry point that this
            /// crate never calls.
            pub(super) fn need(&self, entry_point: &'static str) -> Result<(), MissingEntryPoint> {
                match entry_point {
                    $($symbol if self.entry_points.$method.is_none() => {
                        Err(MissingEntryPoint { name: $symbol, since: $since })
                    })*
                    _ => Ok(()),
                }
            }

            /// Returns whether the loaded driver has this entry point, such as `cuMemCreate`; `false` for entry points
            /// that this crate never calls.
            #[must_use]
            pub fn has(&self, entry_point: &str) -> bool {
                match entry_point {
                    $($symbol => self.entry_points.$method.is_some(),)*
                    _ => false,
                }
            }
        }
    };
}

entry_points! {
    init = "cuInit", "2.0", (flags: c_uint);
    get_driver_version = "cuDriverGetVersion", "2.2", (version: *mut c_int);
    get_error_name = "cuGetErrorName", "6.0", (status: RawStatus, name: *mut *const c_char);
    device_get_count = "cuDeviceGetCount", "2.0", (count: *mut c_int);
    device_get = "cuDeviceGet", "2.0", (device: *mut CUdevice, ordinal: c_int);
    device_get_name = "cuDeviceGetName", "2.0", (name: *mut c_char, size: c_int, device: CUdevice);
    device_get_attribute = "cuDeviceGetAttribute", "2.0", (value: *mut c_int, attribute: u32, device: CUdevice);
    device_total_mem = "cuDeviceTotalMem_v2", "3.2", (bytes: *mut usize, device: CUdevice);
    device_primary_ctx_retain = "cuDevicePrimaryCtxRetain", "7.0", (context: *mut CUcontext, device: CUdevice);
    device_primary_ctx_release = "cuDevicePrimaryCtxRelease", "7.0", (device: CUdevice);
    device_primary_ctx_release_v2 = "cuDevicePrimaryCtxRelease_v2", "11.0", (device: CUdevice);
    device_can_access_peer = "cuDeviceCanAccessPeer", "4.0", (can: *mut c_int, device: CUdevice, peer: CUdevice);
    ctx_enable_peer_access = "cuCtxEnablePeerAccess", "4.0", (peer: CUcontext, flags: c_uint);
    ctx_disable_peer_access = "cuCtxDisablePeerAccess", "4.0", (peer: CUcontext);
    ctx_get_current = "cuCtxGetCurrent", "4.0", (context: *mut CUcontext);
    ctx_push_current = "cuCtxPushCurrent_v2", "4.0", (context: CUcontext);
    ctx_pop_current = "cuCtxPopCurrent_v2", "4.0", (context: *mut CUcontext);
    mem_get_allocation_granularity = "cuMemGetAllocationGranularity", "10.2",
        (granularity: *mut usize, prop: *const MemAllocationProp, option: u32);
    mem_address_reserve = "cuMemAddressReserve", "10.2",
        (address: *mut CUdeviceptr, size: usize, alignment: usize, hint: CUdeviceptr, flags: c_ulonglong);
    mem_address_free = "cuMemAddressFree", "10.2", (address: CUdeviceptr, size: usize);
    mem_create = "cuMemCreate", "10.2",
        (handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const MemAllocationProp, flags: c_ulonglong);
    mem_release = "cuMemRelease", "10.2", (handle: CUmemGenericAllocationHandle);
    mem_map = "cuMemMap", "10.2",
        (address: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong);
    mem_unmap = "cuMemUnmap", "10.2", (address: CUdeviceptr, size: usize);
    mem_set_access = "cuMemSetAccess", "10.2",
        (address: CUdeviceptr, size: usize, access: *const MemAccessDesc, count: usize);
    mem_get_address_range = "cuMemGetAddressRange_v2", "3.2",
        (start: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr);
    mem_retain_allocation_handle = "cuMemRetainAllocationHandle", "11.0",
        (handle: *mut CUmemGenericAllocationHandle, address: *mut c_void);
    mem_export_to_shareable_handle = "cuMemExportToShareableHandle", "10.2",
        (shareable: *mut c_void, handle: CUmemGenericAllocationHandle, kind: u32, flags: c_ulonglong);
    mem_import_from_shareable_handle = "cuMemImportFromShareableHandle", "10.2",
        (handle: *mut CUmemGenericAllocationHandle, shareable: *mut c_void, kind: u32);
    ipc_get_mem_handle = "cuIpcGetMemHandle", "4.1", (memory: *mut IpcMemHandle, address: CUdeviceptr);
    ipc_open_mem_handle = "cuIpcOpenMemHandle_v2", "11.0",
        (address: *mut CUdeviceptr, memory: IpcMemHandle, flags: c_uint);
    ipc_close_mem_handle = "cuIpcCloseMemHandle", "4.1", (address: CUdeviceptr);
    mem_alloc = "cuMemAlloc_v2", "3.2", (address: *mut CUdeviceptr, size: usize);
    mem_free = "cuMemFree_v2", "3.2", (address: CUdeviceptr);
    mem_host_alloc = "cuMemHostAlloc", "2.2", (address: *mut *mut c_void, size: usize, flags: c_uint);
    mem_free_host = "cuMemFreeHost", "2.0", (address: *mut c_void);
    mem_host_register = "cuMemHostRegister_v2", "6.5", (address: *mut c_void, size: usize, flags: c_uint);
    mem_host_unregister = "cuMemHostUnregister", "4.0", (address: *mut c_void);
    mem_pool_create = "cuMemPoolCreate", "11.2", (pool: *mut CUmemoryPool, props: *const MemPoolProps);
    mem_pool_destroy = "cuMemPoolDestroy", "11.2", (pool: CUmemoryPool);
    mem_pool_set_attribute = "cuMemPoolSetAttribute", "11.2",
        (pool: CUmemoryPool, attribute: u32, value: *mut c_void);
    mem_pool_get_attribute = "cuMemPoolGetAttribute", "11.2",
        (pool: CUmemoryPool, attribute: u32, value: *mut c_void);
    mem_pool_trim_to = "cuMemPoolTrimTo", "11.2", (pool: CUmemoryPool, keep: usize);
    mem_alloc_from_pool_async = "cuMemAllocFromPoolAsync", "11.2",
        (address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream);
    mem_free_async = "cuMemFreeAsync", "11.2", (address: CUdeviceptr, stream: CUstream);
    mem_get_info = "cuMemGetInfo_v2", "3.2", (free: *mut usize, total: *mut usize);
    memset_d8_async = "cuMemsetD8Async", "3.2",
        (address: CUdeviceptr, value: c_uchar, bytes: usize, stream: CUstream);
    memcpy_dtoh_async = "cuMemcpyDtoHAsync_v2", "3.2",
        (host: *mut c_void, address: CUdeviceptr, bytes: usize, stream: CUstream);
    memcpy_htod_async = "cuMemcpyHtoDAsync_v2", "3.2",
        (address: CUdeviceptr, host: *const c_void, bytes: usize, stream: CUstream);
    memcpy_async = "cuMemcpyAsync", "4.0",
        (to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    event_create = "cuEventCreate", "2.0", (event: *mut CUevent, flags: c_uint);
    event_destroy = "cuEventDestroy_v2", "4.0", (event: CUevent);
    event_record = "cuEventRecord", "2.0", (event: CUevent, stream: CUstream);
    event_query = "cuEventQuery", "2.0", (event: CUevent);
    event_synchronize = "cuEventSynchronize", "2.0", (event: CUevent);
    stream_wait_event = "cuStreamWaitEvent", "3.2", (stream: CUstream, event: CUevent, flags: c_uint);
    stream_create = "cuStreamCreate", "2.0", (stream: *mut CUstream, flags: c_uint);
    stream_destroy = "cuStreamDestroy_v2", "4.0", (stream: CUstream);
    stream_synchronize = "cuStreamSynchronize", "2.0", (stream: CUstream);
    stream_query = "cuStreamQuery", "2.0", (stream: CUstream);
    stream_get_flags = "cuStreamGetFlags", "5.5", (stream: CUstream, flags: *mut c_uint);
    stream_get_id = "cuStreamGetId", "12.0", (stream: CUstream, id: *mut c_ulonglong);
    stream_is_capturing = "cuStreamIsCapturing", "10.0", (stream: CUstream, status: *mut u32);
    thread_exchange_stream_capture_mode = "cuThreadExchangeStreamCaptureMode", "10.1", (mode: *mut u32);
    ctx_synchronize = "cuCtxSynchronize", "2.0", ();
    module_load_data = "cuModuleLoadData", "2.0", (module: *mut CUmodule, image: *const c_void);
    module_unload = "cuModuleUnload", "2.0", (module: CUmodule);
    module_get_function = "cuModuleGetFunction", "2.0",
        (function: *mut CUfunction, module: CUmodule, name: *const c_char);
    launch_kernel = "cuLaunchKernel", "4.0",
        (function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
         block_z: c_uint, shared: c_uint, stream: CUstream, arguments: *mut *mut c_void, extra: *mut *mut c_void);
    mem_host_get_device_pointer = "cuMemHostGetDevicePointer_v2", "3.2",
        (address: *mut CUdeviceptr, host: *mut c_void, flags: c_uint);
}

/// The version of CUDA that a driver supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion {
    /// The major version: 12 in 12.4.
    pub major: u32,
    /// The minor version: 4 in 12.4.
    pub minor: u32,
}

impl CudaVersion {
    /// Converts the number of `cuDriverGetVersion`: 1000 × major + 10 × minor.
    fn from_raw(raw: c_int) -> Self {
        let raw = u32::try_from(raw).unwrap_or(0);
        Self { major: raw / 1000, minor: raw % 1000 / 10 }
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// libcuda, loaded.
pub struct CudaApi {
    entry_points: EntryPoints,
    name: &'static str,
}

impl CudaApi {
    /// Loads the driver's library: `libcuda.so.1`, or else `libcuda.so`. Queries no device.
    ///
    /// # Errors
    /// [`CudaLoadError::NotFound`] if there is no driver; [`CudaLoadError::UnsupportedPlatform`] on other systems than
    /// Linux.
    pub fn load() -> Result<Self, CudaLoadError> {
        Self::load_first_of(&LIBRARY_NAMES)
    }

    fn load_first_of(names: &[&'static str]) -> Result<Self, CudaLoadError> {
        if names.is_empty() {
            return Err(CudaLoadError::UnsupportedPlatform);
        }
        let mut answers = Vec::new();
        for &name in names {
            // SAFETY: libcuda's initialisers have no precondition, and it is never unloaded.
            match unsafe { Library::new(name) } {
                Ok(library) => {
                    let entry_points = EntryPoints::look_up(&library);
                    // The library is never unloaded: libcuda starts threads and exit handlers of its own, whose code
                    // must stay.
                    std::mem::forget(library);
                    return Ok(Self { entry_points, name });
                }
                Err(error) => answers.push(error.to_string()),
            }
        }
        Err(CudaLoadError::NotFound { detail: answers.join("; ") })
    }

    /// Makes an API of these functions instead of a loaded library.
    #[cfg(any(test, feature = "fake_libcuda"))]
    pub(super) fn of(entry_points: EntryPoints) -> Self {
        Self { entry_points, name: "fake" }
    }

    /// Returns the version of CUDA that the driver supports, or `None` if the driver does not report it.
    #[must_use]
    pub fn driver_version(&self) -> Option<CudaVersion> {
        let mut raw = 0;
        // SAFETY: the pointer is to a live integer; the call needs neither cuInit nor a context.
        let status = unsafe { self.get_driver_version(&mut raw) };
        matches!(status, Ok(Status::SUCCESS)).then(|| CudaVersion::from_raw(raw))
    }

    /// Returns the driver's name of a status, `CUDA_ERROR_NOT_SUPPORTED`. If the driver has no name for the status,
    /// returns the name that this crate knows, or the number.
    #[must_use]
    pub fn error_name(&self, status: Status) -> String {
        let mut name = std::ptr::null();
        // SAFETY: the pointer is to a live pointer; the call needs neither cuInit nor a context.
        let answer = unsafe { self.get_error_name(status.0, &mut name) };
        if matches!(answer, Ok(Status::SUCCESS)) && !name.is_null() {
            // SAFETY: on success the text is a string constant of the library, which is never unloaded.
            return unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        }
        status.name().map_or_else(|| format!("CUDA error {}", status.0), str::to_owned)
    }

    /// Returns the error of a call that is not counted, such as `cuInit`, unless the call succeeded.
    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<(), CudaOpenError> {
        if status == Status::SUCCESS { Ok(()) } else { Err(self.failed(call, status)) }
    }

    /// Returns the error of a call that failed and is not counted, such as `cuInit`.
    pub(super) fn failed(&self, call: &'static str, status: Status) -> CudaOpenError {
        CudaOpenError::Call { call, status, name: self.error_name(status) }
    }
}

impl fmt::Debug for CudaApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaApi").field("library", &self.name).field("version", &self.driver_version()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_gets_a_clear_error() {
        let error = CudaApi::load_first_of(&["libcuda-of-no-machine.so.1", "libcuda-of-no-machine.so"]).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, CudaLoadError::NotFound { .. }));
        assert!(text.starts_with("no NVIDIA driver found: "), "{text}");
        assert!(text.contains("libcuda-of-no-machine.so.1") && text.contains("; "), "{text}");
    }

    #[test]
    fn no_names_is_an_unsupported_platform() {
        let error = CudaApi::load_first_of(&[]).unwrap_err();
        assert_eq!(error, CudaLoadError::UnsupportedPlatform);
        assert_eq!(error.to_string(), "CUDA is only supported on Linux in this version");
    }

    /// The C library stands for a driver older than all of CUDA's symbols, of which it has none.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_missing_entry_point_is_an_error_at_use() {
        let api = CudaApi::load_first_of(&["libc.so.6"]).unwrap();
        let mut handle = 0;
        // SAFETY: the entry point does not exist, so nothing is called.
        let error = unsafe { api.mem_create(&mut handle, 0, std::ptr::null(), 0) }.unwrap_err();
        assert_eq!(error.to_string(), "libcuda has no cuMemCreate (CUDA 10.2 or newer is needed)");
        assert!(!api.has("cuMemCreate"));
        assert_eq!(api.driver_version(), None);
        assert_eq!(api.error_name(Status::NOT_SUPPORTED), "CUDA_ERROR_NOT_SUPPORTED");
        assert_eq!(api.error_name(Status(34)), "CUDA error 34");
    }

    #[test]
    fn versions_print_as_people_write_them() {
        assert_eq!(CudaVersion::from_raw(13000).to_string(), "13.0");
        assert_eq!(CudaVersion::from_raw(10020).to_string(), "10.2");
        assert!(CudaVersion::from_raw(-1) < CudaVersion::from_raw(12080));
    }
}
