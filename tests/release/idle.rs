//! Memory goes back to the driver while a program is idle, and not while it is busy or the GPU may use it.

use crate::simulated;
use seamalloc::driver::prelude::*;
use seamalloc::driver::sim::{CaptureMode, SimGpu};
use seamalloc::driver::{Call, Status, StreamId};
use seamalloc::{Allocator, Config, IdleRelease, Route};
use std::sync::Arc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const OWN: StreamId = StreamId::DEFAULT;
const STREAMS: [StreamId; 4] = [StreamId(1), StreamId(2), StreamId(3), StreamId(4)];

fn on(options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on("sim:h200", Config::parse(options).unwrap())
}

/// Looks at these seconds, and returns what was given back at each.
fn looks(idle: &mut IdleRelease, allocator: &Allocator, seconds: impl IntoIterator<Item = u64>) -> Vec<u64> {
    seconds.into_iter().map(|now| idle.tick(allocator, Duration::from_secs(now)).unwrap()).collect()
}

/// Four streams have had 256 MiB each. So many bytes stay live.
fn serve(allocator: &Allocator, live: u64) {
    for stream in STREAMS {
        let burst: Vec<u64> = (0..4).map(|_| allocator.allocate(64 * MIB, stream).unwrap()).collect();
        burst.into_iter().for_each(|address| allocator.free(address).unwrap());
    }
    allocator.allocate(live, OWN).unwrap();
}

#[test]
fn the_memory_of_all_streams_goes_while_nobody_asks_for_any() {
    for options in ["", "sharing:completed", "sharing:never", "split:last_resort"] {
        let (gpu, allocator) = on(options);
        serve(&allocator, 100 * MIB);
        let held = allocator.reports().reserved();
        assert!(held > 200 * MIB, "{options}: {held}");
        let mut idle = IdleRelease::new(Duration::from_secs(30));
        let given = looks(&mut idle, &allocator, 0..100);
        assert!(given[..30].iter().all(|bytes| *bytes == 0), "{options}: {given:?}");
        assert_eq!(given.iter().sum::<u64>(), held - allocator.reports().reserved(), "{options}: {given:?}");
        assert!(allocator.reports().reserved() < 120 * MIB, "{options}: {}", allocator.reports().reserved());
        // Then there is nothing left to look at.
        let calls = gpu.call_stats();
        looks(&mut idle, &allocator, 100..200);
        assert_eq!(gpu.call_stats().since(&calls).iter().map(|(_, stat)| stat.count).sum::<u64>(), 0, "{options}");
    }
}

#[test]
fn it_must_have_been_idle_a_thousand_times_as_long_as_the_driver_will_need() {
    let (_, allocator) = on("");
    let large = allocator.allocate(20 << 30, OWN).unwrap();
    allocator.free(large).unwrap();
    let given = looks(&mut IdleRelease::new(Duration::from_secs(1)), &allocator, (0..220).step_by(10));
    assert_eq!(given.iter().position(|bytes| *bytes > 0), Some(20), "{given:?}");
}

#[test]
fn any_request_or_free_begins_the_time_anew() {
    let (_, allocator) = on("");
    serve(&allocator, MIB);
    let mut idle = IdleRelease::new(Duration::from_secs(10));
    for second in 0..100 {
        if second % 9 == 0 {
            let address = allocator.allocate(MIB, STREAMS[0]).unwrap();
            allocator.free(address).unwrap();
        }
        assert_eq!(looks(&mut idle, &allocator, [second]), [0], "{second}");
    }
    assert!(looks(&mut idle, &allocator, 100..120).iter().sum::<u64>() > 0);
}

/// A server that answers its last requests, and one that only takes new ones from what it has free.
#[test]
fn who_only_frees_or_only_allocates_is_not_idle() {
    for frees in [true, false] {
        let (_, allocator) = on("");
        serve(&allocator, MIB);
        let mut left: Vec<u64> = (0..40).map(|_| allocator.allocate(MIB, STREAMS[0]).unwrap()).collect();
        if !frees {
            left.drain(..).for_each(|address| allocator.free(address).unwrap());
        }
        let mut idle = IdleRelease::new(Duration::from_secs(10));
        for second in 0..200 {
            if second % 5 == 0 {
                match frees {
                    true => allocator.free(left.pop().unwrap()).unwrap(),
                    false => drop(allocator.allocate(MIB, STREAMS[0]).unwrap()),
                }
            }
            assert_eq!(looks(&mut idle, &allocator, [second]), [0], "{second}, frees {frees}");
        }
        assert!(looks(&mut idle, &allocator, 200..240).iter().sum::<u64>() > 0, "frees {frees}");
    }
}

#[test]
fn what_the_gpu_still_uses_stays_until_it_is_done_and_nobody_waits() {
    // Each stream holds what it has freed.
    let (gpu, allocator) = on("sharing:never");
    serve(&allocator, MIB);
    gpu.launch(STREAMS[1], &[], 1 << 40).unwrap();
    let calls = gpu.call_stats();
    let mut idle = IdleRelease::new(Duration::from_secs(10));
    looks(&mut idle, &allocator, 0..20);
    let held = allocator.reports().reserved();
    assert!((256 * MIB..300 * MIB).contains(&held), "{held}");
    let made = gpu.call_stats().since(&calls);
    for call in [Call::EventSynchronize, Call::StreamSynchronize, Call::Synchronize, Call::StreamWait] {
        assert_eq!(made.get(call).count, 0, "{call:?}");
    }
    gpu.synchronize().unwrap();
    looks(&mut idle, &allocator, 20..30);
    assert!(allocator.reports().reserved() < 64 * MIB, "{}", allocator.reports().reserved());
}

#[test]
fn nothing_goes_in_a_capture_and_a_capture_of_which_nobody_told_stays_valid() {
    let (gpu, allocator) = on("");
    serve(&allocator, MIB);
    let held = allocator.reports().reserved();
    let pool = allocator.pools().create();
    allocator.pools().begin(pool, Route::stream(STREAMS[0]).capturing()).unwrap();
    let mut idle = IdleRelease::new(Duration::from_secs(10));
    looks(&mut idle, &allocator, 0..20);
    assert_eq!(allocator.reports().reserved(), held);
    allocator.pools().end(pool).unwrap();
    gpu.begin_capture(STREAMS[0], CaptureMode::Global).unwrap();
    std::thread::scope(|scope| scope.spawn(|| looks(&mut idle, &allocator, 20..60)).join().unwrap());
    gpu.end_capture(STREAMS[0]).unwrap();
    assert!(allocator.reports().reserved() < held);
}

#[test]
fn other_strategies_keep_theirs() {
    for options in ["strategy:caching", "strategy:expandable", "strategy:gmlake", "strategy:buddy"] {
        let (_, allocator) = on(options);
        serve(&allocator, MIB);
        let held = allocator.reports().reserved();
        looks(&mut IdleRelease::new(Duration::from_secs(10)), &allocator, 0..100);
        assert_eq!(allocator.reports().reserved(), held, "{options}");
    }
}

#[test]
fn a_call_that_fails_leaves_all_as_it_was() {
    for call in [Call::EventCreate, Call::EventRecord, Call::EventQuery, Call::Unmap, Call::Release] {
        // So that the first look records an event.
        let (gpu, allocator) = on("sharing:never");
        serve(&allocator, MIB);
        let mut idle = IdleRelease::new(Duration::from_secs(10));
        gpu.fail_nth(call, 1, Status::UNKNOWN);
        let results: Vec<_> = (0..30).map(|now| idle.tick(&allocator, Duration::from_secs(now))).collect();
        assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1, "{call:?}: {results:?}");
        assert!(allocator.reports().reserved() < 64 * MIB, "{call:?}");
        assert_eq!(
            gpu.memory_info().unwrap().free + allocator.reports().reserved(),
            gpu.properties().total_memory,
            "{call:?}"
        );
    }
}
