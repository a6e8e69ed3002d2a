//! Measures the cost of a miss, by the number of chunks in it: a view stitched from what is free, and memory grown.
//!
//! On the simulated device it is our own time and that of the simulation; where SEAMALLOC_BENCH_DEVICE=cuda:0 says so it
//! is the driver's too.

#![allow(clippy::expect_used, reason = "a benchmark that cannot run should stop")]

mod stage;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Driver, StreamId};
use seamalloc::{Allocator, Config};
use stage::Device;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Of a chunk in these benchmarks: the smallest there are, so that any device has enough for many.
const CHUNK: u64 = 2 << 20;
const OPTIONS: &str = "strategy:stitch,chunk_size_mb:2";
const CHUNKS: [u64; 5] = [1, 4, 16, 64, 256];

fn allocator_on(driver: &Arc<dyn Driver>) -> Allocator {
    let options = Config::parse(OPTIONS).expect("valid options");
    Allocator::new(Arc::clone(driver), options).expect("a device with virtual memory")
}

fn allocate(allocator: &Allocator, chunks: u64) -> u64 {
    allocator.allocate(chunks * CHUNK, StreamId::DEFAULT).expect("plenty of memory")
}

/// The mean over `rounds` of one allocation each, on an allocator that `prepare` has filled; what it returns is freed at
/// the end, all outside of the measurement.
fn time(device: &Device, rounds: u64, chunks: u64, prepare: impl Fn(&Allocator) -> Vec<u64>) -> Duration {
    let mut taken = Duration::ZERO;
    let driver = device.driver();
    for _ in 0..rounds {
        let allocator = allocator_on(&driver);
        let live = prepare(&allocator);
        let start = Instant::now();
        let address = allocate(&allocator, chunks);
        taken += start.elapsed();
        live.into_iter().chain([address]).for_each(|address| allocator.free(address).expect("it is live"));
    }
    taken
}

/// Every other chunk is free, as many as are needed: no two are neighbours, and no view is there yet.
fn comb(allocator: &Allocator, chunks: u64) -> Vec<u64> {
    let all: Vec<u64> = (0..2 * chunks).map(|_| allocate(allocator, 1)).collect();
    all.iter().step_by(2).for_each(|address| allocator.free(*address).expect("it is live"));
    let live: Vec<u64> = all.into_iter().skip(1).step_by(2).collect();
    assert_eq!(allocator.stats().views_built, 0, "nothing is stitched yet");
    live
}

fn stitched(c: &mut Criterion) {
    let device = Device::open();
    let mut group = c.benchmark_group("miss_stitched");
    group.sample_size(10);
    for chunks in CHUNKS.into_iter().filter(|chunks| *chunks > 1) {
        let allocator = allocator_on(&device.driver());
        let live = comb(&allocator, chunks);
        let before = allocator.reports().reserved();
        let address = allocate(&allocator, chunks);
        assert_eq!(
            (allocator.stats().views_built, allocator.reports().reserved()),
            (1, before),
            "one view, and no new memory"
        );
        live.into_iter().chain([address]).for_each(|address| allocator.free(address).expect("it is live"));
        drop(allocator);
        group.throughput(Throughput::Elements(chunks));
        group.bench_with_input(BenchmarkId::from_parameter(chunks), &chunks, |b, &chunks| {
            b.iter_custom(|rounds| time(&device, rounds, chunks, |allocator| comb(allocator, chunks)));
        });
    }
    group.finish();
}

/// After the first growth, which reserves addresses.
fn grown(c: &mut Criterion) {
    let device = Device::open();
    let mut group = c.benchmark_group("miss_grown");
    group.sample_size(10);
    for chunks in CHUNKS {
        group.throughput(Throughput::Elements(chunks));
        group.bench_with_input(BenchmarkId::from_parameter(chunks), &chunks, |b, &chunks| {
            b.iter_custom(|rounds| time(&device, rounds, chunks, |allocator| vec![allocate(allocator, 1)]));
        });
    }
    group.finish();
}

/// A request that fits no free range, served by a view that is there, and its free: beside so many other free ranges, on a
/// simulated device that has room for them.
fn reused(c: &mut Criterion) {
    let mut group = c.benchmark_group("reused_view_beside_ranges");
    group.sample_size(10);
    for ranges in [10, 1_000, 40_000] {
        let gpu = SimGpu::new(SimConfig::parse("sim:h200,capacity=1TiB").expect("a device")).expect("its memory");
        let allocator = allocator_on(&(Arc::new(gpu) as Arc<dyn Driver>));
        let live = comb(&allocator, ranges);
        let round = || {
            let address = allocate(&allocator, 2);
            allocator.free(address).expect("it is live");
        };
        round();
        group.bench_function(BenchmarkId::from_parameter(ranges), |b| b.iter(round));
        assert_eq!(allocator.stats().views_built, 1, "the view serves every time");
        live.into_iter().for_each(|address| allocator.free(address).expect("it is live"));
    }
    group.finish();
}

/// Of what is measured: to prepare it takes many times as long.
fn short() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(10)).measurement_time(Duration::from_millis(50))
}

criterion_group!(name = benches; config = short(); targets = stitched, grown, reused);
criterion_main!(benches);
