//! A request that would be refused waits for freed memory that is still in use: for the oldest, for as much as it needs, no
//! longer than it may, and without the lock.

use crate::simulated;
use parking_lot::Mutex;
use seamalloc::driver::prelude::*;
use seamalloc::driver::sim::{CaptureMode, SimConfig, SimGpu};
use seamalloc::driver::{Call, DriverResult, ForwardingDriver, Status};
use seamalloc::driver::{EventId, StreamId};
use seamalloc::out_of_memory::{Advice, Cause};
use seamalloc::{Allocator, Config, Error, PendingWaits, PoolId, Route, StreamSharing};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// In nanoseconds.
const MS: u64 = 1_000_000;
const OWN: StreamId = StreamId::DEFAULT;
const A: StreamId = StreamId(1);
const B: StreamId = StreamId(2);
const C: StreamId = StreamId(3);

/// Where no stream waits on the GPU for recorded uses, the CPU does.
const NO_WAITS: &str = "sharing:never";

fn on(options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on("sim:h200", Config::parse(&format!("memory_limit:120MiB,{options}")).unwrap())
}

/// Frees blocks of a stream of which each is used by another one for so many milliseconds. Returns their addresses.
fn pending(gpu: &SimGpu, allocator: &Allocator, own: StreamId, uses: &[(u64, StreamId, u64)]) -> Vec<u64> {
    let blocks: Vec<u64> = uses.iter().map(|(mib, ..)| allocator.allocate(mib * MIB, own).unwrap()).collect();
    for (address, (_, user, ms)) in blocks.iter().zip(uses) {
        allocator.record_stream(*address, *user).unwrap();
        gpu.launch(*user, &[], ms * MS).unwrap();
        allocator.free(*address).unwrap();
    }
    blocks
}

fn waits(allocator: &Allocator) -> PendingWaits {
    allocator.stats().pending_waits
}

/// Serves a request. Returns its address, and how long the clock of the device went on, in milliseconds.
fn timed(gpu: &SimGpu, allocator: &Allocator, mib: u64, stream: StreamId) -> (Result<u64, Error>, f64) {
    let before = gpu.now_ns();
    let address = allocator.allocate(mib * MIB, stream);
    allocator.reports().check().unwrap();
    (address, (gpu.now_ns() - before) as f64 / MS as f64)
}

fn lasts(ms: f64, least: f64) {
    assert!((least - 0.1..least + 0.9).contains(&ms), "{ms} ms, not {least}");
}

#[test]
fn the_oldest_of_several_streams_is_waited_for_and_no_more() {
    for (mib, ms, events) in [(30, 10.0, 1), (40, 10.0, 1), (70, 20.0, 2), (110, 500.0, 3)] {
        let (gpu, allocator) = on(NO_WAITS);
        let blocks = pending(&gpu, &allocator, OWN, &[(40, A, 10), (40, B, 20), (40, C, 500)]);
        let (address, took) = timed(&gpu, &allocator, mib, OWN);
        let address = address.unwrap();
        lasts(took, ms);
        assert!(events > 1 || address == blocks[0]);
        let waits = waits(&allocator);
        assert_eq!((waits.requests, waits.events, waits.device, waits.expired), (1, events, 0, 0), "{mib} MiB");
        lasts(waits.total_ns as f64 / MS as f64, ms);
        assert_eq!(waits.worst_ns, waits.total_ns);
        assert_eq!(allocator.reports().reserved(), 120 * MIB);
    }
}

/// All of them are of one stream, which ends them in order.
#[test]
fn a_stream_is_waited_for_as_far_as_needed() {
    let (gpu, allocator) = on(NO_WAITS);
    pending(&gpu, &allocator, OWN, &[(40, A, 10), (40, A, 10), (40, A, 300)]);
    let (address, took) = timed(&gpu, &allocator, 60, OWN);
    address.unwrap();
    lasts(took, 20.0);
    // Unrelated work goes on and on.
    gpu.launch(C, &[], 10_000 * MS).unwrap();
    let (address, took) = timed(&gpu, &allocator, 50, OWN);
    address.unwrap();
    lasts(took, 300.0);
    assert_eq!(waits(&allocator).requests, 2);
}

#[test]
fn blocks_of_other_streams_serve_behind_waits_on_the_gpu() {
    let (gpu, allocator) = on("");
    pending(&gpu, &allocator, B, &[(60, A, 10), (60, C, 400)]);
    let (address, took) = timed(&gpu, &allocator, 50, OWN);
    address.unwrap();
    lasts(took, 0.0);
    // One wait is for A, and one for the stream that the block was allocated on.
    assert_eq!((waits(&allocator), allocator.stats().stream_waits), (PendingWaits::default(), 2));
    assert!((10 * MS..11 * MS).contains(&gpu.done_at(OWN).unwrap()), "it is behind the one that ends first");
}

/// A slab is no part of another stream's block, so that the CPU waits.
#[test]
fn small_requests_wait_for_blocks_of_other_streams() {
    let (gpu, allocator) = on("");
    pending(&gpu, &allocator, B, &[(60, A, 10), (60, C, 400)]);
    let before = gpu.now_ns();
    allocator.allocate(1000, OWN).unwrap();
    lasts((gpu.now_ns() - before) as f64 / MS as f64, 10.0);
    assert_eq!((waits(&allocator).requests, waits(&allocator).device), (1, 0));
    allocator.reports().check().unwrap();
}

/// The memory that another stream has freed counts from its epoch's end on.
#[test]
fn an_epoch_of_another_stream_is_waited_for() {
    let (gpu, allocator) = on("sharing:completed");
    let [first, second] = [0, 1].map(|_| allocator.allocate(60 * MIB, B).unwrap());
    gpu.launch(B, &[], 10 * MS).unwrap();
    allocator.free(first).unwrap();
    // It asks for more than there is at all, and ends the epoch.
    assert!(allocator.allocate(125 * MIB, A).is_err());
    let before = waits(&allocator);
    gpu.launch(B, &[], 10 * MS).unwrap();
    allocator.free(second).unwrap();
    gpu.launch(C, &[], 500 * MS).unwrap();
    let (address, took) = timed(&gpu, &allocator, 100, OWN);
    address.unwrap();
    lasts(took, 10.0);
    assert_eq!((waits(&allocator).since(&before).device, waits(&allocator).since(&before).requests), (0, 1));
}

#[test]
fn where_streams_share_nothing_what_they_have_passed_is_given_back() {
    let (gpu, allocator) = on("sharing:never,wait_ms:100");
    for (stream, ms) in [(A, 10), (B, 500)] {
        let address = allocator.allocate(60 * MIB, stream).unwrap();
        gpu.launch(stream, &[], ms * MS).unwrap();
        allocator.free(address).unwrap();
    }
    let (address, took) = timed(&gpu, &allocator, 40, OWN);
    address.unwrap();
    // It asks from time to time.
    assert!((10.0..11.2).contains(&took), "{took} ms");
    assert_eq!((waits(&allocator).events, waits(&allocator).device), (1, 0));
    assert!(allocator.reports().reserved() <= 120 * MIB);
}

#[test]
fn small_requests_wait_too() {
    let (gpu, allocator) = on("");
    pending(&gpu, &allocator, OWN, &[(60, A, 10), (60, B, 500)]);
    let before = gpu.now_ns();
    allocator.allocate(1000, OWN).unwrap();
    lasts((gpu.now_ns() - before) as f64 / MS as f64, 10.0);
    allocator.reports().check().unwrap();
}

#[test]
fn private_pools_wait_too() {
    let (gpu, allocator) = on("");
    pending(&gpu, &allocator, OWN, &[(60, A, 10), (60, B, 500)]);
    let pool = allocator.pools().create();
    let before = gpu.now_ns();
    allocator.pools().allocate(pool, 50 * MIB, OWN).unwrap();
    lasts((gpu.now_ns() - before) as f64 / MS as f64, 10.0);
    allocator.reports().check().unwrap();
}

/// Where pending memory cannot be enough, none is waited for by itself.
#[test]
fn what_would_not_suffice_is_not_waited_for() {
    let (gpu, allocator) = on("");
    let live = allocator.allocate(60 * MIB, OWN).unwrap();
    pending(&gpu, &allocator, OWN, &[(20, A, 10), (40, B, 30)]);
    assert!(allocator.allocate(70 * MIB, OWN).is_err());
    let waits = waits(&allocator);
    assert_eq!((waits.requests, waits.events, waits.device), (1, 0, 1));
    allocator.free(live).unwrap();
}

#[test]
fn a_bound_ends_the_wait() {
    for (bound, ms, served) in [(0, 0.0, false), (5, 5.0, false), (50, 10.0, true)] {
        let (gpu, allocator) = on(&format!("{NO_WAITS},wait_ms:{bound}"));
        pending(&gpu, &allocator, OWN, &[(60, A, 10), (60, B, 500)]);
        let (address, took) = timed(&gpu, &allocator, 50, OWN);
        assert_eq!(address.is_ok(), served, "{bound}");
        // It asks from time to time: once a millisecond at the latest.
        assert!((ms..ms + 1.3).contains(&took), "{took} ms, not {ms}");
        let waits = waits(&allocator);
        assert_eq!((waits.requests, waits.device, waits.expired), (1, 0, u64::from(!served)), "{bound}");
        assert_eq!(gpu.call_stats().get(Call::Synchronize).count, 0, "{bound}");
        assert_eq!(allocator.stats().num_ooms, u64::from(!served));
        // Later the memory is there.
        gpu.advance(500 * MS);
        allocator.allocate(50 * MIB, OWN).unwrap();
        allocator.reports().check().unwrap();
    }
}

/// The report of a bounded wait says what it waited for, and a longer one serves the request.
#[test]
fn a_longer_wait_is_advised_where_it_would_have_served() {
    for (bound, live, advised) in [("wait_ms:3", 40, true), ("wait_ms:3", 100, false), ("", 100, false)] {
        let world = |bound: &str| {
            let (gpu, allocator) =
                simulated::on("sim:h200", Config::parse(&format!("memory_limit:300MiB,{NO_WAITS},{bound}")).unwrap());
            allocator.allocate(live * MIB, OWN).unwrap();
            pending(&gpu, &allocator, OWN, &[(100, A, 10), (100, B, 500)]);
            (gpu, allocator)
        };
        let size = if advised { 150 } else { 250 };
        let (_gpu, allocator) = world(bound);
        let Err(Error::OutOfMemory(report)) = allocator.allocate(size * MIB, OWN) else { panic!("it was served") };
        let found = report.advice.contains(&Advice::WaitLonger { pending: 200 * MIB });
        assert_eq!((found, report.cause == Cause::StillUsed { most_ms: 3 }), (advised, advised), "{report}");
        assert_eq!(report.to_string().contains("wait_ms"), advised, "{report}");
        if advised {
            world("wait_ms:1000").1.allocate(size * MIB, OWN).unwrap();
            world("").1.allocate(size * MIB, OWN).unwrap();
        }
    }
}

/// Within the bound, memory that was passed is given back for the request, whoever has it.
#[test]
fn without_any_wait_passed_memory_is_given_back() {
    let (gpu, allocator) = on("wait_ms:0,sharing:never");
    let address = allocator.allocate(100 * MIB, A).unwrap();
    gpu.launch(A, &[], 10 * MS).unwrap();
    allocator.free(address).unwrap();
    assert!(allocator.allocate(100 * MIB, OWN).is_err());
    assert_eq!(allocator.reports().reserved(), 100 * MIB);
    gpu.advance(10 * MS);
    allocator.allocate(100 * MIB, OWN).unwrap();
    assert!(allocator.reports().reserved() <= 120 * MIB);
    assert_eq!(gpu.call_stats().get(Call::Synchronize).count, 0);
    assert!(gpu.faults().is_empty());
}

#[test]
fn nothing_is_waited_for_in_a_capture() {
    for options in ["", "wait_ms:100"] {
        let (gpu, allocator) = on(options);
        pending(&gpu, &allocator, OWN, &[(60, A, 10), (60, B, 500)]);
        let pool = allocator.pools().create();
        allocator.pools().begin(pool, Route::stream(C).capturing()).unwrap();
        gpu.begin_capture(C, CaptureMode::Global).unwrap();
        let before = gpu.now_ns();
        assert!(allocator.allocate(50 * MIB, C).is_err());
        assert!(gpu.now_ns() - before < MS);
        assert_eq!(waits(&allocator), PendingWaits::default());
        gpu.end_capture(C).unwrap();
        allocator.pools().end(pool).unwrap();
        allocator.reports().check().unwrap();
    }
}

/// Whichever call fails, the request is served all the same, or nothing has changed and the next one is.
#[test]
fn every_call_may_fail() {
    for options in ["", "wait_ms:100", "sharing:never", "sharing:completed"] {
        let world = || {
            let (gpu, allocator) = on(options);
            pending(&gpu, &allocator, OWN, &[(30, A, 10), (30, B, 20)]);
            pending(&gpu, &allocator, B, &[(30, A, 10), (30, C, 20)]);
            (gpu, allocator)
        };
        let (gpu, allocator) = world();
        let before = gpu.call_stats();
        allocator.allocate(50 * MIB, OWN).unwrap();
        let is_on_gpu = allocator.config().sharing == StreamSharing::Wait;
        let waits = if is_on_gpu { allocator.stats().stream_waits } else { waits(&allocator).events };
        assert!(waits > 0, "{options}");
        let made = gpu.call_stats().since(&before);
        for call in Call::ALL {
            for nth in 1..=made.get(call).count {
                for status in [Status::OUT_OF_MEMORY, Status::INVALID_VALUE] {
                    let (gpu, allocator) = world();
                    gpu.fail_nth(call, nth, status);
                    let served = allocator.allocate(50 * MIB, OWN);
                    gpu.fail_no_more();
                    allocator.reports().check().unwrap();
                    let live = if served.is_ok() { 50 * MIB } else { 0 };
                    assert_eq!(allocator.stats().allocated_bytes.all.current, live, "{options} {call} {nth}");
                    if let Ok(address) = served {
                        allocator.free(address).unwrap();
                    }
                    let again = allocator.allocate(50 * MIB, OWN).unwrap();
                    allocator.free(again).unwrap();
                    allocator.empty_cache().unwrap();
                    assert_eq!((allocator.reports().reserved(), gpu.faults().len()), (0, 0), "{options} {call} {nth}");
                }
            }
        }
    }
}

/// A driver on which the work that is waited for depends on a host function, and that one on the allocator.
struct HostFunctions {
    gpu: SimGpu,
    allocator: OnceLock<Weak<Allocator>>,
    called: Mutex<u32>,
}

impl HostFunctions {
    fn run(&self) {
        // At its end it waits as well.
        let Some(allocator) = self.allocator.get().unwrap().upgrade() else { return };
        let (done, answer) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let address = allocator.allocate(1000, A).unwrap();
            allocator.record_stream(address, B).unwrap();
            allocator.free(address).unwrap();
            let held = allocator.stats().reserved_bytes.all.current;
            done.send(held).unwrap();
        });
        assert!(answer.recv_timeout(Duration::from_secs(20)).is_ok(), "the lock is held while the CPU waits");
        thread.join().unwrap();
        *self.called.lock() += 1;
    }
}

impl ForwardingDriver for HostFunctions {
    fn inner(&self) -> &dyn Driver {
        &self.gpu
    }
    fn event_synchronize(&self, event: EventId) -> DriverResult<()> {
        self.run();
        self.gpu.event_synchronize(event)
    }
    fn rest(&self, ns: u64) {
        self.run();
        self.gpu.rest(ns);
    }
}

#[test]
fn the_lock_is_not_held_meanwhile() {
    for options in ["", "wait_ms:100"].map(|bound| format!("memory_limit:120MiB,{NO_WAITS},{bound}")) {
        let gpu = SimGpu::new(SimConfig::default()).unwrap();
        let driver = Arc::new(HostFunctions { gpu, allocator: OnceLock::new(), called: Mutex::default() });
        let allocator = Arc::new(Allocator::new(driver.clone(), Config::parse(&options).unwrap()).unwrap());
        driver.allocator.set(Arc::downgrade(&allocator)).unwrap();
        let small = allocator.allocate(1000, A).unwrap();
        pending(&driver.gpu, &allocator, OWN, &[(58, A, 10), (60, B, 50)]);
        let address = allocator.allocate(55 * MIB, OWN).unwrap();
        assert!(*driver.called.lock() > 0, "{options}");
        assert_eq!(waits(&allocator).device, 0, "{options}");
        allocator.free(address).unwrap();
        allocator.free(small).unwrap();
        allocator.reports().check().unwrap();
    }
}

/// A thread that captures: how to tell it to end, and its end.
type Capturing = (Sender<()>, JoinHandle<DriverResult<()>>);

/// A driver that lets another thread begin a capture while a request waits, once. The thread ends it when told.
struct CaptureMeanwhile {
    gpu: Arc<SimGpu>,
    allocator: OnceLock<(Weak<Allocator>, PoolId)>,
    thread: Mutex<Option<Capturing>>,
}

impl CaptureMeanwhile {
    fn begin(&self) {
        let mut thread = self.thread.lock();
        let Some((allocator, pool)) = self.allocator.get().filter(|_| thread.is_none()) else { return };
        // At its end it waits as well.
        let Some(allocator) = allocator.upgrade() else { return };
        let (pool, gpu) = (*pool, Arc::clone(&self.gpu));
        let ((begun, has_begun), (end, ends)) = (channel(), channel());
        let captures = move || {
            allocator.pools().begin(pool, Route::stream(C).capturing()).unwrap();
            gpu.begin_capture(C, CaptureMode::Global).unwrap();
            let _ = begun.send(());
            ends.recv().unwrap();
            let ended = gpu.end_capture(C);
            allocator.pools().end(pool).unwrap();
            ended
        };
        *thread = Some((end, std::thread::spawn(captures)));
        // Where the lock is held, it begins later.
        let _ = has_begun.recv_timeout(Duration::from_millis(100));
    }
}

impl ForwardingDriver for CaptureMeanwhile {
    fn inner(&self) -> &dyn Driver {
        &*self.gpu
    }
    fn event_synchronize(&self, event: EventId) -> DriverResult<()> {
        let done = self.gpu.event_synchronize(event);
        self.begin();
        done
    }
    fn rest(&self, ns: u64) {
        self.begin();
        self.gpu.rest(ns);
    }
}

#[test]
fn a_capture_that_begins_meanwhile_stays_valid() {
    let mut captures = 0;
    for (options, mib) in
        [("", 110), ("sharing:completed", 55), (NO_WAITS, 55), (NO_WAITS, 110), ("wait_ms:100,sharing:never", 55)]
    {
        for user in [A, B] {
            let gpu = Arc::new(SimGpu::new(SimConfig::default()).unwrap());
            let driver = Arc::new(CaptureMeanwhile { gpu, allocator: OnceLock::new(), thread: Mutex::default() });
            let config = Config::parse(&format!("memory_limit:120MiB,{options}")).unwrap();
            let allocator = Arc::new(Allocator::new(driver.clone(), config).unwrap());
            pending(&driver.gpu, &allocator, user, &[(28, A, 10), (30, B, 50), (58, B, 500)]);
            driver.allocator.set((Arc::downgrade(&allocator), allocator.pools().create())).unwrap();
            // Served or not: what the capture forbids is not asked.
            let _ = allocator.allocate(mib * MIB, A);
            let Some((end, thread)) = driver.thread.lock().take() else { continue };
            captures += 1;
            end.send(()).unwrap();
            thread.join().unwrap().unwrap();
            allocator.reports().check().unwrap();
        }
    }
    assert!(captures > 5, "{captures}: nothing was waited for");
}

/// So that the requests that follow need not wait again.
#[test]
fn an_eighth_of_what_is_pending_is_waited_for() {
    let (gpu, allocator) = on(NO_WAITS);
    let uses: Vec<(u64, StreamId, u64)> = (0..30).map(|_| (4, A, 10)).collect();
    pending(&gpu, &allocator, OWN, &uses);
    let (address, took) = timed(&gpu, &allocator, 4, OWN);
    address.unwrap();
    // The fourth of thirty blocks of 4 MiB is beyond an eighth of 120.
    lasts(took, 40.0);
    assert_eq!(waits(&allocator).events, 4);
    for _ in 0..3 {
        allocator.allocate(4 * MIB, OWN).unwrap();
    }
    assert_eq!(waits(&allocator).requests, 1);
}
