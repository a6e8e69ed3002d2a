//! Blocks of random sizes that live for random times under a limit a fifth above the live bytes: what a miss costs, the simulator's part included.
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config};
use std::sync::Arc;

fn main() {
    let steps = std::env::args().nth(1).unwrap().parse::<u64>().unwrap();
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
    let allocator = Allocator::new(gpu, Config::parse("strategy:stitch,memory_limit:4GiB").unwrap()).unwrap();
    let (mut live, mut state) = (Vec::with_capacity(256), 12345_u64);
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    for _ in 0..steps {
        while live.len() >= 180 {
            let address = live.swap_remove(random(live.len() as u64) as usize);
            allocator.free(address).unwrap();
        }
        let size = (2 << 20) + random(34 << 20);
        live.push(allocator.allocate(size, StreamId::DEFAULT).unwrap());
    }
    let stats = allocator.stats();
    if std::env::args().nth(2).is_some() {
        println!("misses {} of {} views {}", stats.stalls.count, stats.allocation.all.allocated, stats.views_built);
    }
}
