//! What an operation costs when no driver call is needed: by pattern, by thread count, and over whole traces.

#![allow(clippy::expect_used, reason = "a benchmark that cannot run should stop")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use memquilt::driver::StreamId;
use memquilt::driver::sim::{SimConfig, SimGpu};
use memquilt::trace::recorded;
use memquilt::trace::replay::Replayer;
use memquilt::{Allocator, Config, StrategyKind};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn allocator(kind: StrategyKind) -> (Arc<SimGpu>, Allocator) {
    let config = SimConfig { calls_advance_clock: false, ..SimConfig::parse("sim:h200").expect("a known device") };
    let gpu = Arc::new(SimGpu::new(config).expect("a valid device"));
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::with_strategy(kind)).expect("valid options");
    (gpu, allocator)
}

/// One block of one size, again and again: the least that an allocation and a free can cost.
fn one_block(c: &mut Criterion) {
    let mut group = c.benchmark_group("one_block");
    group.throughput(Throughput::Elements(2));
    for kind in StrategyKind::ALL {
        for size in [600u64, 5 << 20] {
            let (_gpu, allocator) = allocator(kind);
            group.bench_with_input(BenchmarkId::new(kind.name(), size), &size, |b, &size| {
                b.iter(|| {
                    let address = allocator.allocate(black_box(size), StreamId::DEFAULT).expect("plenty of memory");
                    allocator.free(address).expect("it is live");
                });
            });
        }
    }
    group.finish();
}

/// Threads with a stream each, on one allocator.
fn threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("threads");
    for threads in [1u64, 2, 4] {
        group.throughput(Throughput::Elements(2 * threads));
        let (_gpu, allocator) = allocator(StrategyKind::Caching);
        group.bench_with_input(BenchmarkId::new("caching", threads), &threads, |b, &threads| {
            b.iter_custom(|rounds| {
                let start = Instant::now();
                std::thread::scope(|scope| {
                    for thread in 0..threads {
                        let allocator = &allocator;
                        scope.spawn(move || {
                            for round in 0..rounds {
                                let size = 4096 + (round % 64) * 512;
                                let address = allocator.allocate(size, StreamId(thread)).expect("plenty of memory");
                                allocator.free(address).expect("it is live");
                            }
                        });
                    }
                });
                start.elapsed()
            });
        });
    }
    group.finish();
}

/// The second and later passes over each recorded job: the mean of an operation in a real mix of sizes.
fn traces(c: &mut Criterion) {
    let mut group = c.benchmark_group("trace_op");
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    for job in recorded::JOBS {
        let trace = job.load().expect("it is part of the crate");
        for kind in StrategyKind::ALL {
            let (gpu, allocator) = allocator(kind);
            let mut replayer = Replayer::new(&trace, allocator, gpu);
            let ops = replayer.pass(1, &mut |_| {}).expect("it fits").ops;
            group.throughput(Throughput::Elements(ops));
            group.bench_function(BenchmarkId::new(kind.name(), job.name), |b| {
                b.iter(|| replayer.pass(2, &mut |_| {}).expect("it fits").ops);
            });
        }
    }
    group.finish();
}

criterion_group!(benches, one_block, threads, traces);
criterion_main!(benches);
