//! Measures the cost of an operation when no driver call is needed: by pattern, by thread count, and over whole traces.
//!
//! On the simulated device, or where SEAMALLOC_BENCH_DEVICE=cuda:0 says so on a real one.

#![allow(clippy::expect_used, reason = "a benchmark that cannot run should stop")]
#![allow(clippy::print_stdout, reason = "the table at its end")]

mod stage;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group};
use seamalloc::driver::StreamId;
use seamalloc::{Allocator, Block, StrategyKind};
use seamalloc_trace::recorded;
use stage::{Device, ops_of, pass};
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn options(kind: StrategyKind) -> String {
    format!("strategy:{}", kind.name())
}

/// One block of one size, again and again: the least that an allocation and a free can cost.
fn one_block(c: &mut Criterion) {
    let device = Device::open();
    let mut group = c.benchmark_group("one_block");
    group.throughput(Throughput::Elements(2));
    for kind in StrategyKind::MAIN {
        for size in [600u64, 5 << 20] {
            let allocator = device.allocator(&options(kind));
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

/// Measures the hit path with a block that frees itself, which borrows its allocator or counts its users, beside the
/// raw calls.
fn owned_block(c: &mut Criterion) {
    const SIZE: u64 = 600;
    let device = Device::open();
    let mut group = c.benchmark_group("owned_block");
    group.throughput(Throughput::Elements(2));
    let allocator = Arc::new(device.allocator(&options(StrategyKind::Stitch)));
    let stream = StreamId::DEFAULT;
    group.bench_function("raw", |b| {
        b.iter(|| {
            let address = allocator.allocate(black_box(SIZE), stream).expect("plenty of memory");
            allocator.free(black_box(address)).expect("it is live");
        });
    });
    group.bench_function("borrowed", |b| {
        b.iter(|| black_box(allocator.block(black_box(SIZE), stream).expect("plenty of memory").address()));
    });
    group.bench_function("counted", |b| {
        b.iter(|| {
            let block = Block::new(Arc::clone(&allocator), black_box(SIZE), stream).expect("plenty of memory");
            black_box(block.address())
        });
    });
    group.finish();
}

/// Blocks that are live at once.
const BLOCKS: usize = 256;

/// 512 bytes to 32 MiB, as many in each power of two.
fn size(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
    let power = 9 + (*random >> 33) % 16;
    (1 << power) + (*random >> 40) % (1 << power)
}

/// In which order blocks are freed: the one that was allocated last first, as a backward pass does it; first first; any.
#[derive(Clone, Copy)]
enum Order {
    Stack,
    Queue,
    Random,
}

/// A round: as many frees as allocations, `live` as full after it as before.
fn round(allocator: &Allocator, order: Order, live: &mut [u64], random: &mut u64) {
    let allocate = |random: &mut u64| allocator.allocate(size(random), StreamId::DEFAULT).expect("plenty of memory");
    match order {
        Order::Stack => {
            live.iter().rev().for_each(|address| allocator.free(*address).expect("it is live"));
            live.iter_mut().for_each(|address| *address = allocate(random));
        }
        Order::Queue | Order::Random => {
            for turn in 0..live.len() {
                let at = if matches!(order, Order::Queue) { turn } else { (*random >> 20) as usize % live.len() };
                allocator.free(live[at]).expect("it is live");
                live[at] = allocate(random);
            }
        }
    }
}

/// Many blocks of many sizes, by the order in which they are freed. The sizes repeat, so that nothing grows for ever.
fn patterns(c: &mut Criterion) {
    const SEED: u64 = 1;
    let device = Device::open();
    let mut group = c.benchmark_group("pattern");
    group.throughput(Throughput::Elements(2 * BLOCKS as u64));
    for (name, order) in [("stack", Order::Stack), ("queue", Order::Queue), ("random", Order::Random)] {
        for kind in StrategyKind::MAIN {
            let allocator = device.allocator(&options(kind));
            let mut live = vec![0; BLOCKS];
            // Twice, so that each round finds the places that the one before it left.
            for _ in 0..2 {
                round(&allocator, order, &mut live, &mut SEED.clone());
            }
            group.bench_function(BenchmarkId::new(name, kind.name()), |b| {
                b.iter(|| round(&allocator, order, &mut live, &mut SEED.clone()));
            });
            live.into_iter().for_each(|address| allocator.free(address).expect("it is live"));
        }
    }
    group.finish();
}

/// Threads with a stream each, on one allocator.
fn threads(c: &mut Criterion) {
    let device = Device::open();
    let mut group = c.benchmark_group("threads");
    for kind in [StrategyKind::Caching, StrategyKind::Stitch] {
        for threads in [1, 2, 4] {
            group.throughput(Throughput::Elements(2 * threads as u64));
            let allocator = device.allocator(&options(kind));
            let streams = device.streams(threads);
            group.bench_with_input(BenchmarkId::new(kind.name(), threads), &streams, |b, streams| {
                b.iter_custom(|rounds| {
                    let start = Instant::now();
                    std::thread::scope(|scope| {
                        for &stream in streams {
                            let allocator = &allocator;
                            scope.spawn(move || {
                                for round in 0..rounds {
                                    let size = 4096 + (round % 64) * 512;
                                    let address = allocator.allocate(size, stream).expect("plenty of memory");
                                    allocator.free(address).expect("it is live");
                                }
                            });
                        }
                    });
                    start.elapsed()
                });
            });
        }
    }
    group.finish();
}

/// Later passes over each recorded job: the mean of an operation in a real mix of sizes.
fn traces(c: &mut Criterion) {
    let device = Device::open();
    let mut group = c.benchmark_group("trace_op");
    group.sample_size(10);
    for job in recorded::JOBS {
        let trace = job.load().expect("it is part of the crate");
        let (ops, streams) = (ops_of(&trace), device.streams(trace.streams.len()));
        group.throughput(Throughput::Elements(ops.len() as u64));
        for kind in StrategyKind::MAIN {
            let allocator = device.allocator(&options(kind));
            let mut addresses = Vec::with_capacity(ops.len());
            // Most views are built in the first pass, some in the second.
            for _ in 0..2 {
                pass(&allocator, &ops, &streams, &mut addresses, |op| op());
            }
            group.bench_function(BenchmarkId::new(kind.name(), job.name), |b| {
                b.iter(|| pass(&allocator, &ops, &streams, &mut addresses, |op| op()));
            });
        }
    }
    group.finish();
}

/// The first pass over a recorded job, growth included.
fn first_pass(c: &mut Criterion) {
    const JOB: &str = "gpt2xl-N";
    let device = Device::open();
    let mut group = c.benchmark_group("first_pass_op");
    group.sample_size(10);
    let trace = recorded::find(JOB).and_then(|job| job.load().ok()).expect("it is part of the crate");
    let (ops, streams) = (ops_of(&trace), device.streams(trace.streams.len()));
    group.throughput(Throughput::Elements(ops.len() as u64));
    for kind in StrategyKind::MAIN {
        let mut addresses = Vec::with_capacity(ops.len());
        group.bench_function(BenchmarkId::new(kind.name(), JOB), |b| {
            // The allocator is dropped outside of the measurement.
            b.iter_batched(
                || device.allocator(&options(kind)),
                |allocator| {
                    pass(&allocator, &ops, &streams, &mut addresses, |op| op());
                    allocator
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn short() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1))
}

criterion_group!(name = benches; config = short(); targets = one_block, owned_block, patterns, threads, traces, first_pass);

fn main() {
    benches();
    Criterion::default().configure_from_args().final_summary();
    beside_caching();
}

/// Prints the means that criterion has stored, each strategy beside plain cudaMalloc caching: nanoseconds of an allocation or a
/// free.
fn beside_caching() {
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("../target"), PathBuf::from);
    println!("\n{:<40}{:>12}{:>12}{:>12}", "ns an operation", "caching", "expandable", "stitch");
    for (group, cases) in
        [("one_block", vec!["600", "5242880"]), ("trace_op", recorded::JOBS.iter().map(|job| job.name).collect())]
    {
        for case in cases {
            let mean = |kind: &str| {
                let path = folder.join("criterion").join(group).join(kind).join(case);
                let read = |name: &str| serde_json::from_slice(&std::fs::read(path.join("new").join(name)).ok()?).ok();
                let estimates: serde_json::Value = read("estimates.json")?;
                let benchmark: serde_json::Value = read("benchmark.json")?;
                Some(estimates["mean"]["point_estimate"].as_f64()? / benchmark["throughput"]["Elements"].as_f64()?)
            };
            let cells = ["caching", "expandable", "stitch"].map(mean);
            if cells.iter().any(Option::is_some) {
                let shown = cells.map(|cell| cell.map_or("-".to_owned(), |ns| format!("{ns:.1}")));
                println!("{:<40}{:>12}{:>12}{:>12}", format!("{group} {case}"), shown[0], shown[1], shown[2]);
            }
        }
    }
}
