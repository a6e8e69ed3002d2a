//! The calls of libcuda that a program makes and an allocator does not: kernels, graphs, timing.
//!
//! Owns: the function pointers. Handles and addresses are 64-bit integers here: CUDA's handles are pointers, which C passes
//! in the same way on every machine that CUDA runs on.

use crate::gpu::Outcome;
use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `CUresult`.
pub(crate) type RawStatus = u32;

macro_rules! calls {
    ($($name:ident = $symbol:literal ($($kind:ty),*);)*) => {
        /// Entry points; calling one is safe where its arguments are what cuda.h asks for.
        pub(crate) struct Calls { $(pub(crate) $name: unsafe extern "C" fn($($kind),*) -> RawStatus,)* }

        impl Calls {
            /// Loads the driver's library.
            pub(crate) fn load() -> Outcome<Self> {
                // SAFETY: libcuda's initialisers have no precondition.
                let library = unsafe { Library::new("libcuda.so.1") }?;
                let calls = Self {
                    $(
                        // SAFETY: the type is that of the declaration in cuda.h, with handles as integers.
                        $name: *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }?,
                    )*
                };
                // libcuda starts threads and exit handlers of its own, which must find their code.
                std::mem::forget(library);
                Ok(calls)
            }
        }
    };
}

calls! {
    device_get = "cuDeviceGet" (*mut c_int, c_int);
    device_get_attribute = "cuDeviceGetAttribute" (*mut c_int, c_uint, c_int);
    primary_ctx_retain = "cuDevicePrimaryCtxRetain" (*mut u64, c_int);
    ctx_set_current = "cuCtxSetCurrent" (u64);
    module_load_data = "cuModuleLoadData" (*mut u64, *const c_char);
    module_get_function = "cuModuleGetFunction" (*mut u64, u64, *const c_char);
    launch_kernel = "cuLaunchKernel"
        (u64, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, u64, *mut *mut c_void, *mut *mut c_void);
    mem_alloc = "cuMemAlloc_v2" (*mut u64, usize);
    mem_host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    memset_d8_async = "cuMemsetD8Async" (u64, u8, usize, u64);
    memcpy_dtoh_async = "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, u64);
    stream_begin_capture = "cuStreamBeginCapture_v2" (u64, c_uint);
    stream_end_capture = "cuStreamEndCapture" (u64, *mut u64);
    graph_instantiate = "cuGraphInstantiateWithFlags" (*mut u64, u64, u64);
    graph_destroy = "cuGraphDestroy" (u64);
    graph_launch = "cuGraphLaunch" (u64, u64);
    event_create = "cuEventCreate" (*mut u64, c_uint);
    event_record = "cuEventRecord" (u64, u64);
    event_synchronize = "cuEventSynchronize" (u64);
    event_elapsed_time = "cuEventElapsedTime" (*mut f32, u64, u64);
}
