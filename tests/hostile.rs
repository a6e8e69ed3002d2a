//! Drivers that lie, observers that panic, sizes and options at the ends of their types: the allocator may answer with
//! an error, but never panics, never loops and never breaks its own rules.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod random;
mod simulated;

use random::Random;
use seamalloc::driver::sim::{CaptureMode, Range, SimConfig, SimGpu};
use seamalloc::driver::{
    Call, CallStats, DeviceProperties, Driver, DriverError, DriverResult, EventId, Events, Exported, Handle, IpcMemory,
    MemoryInfo, PeerAccess, PlainMemory, ProcessSharing, Status, StreamCapture, StreamId, Streams, VirtualMemory,
};
use seamalloc::observer::{Action, Event, Observer};
use seamalloc::rounding::{ROUNDUP_INTERVALS, round_size, segment_size};
use seamalloc::{Allocator, Config, Error, OutOfMemory, PoolId, StrategyKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;

/// A driver whose answers come from a script, or else from one that knows nothing and grants everything.
struct Liar {
    properties: DeviceProperties,
    /// What `malloc` and `reserve` answer.
    addresses: Mutex<Box<dyn FnMut(u64) -> DriverResult<u64> + Send>>,
    /// Whether a call of that kind fails.
    fails: Mutex<Box<dyn FnMut(Call) -> Option<Status> + Send>>,
    info: MemoryInfo,
    /// What `busy_ns` answers, added to at each question.
    busy: AtomicU64,
    busy_step: u64,
    /// How many chunks `create` still gives.
    chunks: AtomicU64,
    freed: Mutex<Vec<u64>>,
}

impl Liar {
    fn new(addresses: impl FnMut(u64) -> DriverResult<u64> + Send + 'static) -> Self {
        Self {
            properties: DeviceProperties {
                name: "liar".into(),
                total_memory: 1 << 30,
                granularity: 2 * MIB,
                recommended_granularity: 2 * MIB,
                ordinal: 0,
                virtual_memory: true,
            },
            addresses: Mutex::new(Box::new(addresses)),
            fails: Mutex::new(Box::new(|_| None)),
            info: MemoryInfo { free: u64::MAX, total: 1 },
            busy: AtomicU64::new(u64::MAX / 2),
            busy_step: 1,
            chunks: AtomicU64::new(2_000),
            freed: Mutex::new(Vec::new()),
        }
    }

    fn of_memory(total_memory: u64, granularity: u64) -> Self {
        let mut next = 1 << 40;
        let mut liar = Self::new(move |size| {
            let address = next;
            next = u64::saturating_add(next, size);
            Ok(address)
        });
        liar.properties.total_memory = total_memory;
        liar.properties.granularity = granularity;
        liar
    }

    fn answer<T>(&self, call: Call, value: T) -> DriverResult<T> {
        match (self.fails.lock().unwrap())(call) {
            Some(status) => Err(DriverError::new(call, status, "a lie")),
            None => Ok(value),
        }
    }

    fn address(&self, call: Call, size: u64) -> DriverResult<u64> {
        self.answer(call, ())?;
        (self.addresses.lock().unwrap())(size)
    }
}

impl VirtualMemory for Liar {
    fn reserve(&self, size: u64, _: u64) -> DriverResult<u64> {
        self.address(Call::Reserve, size)
    }
    fn address_free(&self, address: u64, _: u64) -> DriverResult<()> {
        self.freed.lock().unwrap().push(address);
        self.answer(Call::AddressFree, ())
    }
    fn create(&self, _: u64) -> DriverResult<Handle> {
        let left = self.chunks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left.is_err() {
            return Err(DriverError::new(Call::Create, Status::OUT_OF_MEMORY, "no more"));
        }
        self.answer(Call::Create, Handle(7))
    }
    fn release(&self, _: Handle) -> DriverResult<()> {
        self.answer(Call::Release, ())
    }
    fn map(&self, _: u64, _: u64, _: u64, _: Handle) -> DriverResult<()> {
        self.answer(Call::Map, ())
    }
    fn unmap(&self, _: u64, _: u64) -> DriverResult<()> {
        self.answer(Call::Unmap, ())
    }
    fn set_access(&self, _: u64, _: u64) -> DriverResult<()> {
        self.answer(Call::SetAccess, ())
    }
}

impl PlainMemory for Liar {
    fn malloc(&self, size: u64) -> DriverResult<u64> {
        self.address(Call::Malloc, size)
    }
    fn free(&self, address: u64) -> DriverResult<()> {
        self.freed.lock().unwrap().push(address);
        self.answer(Call::Free, ())
    }
}

impl Events for Liar {
    fn event_create(&self) -> DriverResult<EventId> {
        self.answer(Call::EventCreate, EventId(1))
    }
    fn event_destroy(&self, _: EventId) -> DriverResult<()> {
        self.answer(Call::EventDestroy, ())
    }
    fn event_record(&self, _: EventId, _: StreamId) -> DriverResult<()> {
        self.answer(Call::EventRecord, ())
    }
    fn event_query(&self, event: EventId) -> DriverResult<bool> {
        self.answer(Call::EventQuery, event.0.is_multiple_of(2))
    }
    fn event_synchronize(&self, _: EventId) -> DriverResult<()> {
        self.answer(Call::EventSynchronize, ())
    }
    fn stream_wait(&self, _: StreamId, _: EventId) -> DriverResult<()> {
        self.answer(Call::StreamWait, ())
    }
}

impl Streams for Liar {
    fn canonical_stream(&self, stream: StreamId) -> DriverResult<StreamId> {
        Ok(stream)
    }
    fn stream_number(&self, _: StreamId) -> DriverResult<Option<u64>> {
        Ok(None)
    }
    fn stream_synchronize(&self, _: StreamId) -> DriverResult<()> {
        self.answer(Call::StreamSynchronize, ())
    }
}

impl StreamCapture for Liar {
    fn is_capturing(&self, _: StreamId) -> DriverResult<bool> {
        self.answer(Call::IsCapturing, true)
    }
    fn exchange_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        self.answer(Call::ExchangeCaptureMode, mode)
    }
}

impl PeerAccess for Liar {
    fn enable_peer_access(&self, _: u32, _: bool) -> DriverResult<()> {
        Err(DriverError::new(Call::EnablePeer, Status::PEER_ACCESS_UNSUPPORTED, "it knows no other devices"))
    }
}

impl ProcessSharing for Liar {
    fn export(&self, _: Handle) -> DriverResult<Exported> {
        not_shared(Call::Export)
    }
    fn import(&self, _: &Exported, _: u64) -> DriverResult<Handle> {
        not_shared(Call::Import)
    }
    fn ipc_get(&self, _: u64) -> DriverResult<IpcMemory> {
        not_shared(Call::IpcGet)
    }
    fn ipc_open(&self, _: &IpcMemory) -> DriverResult<u64> {
        not_shared(Call::IpcOpen)
    }
    fn ipc_close(&self, _: u64) -> DriverResult<()> {
        not_shared(Call::IpcClose)
    }
}

impl Driver for Liar {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }
    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.answer(Call::MemoryInfo, self.info)
    }
    fn synchronize(&self) -> DriverResult<()> {
        self.answer(Call::Synchronize, ())
    }
    fn call_stats(&self) -> CallStats {
        CallStats::default()
    }
    fn busy_ns(&self) -> u64 {
        self.busy.fetch_add(self.busy_step, Ordering::Relaxed)
    }
}

fn not_shared<T>(call: Call) -> DriverResult<T> {
    Err(DriverError::new(call, Status::NOT_SUPPORTED, "it shares no memory between processes"))
}

fn allocator(kind: StrategyKind, driver: Arc<dyn Driver>) -> Allocator {
    Allocator::new(driver, Config::with_strategy(kind)).unwrap()
}

#[test]
fn an_address_that_cannot_be_is_refused_and_not_handed_out() {
    for kind in StrategyKind::ALL {
        for address in [0, 1, 256, (1 << 40) + 511, u64::MAX, u64::MAX - 511, u64::MAX - MIB + 1, 1 << 63 | 8] {
            let liar = Arc::new(Liar::new(move |_| Ok(address)));
            let allocator = allocator(kind, Arc::<Liar>::clone(&liar));
            let error = allocator.allocate(4096, MAIN).unwrap_err();
            assert!(matches!(error, Error::Driver(_)), "{kind}: {address:#x}: {error}");
            allocator.check().unwrap();
            assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
            drop(allocator);
            assert!(liar.freed.lock().unwrap().iter().all(|freed| *freed == address), "nothing else is given back");
        }
    }
}

#[test]
fn memory_that_is_given_twice_is_handed_out_once() {
    for kind in StrategyKind::ALL {
        for overlap in [0, 512, 2 * MIB - 512] {
            let liar = Arc::new(Liar::new({
                let mut calls = 0;
                move |_| {
                    calls += 1;
                    Ok((1 << 40) + overlap * (calls - 1))
                }
            }));
            let allocator = allocator(kind, Arc::<Liar>::clone(&liar));
            let first = allocator.allocate(MIB, MAIN).unwrap();
            match allocator.allocate(MIB, StreamId(1)) {
                // A strategy that reserves once and for all does not ask again.
                Ok(second) => assert!(first.abs_diff(second) >= MIB, "{kind}: {first:#x} and {second:#x}"),
                Err(error) => assert!(matches!(error, Error::Driver(_)), "{kind}: {error}"),
            }
            allocator.check().unwrap();
            assert!(liar.freed.lock().unwrap().is_empty(), "what is in use is not given back");
            allocator.free(first).unwrap();
            allocator.check().unwrap();
        }
    }
}

#[test]
fn a_device_of_any_size_is_no_reason_to_panic() {
    for kind in StrategyKind::ALL {
        for total in [0, 1, 511, MIB, 1 << 47, 1 << 63, u64::MAX - (u64::MAX >> 3), u64::MAX - 1, u64::MAX] {
            for granularity in [0, 1, 3, 512, 2 * MIB, 1 << 63, u64::MAX] {
                for fraction in [None, Some(0.0), Some(0.5), Some(f64::MIN_POSITIVE), Some(1.0 - f64::EPSILON)] {
                    let config = Config {
                        memory_fraction: fraction,
                        garbage_collection_threshold: 0.5,
                        ..Config::with_strategy(kind)
                    };
                    let Ok(allocator) = Allocator::new(Arc::new(Liar::of_memory(total, granularity)), config) else {
                        continue;
                    };
                    for size in [1, MIB, 3 * MIB, 50 * MIB, u64::MAX] {
                        for stream in [MAIN, StreamId(u64::MAX)] {
                            if let Ok(address) = allocator.allocate(size, stream) {
                                allocator.record_stream(address, StreamId(9)).unwrap();
                                allocator.free(address).unwrap();
                            }
                        }
                    }
                    allocator.check().unwrap();
                    let _ = allocator.set_memory_limit(Some(total / 2));
                    let _ = allocator.trim(total / 4);
                    allocator.check().unwrap();
                    let _ = allocator.empty_cache();
                    allocator.check().unwrap();
                }
            }
        }
    }
}

#[test]
fn sizes_at_the_ends_are_errors() {
    let sizes = [u64::MAX, u64::MAX - 511, (1 << 63) + 1, (1 << 60) + 1, 1 << 60, (1 << 60) - 1, 1 << 47];
    for kind in StrategyKind::ALL {
        for divisions in [0, 1, 2, 1 << 31] {
            let config = Config {
                roundup_power2_divisions: [divisions; ROUNDUP_INTERVALS],
                max_split_size: Some(u64::MAX),
                max_non_split_rounding: u64::MAX,
                ..Config::with_strategy(kind)
            };
            let (gpu, allocator) = simulated::on("sim:h200,capacity=16TiB", config);
            for size in sizes {
                let error = allocator.allocate(size, MAIN).unwrap_err();
                assert!(matches!(error, Error::OutOfMemory(_) | Error::RequestTooLarge { .. }), "{size}: {error}");
                assert!(!error.to_string().is_empty());
                assert!(matches!(allocator.free(size), Err(Error::InvalidAddress { .. })));
                assert!(allocator.size_of(size).is_err() && allocator.record_stream(size, MAIN).is_err());
            }
            allocator.check().unwrap();
            drop(allocator);
            assert!(gpu.leaks().is_empty(), "{kind}: {}", gpu.leaks());
        }
    }
    for divisions in [0, 1, 2, 3, 8, 1 << 31, u32::MAX] {
        for size in [0, 1, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX] {
            let rounded = round_size(size, &[divisions; ROUNDUP_INTERVALS]);
            assert!(rounded.is_multiple_of(512) && (rounded >= size || size > u64::MAX - 511), "{size}: {rounded}");
            assert!(segment_size(size, u64::MAX) >= size.min(u64::MAX - 2 * MIB));
        }
    }
}

#[test]
fn what_was_ever_allocated_may_exceed_64_bits() {
    // Each grants 2^60 bytes, which are given back at once: after 16 of them 2^64 were allocated in all.
    let allocator = allocator(StrategyKind::Caching, Arc::new(Liar::of_memory(u64::MAX, 2 * MIB)));
    for _ in 0..3 {
        for _ in 0..20 {
            let address = allocator.allocate(1 << 59, MAIN).unwrap();
            allocator.free(address).unwrap();
        }
        allocator.check().unwrap();
        let stats = allocator.stats();
        let bytes = stats.allocated_bytes.all;
        assert_eq!((bytes.current, bytes.peak), (0, 1 << 59));
        assert_eq!(bytes.allocated.wrapping_sub(bytes.freed), 0);
    }
    allocator.reset_accumulated_stats();
    assert_eq!(allocator.stats().allocated_bytes.all.allocated, 0);
}

#[test]
fn a_clock_that_runs_backwards_is_no_reason_to_panic() {
    for step in [u64::MAX, 1 << 63, u64::MAX / 3] {
        for kind in StrategyKind::ALL {
            let mut liar = Liar::of_memory(1 << 40, 2 * MIB);
            liar.busy_step = step;
            let allocator = allocator(kind, Arc::new(liar));
            for stream in 0..50 {
                let address = allocator.allocate(MIB, StreamId(stream)).unwrap();
                allocator.record_stream(address, StreamId(99)).unwrap();
                allocator.free(address).unwrap();
            }
            let _ = allocator.stats();
        }
    }
    let mut stats = CallStats::default();
    stats.add(Call::Malloc, u64::MAX);
    stats.add(Call::Malloc, u64::MAX);
    stats.add(Call::Free, u64::MAX);
    assert_eq!(stats.total_ns(), u64::MAX);
}

/// Every answer a random one, half of the calls failing with any status.
#[test]
fn a_driver_that_answers_at_random_breaks_nothing() {
    for kind in StrategyKind::ALL {
        for seed in 0..40 {
            let mut random = Random(seed);
            let mut liar = Liar::new(move |size| {
                Ok(match random.below(6) {
                    0 => random.below(u64::MAX),
                    1 => random.below(64) * 512,
                    2 => u64::MAX - random.below(size),
                    _ => (1 << 40) + random.below(100) * 64 * MIB,
                })
            });
            let mut random = Random(!seed);
            *liar.fails.get_mut().unwrap() = Box::new(move |_| {
                (random.below(100) < seed).then(|| Status([0, 1, 2, 2, 2, 700, u32::MAX][random.below(7) as usize]))
            });
            let mut random = Random(seed << 32);
            liar.busy_step = random.below(u64::MAX);
            let config = Config {
                max_split_size: [None, Some(20 * MIB)][random.below(2) as usize],
                garbage_collection_threshold: 0.5,
                memory_fraction: [None, Some(0.5)][random.below(2) as usize],
                ..Config::with_strategy(kind)
            };
            let allocator = Allocator::new(Arc::new(liar), config).unwrap();
            let mut live = Vec::new();
            for step in 0..400 {
                match random.below(10) {
                    0..5 => {
                        let size = 1u64 << random.below(28);
                        live.extend(allocator.allocate(size, StreamId(random.below(4))));
                    }
                    5..9 if !live.is_empty() => {
                        let at = random.below(live.len() as u64) as usize;
                        if random.below(3) == 0 {
                            allocator.record_stream(live[at], StreamId(random.below(9))).unwrap();
                        }
                        if allocator.free(live[at]).is_ok() {
                            live.swap_remove(at);
                        }
                    }
                    _ => drop(allocator.empty_cache()),
                }
                allocator.check().unwrap_or_else(|broken| panic!("{kind}, seed {seed}, step {step}: {broken}"));
                assert_eq!(allocator.stats().allocation.all.current, live.len() as u64);
            }
        }
    }
}

#[test]
fn thousands_of_streams_are_served() {
    for kind in StrategyKind::ALL {
        let (_, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::with_strategy(kind));
        let shared = allocator.allocate(MIB, MAIN).unwrap();
        let streams = (0..3000u64).map(|n| StreamId(u64::MAX - n * n));
        for stream in streams {
            let address = allocator.allocate(100, stream).unwrap();
            allocator.record_stream(shared, stream).unwrap();
            allocator.free(address).unwrap();
        }
        allocator.free(shared).unwrap();
        allocator.empty_cache().unwrap();
        allocator.check().unwrap();
        assert_eq!(allocator.stats().reserved_bytes.all.current, 0, "{kind}");
    }
}

struct Panics {
    at: u64,
    seen: u64,
}

impl Observer for Panics {
    fn event(&mut self, _: &Event) {
        self.seen += 1;
        assert!(self.seen != self.at, "the observer panics");
    }
}

#[test]
fn an_observer_that_panics_is_dropped_and_harms_nothing() {
    for kind in StrategyKind::ALL {
        for at in 1..40 {
            let (gpu, allocator) = simulated::on("sim:h200,capacity=100MiB", Config::with_strategy(kind));
            allocator.observe(Some(Box::new(Panics { at, seen: 0 })));
            let mut live = Vec::new();
            let run = catch_unwind(AssertUnwindSafe(|| {
                for step in 0..12 {
                    live.extend(allocator.allocate([30 * MIB, 700, 5 * MIB][step % 3], StreamId(step as u64 % 2)));
                    if step % 3 == 2 {
                        let address = live.remove(0);
                        allocator.record_stream(address, StreamId(7)).unwrap();
                        allocator.free(address).unwrap();
                    }
                }
                allocator.empty_cache().unwrap();
            }));
            assert!(run.is_ok(), "{kind}, event {at}: it reaches the program");
            allocator.check().unwrap();
            assert_eq!(gpu.leaks().bytes, allocator.stats().reserved_bytes.all.current);
            for address in live {
                allocator.free(address).unwrap();
            }
            drop(allocator);
            assert!(gpu.leaks().is_empty(), "{kind}, event {at}: {}", gpu.leaks());
        }
    }
}

#[test]
fn a_wait_that_fails_at_the_end_leaks_what_it_must_and_no_more() {
    for kind in StrategyKind::ALL {
        let (gpu, allocator) = simulated::on("sim:h200,capacity=1GiB", Config::with_strategy(kind));
        let used = allocator.allocate(20 * MIB, MAIN).unwrap();
        let unused = allocator.allocate(200 * MIB, StreamId(1)).unwrap();
        allocator.record_stream(used, StreamId(7)).unwrap();
        gpu.hold(StreamId(7));
        allocator.free(used).unwrap();
        allocator.free(unused).unwrap();
        gpu.fail_nth(Call::EventSynchronize, 1, Status::UNKNOWN);
        drop(allocator);
        assert_eq!(gpu.leaks().bytes, 20 * MIB, "{kind}");
        assert_eq!(gpu.leaks().events, 0);
    }
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
    let all = OutOfMemory {
        requested: u64::MAX,
        reserved: u64::MAX,
        allocated: u64::MAX,
        pending: u64::MAX,
        limit: Some(u64::MAX),
        ..OutOfMemory::default()
    };
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
