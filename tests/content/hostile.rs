//! Figures at the ends of their types, and calls without sense: an error may be the answer, and never a panic. What each
//! strategy does with drivers that lie is in `contract/hostile.rs`.

use crate::liar::Liar;
use crate::random::Random;
use crate::simulated;
use seamalloc::driver::sim::{CaptureMode, Range, SimConfig, SimGpu};
use seamalloc::driver::{Call, CallStats, EventId, Events, Handle, PlainMemory, StreamId, Streams, VirtualMemory};
use seamalloc::observer::{Action, Event, Observer};
use seamalloc::rounding::{ROUNDUP_INTERVALS, round_size, segment_size};
use seamalloc::{Allocator, Config, Error, OutOfMemory, PoolId, SegmentSource, Segments, SourceError, StrategyKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;

#[test]
fn what_was_ever_allocated_may_exceed_64_bits() {
    // Each grants 2^60 bytes, which are given back at once: after 16 of them 2^64 were allocated in all.
    let driver = Arc::new(Liar::of_memory(u64::MAX, 2 * MIB));
    let allocator = Allocator::new(driver, Config::with_strategy(StrategyKind::Caching)).unwrap();
    for _ in 0..3 {
        for _ in 0..20 {
            let address = allocator.allocate(1 << 59, MAIN).unwrap();
            allocator.free(address).unwrap();
        }
        allocator.reports().check().unwrap();
        let stats = allocator.stats();
        let bytes = stats.allocated_bytes.all;
        assert_eq!((bytes.current, bytes.peak), (0, 1 << 59));
        assert_eq!(bytes.allocated.wrapping_sub(bytes.freed), 0);
    }
    allocator.reports().reset_accumulated();
    assert_eq!(allocator.stats().allocated_bytes.all.allocated, 0);
}

/// A source that says of an address that any number of bytes lies there, and an observer of it.
#[derive(Clone, Default)]
struct Boundless(Arc<AtomicU64>);

impl SegmentSource for Boundless {
    fn malloc(&mut self, _: u64) -> Result<u64, SourceError> {
        Ok(1 << 40)
    }
    fn free(&mut self, _: u64, _: u64) -> Result<(), SourceError> {
        Ok(())
    }
}

impl Observer for Boundless {
    fn event(&mut self, _: &Event) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// The recorder of operations has no room for such sizes.
#[test]
fn more_bytes_than_there_are_addresses_are_no_memory_of_a_source() {
    let (_, allocator) = simulated::on("sim:h200,capacity=1GiB", Config::default());
    let told = Boundless::default();
    allocator.reports().add_observer(Box::new(told.clone())).unwrap();
    let pool = allocator.pools().create();
    allocator.pools().release(pool).unwrap();
    allocator.pools().open_with(pool, Segments::from_source(told.clone())).unwrap();
    for size in [1 << 47, 1 << 59, 1 << 60] {
        let refused = allocator.pools().allocate(pool, size, MAIN);
        assert!(matches!(refused, Err(Error::Source { .. })), "{size}: {refused:?}");
        allocator.reports().check().unwrap();
    }
    let address = allocator.pools().allocate(pool, (1 << 47) - (2 << 20), MAIN).unwrap();
    allocator.free(address).unwrap();
    assert!(told.0.load(Relaxed) >= 3 && !allocator.reports().flight().unwrap().events.is_empty());
}

#[test]
fn a_driver_that_gives_more_than_there_are_addresses_is_recorded_and_told() {
    let driver = Arc::new(Liar::of_memory(u64::MAX, 2 * MIB));
    let allocator = Allocator::new(driver, Config::with_strategy(StrategyKind::Caching)).unwrap();
    let told = Boundless::default();
    allocator.reports().add_observer(Box::new(told.clone())).unwrap();
    for size in [1 << 47, 1 << 55, 1 << 59, (1 << 59) + (1 << 58)] {
        let address = allocator.allocate(size, MAIN).unwrap();
        allocator.free(address).unwrap();
    }
    assert!(told.0.load(Relaxed) >= 8);
    allocator.reports().flight().unwrap();
}

#[test]
fn sizes_of_any_kind_are_rounded_up() {
    for divisions in [0, 1, 2, 3, 8, 1 << 31, u32::MAX] {
        for size in [0, 1, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX] {
            let rounded = round_size(size, &[divisions; ROUNDUP_INTERVALS]);
            assert!(rounded.is_multiple_of(512) && (rounded >= size || size > u64::MAX - 511), "{size}: {rounded}");
            assert!(segment_size(size, u64::MAX) >= size.min(u64::MAX - 2 * MIB));
        }
    }
}

#[test]
fn times_of_calls_that_are_too_long_to_add_are_the_longest() {
    let mut stats = CallStats::default();
    stats.add(Call::Malloc, u64::MAX);
    stats.add(Call::Malloc, u64::MAX);
    stats.add(Call::Free, u64::MAX);
    assert_eq!(stats.total_ns(), u64::MAX);
}

#[test]
fn the_simulated_gpu_takes_any_arguments() {
    let mut random = Random(9);
    let gpu = SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB").unwrap()).unwrap();
    let (mut held, mut addresses, mut events) = (Vec::new(), vec![0], vec![EventId(0)]);
    for _ in 0..20_000 {
        let chunk = 2 * MIB;
        let ends = [0, 1, chunk, 3 * chunk, 1 << 46, 1 << 63, u64::MAX - chunk + 1, u64::MAX];
        let mut number = || ends[random.below(8) as usize];
        let (size, other) = (number(), number());
        let near = addresses[random.below(addresses.len() as u64) as usize];
        let address = [size, near, near.saturating_add(other), other][random.below(4) as usize];
        let event = events[random.below(events.len() as u64) as usize];
        let stream = StreamId([0, 1, u64::MAX][random.below(3) as usize]);
        let handle = Handle(random.below(50));
        match random.below(24) {
            0 => addresses.extend(gpu.reserve(size, other)),
            1 => drop(gpu.address_free(address, size)),
            2 => drop(gpu.create(size)),
            3 => drop(gpu.release(handle)),
            4 => drop(gpu.map(address, size, other, handle)),
            5 => drop(gpu.map(address, chunk, 0, handle)),
            6 => drop(gpu.unmap(address, size)),
            7 => drop(gpu.set_access(address, size)),
            8 => addresses.extend(gpu.malloc(size)),
            9 => drop(gpu.free(address)),
            10 => events.extend(gpu.event_create()),
            11 => drop(gpu.event_destroy(event)),
            12 => drop(gpu.event_record(event, stream)),
            13 => drop(gpu.event_query(event)),
            14 => drop(gpu.event_synchronize(event)),
            15 => drop(gpu.stream_wait(stream, event)),
            16 => drop(gpu.stream_synchronize(stream)),
            17 => drop(gpu.launch(stream, &[Range { address, size }, Range { address: size, size: other }], other)),
            18 => held.push(gpu.hold(stream)),
            19 => assert!(held.drain(..).filter(|hold| gpu.finish_hold(*hold)).count() <= 20_000),
            20 => gpu.advance(size),
            21 => gpu.set_run_ahead(other),
            22 => drop(gpu.begin_capture(stream, CaptureMode::Global)),
            _ => drop(gpu.end_capture(stream)),
        }
        let behind: u64 = gpu.physical(Range { address, size }).iter().map(|piece| piece.size).sum();
        assert!(behind <= size);
        assert!(gpu.leaks().bytes <= 1 << 30);
    }
    assert!(!format!("{:?} {:?} {:?}", gpu, gpu.faults(), gpu.leaks()).is_empty());
}

#[test]
fn an_allocator_lives_as_long_as_a_thread_that_holds_it() {
    let (gpu, allocator) = simulated::on("sim:h200,capacity=1GiB", Config::with_strategy(StrategyKind::Caching));
    let shared = Arc::new(allocator);
    let thread = std::thread::spawn({
        let shared = Arc::clone(&shared);
        move || {
            let addresses: Vec<u64> = (1..200).map(|size| shared.allocate(size << 10, MAIN).unwrap()).collect();
            addresses.into_iter().for_each(|address| shared.free(address).unwrap());
        }
    });
    drop(shared);
    thread.join().unwrap();
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

#[test]
fn reports_of_any_figures_can_be_printed() {
    let mut all = OutOfMemory::default();
    for figure in [&mut all.requested, &mut all.reserved, &mut all.allocated, &mut all.pending] {
        *figure = u64::MAX;
    }
    all.limit = Some(u64::MAX);
    assert_eq!(all.unallocated(), 0);
    assert!(!all.to_string().is_empty());
    let event = Event {
        action: Action::Oom,
        address: u64::MAX,
        size: u64::MAX,
        stream: StreamId(u64::MAX),
        pool: PoolId::NONE,
    };
    assert!(!format!("{event:?}").is_empty());
}
