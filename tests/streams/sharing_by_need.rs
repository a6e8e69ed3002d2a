//! `sharing:auto`: streams keep what they have freed while memory is plentiful, and share it once it is short.

use crate::random::Random;
use crate::simulated;
use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Call, CallStats, Driver, StreamId};
use seamalloc::{Allocator, Config};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const A: StreamId = StreamId(1);
const B: StreamId = StreamId(2);
/// A kernel takes so long that the GPU passes nothing by itself.
const LONG: u64 = 1_000_000_000;

fn on(device: &str, options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on(device, Config::parse(options).unwrap())
}

/// Allocates `size` bytes on a stream, uses them in a kernel, and frees them.
fn use_once(gpu: &SimGpu, allocator: &Allocator, size: u64, stream: StreamId) {
    let address = allocator.allocate(size, stream).unwrap();
    gpu.launch(stream, &[], LONG).unwrap();
    allocator.free(address).unwrap();
}

/// How often streams waited, and events were recorded.
fn shared(gpu: &SimGpu, allocator: &Allocator) -> (u64, u64) {
    (allocator.stats().stream_waits, gpu.call_stats().get(Call::EventRecord).count)
}

/// Requests of all sizes on three streams, in any order.
fn program(options: &str, seed: u64) -> (CallStats, u64) {
    let (gpu, allocator) = on("sim:h200", options);
    let (mut random, mut live) = (Random(seed), Vec::new());
    for _ in 0..3000 {
        let stream = StreamId(1 + random.below(3));
        if random.below(5) < 2 && !live.is_empty() {
            let index = random.below(live.len() as u64) as usize;
            allocator.free(live.swap_remove(index)).unwrap();
        } else {
            live.push(allocator.allocate(1 + random.below(64 * MIB), stream).unwrap());
            gpu.launch(stream, &[], 1_000_000).unwrap();
        }
        if live.len() > 60 {
            live.drain(..40).for_each(|address| allocator.free(address).unwrap());
        }
    }
    allocator.check().unwrap();
    (gpu.call_stats(), allocator.reserved())
}

#[test]
fn while_memory_is_plentiful_it_is_never_call_for_call() {
    for seed in 0..4 {
        let (auto, held) = program("", seed);
        let (never, held_by_never) = program("sharing:never", seed);
        assert_eq!(held, held_by_never);
        for call in Call::ALL.into_iter().filter(|call| *call != Call::MemoryInfo) {
            assert_eq!(auto.get(call), never.get(call), "{call:?}");
        }
        // Where the border is, the device is asked now and then.
        let asked = auto.get(Call::MemoryInfo).count;
        assert!((1..40).contains(&asked), "{asked}");
        assert!(program("sharing:wait", seed).0.get(Call::StreamWait).count > 10);
    }
}

#[test]
fn beyond_the_limit_streams_share_as_with_wait() {
    let (gpu, allocator) = on("sim:h200", "memory_limit:100MiB");
    use_once(&gpu, &allocator, 60 * MIB, A);
    use_once(&gpu, &allocator, 40 * MIB, B);
    assert_eq!((shared(&gpu, &allocator), allocator.stats().shortage.is_short), ((0, 0), false));
    // All 100 MiB are held, 60 of them by the other stream.
    let address = allocator.allocate(90 * MIB, B).unwrap();
    let (waits, events) = shared(&gpu, &allocator);
    assert!(waits > 0 && events > 0, "{waits} {events}");
    assert!(gpu.done_at(B).unwrap() >= gpu.done_at(A).unwrap(), "the memory is still in use");
    let shortage = allocator.stats().shortage;
    assert_eq!((shortage.is_short, shortage.times, shortage.border_bytes), (true, 1, 100 * MIB));
    assert_eq!(allocator.reserved(), 100 * MIB);
    allocator.free(address).unwrap();
    allocator.check().unwrap();
}

#[test]
fn small_requests_make_memory_short_too() {
    let (gpu, allocator) = on("sim:h200", "memory_limit:8MiB");
    for _ in 0..4 {
        use_once(&gpu, &allocator, 2 * MIB, A);
    }
    use_once(&gpu, &allocator, 8 * MIB, A);
    let blocks: Vec<u64> = (0..16).map(|_| allocator.allocate(MIB / 2, B).unwrap()).collect();
    assert!(allocator.stats().shortage.is_short);
    blocks.into_iter().for_each(|address| allocator.free(address).unwrap());
    allocator.check().unwrap();
}

#[test]
fn the_border_is_a_part_of_the_device() {
    // The driver keeps some of it for itself.
    for (options, held, is_short) in [
        ("", 850, false),
        ("", 950, true),
        ("sharing:wait", 950, false),
        ("sharing:never", 950, false),
        ("strategy:caching", 950, false),
    ] {
        let (gpu, allocator) = on("sim:h200,capacity=1000MiB", options);
        for _ in 0..held / 50 {
            allocator.allocate(50 * MIB, A).unwrap();
        }
        let rest = held % 50;
        if rest > 0 {
            allocator.allocate(rest * MIB, A).unwrap();
        }
        assert_eq!(allocator.stats().shortage.is_short, is_short, "{options}, {held}");
        drop(gpu);
    }
}

#[test]
fn what_others_hold_moves_the_border() {
    let (gpu, allocator) = on("sim:h200,capacity=1000MiB", "");
    let other = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::default()).unwrap();
    use_once(&gpu, &allocator, 200 * MIB, A);
    other.allocate(600 * MIB, A).unwrap();
    use_once(&gpu, &allocator, 90 * MIB, B);
    assert!(!allocator.stats().shortage.is_short, "290 of the 300 MiB that are left");
    let address = allocator.allocate(250 * MIB, B).unwrap();
    assert!(allocator.stats().shortage.is_short);
    assert!(allocator.reserved() <= 300 * MIB, "{}", allocator.reserved());
    allocator.free(address).unwrap();
}

/// What others took since the device was last asked is found out by a refusal.
#[test]
fn a_refusal_makes_memory_short() {
    let (gpu, allocator) = on("sim:h200,capacity=1000MiB", "");
    let other = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::default()).unwrap();
    use_once(&gpu, &allocator, 100 * MIB, A);
    use_once(&gpu, &allocator, 100 * MIB, B);
    other.allocate(780 * MIB, A).unwrap();
    let address = allocator.allocate(180 * MIB, B).unwrap();
    assert!(allocator.stats().shortage.is_short);
    assert_eq!(allocator.stats().num_alloc_retries, 0, "it was served without the last resort");
    assert!(allocator.stats().stream_waits > 0);
    allocator.free(address).unwrap();
    allocator.check().unwrap();
}

/// The same of a small request, for which a slab is missing.
#[test]
fn a_refused_slab_makes_memory_short() {
    let (gpu, allocator) = on("sim:h200,capacity=1000MiB", "");
    let other = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::default()).unwrap();
    use_once(&gpu, &allocator, 100 * MIB, A);
    other.allocate(gpu.memory_info().unwrap().free, A).unwrap();
    let address = allocator.allocate(512, B).unwrap();
    assert!(allocator.stats().shortage.is_short);
    assert_eq!(allocator.stats().num_alloc_retries, 0, "it was served without the last resort");
    allocator.free(address).unwrap();
    allocator.check().unwrap();
}

/// `sharing:never` holds for private pools too.
#[test]
fn under_never_a_private_pool_takes_nothing_of_other_streams() {
    for (options, taken) in [("sharing:never", 60 * MIB), ("", 0)] {
        let (gpu, allocator) = on("sim:h200", options);
        use_once(&gpu, &allocator, 60 * MIB, A);
        use_once(&gpu, &allocator, 2 * MIB, A);
        gpu.synchronize().unwrap();
        let before = allocator.reserved();
        let pool = allocator.create_pool();
        allocator.allocate_in(pool, 60 * MIB, B).unwrap();
        assert_eq!(allocator.reserved() - before, taken, "{options}");
    }
}

#[test]
fn memory_that_goes_back_makes_it_plentiful_again() {
    let (gpu, allocator) = on("sim:h200", "memory_limit:100MiB");
    use_once(&gpu, &allocator, 60 * MIB, A);
    use_once(&gpu, &allocator, 40 * MIB, B);
    use_once(&gpu, &allocator, 90 * MIB, B);
    assert!(allocator.stats().shortage.is_short);
    allocator.empty_cache().unwrap();
    use_once(&gpu, &allocator, 30 * MIB, A);
    assert!(!allocator.stats().shortage.is_short);
    let before = shared(&gpu, &allocator);
    use_once(&gpu, &allocator, 30 * MIB, B);
    assert_eq!(shared(&gpu, &allocator), before);
    // A higher limit does so as well.
    use_once(&gpu, &allocator, 100 * MIB, B);
    assert_eq!((allocator.stats().shortage.is_short, allocator.stats().shortage.times), (true, 2));
    allocator.set_memory_limit(Some(400 * MIB)).unwrap();
    use_once(&gpu, &allocator, 120 * MIB, A);
    assert!(!allocator.stats().shortage.is_short);
    allocator.check().unwrap();
}

#[test]
fn a_lower_limit_counts_from_the_next_growth_on() {
    let (gpu, allocator) = on("sim:h200", "");
    use_once(&gpu, &allocator, 60 * MIB, A);
    allocator.set_memory_limit(Some(100 * MIB)).unwrap();
    use_once(&gpu, &allocator, 90 * MIB, B);
    assert!(allocator.stats().shortage.is_short);
    assert!(allocator.reserved() <= 100 * MIB);
}

/// In a capture nothing is waited for. Memory grows, and is shared by what comes after.
#[test]
fn a_capture_neither_waits_nor_records() {
    use seamalloc::Route;
    use seamalloc::driver::sim::CaptureMode;
    let (gpu, allocator) = on("sim:h200,capacity=1000MiB", "");
    use_once(&gpu, &allocator, 905 * MIB, A);
    assert!(allocator.stats().shortage.is_short);
    let before = shared(&gpu, &allocator);
    let (pool, captured) = (allocator.create_pool(), StreamId(9));
    allocator.begin_allocate_to_pool(pool, Route::stream(captured).capturing()).unwrap();
    gpu.begin_capture(captured, CaptureMode::Global).unwrap();
    let taken = [captured, B].map(|stream| allocator.allocate(20 * MIB, stream).unwrap());
    assert_eq!(shared(&gpu, &allocator), before);
    gpu.end_capture(captured).unwrap();
    allocator.end_allocate_to_pool(pool).unwrap();
    taken.into_iter().for_each(|address| allocator.free(address).unwrap());
    allocator.check().unwrap();
}

/// Short of memory it serves about what `wait` serves: the memory that streams kept meanwhile is not lost.
#[test]
fn at_a_limit_it_serves_about_what_wait_serves() {
    let mut all = [0, 0];
    for seed in 0..24 {
        let mut random = Random(seed);
        let script: Vec<(u64, u64, u64)> =
            (0..2000).map(|_| (1 + random.below(3), 1 + random.below(24 * MIB), random.below(100))).collect();
        let served = |options: &str| {
            let (gpu, allocator) = on("sim:h200", options);
            let (mut live, mut bytes, mut refused) = (Vec::new(), 0, 0);
            for (stream, size, dice) in &script {
                while bytes + size > 240 * MIB || (*dice < 45 && !live.is_empty()) {
                    let (address, size) = live.swap_remove(*dice as usize % live.len());
                    allocator.free(address).unwrap();
                    bytes -= size;
                    if *dice < 45 {
                        break;
                    }
                }
                match allocator.allocate(*size, StreamId(*stream)) {
                    Ok(address) => {
                        live.push((address, *size));
                        bytes += size;
                    }
                    Err(_) => refused += 1,
                }
                gpu.launch(StreamId(*stream), &[], 100_000).unwrap();
            }
            allocator.check().unwrap();
            (refused, allocator.stats().shortage.times)
        };
        let limit = "memory_limit:280MiB,chunk_size_mb:2";
        let ((auto, times), (wait, _)) = (served(limit), served(&format!("{limit},sharing:wait")));
        all = [all[0] + auto, all[1] + wait];
        assert!(times > 0);
    }
    // Both refuse where what is free lies in parts of chunks, of which `auto` leaves a few more.
    assert!(all[1] > 20 && all[0] * 10 <= all[1] * 13, "{all:?} of 48,000 requests");
}

#[test]
fn streams_that_grow_in_turns_lie_apart() {
    let (_, allocator) = on("sim:h200", "");
    let mut ends = [0; 5];
    for round in 0..60 {
        let size = (1 + round % 7) * 6 * MIB;
        for (stream, end) in (1..).zip(&mut ends) {
            let address = allocator.allocate(size, StreamId(stream)).unwrap();
            // Behind what the stream got before.
            assert!(round == 0 || address == *end, "stream {stream}, round {round}");
            *end = address + size;
        }
    }
    assert_eq!(allocator.stats().views_built, 0);
    allocator.check().unwrap();
}

#[test]
fn streams_that_replace_blocks_in_turns_build_few_views() {
    let (_, allocator) = on("sim:h200", "");
    let (mut random, mut live) = (Random(1), vec![[0; 48]; 4]);
    for round in 0..1000 {
        for (stream, live) in (1..).zip(&mut live) {
            let place = &mut live[round % 48];
            if *place != 0 {
                allocator.free(*place).unwrap();
            }
            *place = allocator.allocate(MIB + random.below(63 * MIB), StreamId(stream)).unwrap();
        }
    }
    // Between each other's memory they would build 1,410.
    let built = allocator.stats().views_built;
    assert!(built < 150, "{built}");
}

#[test]
fn many_streams_find_room_for_all_of_the_device() {
    for streams in [1, 2, 7, 40] {
        let (_, allocator) = on("sim:h200,capacity=4GiB", "");
        let sizes = [20, 34, 130, 6, 62];
        let mut refused = 0;
        for (stream, size) in (1..=streams).cycle().zip(sizes.into_iter().cycle()) {
            refused = if allocator.allocate(size * MIB, StreamId(stream)).is_ok() { 0 } else { refused + 1 };
            if refused == sizes.len() {
                break;
            }
        }
        // A request of 6 MiB is refused.
        let left = (4 << 30) - allocator.stats().allocated_bytes.all.current;
        assert!(left < 6 * MIB, "{streams} streams leave {left}");
        allocator.check().unwrap();
    }
}
