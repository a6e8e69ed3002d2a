//! Utilization and driver calls of a cache that grows by tokens, on a simulated H200.

use seamalloc::driver::Call;
use seamalloc::driver::Driver;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config, Growing, StreamId};
use std::sync::Arc;

const GIB: u64 = 1 << 30;
/// Bytes of a token: 80 layers of 8 heads of 128, keys and values, in 16 bits.
const TOKEN: u64 = 320 << 10;

#[test]
fn a_cache_of_40_gib_grows_by_tokens_with_99_percent_in_use() {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200").unwrap()).unwrap());
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::parse("").unwrap()).unwrap();
    let before = gpu.call_stats();
    let mut cache = Growing::new(&allocator, 40 * GIB, StreamId::DEFAULT).unwrap();
    let (address, tokens) = (cache.address(), 40 * GIB / TOKEN);
    let mut longest = 0;
    for token in 1..=tokens {
        let busy = gpu.busy_ns();
        cache.grow(token * TOKEN).unwrap();
        longest = longest.max(gpu.busy_ns() - busy);
        let (len, held) = (cache.len(), allocator.stats().reserved_bytes.all.current);
        assert_eq!((cache.address(), len, held), (address, token * TOKEN, cache.mapped()));
        // One granule, or a 128th.
        assert!(held - len < (2 << 20) + len / 128, "{held} bytes held for {len}");
        assert!(len < 256 << 20 || len as f64 / held as f64 > 0.99);
    }
    let calls = gpu.call_stats().since(&before);
    let stats = allocator.stats();
    let utilization = cache.len() as f64 / stats.reserved_bytes.all.peak as f64;
    let count = |call: Call| calls.get(call).count;
    eprintln!(
        "{tokens} tokens: utilization {utilization:.5}, creates {}, maps {}, set_access {}, {:.1} ms in the driver, {:.0} us at \
         most",
        count(Call::Create),
        count(Call::Map),
        count(Call::SetAccess),
        calls.total_ns() as f64 / 1e6,
        longest as f64 / 1e3,
    );
    assert!(utilization > 0.99);
    assert_eq!(count(Call::Copy) + count(Call::Unmap), 0, "something was copied, or moved");
    assert!(count(Call::SetAccess) < tokens / 100 && count(Call::Map) < tokens / 40);
    let allocations = stats.allocation.all.current;
    assert!(allocations < tokens / 100, "{allocations} parts");
    allocator.reports().check().unwrap();
    drop(cache);
    assert_eq!(allocator.stats().allocated_bytes.all.current, 0);
    allocator.empty_cache().unwrap();
    drop(allocator);
    assert_eq!(gpu.leaks(), Default::default());
}

#[test]
fn a_cache_grows_through_the_memory_that_a_model_left_in_pieces() {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=48GiB").unwrap()).unwrap());
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::parse("").unwrap()).unwrap();
    let stream = StreamId::DEFAULT;
    // Every other of 440 blocks of 100 MiB goes.
    let blocks: Vec<u64> = (0..440).map(|_| allocator.allocate(100 << 20, stream).unwrap()).collect();
    let held = allocator.stats().reserved_bytes.all.current;
    blocks.iter().step_by(2).for_each(|address| allocator.free(*address).unwrap());
    let mut cache = Growing::new(&allocator, 40 * GIB, stream).unwrap();
    let mut most = 0;
    while cache.grow(most + TOKEN).is_ok() {
        most += TOKEN;
    }
    let stats = allocator.stats();
    let live = most + 220 * (100 << 20);
    let utilization = live as f64 / stats.reserved_bytes.all.peak as f64;
    eprintln!("{most} bytes grew into what is free; utilization {utilization:.5}");
    assert!(utilization > 0.99, "{utilization}");
    assert!(stats.reserved_bytes.all.peak - held <= 48 * GIB - held);
    allocator.reports().check().unwrap();
}
