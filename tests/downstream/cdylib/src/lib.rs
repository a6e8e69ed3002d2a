//! A user's shared library: it must load where there is no CUDA.

use seamalloc::driver::cuda::{CudaDriver, CudaOpenError};

/// 1 where a device opens, 0 where there is none, -1 on another error.
#[unsafe(no_mangle)]
pub extern "C" fn downstream_open_device() -> i32 {
    match CudaDriver::open(0) {
        Ok(_) => 1,
        Err(CudaOpenError::Load(_) | CudaOpenError::NoSuchDevice { .. }) => 0,
        Err(_) => -1,
    }
}
