//! Chunks are split behind a gate by default: which streams it holds, and what happens when it cannot be closed.

use parking_lot::Mutex;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Driver, DriverResult, ForwardingDriver, GateCopy, StreamGate, StreamId};
use seamalloc::{Allocator, Config, Error};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(7);

/// A simulated GPU that notes which streams each gate holds, and closes at most so many gates.
struct Noting {
    gpu: SimGpu,
    held: Mutex<Vec<Vec<StreamId>>>,
    most: Mutex<usize>,
}

impl ForwardingDriver for Noting {
    fn inner(&self) -> &dyn Driver {
        &self.gpu
    }
    fn close_gate(&self, streams: &[StreamId], copies: &[GateCopy], patience_ns: u64) -> DriverResult<bool> {
        self.held.lock().push(streams.to_vec());
        if self.held.lock().len() > *self.most.lock() {
            return Ok(false);
        }
        self.inner().close_gate(streams, copies, patience_ns)
    }
}

fn device(options: &str) -> (Arc<Noting>, Allocator) {
    let gpu = SimGpu::new(SimConfig::parse("sim:h100,capacity=1GiB").unwrap()).unwrap();
    let device = Arc::new(Noting { gpu, held: Mutex::default(), most: Mutex::new(usize::MAX) });
    let allocator = Allocator::new(Arc::<Noting>::clone(&device), Config::parse(options).unwrap()).unwrap();
    (device, allocator)
}

/// Returns about as many bytes as lie in free granules beside so many blocks of this size.
fn nearly_all(blocks: usize, size: u64) -> u64 {
    blocks as u64 * (size / (2 * MIB) - 1) * 2 * MIB - 24 * MIB
}

fn fill(allocator: &Allocator, size: u64) -> Vec<u64> {
    std::iter::from_fn(|| allocator.allocate(size, MAIN).ok()).collect()
}

/// Fills the device with blocks of this size, and frees every other one. Returns the blocks that stay.
fn comb(allocator: &Allocator, size: u64) -> Vec<u64> {
    let blocks = fill(allocator, size);
    blocks.iter().skip(1).step_by(2).for_each(|address| allocator.free(*address).unwrap());
    blocks.into_iter().step_by(2).collect()
}

fn end(device: &Noting, allocator: Allocator, live: impl IntoIterator<Item = u64>) {
    live.into_iter().for_each(|address| allocator.free(address).unwrap());
    drop(allocator);
    assert_eq!((device.gpu.faults(), device.gpu.leaks().is_empty()), (Vec::new(), true));
}

/// Blocks of 5, 12 and 37 MB, every other one freed: a request for nearly all that is free is served, as by PyTorch's
/// allocator.
#[test]
fn a_comb_serves_what_is_free_by_default() {
    for size in [5_000_000, 12_000_000, 37_000_000] {
        for (options, is_served) in [("", true), ("split:off", false)] {
            let (device, allocator) = device(options);
            let mut live = comb(&allocator, size);
            let served = allocator.allocate(nearly_all(live.len(), size), MAIN);
            assert_eq!(served.is_ok(), is_served, "{size} {options}: {served:?}");
            assert_eq!(allocator.stats().splits.chunks > 0, is_served);
            live.extend(served);
            end(&device, allocator, live);
        }
    }
}

/// A comb that leaves the device no byte free: there is no room for a copy, so the first chunk is split through host
/// memory. The estimate counts on it.
#[test]
fn a_comb_on_a_full_device_serves_what_is_free() {
    let mut through_host = 0;
    for size in (4..40).map(|megabytes| megabytes * 1_000_000) {
        let (device, allocator) = device("memory_limit:1000MiB");
        let blocks = fill(&allocator, size);
        let mut live = fill(&allocator, 2 * MIB);
        let freed = blocks.len() as u64 / 2;
        for (at, block) in blocks.into_iter().enumerate() {
            if at % 2 == 1 { allocator.free(block).unwrap() } else { live.push(block) }
        }
        let most = allocator.reports().largest_request().unwrap();
        let all = (freed * (size / (2 * MIB) - 1) * 2 * MIB).saturating_sub(24 * MIB);
        assert!(most >= all, "{size}: {most} of {all}");
        let served = allocator.allocate(most, MAIN);
        assert!(served.is_ok(), "{size}: {served:?}");
        live.extend(served);
        let stats = allocator.stats();
        assert_eq!(stats.spilled_bytes.current, 0, "{size}");
        through_host += usize::from(stats.spilled_bytes.allocated > 0);
        end(&device, allocator, live);
    }
    assert!(through_host >= 5, "{through_host}: too tame");
}

/// Parts of a split chunk stay in host memory, because no second gate can be closed. Their return is tried once when live
/// memory is low next, and not again in each step, since every try stops the streams.
#[test]
fn parts_in_host_memory_do_not_stop_the_streams_in_each_step() {
    let mut left = 0;
    for size in (4..40).map(|megabytes| megabytes * 1_000_000) {
        let (device, allocator) = device("memory_limit:1000MiB");
        let blocks = fill(&allocator, size);
        let mut live = fill(&allocator, 2 * MIB);
        for (at, block) in blocks.into_iter().enumerate() {
            if at % 2 == 1 { allocator.free(block).unwrap() } else { live.push(block) }
        }
        let gates = || device.held.lock().len();
        *device.most.lock() = gates() + 1;
        let most = allocator.reports().largest_request().unwrap();
        live.extend(allocator.allocate(most, MAIN));
        let spilled = || allocator.stats().spilled_bytes.current;
        if spilled() > 0 {
            left += 1;
            // A step frees most of what is live, and allocates as much again.
            let mut step = || {
                let freed: Vec<u64> = live.drain(live.len() / 5..).collect();
                freed.iter().for_each(|address| allocator.free(*address).unwrap());
                live.extend(freed.iter().map(|_| allocator.allocate(size, MAIN)).map_while(Result::ok));
            };
            let before = gates();
            step();
            let tried = gates();
            assert!(tried > before, "{size}: the return was not tried");
            (0..5).for_each(|_| step());
            assert_eq!(gates(), tried, "{size}: the return was tried again");
            *device.most.lock() = usize::MAX;
            assert!((0..100).any(|_| {
                step();
                spilled() == 0
            }));
        }
        end(&device, allocator, live);
    }
    assert!(left >= 3, "{left}: too tame");
}

/// Each gate waits for all work that the streams were given, so a request that needs many splits closes few gates.
#[test]
fn many_chunks_are_split_behind_one_gate() {
    for size in [5_000_000, 12_000_000, 37_000_000] {
        let (device, allocator) = device("");
        let mut live = comb(&allocator, size);
        live.push(allocator.allocate(nearly_all(live.len(), size), MAIN).unwrap());
        let (chunks, gates) = (allocator.stats().splits.chunks, device.held.lock().len() as u64);
        assert!(chunks >= 10 && gates * 4 <= chunks, "{size}: {chunks} chunks, {gates} gates");
        end(&device, allocator, live);
    }
}

#[test]
fn every_stream_that_was_named_is_held() {
    let [freeing, recorded, announced, forgotten] = [8, 9, 10, 11].map(StreamId);
    let (device, allocator) = device("");
    let first = allocator.allocate(2 * MIB, forgotten).unwrap();
    allocator.record_stream(first, recorded).unwrap();
    allocator.free_with_current_stream(first, freeing).unwrap();
    allocator.streams().announce(announced).unwrap();
    allocator.streams().forget(forgotten).unwrap();
    let mut live = vec![allocator.allocate(2 * MIB, SIDE).unwrap()];
    live.extend(comb(&allocator, 12_000_000));
    live.push(allocator.allocate(nearly_all(live.len(), 12_000_000), MAIN).unwrap());
    // A device holds the default stream in any case.
    let expected = [SIDE, freeing, recorded, announced];
    let held = device.held.lock().clone();
    assert!(!held.is_empty() && held.iter().all(|held| held[..] == expected), "{held:?}");
    end(&device, allocator, live);
}

/// Work that lasts, a capture of which nobody told the allocator, a stream that may be destroyed at any time, and more streams
/// than a device can hold: the request is refused as without splitting, and nothing has changed.
#[test]
fn without_a_gate_a_request_is_refused_as_before() {
    type Hinder = fn(&Noting, &Allocator);
    let hinders: [(&str, Hinder); 3] = [
        ("captured", |device, _| {
            device.gpu.begin_capture(SIDE, seamalloc::driver::CaptureMode::Relaxed).unwrap();
        }),
        ("external", |_, allocator| allocator.streams().mark_external(StreamId(99)).unwrap()),
        ("many", |_, allocator| (100..300).for_each(|stream| allocator.streams().announce(StreamId(stream)).unwrap())),
    ];
    for (name, hinder) in hinders {
        let (device, allocator) = device("");
        let mut live = vec![allocator.allocate(2 * MIB, SIDE).unwrap()];
        live.extend(comb(&allocator, 12_000_000));
        hinder(&device, &allocator);
        let before = allocator.stats();
        let refused = allocator.allocate(nearly_all(live.len(), 12_000_000), MAIN);
        assert!(matches!(refused, Err(Error::OutOfMemory(_) | Error::Driver(_))), "{name}: {refused:?}");
        let after = allocator.stats();
        assert_eq!(after.splits.chunks, 0, "{name}");
        assert_eq!(after.allocated_bytes.all.current, before.allocated_bytes.all.current, "{name}");
        if name == "captured" {
            // The wait for the device has invalidated a capture of which nobody told the allocator.
            device.gpu.end_capture(SIDE).unwrap_err();
        }
        end(&device, allocator, live);
    }
}

/// On a simulated GPU that refuses, behind a gate, what a real one never answers, every exchange still works; so no exchange
/// makes such a call.
#[test]
fn behind_a_gate_only_mappings_change() {
    let gpu = SimGpu::new(SimConfig::parse("sim:h100,capacity=64MiB").unwrap()).unwrap();
    let driver: &dyn Driver = &gpu;
    let plain = driver.malloc(2 * MIB).unwrap();
    let event = driver.event_create().unwrap();
    let (address, handle) = (driver.reserve(4 * MIB, 0).unwrap(), driver.create(2 * MIB).unwrap());
    driver.map(address, 2 * MIB, 0, handle).unwrap();
    driver.set_access(address, 2 * MIB).unwrap();
    assert!(driver.close_gate(&[SIDE], &[], 0).unwrap());
    for refused in [
        driver.free(plain),
        driver.malloc(512).map(drop),
        driver.event_record(event, SIDE),
        driver.stream_synchronize(SIDE),
        driver.synchronize(),
        driver.copy(address, address + 512, 512),
        driver.close_gate(&[SIDE], &[], 0).map(drop),
        gpu.launch(SIDE, &[], 1),
    ] {
        assert!(refused.unwrap_err().to_string().contains("the gate holds"));
    }
    driver.unmap(address, 2 * MIB).unwrap();
    driver.map(address, 2 * MIB, 0, handle).unwrap();
    driver.set_access(address, 2 * MIB).unwrap();
    driver.open_gate();
    driver.free(plain).unwrap();
    driver.event_destroy(event).unwrap();
    driver.unmap(address, 2 * MIB).unwrap();
    driver.address_free(address, 4 * MIB).unwrap();
    driver.release(handle).unwrap();
    StreamGate::open_gate(&gpu);
}

/// A stream whose work takes longer than the gate waits is not held, and what it uses stays mapped.
#[test]
fn a_gate_gives_up_on_long_work() {
    let gpu = SimGpu::new(SimConfig::parse("sim:h100,capacity=64MiB").unwrap()).unwrap();
    gpu.launch(SIDE, &[], 1_000_000).unwrap();
    assert!(!StreamGate::close_gate(&gpu, &[SIDE], &[], 999_000).unwrap());
    gpu.launch(SIDE, &[], 1).unwrap();
    let held = gpu.hold(SIDE);
    assert!(!StreamGate::close_gate(&gpu, &[SIDE], &[], u64::MAX / 4).unwrap());
    assert!(gpu.finish_hold(held));
    assert!(StreamGate::close_gate(&gpu, &[SIDE], &[], 2_000_000).unwrap());
    StreamGate::open_gate(&gpu);
}

/// Another thread that launches work while the gate is closed goes on when it opens.
#[test]
fn other_threads_go_on_when_the_gate_opens() {
    let gpu = SimGpu::new(SimConfig::parse("sim:h100,capacity=64MiB").unwrap()).unwrap();
    assert!(StreamGate::close_gate(&gpu, &[SIDE], &[], 0).unwrap());
    std::thread::scope(|scope| {
        let launch = scope.spawn(|| gpu.launch(SIDE, &[], 1));
        StreamGate::open_gate(&gpu);
        assert_eq!(launch.join().unwrap(), Ok(()));
    });
}
