//! Steps of 64 large requests, each freed in the opposite order, over and over: what an operation costs that follows a plan.
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config};
use seamalloc_plan::online::Inline;
use std::sync::Arc;

fn main() {
    let mut args = std::env::args().skip(1);
    let (steps, form) = (args.next().unwrap().parse::<u64>().unwrap(), args.next().unwrap());
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
    let strategy = if form == "stitch" { "strategy:stitch" } else { "strategy:planned" };
    let allocator = Allocator::new(gpu, Config::parse(strategy).unwrap()).unwrap();
    if form == "planned" {
        allocator.set_planner(Box::<Inline>::default());
    }
    let mut live = Vec::with_capacity(64);
    for _ in 0..steps {
        for n in 0..64_u64 {
            live.push(allocator.allocate((2 + n * 7 % 31) << 20, StreamId::DEFAULT).unwrap());
        }
        while let Some(address) = live.pop() {
            allocator.free(address).unwrap();
        }
    }
    let plans = allocator.stats().plans;
    eprintln!("{form}: {plans:?}");
}
