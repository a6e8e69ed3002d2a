//! Memory that the CPU and streams use: when it serves again, and how much of it is held.

use seamalloc::driver::sim::{Range, SimConfig, SimGpu};
use seamalloc::driver::{Driver, StreamId, Streams};
use seamalloc::{Config, Error, HostPool};
use std::collections::HashMap;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const OWN: StreamId = StreamId(1000);
const COPIES: StreamId = StreamId(1);
const KERNELS: StreamId = StreamId(2);
/// A kernel takes so long that the GPU passes nothing by itself.
const LONG: u64 = 1_000_000_000;

fn pool(options: &str) -> (Arc<SimGpu>, HostPool) {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=8GiB").unwrap()).unwrap());
    let driver = Arc::<SimGpu>::clone(&gpu);
    (gpu, HostPool::new(driver, OWN, Config::parse(options).unwrap()).unwrap())
}

fn held(pool: &HostPool) -> u64 {
    pool.allocator().stats().reserved_bytes.all.peak
}

#[test]
fn what_no_stream_uses_serves_at_once() {
    let (_, pool) = pool("");
    let address = pool.allocate(3 * MIB).unwrap();
    pool.free(address).unwrap();
    assert_eq!(pool.allocate(3 * MIB), Ok(address));
}

#[test]
fn what_a_stream_uses_serves_once_it_has_passed() {
    for streams in [&[COPIES][..], &[COPIES, KERNELS], &[StreamId::DEFAULT]] {
        let (gpu, pool) = pool("");
        let address = pool.allocate(3 * MIB).unwrap();
        for &stream in streams {
            gpu.launch(stream, &[Range { address, size: 3 * MIB }], LONG).unwrap();
            pool.record_use(address, stream).unwrap();
        }
        pool.free(address).unwrap();
        for passed in 0..streams.len() {
            let other = pool.allocate(3 * MIB).unwrap();
            assert_ne!(other, address, "{passed} of {streams:?} have passed");
            pool.free(other).unwrap();
            gpu.stream_synchronize(streams[passed]).unwrap();
        }
        // Merged with what lies beside it.
        let all = pool.allocate(6 * MIB).unwrap();
        assert!((all..all + 6 * MIB).contains(&address), "{streams:?}");
        assert!(gpu.faults().is_empty());
    }
}

#[test]
fn a_request_that_nothing_else_serves_waits_for_streams() {
    let (gpu, pool) = pool("memory_limit:64MiB");
    let address = pool.allocate(64 * MIB).unwrap();
    gpu.launch(COPIES, &[Range { address, size: 64 * MIB }], LONG).unwrap();
    pool.record_use(address, COPIES).unwrap();
    pool.free(address).unwrap();
    let again = pool.allocate(48 * MIB).unwrap();
    assert_eq!(again, address, "the copy has ended");
    assert!(matches!(pool.allocate(48 * MIB), Err(Error::OutOfMemory(_))));
    pool.free(again).unwrap();
    pool.allocator().empty_cache().unwrap();
    assert_eq!(gpu.memory_info().unwrap().free, gpu.memory_info().unwrap().total);
}

/// The most bytes that PyTorch's `CachingHostAllocator` holds (aten/src/ATen/core/CachingHostAllocator.h, 2.11): a block for each
/// power of two, which no other size uses.
#[derive(Default)]
struct PowersOfTwo {
    free: HashMap<u64, u64>,
    held: u64,
}

impl PowersOfTwo {
    fn allocate(&mut self, size: u64) {
        let size = size.next_power_of_two();
        match self.free.get_mut(&size).filter(|count| **count > 0) {
            Some(count) => *count -= 1,
            None => self.held += size,
        }
    }

    fn free(&mut self, size: u64) {
        *self.free.entry(size.next_power_of_two()).or_default() += 1;
    }
}

/// A step that offloads activations of each layer in the forward pass, and gets them back in the backward pass; every
/// length of the batch has other sizes.
#[test]
fn offloaded_activations_take_little_more_than_they_have() {
    let (gpu, pool) = pool("");
    let (mut powers, mut most, mut live) = (PowersOfTwo::default(), 0, 0);
    for step in 0..12_u64 {
        let length = [1500, 700, 2040, 1100][step as usize % 4];
        let sizes = (0..24).flat_map(|_| [4096, 11008, 640]).map(|width: u64| width * length * 2);
        let blocks: Vec<(u64, u64)> = sizes
            .map(|size| {
                let address = pool.allocate(size).unwrap();
                powers.allocate(size);
                live += size;
                most = most.max(live);
                gpu.launch(COPIES, &[Range { address, size }], 1000).unwrap();
                pool.record_use(address, COPIES).unwrap();
                (address, size)
            })
            .collect();
        for &(address, size) in blocks.iter().rev() {
            pool.free(address).unwrap();
            powers.free(size);
            live -= size;
        }
        gpu.stream_synchronize(COPIES).unwrap();
    }
    assert!(held(&pool) as f64 <= 1.05 * most as f64, "{} for {most}", held(&pool));
    assert!(powers.held as f64 > 1.5 * most as f64, "{} for {most}", powers.held);
    assert!(gpu.faults().is_empty());
    pool.allocator().reports().check().unwrap();
}

#[test]
fn options_that_look_at_contents_are_refused() {
    for (options, name) in [("split:ungated", "split"), ("guard:on", "guard")] {
        let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
        let refused = HostPool::new(gpu, OWN, Config::parse(options).unwrap()).err().unwrap();
        assert!(refused.to_string().starts_with(&format!("option `{name}` has the value ")), "{refused}");
    }
}

#[test]
fn options_are_checked_without_a_device() {
    assert_eq!(HostPool::check(&Config::default()), Ok(()));
    for (options, name) in [("split:ungated", "split"), ("guard:on", "guard"), ("spill:host=1GiB", "spill")] {
        let refused = HostPool::check(&Config::parse(options).unwrap()).unwrap_err();
        assert!(refused.to_string().starts_with(&format!("option `{name}` has the value ")), "{refused}");
    }
}
