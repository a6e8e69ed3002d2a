//! A user's program: it must start, and be told clearly, where there is no CUDA.

use seamalloc::Allocator;
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
    // The build has the default features alone.
    match Allocator::open("sim:h200", "strategy:gmlake") {
        Ok(_) => println!("strategy: gmlake"),
        Err(error) => println!("no strategy: {error}"),
    }
}
