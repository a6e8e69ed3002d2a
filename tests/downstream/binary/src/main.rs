//! A user's program: it must start, and be told clearly, where there is no CUDA.

use seamalloc::driver::cuda::{CudaApi, CudaDriver};

fn main() {
    match CudaApi::load() {
        Ok(api) => println!("driver: {api:?}"),
        Err(error) => println!("no driver: {error}"),
    }
    match CudaDriver::open(0) {
        Ok(device) => println!("device: {}", device.model()),
        Err(error) => println!("no device: {error}"),
    }
}
