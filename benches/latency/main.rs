//! Measures single operations: hits by percentile, threads by throughput, misses by our own time.
//!
//! `cargo bench -p seamalloc-benches --bench latency -- [hits] [threads] [misses] [TRACE]...`; without names all of them on all recorded jobs.
//! The clock is read before and after each operation; what two reads in a row take (the median, printed first) is taken
//! off. Figures of a machine that does other things too are too high, the mean and the largest ones by much: each
//! percentile is the median of ten passes, mean and maximum are those of the quietest.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "a benchmark prints, and one that cannot run should stop")]

#[path = "../../tests/common/instrumented.rs"]
mod instrumented;
#[path = "../stage/mod.rs"]
mod stage;

use instrumented::Instrumented;
use seamalloc::driver::Driver;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config, StrategyKind};
use seamalloc_trace::recorded;
use seamalloc_trace::workload::{self, Scale};
use stage::{ops_of, pass};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Passes over a trace that are measured, after a first one.
const PASSES: usize = 10;
/// Operations of each thread.
const OPS_PER_THREAD: u64 = 1_000_000;
/// How many threads there are, each with a stream of its own.
const THREADS: [u64; 5] = [1, 2, 4, 8, 16];
/// Generated patterns that miss often.
const MISSING: [&str; 7] = ["comb", "sawtooth", "creeping", "ping-pong", "dtr-chain", "dtr-tree", "kv-batch"];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let (parts, names): (Vec<_>, Vec<_>) =
        args.into_iter().partition(|arg| ["hits", "threads", "misses"].contains(&arg.as_str()));
    let runs = |part: &str| parts.is_empty() || parts.iter().any(|name| name == part);
    if runs("hits") {
        hits(&names);
    }
    if runs("threads") {
        threads();
    }
    if runs("misses") {
        misses(&names);
    }
}

fn device() -> Arc<SimGpu> {
    let config = SimConfig { calls_advance_clock: false, ..SimConfig::parse("sim:h200").expect("a known device") };
    Arc::new(SimGpu::new(config).expect("a valid device"))
}

/// Returns the time that reading the clock twice in a row takes, in nanoseconds.
fn clock_overhead() -> u64 {
    let mut taken: Vec<u64> = (0..100_000).map(|_| since(Instant::now())).collect();
    percentile(&mut taken, 0.5)
}

fn since(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

fn percentile(sorted: &mut [u64], part: f64) -> u64 {
    sorted.sort_unstable();
    sorted[((sorted.len() - 1) as f64 * part) as usize]
}

fn hits(names: &[String]) {
    let overhead = clock_overhead();
    println!("hits: strategy stitch, passes 2 to {}, ns an operation; {overhead} ns of clock taken off", PASSES + 1);
    println!("{:<16}{:>10}{:>8}{:>8}{:>8}{:>8}{:>10}", "trace", "ops", "mean", "p50", "p99", "p99.9", "max");
    for job in recorded::JOBS.iter().filter(|job| names.is_empty() || names.iter().any(|name| name == job.name)) {
        let trace = job.load().expect("it is part of the crate");
        let (ops, streams) = (ops_of(&trace), &trace.streams);
        let allocator = Allocator::new(device(), Config::with_strategy(StrategyKind::Stitch)).expect("valid options");
        let mut addresses = Vec::with_capacity(ops.len());
        pass(&allocator, &ops, streams, &mut addresses, |op| op());
        let mut figures: [Vec<u64>; 5] = Default::default();
        let mut taken = Vec::with_capacity(ops.len());
        for _ in 0..PASSES {
            let start = Instant::now();
            pass(&allocator, &ops, streams, &mut addresses, |op| op());
            figures[0].push(since(start) * 10 / ops.len() as u64);
            taken.clear();
            pass(&allocator, &ops, streams, &mut addresses, |op| {
                let start = Instant::now();
                op();
                taken.push(since(start).saturating_sub(overhead));
            });
            for (figure, part) in figures[1..].iter_mut().zip([0.5, 0.99, 0.999, 1.0]) {
                figure.push(percentile(&mut taken, part));
            }
        }
        let [mean, max] = [0, 4].map(|figure: usize| percentile(&mut figures[figure], 0.0));
        let [p50, p99, p999] = [1, 2, 3].map(|figure: usize| percentile(&mut figures[figure], 0.5));
        let mean = mean as f64 / 10.0;
        println!("{:<16}{:>10}{mean:>8.1}{p50:>8}{p99:>8}{p999:>8}{max:>10}", job.name, ops.len());
    }
    println!();
}

/// Threads with a stream each, on one allocator: each has some dozen blocks of many sizes, and replaces one after another.
fn threads() {
    println!("threads: operations a second, of all threads together, in millions; a stream each");
    println!("{:<16}{}", "blocks", THREADS.map(|threads| format!("{threads:>10}")).concat());
    for (name, least, most) in [("up to 64 KiB", 512, 64 << 10), ("1 to 64 MiB", 1 << 20, 64 << 20)] {
        print!("{name:<16}");
        for threads in THREADS {
            let config = Config::with_strategy(StrategyKind::Stitch);
            let allocator = Allocator::new(device(), config).expect("valid options");
            let mut rates: Vec<u64> = (0..3).map(|_| throughput(&allocator, threads, least, most)).collect();
            print!("{:>10.1}", percentile(&mut rates, 0.5) as f64 / 1e6);
        }
        println!();
    }
    println!();
}

/// Operations a second.
fn throughput(allocator: &Allocator, threads: u64, least: u64, most: u64) -> u64 {
    let barrier = Barrier::new(threads as usize);
    let work = |stream: StreamId| -> (Instant, Instant) {
        let mut live = [0u64; 48];
        let mut random = stream.0 + 1;
        let mut replace = |round: u64| {
            random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            let size = least + (random >> 33) % (most - least);
            let slot = &mut live[(round % 48) as usize];
            allocator.free(*slot).expect("it is live");
            *slot = allocator.allocate(black_box(size), stream).expect("plenty of memory");
        };
        (0..100_000).for_each(&mut replace);
        barrier.wait();
        let begin = Instant::now();
        (0..OPS_PER_THREAD / 2).for_each(&mut replace);
        let end = Instant::now();
        // No thread stops before all have ended: none is measured while others rest.
        barrier.wait();
        live.into_iter().for_each(|address| allocator.free(address).expect("it is live"));
        (begin, end)
    };
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|stream| scope.spawn(move || work(StreamId(stream)))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread fails")).collect()
    });
    let begin = times.iter().map(|(begin, _)| *begin).min();
    let end = times.iter().map(|(_, end)| *end).max();
    let taken = begin.zip(end).map_or(Duration::ZERO, |(begin, end)| end - begin);
    (threads * OPS_PER_THREAD) * 1_000_000_000 / taken.as_nanos().max(1) as u64
}

/// The time of this machine that driver calls take.
#[derive(Default)]
struct Clock {
    calls: AtomicU64,
    ns: AtomicU64,
}

impl Clock {
    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn ns(&self) -> u64 {
        self.ns.load(Ordering::Relaxed)
    }
}

/// A call that is under way.
struct Call(Instant, Arc<Clock>);

impl Drop for Call {
    fn drop(&mut self) {
        self.1.ns.fetch_add(since(self.0), Ordering::Relaxed);
        self.1.calls.fetch_add(1, Ordering::Relaxed);
    }
}

/// Our own time in operations that call the driver: without the time in the simulated driver.
fn misses(names: &[String]) {
    println!("misses: strategy stitch, first pass; our own time in operations that call the driver, in us");
    println!("{:<16}{:>8}{:>8}{:>8}{:>8}{:>8}{:>12}", "trace", "misses", "mean", "p50", "p99", "max", "driver mean");
    let recorded = recorded::JOBS.iter().map(|job| job.name);
    for name in recorded.chain(MISSING).filter(|name| names.is_empty() || names.iter().any(|wanted| wanted == name)) {
        let trace = match recorded::find(name) {
            Some(job) => job.load().expect("it is part of the crate"),
            None => workload::find(name).expect("it is in the catalogue").generate(0, Scale::default()).expect("valid"),
        };
        let ops = ops_of(&trace);
        let (gpu, clock) = (device(), Arc::new(Clock::default()));
        let begin = {
            let clock = Arc::clone(&clock);
            move || Call(Instant::now(), Arc::clone(&clock))
        };
        let driver: Arc<dyn Driver> = Arc::new(Instrumented { gpu: Arc::clone(&gpu), begin });
        let allocator = Allocator::new(driver, Config::with_strategy(StrategyKind::Stitch)).expect("valid options");
        let mut taken = Vec::new();
        let mut simulated = 0;
        pass(&allocator, &ops, &trace.streams, &mut Vec::new(), |op| {
            let (calls, driver, busy) = (clock.calls(), clock.ns(), gpu.busy_ns());
            let start = Instant::now();
            op();
            let total = since(start);
            if clock.calls() > calls {
                taken.push(total.saturating_sub(clock.ns() - driver));
                simulated += gpu.busy_ns() - busy;
            }
        });
        let count = taken.len().max(1) as u64;
        let mean = taken.iter().sum::<u64>() / count;
        taken.resize(taken.len().max(1), 0);
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|part| percentile(&mut taken, part));
        let [mean, p50, p99, max, driver] = [mean, p50, p99, max, simulated / count].map(|ns| ns as f64 / 1e3);
        println!("{name:<16}{count:>8}{mean:>8.1}{p50:>8.1}{p99:>8.1}{max:>8.1}{driver:>12.1}");
    }
}
