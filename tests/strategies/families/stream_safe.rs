//! Paddle's stream safety, against an independent model of `stream_safe_cuda_allocator.cc`: which memory serves again when, to the
//! address. The model keeps, for each block and stream, how much work the stream had been given when it was named.

use super::model::{MIB, Model, Rules};
use super::{MAIN, gpu, held, on};
use crate::random::Random;
use seamalloc::driver::sim::{CaptureMode, Hold, SimGpu};
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::{Allocator, Error, Route, StrategyKind};
use std::collections::{BTreeMap, VecDeque};

const SAFE: &str = "FLAGS_use_stream_safe_cuda_allocator:True";
const SIDES: [StreamId; 3] = [StreamId(8), StreamId(9), StreamId(10)];

/// The work of a stream: how many kernels it was given, and those that run.
#[derive(Default)]
struct Work {
    given: u64,
    running: VecDeque<Hold>,
}

/// `StreamSafeCUDAAllocator` over a model of the allocator below.
struct StreamSafe {
    below: Model,
    /// For each live block the streams that it was recorded for, and the work that they had been given.
    recorded: BTreeMap<u64, BTreeMap<StreamId, u64>>,
    /// `unfreed_allocations_`.
    unfreed: Vec<(u64, BTreeMap<StreamId, u64>)>,
}

type Streams = BTreeMap<StreamId, Work>;

fn done(streams: &Streams, stream: StreamId) -> u64 {
    streams.get(&stream).map_or(0, |work| work.given - work.running.len() as u64)
}

fn can_be_freed(events: &BTreeMap<StreamId, u64>, streams: &Streams) -> bool {
    events.iter().all(|(stream, work)| *work <= done(streams, *stream))
}

impl StreamSafe {
    fn process_unfreed(&mut self, streams: &Streams) {
        let (free, unfreed): (Vec<_>, Vec<_>) =
            self.unfreed.drain(..).partition(|(_, events)| can_be_freed(events, streams));
        self.unfreed = unfreed;
        free.into_iter().for_each(|(address, _)| self.below.free(address));
    }

    fn allocate(&mut self, size: u64, streams: &Streams) -> Option<u64> {
        self.process_unfreed(streams);
        // The model below releases what is idle and tries once more, as `ReleaseImpl` lets it.
        let address = self.below.allocate(size)?;
        self.recorded.insert(address, BTreeMap::new());
        Some(address)
    }

    fn record(&mut self, address: u64, stream: StreamId, streams: &Streams) {
        let given = streams.get(&stream).map_or(0, |work| work.given);
        self.recorded.get_mut(&address).unwrap().insert(stream, given);
    }

    fn erase(&mut self, address: u64, stream: StreamId) {
        self.recorded.get_mut(&address).unwrap().remove(&stream);
    }

    fn free(&mut self, address: u64, streams: &Streams) {
        let events = self.recorded.remove(&address).unwrap();
        if can_be_freed(&events, streams) {
            self.below.free(address);
        } else {
            self.unfreed.push((address, events));
        }
    }
}

/// After a call that waits for the device, as `cudaFree` does, nothing runs.
fn notice_waits(gpu: &SimGpu, streams: &mut Streams, frees: &mut u64) {
    let now = gpu.call_stats().get(Call::Free).count;
    if now > *frees {
        streams.values_mut().for_each(|work| work.running.clear());
        *frees = now;
    }
}

fn agrees(options: &str, rules: Rules) {
    let mut waited = 0;
    for (seed, capacity) in [(1, "64GiB"), (2, "2GiB"), (3, "600MiB"), (4, "250MiB")] {
        let device = format!("sim:h200,capacity={capacity}");
        let (device_gpu, allocator) = on(&device, &format!("{options},{SAFE}"));
        let below = Model::new(rules, gpu(&device));
        let mut model = StreamSafe { below, recorded: BTreeMap::new(), unfreed: Vec::new() };
        let (mut random, mut live) = (Random(seed), Vec::new());
        let (mut streams, mut frees) = (Streams::new(), 0);
        for step in 0..super::STEPS {
            let name = format!("{options}, {capacity}, step {step}");
            let stream = SIDES[random.below(3) as usize];
            let work = streams.entry(stream).or_default();
            match random.below(20) {
                0..3 => {
                    work.given += 1;
                    work.running.push_back(device_gpu.hold(stream));
                }
                3..6 => {
                    if let Some(hold) = work.running.pop_front() {
                        assert!(device_gpu.finish_hold(hold), "{name}: something has waited for it");
                    }
                }
                6..12 => {
                    let most = [3000, 200 << 10, 3 * MIB, 12 * MIB, 60 * MIB][random.below(5) as usize];
                    let size = 1 + random.below(most);
                    let got = allocator.allocate(size, MAIN);
                    assert_eq!(got.as_ref().ok().copied(), model.allocate(size, &streams), "{name}: {size} bytes");
                    live.extend(got);
                }
                _ if live.is_empty() => {}
                12..15 => {
                    let address = live[random.below(live.len() as u64) as usize];
                    allocator.record_stream(address, stream).unwrap();
                    model.record(address, stream, &streams);
                }
                15 => {
                    let address = live[random.below(live.len() as u64) as usize];
                    allocator.streams().unrecord(address, stream).unwrap();
                    model.erase(address, stream);
                }
                _ => {
                    let address = live.swap_remove(random.below(live.len() as u64) as usize);
                    allocator.free(address).unwrap();
                    model.free(address, &streams);
                }
            }
            notice_waits(&device_gpu, &mut streams, &mut frees);
            let stats = allocator.stats();
            let pending: u64 = model.unfreed.iter().map(|(address, _)| model.below.size_of(*address)).sum();
            let found = stats.active_bytes.all.current - stats.allocated_bytes.all.current;
            assert_eq!((found, held(&allocator)), (pending, model.below.held()), "{name}");
            waited += usize::from(pending > 0);
        }
        let refused = allocator.stats().num_ooms;
        assert_eq!(refused > 0, capacity != "64GiB", "{options}, {capacity}: {refused} requests were refused");
        live.into_iter().for_each(|address| allocator.free(address).unwrap());
        allocator.empty_cache().unwrap();
        assert_eq!(held(&allocator), 0);
        allocator.reports().check().unwrap();
        drop(allocator);
        assert_eq!(device_gpu.leaks(), Default::default(), "{options}");
    }
    assert!(waited > 1000, "{options}: blocks waited at {waited} steps only");
}

#[test]
fn auto_growth_is_stream_safe_as_paddles() {
    for (chunk, idle_goes) in [(0, false), (16, false), (0, true)] {
        let options = format!(
            "strategy:paddle-auto-growth,FLAGS_auto_growth_chunk_size_in_mb:{chunk},FLAGS_free_idle_chunk:{idle_goes}"
        );
        let chunk = chunk * MIB;
        let rules =
            Rules::AutoGrowth { chunk, small_pool: 0, small_chunk: 0, large_chunk: 0, idle_goes, miss_frees: false };
        agrees(&options, rules);
    }
}

#[test]
fn naive_best_fit_is_stream_safe_by_the_same_rule() {
    for kind in ["paddle-naive-best-fit", "paddle-thread-local"] {
        let options = format!("strategy:{kind},FLAGS_initial_gpu_memory_in_mb:64,FLAGS_reallocate_gpu_memory_in_mb:16");
        agrees(&options, Rules::NaiveBestFit { initial: 64 * MIB, later: 16 * MIB });
    }
}

/// The four strategies, by the rule of all strategies and by Paddle's: what differs.
#[test]
fn what_differs_from_the_rule_of_all_strategies() {
    for kind in StrategyKind::PADDLE {
        for by_paddle in [false, true] {
            let name = format!("{kind}, by Paddle's rule: {by_paddle}");
            let flags = "FLAGS_initial_gpu_memory_in_mb:40,FLAGS_reallocate_gpu_memory_in_mb:2";
            let options = format!("strategy:{kind},{flags},FLAGS_use_stream_safe_cuda_allocator:{by_paddle}");
            let (gpu, allocator) = on("sim:h200,capacity=100MiB", &options);
            let pending = || allocator.stats().active_bytes.all.current > allocator.stats().allocated_bytes.all.current;
            let side = SIDES[0];
            // Work given after the stream was named is waited for by the one and not by the other.
            let block = allocator.allocate(10 * MIB, MAIN).unwrap();
            allocator.record_stream(block, side).unwrap();
            let later = gpu.hold(side);
            allocator.free(block).unwrap();
            assert_eq!(pending(), !by_paddle, "{name}");
            assert!(gpu.finish_hold(later), "{name}: nothing has waited");
            // Work given before it is waited for by both.
            let again = allocator.allocate(10 * MIB, MAIN).unwrap();
            assert_eq!(again, block, "{name}");
            let before = gpu.hold(side);
            allocator.record_stream(again, side).unwrap();
            allocator.free(again).unwrap();
            assert!(pending(), "{name}");
            // A request that only that memory could serve: one waits for it, the other refuses.
            let served = allocator.allocate(95 * MIB, MAIN);
            assert_eq!(served.is_err(), by_paddle, "{name}");
            assert_eq!(gpu.finish_hold(before), by_paddle, "{name}: whether the CPU has waited");
            let served = served.or_else(|_| allocator.allocate(95 * MIB, MAIN));
            allocator.free(served.unwrap()).unwrap();
            assert!(gpu.faults().is_empty(), "{name}");
            allocator.reports().check().unwrap();
        }
    }
}

/// Free memory of other streams goes back before a refusal, also behind events that have passed.
#[test]
fn a_shortage_takes_what_other_streams_have_free() {
    let options = format!("strategy:paddle-auto-growth,{SAFE}");
    let (gpu, allocator) = on("sim:h200,capacity=100MiB", &options);
    let [other, side, _] = SIDES;
    let block = allocator.allocate(60 * MIB, other).unwrap();
    let hold = gpu.hold(side);
    allocator.record_stream(block, side).unwrap();
    allocator.free(block).unwrap();
    assert!(matches!(allocator.allocate(60 * MIB, MAIN), Err(Error::OutOfMemory(_))));
    assert!(gpu.finish_hold(hold));
    allocator.allocate(60 * MIB, MAIN).unwrap();
}

#[test]
fn in_a_capture_streams_are_noted_and_their_events_recorded_afterwards() {
    let options = format!("strategy:paddle-auto-growth,{SAFE}");
    let (gpu, allocator) = on("sim:h200,capacity=1GiB", &options);
    let [captured, side, _] = SIDES;
    let block = allocator.allocate(4 * MIB, MAIN).unwrap();
    let pool = allocator.pools().create();
    allocator.pools().begin(pool, Route::stream(captured).capturing()).unwrap();
    gpu.begin_capture(captured, CaptureMode::Global).unwrap();
    let records = gpu.call_stats().get(Call::EventRecord).count;
    allocator.record_stream(block, side).unwrap();
    allocator.free(block).unwrap();
    assert_eq!(gpu.call_stats().get(Call::EventRecord).count, records);
    gpu.end_capture(captured).unwrap();
    allocator.pools().end(pool).unwrap();
    // Given before the event, which is recorded at the next look.
    let hold = gpu.hold(side);
    let other = allocator.allocate(4 * MIB, MAIN).unwrap();
    assert_ne!(other, block);
    assert!(gpu.finish_hold(hold));
    assert_eq!(allocator.allocate(4 * MIB, MAIN).unwrap(), block);
    assert!(gpu.faults().is_empty());
}

/// Each driver call of naming, erasing and freeing fails in turn: what was known is as before.
#[test]
fn failures_leave_what_was_named() {
    let options = format!("strategy:paddle-auto-growth,{SAFE}");
    let (gpu, allocator) = on("sim:h200,capacity=1GiB", &options);
    let [side, other, _] = SIDES;
    let pending = |allocator: &Allocator| {
        allocator.stats().active_bytes.all.current > allocator.stats().allocated_bytes.all.current
    };
    let block = allocator.allocate(4 * MIB, MAIN).unwrap();
    let hold = gpu.hold(side);
    for call in [Call::EventCreate, Call::EventRecord] {
        gpu.fail_nth(call, 1, Status(999));
        assert!(allocator.record_stream(block, side).is_err(), "{call:?}");
        gpu.fail_no_more();
    }
    // It was not named, so it does not wait.
    allocator.free(block).unwrap();
    assert!(!pending(&allocator));
    let block = allocator.allocate(4 * MIB, MAIN).unwrap();
    allocator.record_stream(block, side).unwrap();
    // A second event that cannot be recorded leaves the first.
    gpu.fail_nth(Call::EventRecord, 1, Status(999));
    assert!(allocator.record_stream(block, side).is_err());
    gpu.fail_nth(Call::EventRecord, 1, Status(999));
    assert!(allocator.record_stream(block, other).is_err());
    // The stream of the last use is named at the free: if that fails, the block stays live with its events.
    gpu.fail_nth(Call::EventRecord, 1, Status(999));
    assert!(allocator.free_on(block, other).is_err());
    gpu.fail_no_more();
    assert_eq!(allocator.stats().allocation.all.current, 1);
    // An event that cannot be asked for is waited for.
    gpu.fail_nth(Call::EventQuery, 1, Status(999));
    allocator.free(block).unwrap();
    gpu.fail_no_more();
    assert!(pending(&allocator));
    assert!(gpu.finish_hold(hold));
    let again = allocator.allocate(4 * MIB, MAIN).unwrap();
    assert_eq!(again, block);
    allocator.free(again).unwrap();
    allocator.reports().check().unwrap();
    drop(allocator);
    assert_eq!(gpu.leaks(), Default::default());
}

/// A free that fails for one stream leaves the event of another with the block: no other block gets it.
#[test]
fn a_free_that_fails_leaves_the_events_of_the_block() {
    let options = format!("strategy:paddle-auto-growth,{SAFE}");
    let (gpu, allocator) = on("sim:h200,capacity=1GiB", &options);
    let [side, noted, third] = SIDES;
    let block = allocator.allocate(4 * MIB, MAIN).unwrap();
    let other = allocator.allocate(4 * MIB, MAIN).unwrap();
    let hold = gpu.hold(side);
    allocator.record_stream(block, side).unwrap();
    let pool = allocator.pools().create();
    allocator.pools().begin(pool, Route::stream(StreamId(99)).capturing()).unwrap();
    // It has no event before the capture ends.
    allocator.record_stream(block, noted).unwrap();
    allocator.pools().end(pool).unwrap();
    gpu.fail_nth(Call::EventRecord, 1, Status(999));
    assert!(allocator.free(block).is_err());
    gpu.fail_no_more();
    allocator.record_stream(other, third).unwrap();
    allocator.free(block).unwrap();
    let again = allocator.allocate(4 * MIB, MAIN).unwrap();
    assert_ne!(again, block, "the stream `side` still uses it");
    assert!(gpu.finish_hold(hold));
    assert_eq!(allocator.allocate(4 * MIB, MAIN).unwrap(), block);
    drop(allocator);
    assert!(gpu.leaks().events == 0, "{:?}", gpu.leaks());
}

/// A stream named before and again at the free is waited for up to the free.
#[test]
fn the_stream_of_the_last_use_is_waited_for_up_to_the_free() {
    let options = format!("strategy:paddle-auto-growth,{SAFE}");
    let (gpu, allocator) = on("sim:h200,capacity=1GiB", &options);
    let side = SIDES[0];
    let block = allocator.allocate(4 * MIB, MAIN).unwrap();
    allocator.record_stream(block, side).unwrap();
    let hold = gpu.hold(side);
    allocator.free_on(block, side).unwrap();
    assert_ne!(allocator.allocate(4 * MIB, MAIN).unwrap(), block);
    assert!(gpu.finish_hold(hold));
    assert_eq!(allocator.allocate(4 * MIB, MAIN).unwrap(), block);
    // A stream that ends takes its events along.
    let kept = allocator.allocate(4 * MIB, MAIN).unwrap();
    allocator.record_stream(kept, side).unwrap();
    allocator.streams().forget(side).unwrap();
    allocator.free(kept).unwrap();
    assert_eq!(allocator.allocate(4 * MIB, MAIN).unwrap(), kept);
}
