//! The driver's stream-ordered allocator: its pool against an independent model of it, the order of frees, captures, limits, and what
//! its memory cannot do.

mod captures;
mod limits;
mod model;
mod order;
mod refusals;
mod reuse;

use crate::random::Random;
use model::Model;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Call, Driver, StreamId};
use seamalloc::{Allocator, Config};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(8);
const STEPS: u64 = if cfg!(feature = "paranoid") { 400 } else { 3000 };

fn on(device: &str, options: &str) -> (Arc<SimGpu>, Allocator) {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse(device).unwrap()).unwrap());
    let config = Config::parse(&format!("strategy:malloc-async,{options}")).unwrap();
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), config).unwrap();
    (gpu, allocator)
}

fn held(allocator: &Allocator) -> u64 {
    allocator.stats().reserved_bytes.all.current
}

fn calls(gpu: &SimGpu, call: Call) -> u64 {
    gpu.call_stats().get(call).count
}

/// Memory is accounted to the byte, and no kernel or free has met a fault.
fn balanced(gpu: &SimGpu, allocator: &Allocator) {
    let info = gpu.memory_info().unwrap();
    assert_eq!(info.total - info.free, held(allocator));
    allocator.reports().check().unwrap();
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
}

/// Runs a random program on both, and compares every answer: addresses too.
#[test]
fn a_pool_is_the_models_to_the_address() {
    for (seed, capacity) in [(1, 64 << 30), (2, 2 << 30), (3, 640 * MIB), (4, 224 * MIB)] {
        let (gpu, allocator) = on(&format!("sim:h200,capacity={capacity}B"), "");
        let mut model = Model::new(capacity);
        let (mut random, mut live, mut base) = (Random(seed), Vec::new(), None);
        let mut refused = 0;
        for step in 0..STEPS {
            let name = format!("{capacity} bytes, step {step}");
            match random.below(20) {
                0 if step % 50 == 0 => {
                    allocator.empty_cache().unwrap();
                    model.trim();
                }
                0..12 => {
                    let most = [3000, 200 << 10, 3 * MIB, 12 * MIB, 90 * MIB][random.below(5) as usize];
                    let size = 1 + random.below(most);
                    let got = allocator.allocate(size, MAIN).ok();
                    let base = *base.get_or_insert_with(|| got.unwrap());
                    assert_eq!(got.map(|address| address - base), model.allocate(size), "{name}: {size} bytes");
                    match got {
                        Some(address) => live.push((address, address - base)),
                        None => refused += 1,
                    }
                }
                _ if live.is_empty() => {}
                _ => {
                    let (address, place) = live.swap_remove(random.below(live.len() as u64) as usize);
                    allocator.free(address).unwrap();
                    model.free(place);
                }
            }
            assert_eq!(held(&allocator), model.held(), "{name}");
        }
        assert_eq!(refused > 0, capacity < 64 << 30, "{capacity} bytes: {refused} requests were refused");
        balanced(&gpu, &allocator);
        live.into_iter().for_each(|(address, _)| allocator.free(address).unwrap());
        allocator.empty_cache().unwrap();
        assert_eq!(held(&allocator), 0);
        drop(allocator);
        assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
    }
}
