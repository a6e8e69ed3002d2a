//! The calls that are legal while a stream is being captured, and the memory that a captured request may get.

use crate::graph::{GRAPH, capture, graph_of};
use crate::simulated::Device;
use crate::{MAIN, MIB, SIDE, Subject, calls, on, reserved};
use seamalloc::driver::sim::{CaptureMode, Range};
use seamalloc::driver::{Call, CallStats, Driver, Status, StreamCapture, StreamId};
use seamalloc::{Allocator, Error, Route};

const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

/// Ordinary work on a stream: a block that is freed while another stream uses it, and a small one.
fn ordinary(allocator: &Allocator, stream: StreamId) -> u64 {
    let address = allocator.allocate(50 * MIB, stream).unwrap();
    allocator.record_stream(address, SIDE).unwrap();
    allocator.free(address).unwrap();
    allocator.allocate(900, stream).unwrap()
}

/// Frees a block that waits for a busy stream, and captures [`GRAPH`] while blocks are allocated and freed on all streams,
/// by this thread and another. The capture must come out valid. Returns the calls that were made in it.
fn work_in_a_capture(gpu: &Device, allocator: &Allocator, mode: CaptureMode) -> CallStats {
    // It is asked for at allocations, but not in a capture.
    let waiting = allocator.allocate(20 * MIB, MAIN).unwrap();
    gpu.hold(SIDE);
    allocator.record_stream(waiting, SIDE).unwrap();
    allocator.free(waiting).unwrap();
    let before = allocator.allocate(30 * MIB, MAIN).unwrap();
    let passed = allocator.allocate(30 * MIB, SIDE).unwrap();
    allocator.free(passed).unwrap();

    let pool = allocator.pools().create();
    allocator.pools().begin(pool, Route::stream(GRAPH).capturing()).unwrap();
    gpu.begin_capture(GRAPH, mode).unwrap();
    let counted = gpu.call_stats();
    let inside = allocator.allocate(40 * MIB, GRAPH).unwrap();
    let other = std::thread::scope(|scope| scope.spawn(|| ordinary(allocator, StreamId(9))).join().unwrap());
    ordinary(allocator, MAIN);
    allocator.record_stream(inside, SIDE).unwrap();
    [inside, before, other].iter().for_each(|address| allocator.free(*address).unwrap());
    allocator.allocate(40 * MIB, GRAPH).unwrap();
    assert_eq!(allocator.empty_cache(), Ok(0), "nothing can be given back now");
    allocator.reports().check().unwrap();
    let made = gpu.call_stats().since(&counted);
    gpu.end_capture(GRAPH).unwrap();
    allocator.pools().end(pool).unwrap();
    made
}

pub(crate) fn no_call_of_ours_invalidates_a_capture(Subject { kind, .. }: Subject) {
    for mode in MODES {
        let (gpu, allocator) = on(kind, "sim:h200");
        let made = work_in_a_capture(&gpu, &allocator, mode);
        for call in [Call::EventQuery, Call::EventRecord, Call::EventSynchronize, Call::StreamSynchronize, Call::Free] {
            assert_eq!(made.get(call).count, 0, "{kind}, {mode:?}: {call}");
        }
        assert!(gpu.faults().is_empty());
    }
}

/// Another library captures a stream without a word. Nothing is recorded in its graph, and no stream waits for a place in
/// it; memory that the stream uses serves others after the capture.
pub(crate) fn captures_that_nobody_told_of_are_left_alone(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200,capacity=1GiB");
    let before = [GRAPH, MAIN].map(|stream| allocator.allocate(200 * MIB, stream).unwrap());
    let freed = allocator.allocate(100 * MIB, GRAPH).unwrap();
    gpu.begin_capture(GRAPH, CaptureMode::Relaxed).unwrap();
    // On the captured stream; used by it; and freed while it is the current one.
    allocator.free(freed).unwrap();
    allocator.record_stream(before[1], GRAPH).unwrap();
    allocator.free(before[1]).unwrap();
    let under = allocator.allocate(100 * MIB, MAIN).unwrap();
    allocator.free_with_current_stream(under, GRAPH).unwrap();
    for stream in [MAIN, SIDE, GRAPH] {
        let address = allocator.allocate(150 * MIB, stream).unwrap();
        allocator.free(address).unwrap();
    }
    allocator.reports().check().unwrap();
    gpu.end_capture(GRAPH).unwrap();
    allocator.free(before[0]).unwrap();
    // All of it serves one stream now.
    let all = allocator.allocate(900 * MIB, SIDE).unwrap();
    allocator.free(all).unwrap();
    assert_eq!(allocator.stats().active_bytes.all.current, 0, "{kind}");
    assert!(gpu.faults().is_empty(), "{kind}: {:?}", gpu.faults());
}

pub(crate) fn frees_that_wait_in_a_capture_are_asked_for_after_it(Subject { kind, .. }: Subject) {
    let pending = |allocator: &Allocator| {
        let stats = allocator.stats();
        stats.active_bytes.all.current - stats.allocated_bytes.all.current
    };
    for mode in MODES {
        let (gpu, allocator) = on(kind, "sim:h200");
        work_in_a_capture(&gpu, &allocator, mode);
        // What waited before, and what was freed in the capture.
        assert_eq!(pending(&allocator), (20 + 50 + 50 + 40) * MIB);
        allocator.allocate(1, MAIN).unwrap();
        assert_eq!(pending(&allocator), (20 + 50 + 50 + 40) * MIB, "{kind}: the other stream is busy");
        gpu.finish(SIDE);
        allocator.allocate(500 * MIB, MAIN).unwrap();
        assert_eq!(pending(&allocator), 0, "{kind}");
        assert!(gpu.faults().is_empty());
    }
}

pub(crate) fn a_capture_gets_nothing_that_its_stream_may_still_use(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let pool = allocator.pools().create();
    let eager = allocator.pools().allocate(pool, 30 * MIB, GRAPH).unwrap();
    let range = Range { address: eager, size: 30 * MIB };
    gpu.launch(GRAPH, &[range], 1_000_000).unwrap();
    allocator.free(eager).unwrap();
    let done = gpu.done_at(GRAPH).unwrap();
    assert!(gpu.now_ns() < done);
    // Begun before the capture, the CPU waits, and the memory serves the graph.
    let graph = graph_of(&gpu, &allocator, pool, &[30 * MIB]);
    assert!(gpu.now_ns() >= done, "{kind}");
    assert_eq!(graph.0[0].0, range, "{kind}");

    // Freed after the begin, nobody can wait any more: the graph gets other memory.
    let counted = calls(&gpu, Call::StreamSynchronize);
    allocator.pools().begin(pool, Route::stream(GRAPH).capturing()).unwrap();
    let eager = allocator.allocate(30 * MIB, GRAPH).unwrap();
    assert_eq!(eager, range.address);
    gpu.launch(GRAPH, &[range], 1_000_000).unwrap();
    allocator.free(eager).unwrap();
    gpu.begin_capture(GRAPH, CaptureMode::Global).unwrap();
    let captured = allocator.allocate(30 * MIB, GRAPH).unwrap();
    assert!(captured != eager, "{kind}");
    allocator.free(captured).unwrap();
    assert_eq!(allocator.allocate(30 * MIB, GRAPH).unwrap(), captured, "{kind}: freed in this capture");
    allocator.free(captured).unwrap();
    gpu.end_capture(GRAPH).unwrap();
    allocator.pools().end(pool).unwrap();
    allocator.reports().check().unwrap();
    assert_eq!(calls(&gpu, Call::StreamSynchronize), counted);
    // The next one may have both.
    let both = graph_of(&gpu, &allocator, pool, &[30 * MIB, 30 * MIB]);
    let mut addresses: Vec<u64> = both.0.iter().map(|(range, _)| range.address).collect();
    addresses.sort_unstable();
    let mut expected = vec![eager, captured];
    expected.sort_unstable();
    assert_eq!(addresses, expected, "{kind}");
    allocator.reports().check().unwrap();
}

pub(crate) fn a_capture_may_take_what_an_earlier_one_handed_out_and_it_frees(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let pool = allocator.pools().create();
    let output = capture(&gpu, &allocator, pool, || allocator.allocate(30 * MIB, GRAPH).unwrap());
    let held = reserved(&allocator);
    // The program reads what the graph wrote, on the stream on which it launches the next one.
    gpu.launch(GRAPH, &[Range { address: output, size: 30 * MIB }], 1_000_000).unwrap();
    capture(&gpu, &allocator, pool, || {
        allocator.free(output).unwrap();
        assert_eq!(allocator.allocate(30 * MIB, GRAPH).unwrap(), output, "{kind}");
    });
    assert_eq!(reserved(&allocator), held, "{kind}");
}

/// A graph's result is read by the program, which frees it outside of any capture: its kernels may still run.
pub(crate) fn a_capture_gets_what_an_earlier_one_handed_out_and_the_program_frees_once_it_is_passed(
    Subject { kind, .. }: Subject,
) {
    // A stream that was named and erased again changes nothing.
    for named in [false, true] {
        let (gpu, allocator) = on(kind, "sim:h200");
        let pool = allocator.pools().create();
        let result = capture(&gpu, &allocator, pool, || allocator.allocate(30 * MIB, GRAPH).unwrap());
        gpu.launch(GRAPH, &[Range { address: result, size: 30 * MIB }], 1 << 30).unwrap();
        if named {
            allocator.record_stream(result, SIDE).unwrap();
            allocator.streams().unrecord(result, SIDE).unwrap();
        }
        allocator.free(result).unwrap();
        let done = gpu.done_at(GRAPH).unwrap();
        // The graph may be launched on any stream.
        let graph = graph_of(&gpu, &allocator, pool, &[30 * MIB]);
        assert_eq!(graph.0[0].0.address, result, "{kind}");
        assert!(gpu.now_ns() >= done, "{kind}: it is the graph's at {}, and is used until {done}", gpu.now_ns());
        graph.replay(&gpu, SIDE);
    }
}

pub(crate) fn a_shortage_in_a_capture_leaves_it_valid(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200,capacity=100MiB");
    let cached = allocator.allocate(60 * MIB, MAIN).unwrap();
    // What the GPU has passed by the begin would serve the capture.
    gpu.launch(MAIN, &[Range { address: cached, size: 60 * MIB }], 1 << 30).unwrap();
    allocator.free(cached).unwrap();
    let pool = allocator.pools().create();
    capture(&gpu, &allocator, pool, || {
        let error = allocator.allocate(70 * MIB, GRAPH).unwrap_err();
        let Error::OutOfMemory(report) = &error else { panic!("{error}") };
        assert_eq!(report.reserved, 60 * MIB, "{kind}: nothing was given back");
        allocator.reports().check().unwrap();
        allocator.allocate(30 * MIB, GRAPH).unwrap();
        let other = allocator.allocate(70 * MIB, SIDE).unwrap_err();
        assert!(other.is_out_of_memory());
    });
    // Once it is over, all that is cached can be given back for a request.
    allocator.allocate(55 * MIB, SIDE).unwrap();
    allocator.reports().check().unwrap();
}

pub(crate) fn a_failed_call_changes_nothing(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let pool = allocator.pools().create();
    let eager = allocator.pools().allocate(pool, 30 * MIB, GRAPH).unwrap();
    allocator.free(eager).unwrap();
    let begin = || allocator.pools().begin(pool, Route::stream(GRAPH).capturing());
    gpu.fail_nth(Call::StreamSynchronize, 1, Status::UNKNOWN);
    assert!(matches!(begin(), Err(Error::Driver(_))), "{kind}");
    assert!(!allocator.pools().stats(pool).unwrap().routed);
    begin().unwrap();
    gpu.begin_capture(GRAPH, CaptureMode::Global).unwrap();
    for call in [Call::IsCapturing, Call::ExchangeCaptureMode, Call::Malloc, Call::Create] {
        let [made, before] = [gpu.call_stats().get(call).count, reserved(&allocator)];
        gpu.fail_nth(call, 1, Status::UNKNOWN);
        let result = allocator.allocate(50 * MIB, GRAPH);
        if gpu.call_stats().get(call).count > made {
            assert!(matches!(result, Err(Error::Driver(_))), "{kind}: {call}");
            assert_eq!(reserved(&allocator), before, "{kind}: {call}");
        } else {
            result.unwrap();
        }
        gpu.fail_no_more();
        allocator.reports().check().unwrap();
    }
    // The thread's mode given back fails: the memory is there all the same.
    gpu.fail_nth(Call::ExchangeCaptureMode, 2, Status::UNKNOWN);
    allocator.allocate(100 * MIB, GRAPH).unwrap();
    gpu.fail_no_more();
    gpu.exchange_capture_mode(CaptureMode::Global).unwrap();
    gpu.end_capture(GRAPH).unwrap();
    allocator.pools().end(pool).unwrap();
    allocator.pools().release(pool).unwrap();
    let held = reserved(&allocator);
    gpu.fail_nth(Call::Synchronize, 1, Status::UNKNOWN);
    assert!(matches!(allocator.empty_cache(), Err(Error::Driver(_))), "{kind}");
    assert_eq!((reserved(&allocator), allocator.pools().ids()), (held, vec![pool]));
    allocator.reports().check().unwrap();
    allocator.empty_cache().unwrap();
    assert!(allocator.pools().ids().is_empty());
    allocator.reports().check().unwrap();
}

pub(crate) fn threads_capture_and_allocate_side_by_side(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (gpu, allocator) = (&gpu, &allocator);
            scope.spawn(move || {
                for round in 0..60 {
                    let stream = StreamId(100 + thread);
                    let address = allocator.allocate((1 + round % 7) * 3 * MIB, stream).unwrap();
                    gpu.launch(stream, &[Range { address, size: MIB }], 5000).unwrap();
                    allocator.record_stream(address, MAIN).unwrap();
                    allocator.free(address).unwrap();
                }
            });
        }
        scope.spawn(|| {
            let mut graphs = Vec::new();
            for round in 0..20 {
                let pool = allocator.pools().create();
                let sizes = [MIB * (1 + round % 5) * 4, 3000, 9 * MIB];
                graphs.push((graph_of(&gpu, &allocator, pool, &sizes), pool));
                if round % 3 == 0 {
                    let (graph, pool) = graphs.swap_remove(0);
                    graph.replay(&gpu, SIDE);
                    allocator.pools().release(pool).unwrap();
                }
                graphs.iter().for_each(|(graph, _)| graph.replay(&gpu, GRAPH));
            }
            graphs.into_iter().for_each(|(_, pool)| allocator.pools().release(pool).unwrap());
        });
    });
    allocator.reports().check().unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(reserved(&allocator), 0, "{kind}");
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{kind}: {}", gpu.leaks());
    assert!(gpu.faults().is_empty(), "{kind}: {:?}", gpu.faults());
}
