//! Steps of 64 large requests, each freed in the opposite order, over and over: what an operation costs.
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config};
use std::sync::Arc;

fn main() {
    let steps = std::env::args().nth(1).unwrap().parse::<u64>().unwrap();
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
    let allocator = Allocator::new(gpu, Config::parse("strategy:stitch").unwrap()).unwrap();
    let mut live = Vec::with_capacity(64);
    for _ in 0..steps {
        for n in 0..64_u64 {
            live.push(allocator.allocate((2 + n * 7 % 31) << 20, StreamId::DEFAULT).unwrap());
        }
        while let Some(address) = live.pop() {
            allocator.free(address).unwrap();
        }
    }
}
