//! Headroom: memory of the device that stays free for others, who take it without a word.

use crate::random::Random;
use crate::simulated;
use seamalloc::driver::prelude::*;
use seamalloc::driver::sim::{CaptureMode, Range, SimConfig, SimGpu};
use seamalloc::driver::{Call, CallStats, Status, StreamId};
use seamalloc::{Allocator, Backup, Config, ConfigError, Error, IdleRelease, Pool, Route};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const STREAMS: [StreamId; 3] = [StreamId(1), StreamId(2), StreamId(3)];
/// Between two misses of a program, in nanoseconds: each of them may look.
const LONG: u64 = 1_000_000_000;
const DEVICE: &str = "sim:h200,capacity=1000MiB";
/// Of the strategies that give back without a wait.
const WITHOUT_WAIT: [&str; 4] = ["", "sharing:completed", "sharing:never", "split:last_resort"];

fn on(options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on(DEVICE, Config::parse(&format!("headroom:200MiB,{options}")).unwrap())
}

fn free_on(gpu: &SimGpu) -> u64 {
    gpu.memory_info().unwrap().free
}

/// Three streams have had 200 MiB each, and 20 MiB of it stay live. The GPU is done with all of it.
fn fill(gpu: &SimGpu, allocator: &Allocator) -> Vec<u64> {
    let mut live = Vec::new();
    for stream in STREAMS {
        let burst: Vec<u64> = (0..10).map(|_| allocator.allocate(20 * MIB, stream).unwrap()).collect();
        burst[1..].iter().for_each(|address| allocator.free(*address).unwrap());
        live.push(burst[0]);
    }
    gpu.synchronize().unwrap();
    live
}

/// Requests that no free block fits: of streams that have nothing.
fn misses(gpu: &SimGpu, allocator: &Allocator, streams: std::ops::Range<u64>) {
    for stream in streams {
        gpu.advance(LONG);
        let address = allocator.allocate(MIB / 2, StreamId(stream)).unwrap();
        allocator.free(address).unwrap();
    }
}

fn made(gpu: &SimGpu, since: &CallStats, call: Call) -> u64 {
    gpu.call_stats().since(since).get(call).count
}

#[test]
fn what_is_free_goes_back_at_misses_while_others_need_it() {
    let others =
        ["strategy:caching", "strategy:expandable", "strategy:gmlake", "strategy:malloc-async", "strategy:tiny"];
    for options in WITHOUT_WAIT.into_iter().chain(others) {
        let (gpu, allocator) = on(options);
        let live = fill(&gpu, &allocator);
        let held = allocator.reports().reserved();
        assert!(held >= 240 * MIB, "{options}: {held}");
        misses(&gpu, &allocator, 100..108);
        assert_eq!(allocator.stats().headroom.yields, 0, "{options}: nobody needs it yet");
        let before = allocator.reports().reserved();
        // Others leave 50 MiB.
        let taken = free_on(&gpu) - 50 * MIB;
        let theirs = gpu.malloc(taken).unwrap();
        let calls = gpu.call_stats();
        misses(&gpu, &allocator, 200..208);
        assert!(free_on(&gpu) >= 200 * MIB, "{options}: {}", free_on(&gpu));
        let stats = allocator.stats().headroom;
        // Where streams share nothing a miss is a growth. It is refused, and what is cached goes before that, as at a limit.
        if WITHOUT_WAIT.contains(&options) && options != "sharing:never" {
            assert!(
                stats.yields > 0 && stats.short >= stats.yields && stats.looks > stats.short,
                "{options}: {stats:?}"
            );
            assert!(stats.yielded_bytes >= before - allocator.reports().reserved(), "{options}: {stats:?}");
            // Hardly more than is missing goes: a chunk.
            assert!(stats.yielded_bytes <= 150 * MIB + 20 * MIB, "{options}: {stats:?}");
            for call in [Call::EventSynchronize, Call::StreamSynchronize, Call::Synchronize] {
                assert_eq!(made(&gpu, &calls, call), 0, "{options}: {call:?}");
            }
        }
        gpu.free(theirs).unwrap();
        live.into_iter().for_each(|address| allocator.free(address).unwrap());
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.reports().reserved(), 0, "{options}");
        assert!(gpu.faults().is_empty(), "{options}");
    }
}

/// Free memory serves before anything grows, or goes: as under a limit.
#[test]
fn what_is_free_serves_a_request_before_it_goes() {
    let (gpu, allocator) = on("");
    let bursts = STREAMS.map(|stream| [(); 10].map(|()| allocator.allocate(20 * MIB, stream).unwrap()));
    bursts.iter().flat_map(|burst| &burst[1..]).for_each(|address| allocator.free(*address).unwrap());
    gpu.synchronize().unwrap();
    let held = allocator.reports().reserved();
    gpu.malloc(free_on(&gpu) - 200 * MIB).unwrap();
    // It fits only in what lies free with all three streams.
    let large = allocator.allocate(500 * MIB, STREAMS[0]).unwrap();
    assert_eq!(allocator.reports().reserved(), held);
    assert_eq!((allocator.stats().headroom.yields, free_on(&gpu)), (0, 200 * MIB));
    assert!(allocator.stats().views_built > 0);
    // What does not fit is refused, and the report names the headroom.
    let Err(Error::OutOfMemory(report)) = allocator.allocate(100 * MIB, STREAMS[0]) else { panic!("it is not there") };
    assert_eq!(report.headroom, 200 * MIB);
    assert!(report.to_string().contains("headroom:"), "{report}");
    allocator.free(large).unwrap();
    allocator.reports().check().unwrap();
}

/// Cached memory of streams that share nothing is given back, and taken again for the request.
#[test]
fn where_it_cannot_be_joined_it_is_given_back_and_taken_again() {
    for options in ["sharing:never", "strategy:caching", "strategy:expandable", "strategy:gmlake"] {
        let (gpu, allocator) = on(options);
        fill(&gpu, &allocator);
        gpu.malloc(free_on(&gpu) - 200 * MIB).unwrap();
        allocator.allocate(400 * MIB, STREAMS[0]).unwrap_or_else(|error| panic!("{options}: {error}"));
        assert!(free_on(&gpu) >= 200 * MIB, "{options}");
        assert!(allocator.stats().num_alloc_retries > 0, "{options}");
    }
}

#[test]
fn the_device_is_asked_seldom_and_never_at_a_hit() {
    let (gpu, allocator) = on("sharing:wait");
    fill(&gpu, &allocator);
    let block = allocator.allocate(20 * MIB, STREAMS[0]).unwrap();
    allocator.free(block).unwrap();
    let calls = gpu.call_stats();
    for _ in 0..1000 {
        gpu.advance(LONG);
        allocator.free(allocator.allocate(20 * MIB, STREAMS[0]).unwrap()).unwrap();
    }
    assert_eq!(made(&gpu, &calls, Call::MemoryInfo), 0, "a hit asks nothing");
    // A device whose clock stands still: only misses count.
    let config = SimConfig { calls_advance_clock: false, ..SimConfig::parse(DEVICE).unwrap() };
    let gpu = Arc::new(SimGpu::new(config).unwrap());
    let options = Config::parse("headroom:200MiB,sharing:never").unwrap();
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), options).unwrap();
    let seen = |gpu: &SimGpu| (allocator.stats().headroom.looks, gpu.call_stats().get(Call::MemoryInfo).count);
    // Slabs of 2 MiB for four requests each: every fourth is a miss, and grows.
    let misses = |count: u64| (0..4 * count).for_each(|_| assert!(allocator.allocate(MIB / 2, STREAMS[0]).is_ok()));
    misses(1);
    assert_eq!(seen(&gpu), (1, 2), "one look, and one question of the growth");
    misses(256);
    assert_eq!(seen(&gpu), (1, 258), "a question for each growth, and no look");
    misses(1);
    assert_eq!(seen(&gpu), (2, 260));
    // In time: as many as there are pauses of 10 ms, however many misses there are.
    let (gpu, allocator) = on("sharing:never");
    for number in 0..40 {
        gpu.advance(1_000_000);
        allocator.allocate(2 * MIB, StreamId(number)).unwrap();
    }
    let looks = allocator.stats().headroom.looks;
    assert!((3..=6).contains(&looks), "{looks} looks in 40 ms");
}

/// No memory can go: then the pauses get longer.
#[test]
fn looks_in_vain_get_rare() {
    let (gpu, allocator) = on("sharing:never");
    let live: Vec<u64> = (0..100).map(|number| allocator.allocate(2 * MIB, StreamId(number)).unwrap()).collect();
    gpu.malloc(free_on(&gpu) - 100 * MIB).unwrap();
    let before = allocator.stats().headroom.looks;
    for number in 0..1000 {
        gpu.advance(10_000_000);
        assert!(allocator.allocate(4 * MIB, StreamId(number % 100)).unwrap_err().is_out_of_memory());
    }
    let stats = allocator.stats().headroom;
    // Ten seconds: pauses of 20, 40, … 640 ms, and from there on each of 640.
    assert!((10..=30).contains(&(stats.looks - before)) && stats.yields == 0, "{stats:?}");
    live.into_iter().for_each(|address| allocator.free(address).unwrap());
}

#[test]
fn what_the_gpu_still_uses_stays_and_goes_later() {
    for options in WITHOUT_WAIT {
        let (gpu, allocator) = on(options);
        let blocks: Vec<u64> = (0..10).map(|_| allocator.allocate(40 * MIB, STREAMS[0]).unwrap()).collect();
        for address in &blocks {
            gpu.launch(STREAMS[0], &[Range { address: *address, size: 40 * MIB }], 1 << 40).unwrap();
        }
        blocks.into_iter().for_each(|address| allocator.free(address).unwrap());
        gpu.malloc(free_on(&gpu) - 100 * MIB).unwrap();
        let held = allocator.reports().reserved();
        (0..3).for_each(|_| assert_eq!(allocator.lending().enforce_headroom().unwrap(), 0, "{options}"));
        assert_eq!(allocator.reports().reserved(), held, "{options}");
        gpu.advance(20 << 40);
        let given = allocator.lending().enforce_headroom().unwrap();
        assert!((100 * MIB..=120 * MIB).contains(&given), "{options}: {given}");
        assert!(gpu.faults().is_empty(), "{options}: {:?}", gpu.faults());
    }
}

/// Kernels use what they are given while others take and free at random. Nothing is unmapped under them, nothing is lost.
#[test]
fn random_programs_keep_their_memory() {
    let mut yields = [0; 7];
    for seed in 0..36 {
        let options =
            [WITHOUT_WAIT.as_slice(), &["strategy:caching", "strategy:expandable", "strategy:gmlake"]].concat();
        let which = seed as usize % options.len();
        let options = options[which];
        let (gpu, allocator) = on(options);
        let (mut random, mut live, mut theirs) = (Random(seed), Vec::new(), Vec::new());
        for step in 0..400 {
            let stream = StreamId(1 + random.below(4));
            match random.below(10) {
                0 => {
                    let most = free_on(&gpu);
                    let size = 1 + random.below(most.max(1));
                    theirs.extend(gpu.malloc(size));
                }
                1 if !theirs.is_empty() => {
                    let at = random.below(theirs.len() as u64) as usize;
                    gpu.free(theirs.swap_remove(at)).unwrap();
                }
                2..=5 if !live.is_empty() => {
                    let at = random.below(live.len() as u64) as usize;
                    let (address, _): (u64, u64) = live.swap_remove(at);
                    if random.below(3) == 0 {
                        allocator.record_stream(address, stream).unwrap();
                        gpu.launch(stream, &[Range { address, size: 512 }], 3_000_000).unwrap();
                    }
                    allocator.free(address).unwrap();
                }
                _ => {
                    let most = [64 << 10, 3 * MIB, 60 * MIB][random.below(3) as usize];
                    let size = 1 + random.below(most);
                    match allocator.allocate(size, stream) {
                        Ok(address) => {
                            gpu.launch(stream, &[Range { address, size }], 2_000_000).unwrap();
                            live.push((address, size));
                        }
                        Err(Error::OutOfMemory(_)) => {}
                        Err(error) => panic!("{options}, seed {seed}: {error}"),
                    }
                }
            }
            gpu.advance(random.below(20) * 1_000_000);
            assert!(gpu.faults().is_empty(), "{options}, seed {seed}, step {step}: {:?}", gpu.faults());
            for (address, size) in &live {
                let held: u64 =
                    gpu.physical(Range { address: *address, size: *size }).iter().map(|piece| piece.size).sum();
                assert_eq!(held, *size, "{options}, seed {seed}, step {step}: a live block has lost memory");
            }
            allocator.reports().check().unwrap();
        }
        yields[which] += allocator.stats().headroom.yields;
    }
    let [others @ .., _, _, _] = yields;
    assert!(others.iter().all(|yields| *yields > 0), "nothing ever went back: {yields:?}");
}

/// Every call of a program that yields fails in turn, and the one after it too: a request that is served is served all the
/// same, and memory is accounted to the byte.
#[test]
fn any_call_may_fail_while_memory_goes_back() {
    for options in
        ["", "sharing:wait", "split:last_resort", "strategy:caching", "strategy:expandable", "strategy:gmlake"]
    {
        for status in [Status::UNKNOWN, Status::OUT_OF_MEMORY] {
            let program = |fails: Option<(Call, u64)>| {
                let (gpu, allocator) = on(options);
                let mut live = fill(&gpu, &allocator);
                let taken = free_on(&gpu) - 60 * MIB;
                let theirs = gpu.malloc(taken).unwrap();
                let calls = gpu.call_stats();
                if let Some((call, nth)) = fails {
                    gpu.fail_nth(call, nth, status);
                    gpu.fail_nth(call, nth + 1, status);
                }
                for number in 0..6 {
                    gpu.advance(LONG);
                    match allocator.allocate(MIB / 2, StreamId(50 + number)) {
                        Ok(address) => live.push(address),
                        Err(Error::Driver(_) | Error::OutOfMemory(_)) if fails.is_some() => {}
                        Err(error) => panic!("{options}, {fails:?}: {error}"),
                    }
                    allocator.reports().check().unwrap();
                }
                let made = gpu.call_stats().since(&calls);
                gpu.fail_no_more();
                gpu.advance(LONG);
                allocator.lending().enforce_headroom().unwrap();
                assert!(free_on(&gpu) >= 200 * MIB, "{options}, {fails:?}: {}", free_on(&gpu));
                assert_eq!(
                    free_on(&gpu) + taken.next_multiple_of(2 * MIB) + allocator.reports().reserved(),
                    1000 * MIB,
                    "{options}, {fails:?}"
                );
                live.into_iter().for_each(|address| allocator.free(address).unwrap());
                allocator.empty_cache().unwrap();
                assert_eq!(allocator.reports().reserved(), 0, "{options}, {fails:?}");
                assert!(gpu.faults().is_empty(), "{options}, {fails:?}: {:?}", gpu.faults());
                drop(allocator);
                gpu.free(theirs).unwrap();
                assert!(gpu.leaks().is_empty(), "{options}, {fails:?}: {}", gpu.leaks());
                made
            };
            let plain = program(None);
            let mut failed = 0;
            for call in Call::ALL {
                for nth in 1..=plain.get(call).count.min(40) {
                    program(Some((call, nth)));
                    failed += 1;
                }
            }
            assert!(failed > 10, "{options}: only {failed} calls");
        }
    }
}

/// A device that does not tell is no reason to refuse: memory grows as without a headroom, and a look says what failed.
#[test]
fn a_device_that_does_not_tell_is_taken_as_it_comes() {
    let (gpu, allocator) = on("sharing:never");
    gpu.malloc(700 * MIB).unwrap();
    for nth in 1..=40 {
        gpu.fail_nth(Call::MemoryInfo, nth, Status::UNKNOWN);
    }
    let address = allocator.allocate(250 * MIB, STREAMS[0]).unwrap();
    assert!(allocator.lending().enforce_headroom().is_err_and(|error| matches!(error, Error::Driver(_))));
    gpu.fail_no_more();
    assert!(allocator.allocate(20 * MIB, STREAMS[1]).unwrap_err().is_out_of_memory());
    allocator.free(address).unwrap();
    gpu.synchronize().unwrap();
    assert_eq!(allocator.lending().enforce_headroom(), Ok(150 * MIB));
    allocator.reports().check().unwrap();
}

#[test]
fn in_a_capture_nothing_goes_back_and_growth_still_leaves_the_headroom() {
    let (gpu, allocator) = on("");
    fill(&gpu, &allocator);
    let pool = allocator.pools().create();
    allocator.pools().begin(pool, Route::stream(StreamId(9)).capturing()).unwrap();
    gpu.begin_capture(StreamId(9), CaptureMode::Global).unwrap();
    gpu.malloc_elsewhere(free_on(&gpu) - 190 * MIB);
    let held = allocator.reports().reserved();
    gpu.advance(LONG);
    allocator.allocate(30 * MIB, StreamId(9)).unwrap();
    assert_eq!(allocator.lending().enforce_headroom(), Ok(0));
    assert_eq!((allocator.reports().reserved(), free_on(&gpu)), (held, 190 * MIB), "it was stitched of what is free");
    assert!(allocator.allocate(900 * MIB, StreamId(9)).unwrap_err().is_out_of_memory());
    gpu.end_capture(StreamId(9)).unwrap();
    allocator.pools().end(pool).unwrap();
    // A capture of which nobody told the allocator stays valid too.
    gpu.begin_capture(StreamId(7), CaptureMode::Global).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(allocator.lending().enforce_headroom().unwrap() >= 10 * MIB)).join().unwrap()
    });
    gpu.end_capture(StreamId(7)).unwrap();
}

/// Beside the trait's `malloc`, which a capture refuses: memory of another process.
trait Elsewhere {
    fn malloc_elsewhere(&self, size: u64);
}

impl Elsewhere for SimGpu {
    fn malloc_elsewhere(&self, size: u64) {
        self.create(size).unwrap();
    }
}

/// Each allocator on a device keeps the same bytes free: they do not add up. One that respects them never makes another yield.
#[test]
fn several_allocators_on_a_device() {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse(DEVICE).unwrap()).unwrap());
    let made = |options: &str| Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::parse(options).unwrap()).unwrap();
    let (server, polite, rude) = (made("headroom:200MiB"), made("headroom:200MiB"), made(""));
    fill(&gpu, &server);
    let held = server.reports().reserved();
    let room = free_on(&gpu) - 200 * MIB;
    let served = polite.allocate(room, STREAMS[0]).unwrap();
    assert!(polite.allocate(20 * MIB, STREAMS[0]).unwrap_err().is_out_of_memory());
    assert_eq!((server.lending().enforce_headroom(), server.reports().reserved()), (Ok(0), held));
    rude.allocate(100 * MIB, STREAMS[0]).unwrap();
    assert_eq!(server.lending().enforce_headroom(), Ok(100 * MIB));
    assert_eq!(free_on(&gpu), 200 * MIB);
    polite.free(served).unwrap();
    assert_eq!(polite.lending().enforce_headroom(), Ok(0), "the headroom is whole");
}

#[test]
fn the_limits_hold_beside_it() {
    for (options, most) in [
        ("memory_limit:300MiB", 300),
        ("memory_limit:900MiB", 800),
        ("per_process_memory_fraction:0.5", 500),
        ("per_process_memory_fraction:0.9,memory_limit:850MiB", 800),
    ] {
        let (_, allocator) = on(options);
        assert!(allocator.allocate((most + 2) * MIB, STREAMS[0]).unwrap_err().is_out_of_memory(), "{options}");
        assert_eq!(allocator.reports().largest_request(), Ok(most * MIB), "{options}");
        allocator.allocate(most * MIB, STREAMS[0]).unwrap();
    }
    let (gpu, allocator) = on("memory_limit:600MiB");
    gpu.malloc(500 * MIB).unwrap();
    allocator.limits().set_fraction(0.55).unwrap();
    assert!(allocator.allocate(320 * MIB, STREAMS[0]).is_err(), "a lower limit is not what counts here");
    allocator.allocate(300 * MIB, STREAMS[0]).unwrap();
}

#[test]
fn a_headroom_of_the_whole_device_is_refused() {
    let gpu = Arc::new(SimGpu::new(SimConfig::parse(DEVICE).unwrap()).unwrap());
    let made = |options: &str| Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::parse(options).unwrap());
    let error = made("headroom:1000MiB").err().unwrap();
    assert!(matches!(&error, Error::Config(ConfigError::BadValue { option, .. }) if option == "headroom"), "{error}");
    assert!(error.to_string().contains("less than all memory of sim:h200,capacity=1000MiB, 1000MiB"), "{error}");
    assert!(made("headroom:998MiB").unwrap().allocate(2 * MIB, STREAMS[0]).is_ok());
}

/// Memory that wakes is memory that grows.
#[test]
fn a_tag_wakes_beside_the_headroom_or_not_at_all() {
    let (gpu, allocator) = on("");
    let tag = Pool::create_tag(&allocator).unwrap();
    let block = tag.block(300 * MIB, STREAMS[0]).unwrap();
    tag.sleep(&Backup::Discard).unwrap();
    let cached = allocator.allocate(100 * MIB, STREAMS[0]).unwrap();
    allocator.free(cached).unwrap();
    let theirs = gpu.malloc(520 * MIB).unwrap();
    let Err(Error::OutOfMemory(report)) = tag.wake() else { panic!("it woke in the headroom") };
    assert_eq!(report.headroom, 200 * MIB);
    assert!(free_on(&gpu) >= 200 * MIB && tag.is_asleep());
    gpu.free(theirs).unwrap();
    gpu.malloc(480 * MIB).unwrap();
    tag.wake().unwrap();
    assert_eq!(free_on(&gpu), 220 * MIB);
    drop(block);
}

#[test]
fn whoever_looks_after_idle_memory_looks_after_the_headroom() {
    let (gpu, allocator) = on("");
    fill(&gpu, &allocator);
    gpu.malloc(free_on(&gpu) - 100 * MIB).unwrap();
    let mut idle = IdleRelease::new(Duration::from_secs(1000));
    assert_eq!(idle.tick(&allocator, Duration::ZERO), Ok(100 * MIB));
    assert_eq!(idle.tick(&allocator, Duration::from_secs(1)), Ok(0));
}

/// Asked for, memory goes back with every strategy: no more than is missing, in the pieces that it has.
#[test]
fn every_strategy_gives_back_what_is_missing() {
    for (options, most) in [
        ("", 40),
        ("strategy:caching", 40),
        ("strategy:expandable", 40),
        ("strategy:gmlake", 40),
        ("strategy:malloc-async", 70),
        ("strategy:slab", 40),
        ("strategy:tiny", 40),
        ("strategy:buddy,buddy_capacity_mb:64", 64),
        ("strategy:paddle-auto-growth", 40),
        ("strategy:paddle-vmm", 40),
    ] {
        let (gpu, allocator) = on(options);
        fill(&gpu, &allocator);
        gpu.malloc(free_on(&gpu) - 165 * MIB).unwrap();
        let (free, held) = (free_on(&gpu), allocator.reports().reserved());
        let given = allocator.lending().enforce_headroom().unwrap();
        assert!((200 * MIB - free..=most * MIB).contains(&given), "{options}: {given} of {held}");
        assert_eq!(free_on(&gpu), free + given, "{options}");
        assert_eq!(allocator.lending().enforce_headroom(), Ok(0), "{options}");
        // As much as there is, where that is too little.
        gpu.malloc(free_on(&gpu)).unwrap();
        let rest = allocator.lending().enforce_headroom().unwrap();
        assert!(rest > 0 && rest == free_on(&gpu), "{options}: {rest}");
        assert!(rest >= 200 * MIB || allocator.lending().enforce_headroom() == Ok(0), "{options}: {rest}, and more");
        allocator.reports().check().unwrap();
    }
}

/// Without a headroom nothing is asked and nothing goes.
#[test]
fn without_the_option_nothing_happens() {
    let (gpu, allocator) = simulated::on(DEVICE, Config::parse("sharing:never,headroom:0B").unwrap());
    fill(&gpu, &allocator);
    gpu.malloc(free_on(&gpu)).unwrap();
    let (calls, held) = (gpu.call_stats(), allocator.reports().reserved());
    assert_eq!(allocator.lending().enforce_headroom(), Ok(0));
    gpu.advance(LONG);
    allocator.allocate(20 * MIB, STREAMS[1]).unwrap();
    assert_eq!((made(&gpu, &calls, Call::MemoryInfo), allocator.reports().reserved()), (0, held));
    assert_eq!(allocator.stats().headroom, Default::default());
}

fn on_softly() -> (Arc<SimGpu>, Allocator) {
    simulated::on(DEVICE, Config::parse("headroom:soft=200MiB").unwrap())
}

#[test]
fn a_soft_headroom_gives_back_what_no_request_needed_for_ten_seconds() {
    let (gpu, allocator) = on_softly();
    let burst: Vec<u64> = (0..30).map(|_| allocator.allocate(20 * MIB, STREAMS[0]).unwrap()).collect();
    burst[2..].iter().for_each(|address| allocator.free(*address).unwrap());
    let live = burst[..2].to_vec();
    gpu.malloc(free_on(&gpu) - 50 * MIB).unwrap();
    let (held, calls) = (allocator.reports().reserved(), gpu.call_stats());
    misses(&gpu, &allocator, 100..119);
    assert_eq!(allocator.stats().headroom.yields, 0, "the burst lies in the first ten seconds");
    assert_eq!(allocator.stats().headroom.looks, 1);
    misses(&gpu, &allocator, 119..125);
    let stats = allocator.stats().headroom;
    assert!(free_on(&gpu) >= 200 * MIB, "{}", free_on(&gpu));
    assert!(stats.yields == 1 && (150 * MIB..=170 * MIB).contains(&stats.yielded_bytes), "{stats:?}");
    for call in [Call::EventSynchronize, Call::StreamSynchronize, Call::Synchronize] {
        assert_eq!(made(&gpu, &calls, call), 0, "{call:?}");
    }
    // The program may have it again at once.
    let again = allocator.allocate(held - 100 * MIB, STREAMS[0]);
    assert!(again.is_ok() && free_on(&gpu) < 200 * MIB, "{again:?}");
    live.into_iter().chain(again).for_each(|address| allocator.free(address).unwrap());
    assert!(gpu.faults().is_empty());
}

#[test]
fn a_soft_headroom_refuses_no_request_and_costs_steps_of_five_seconds_nothing() {
    for (options, looks) in [("headroom:soft=200MiB", 12), ("headroom:0B", 0)] {
        let (gpu, allocator) = simulated::on(DEVICE, Config::parse(options).unwrap());
        let mut created = 0;
        for step in 0..30 {
            let all: Vec<u64> = (0..98).map(|_| allocator.allocate(10 * MIB, STREAMS[0]).unwrap()).collect();
            gpu.advance(5 * LONG);
            all.into_iter().for_each(|address| allocator.free(address).unwrap());
            // A miss, while nothing else is in use.
            let small = allocator.allocate(MIB / 2, StreamId(100 + step)).unwrap();
            allocator.free(small).unwrap();
            created = if step == 2 { gpu.call_stats().get(Call::Create).count } else { created };
        }
        assert!(free_on(&gpu) < 30 * MIB, "{options}");
        let stats = allocator.stats().headroom;
        assert!(stats.yields == 0 && stats.looks >= looks, "{options}: {stats:?}");
        let more = gpu.call_stats().get(Call::Create).count - created;
        assert!(more <= 27, "{options}: {more} chunks after the third step, at most one for each miss");
    }
}

#[test]
fn a_soft_headroom_looks_only_while_no_stream_is_captured_and_at_a_call_at_once() {
    let (gpu, allocator) = on_softly();
    let live = fill(&gpu, &allocator);
    gpu.malloc(free_on(&gpu) - 50 * MIB).unwrap();
    let pool = allocator.pools().create();
    allocator.pools().begin(pool, Route::stream(StreamId(9)).capturing()).unwrap();
    gpu.begin_capture(StreamId(9), CaptureMode::Global).unwrap();
    misses(&gpu, &allocator, 100..130);
    assert_eq!(allocator.stats().headroom.looks, 0);
    gpu.end_capture(StreamId(9)).unwrap();
    allocator.pools().end(pool).unwrap();
    assert!(allocator.lending().enforce_headroom().unwrap() >= 150 * MIB);
    live.into_iter().for_each(|address| allocator.free(address).unwrap());
}
