//! The rules of the strategy `stitch`, one by one, on the simulated GPU.

use crate::simulated;
use seamalloc::driver::sim::{Range, SimGpu};
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::{Allocator, Config, Error};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// A request of this size that grows home gets one chunk.
const CHUNK: u64 = 16 * MIB;
const PIECES: u64 = 1;
const MAIN: StreamId = StreamId::DEFAULT;
const SIDE: StreamId = StreamId(7);

fn on(device: &str, options: &str) -> (Arc<SimGpu>, Allocator) {
    simulated::on(device, Config::parse(&format!("strategy:stitch,{options}")).unwrap())
}

fn calls(gpu: &SimGpu, call: Call) -> u64 {
    gpu.call_stats().get(call).count
}

fn reserved(allocator: &Allocator) -> u64 {
    allocator.stats().reserved_bytes.all.current
}

/// `count` blocks of whole chunks each, one behind the other at home.
fn chunks(allocator: &Allocator, count: usize, stream: StreamId) -> Vec<u64> {
    (0..count).map(|_| allocator.allocate(CHUNK, stream).unwrap()).collect()
}

#[test]
fn holes_apart_from_one_another_serve_one_request() {
    let (gpu, allocator) = on("sim:h200", "");
    let held = chunks(&allocator, 6, MAIN);
    for index in [0, 2, 4] {
        allocator.free(held[index]).unwrap();
    }
    let before = gpu.call_stats();
    let stitched = allocator.allocate(3 * CHUNK, MAIN).unwrap();
    let made = gpu.call_stats().since(&before);
    assert_eq!(reserved(&allocator), 6 * CHUNK, "nothing grew");
    assert_eq!([Call::Create, Call::Map, Call::SetAccess].map(|call| made.get(call).count), [0, 3 * PIECES, 1]);
    assert!(!held.contains(&stitched));
    assert_eq!(allocator.stats().views_built, 1);
    allocator.reports().check().unwrap();
    // A kernel may use all of it, as one range.
    let range = Range { address: stitched, size: 3 * CHUNK };
    gpu.launch(MAIN, &[range], 1000).unwrap();
    assert!(gpu.faults().is_empty());
}

#[test]
fn a_freed_block_leaves_its_view_behind_for_the_next() {
    let (gpu, allocator) = on("sim:h200", "");
    let held = chunks(&allocator, 4, MAIN);
    allocator.free(held[0]).unwrap();
    allocator.free(held[2]).unwrap();
    let first = allocator.allocate(2 * CHUNK, MAIN).unwrap();
    let before = gpu.call_stats();
    for _ in 0..5 {
        allocator.free(first).unwrap();
        assert_eq!(allocator.allocate(2 * CHUNK, MAIN).unwrap(), first);
    }
    // A smaller request finds room in it too.
    allocator.free(first).unwrap();
    let smaller = allocator.allocate(2 * CHUNK - 5 * MIB, MAIN).unwrap();
    assert_eq!(smaller, first);
    assert_eq!(gpu.call_stats(), before, "no driver call");
    assert_eq!((allocator.stats().views_built, allocator.stats().views_reused), (1, 6));
    allocator.reports().check().unwrap();
}

#[test]
fn the_ends_of_a_view_may_lie_inside_chunks() {
    let (_, allocator) = on("sim:h200", "");
    // |a.. a|bbbb|cccc|dd..|: the tail of the first chunk, the third, and the head of the fourth are to be joined.
    let a = allocator.allocate(10 * MIB, MAIN).unwrap();
    let tail = allocator.allocate(6 * MIB, MAIN).unwrap();
    let b = allocator.allocate(CHUNK, MAIN).unwrap();
    let c = allocator.allocate(CHUNK, MAIN).unwrap();
    let e = allocator.allocate(CHUNK, MAIN).unwrap();
    let head = allocator.allocate(4 * MIB, MAIN).unwrap();
    let d = allocator.allocate(12 * MIB, MAIN).unwrap();
    let held = reserved(&allocator);
    for address in [tail, c, head] {
        allocator.free(address).unwrap();
    }
    let stitched = allocator.allocate(6 * MIB + CHUNK + 4 * MIB, MAIN).unwrap();
    assert_eq!(reserved(&allocator), held, "to the byte");
    assert_eq!(allocator.stats().views_built, 1);
    allocator.reports().check().unwrap();
    for address in [a, b, d, e, stitched] {
        allocator.free(address).unwrap();
    }
    allocator.reports().check().unwrap();
    assert_eq!(allocator.stats().allocation.all.current, 0);
}

#[test]
fn growth_is_what_is_missing_and_no_more() {
    let (_, allocator) = on("sim:h200", "");
    let held = chunks(&allocator, 4, MAIN);
    allocator.free(held[0]).unwrap();
    allocator.free(held[2]).unwrap();
    allocator.allocate(2 * CHUNK + 6 * MIB, MAIN).unwrap();
    assert_eq!(reserved(&allocator), 4 * CHUNK + 6 * MIB);
    allocator.reports().check().unwrap();
}

#[test]
fn small_blocks_do_not_stand_in_the_way_of_large_ones() {
    let (_, allocator) = on("sim:h200", "");
    let first = allocator.allocate(CHUNK, MAIN).unwrap();
    let small = allocator.allocate(1000, MAIN).unwrap();
    let second = allocator.allocate(CHUNK, MAIN).unwrap();
    assert_eq!(second - first, CHUNK, "contiguous at home");
    assert!(small > second + CHUNK);
    assert_eq!(allocator.stats().reserved_bytes.small_pool.current, 2 * MIB);
    // Wholly free, a slab serves a large request too.
    allocator.free(small).unwrap();
    allocator.free(second).unwrap();
    allocator.allocate(CHUNK + 2 * MIB, MAIN).unwrap();
    assert_eq!(reserved(&allocator), 2 * CHUNK + 2 * MIB);
    allocator.reports().check().unwrap();
}

#[test]
fn what_another_stream_has_passed_belongs_to_all() {
    let (gpu, allocator) = on("sim:h200", "sharing:completed");
    let held = chunks(&allocator, 4, MAIN);
    for address in held {
        allocator.free(address).unwrap();
    }
    gpu.hold(MAIN);
    // The events recorded from here on do not complete: the main stream is busy.
    let waiting = allocator.allocate(2 * CHUNK, SIDE).unwrap();
    assert_eq!(reserved(&allocator), 6 * CHUNK, "nothing is taken that may still be in use");
    gpu.finish(MAIN);
    allocator.allocate(4 * CHUNK, SIDE).unwrap();
    assert_eq!(reserved(&allocator), 6 * CHUNK, "the four chunks are idle now");
    assert_eq!(calls(&gpu, Call::StreamWait), 0);
    allocator.free(waiting).unwrap();
    allocator.reports().check().unwrap();
}

#[test]
fn a_gpu_side_wait_passes_memory_on_at_once() {
    let (gpu, allocator) = on("sim:h200", "sharing:wait");
    let held = chunks(&allocator, 4, MAIN);
    allocator.limits().set_bytes(Some(4 * CHUNK)).unwrap();
    for address in held {
        allocator.free(address).unwrap();
    }
    gpu.hold(MAIN);
    allocator.allocate(3 * CHUNK, SIDE).unwrap();
    assert_eq!(reserved(&allocator), 4 * CHUNK);
    assert_eq!((calls(&gpu, Call::StreamWait), allocator.stats().stream_waits), (1, 1));
    assert_eq!(
        calls(&gpu, Call::StreamSynchronize) + calls(&gpu, Call::EventSynchronize),
        0,
        "the CPU waits for nothing"
    );
    allocator.reports().check().unwrap();
}

#[test]
fn a_hit_asks_about_no_free_that_waits() {
    let (gpu, allocator) = on("sim:h200", "");
    let plenty = allocator.allocate(10 * CHUNK, MAIN).unwrap();
    let used = allocator.allocate(CHUNK, MAIN).unwrap();
    allocator.free(plenty).unwrap();
    gpu.hold(SIDE);
    allocator.record_stream(used, SIDE).unwrap();
    allocator.free(used).unwrap();
    let before = gpu.call_stats();
    for _ in 0..200 {
        let block = allocator.allocate(CHUNK, MAIN).unwrap();
        allocator.free(block).unwrap();
    }
    assert_eq!(gpu.call_stats(), before);
    gpu.finish(SIDE);
    // A request that fits nowhere else does.
    assert_eq!(allocator.allocate(11 * CHUNK, MAIN).unwrap(), plenty);
    assert_eq!((calls(&gpu, Call::EventQuery), reserved(&allocator)), (1, 11 * CHUNK));
    allocator.reports().check().unwrap();
}

#[test]
fn frees_that_wait_are_asked_about_now_and_then_though_all_requests_hit() {
    const MOST: u64 = 64;
    // Fewer where each free checks all tables.
    const FREES: u64 = if cfg!(feature = "paranoid") { 500 } else { 2_000 };
    let (gpu, allocator) = on("sim:h200", "");
    let mut most = 0;
    for _ in 0..FREES * 5 / 2 {
        let block = allocator.allocate(700, MAIN).unwrap();
        allocator.record_stream(block, SIDE).unwrap();
        allocator.free(block).unwrap();
        most = most.max(allocator.stats().active.all.current);
    }
    assert!(most > MOST / 2 && most <= MOST + 1, "{most} waited at once");
    assert!(calls(&gpu, Call::EventCreate) <= MOST + 1);
    // Where the GPU passes none of them, they are not asked about again and again.
    gpu.hold(SIDE);
    let before = calls(&gpu, Call::EventQuery);
    for _ in 0..FREES {
        let block = allocator.allocate(700, MAIN).unwrap();
        allocator.record_stream(block, SIDE).unwrap();
        allocator.free(block).unwrap();
    }
    assert!(calls(&gpu, Call::EventQuery) - before < 100);
    allocator.reports().check().unwrap();
}

#[test]
fn streams_keep_to_themselves_where_they_are_told_to() {
    let (gpu, allocator) = on("sim:h200", "sharing:never");
    let held = chunks(&allocator, 2, MAIN);
    for address in held {
        allocator.free(address).unwrap();
    }
    allocator.allocate(CHUNK, SIDE).unwrap();
    assert_eq!(reserved(&allocator), 3 * CHUNK);
    assert_eq!(calls(&gpu, Call::EventRecord), 0);
}

#[test]
fn everything_free_is_given_back_under_views_too() {
    let (gpu, allocator) = on("sim:h200", "");
    let held = chunks(&allocator, 5, MAIN);
    allocator.free(held[1]).unwrap();
    allocator.free(held[3]).unwrap();
    let stitched = allocator.allocate(2 * CHUNK, MAIN).unwrap();
    allocator.free(held[0]).unwrap();
    assert_eq!(allocator.empty_cache().unwrap(), CHUNK, "the chunks of the stitched block stay");
    allocator.free(stitched).unwrap();
    assert_eq!(allocator.empty_cache().unwrap(), 2 * CHUNK);
    assert_eq!(allocator.stats().mappings, 2 * PIECES, "its view is gone");
    let again = allocator.allocate(3 * CHUNK, MAIN).unwrap();
    assert_eq!(reserved(&allocator), 5 * CHUNK, "what was given back came again");
    for address in [held[2], held[4], again] {
        allocator.free(address).unwrap();
    }
    allocator.reports().check().unwrap();
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
    assert!(gpu.faults().is_empty());
}

#[test]
fn memory_suffices_down_to_the_last_chunk() {
    let (_, allocator) = on("sim:h200,capacity=96MiB", "");
    let held = chunks(&allocator, 6, MAIN);
    for index in [0, 2, 4] {
        allocator.free(held[index]).unwrap();
    }
    let stitched = allocator.allocate(3 * CHUNK, MAIN).unwrap();
    let Err(Error::OutOfMemory(report)) = allocator.allocate(2 * MIB, MAIN) else { panic!("all of it is live") };
    assert_eq!((report.reserved, report.allocated), (96 * MIB, 96 * MIB));
    allocator.free(stitched).unwrap();
    // No memory is left for a slab: one is made of what is free, and goes back when it is.
    let small = allocator.allocate(100, MAIN).unwrap();
    allocator.reports().check().unwrap();
    allocator.free(small).unwrap();
    allocator.allocate(3 * CHUNK, MAIN).unwrap();
    allocator.reports().check().unwrap();
}

#[test]
fn views_are_bounded_and_the_one_unused_longest_goes() {
    let (gpu, allocator) = on("sim:h200", "max_view_mappings:4");
    let held = chunks(&allocator, 8, MAIN);
    for index in [0, 2, 4, 6] {
        allocator.free(held[index]).unwrap();
    }
    let twice = [0, 1].map(|_| allocator.allocate(2 * CHUNK, MAIN).unwrap());
    assert_eq!((allocator.stats().views_built, reserved(&allocator)), (2, 8 * CHUNK));
    twice.iter().for_each(|address| allocator.free(*address).unwrap());
    // Three more do not fit beside the two views, nor beside one of them: both go.
    let wide = allocator.allocate(3 * CHUNK, MAIN).unwrap();
    assert_eq!((calls(&gpu, Call::Unmap), reserved(&allocator)), (2, 8 * CHUNK));
    assert!(allocator.stats().mappings <= 8 * PIECES + 4);
    // Views in use stay: the next request gets memory in one piece.
    allocator.free(held[1]).unwrap();
    allocator.free(held[5]).unwrap();
    allocator.allocate(3 * CHUNK, MAIN).unwrap();
    assert!(allocator.stats().mappings <= 11 * PIECES + 4 && reserved(&allocator) > 8 * CHUNK);
    allocator.reports().check().unwrap();
    allocator.free(wide).unwrap();
    allocator.reports().check().unwrap();
}

#[test]
fn no_handle_of_a_stream_stands_for_memory_of_all() {
    let (gpu, allocator) = on("sim:h200", "sharing:never");
    let odd = StreamId(u64::MAX);
    let held = chunks(&allocator, 2, odd);
    held.iter().for_each(|address| allocator.free(*address).unwrap());
    allocator.allocate(CHUNK, MAIN).unwrap();
    assert_eq!(reserved(&allocator), 3 * CHUNK, "it shares no more than others do");
    allocator.reports().check().unwrap();
    assert_eq!(allocator.empty_cache().unwrap(), 2 * CHUNK);
    assert_eq!(calls(&gpu, Call::Synchronize), 1, "and is waited for like others");
}

#[test]
fn a_view_stays_while_any_stream_that_used_it_is_behind() {
    // Room for the one view of four blocks, and for no other beside it.
    let (gpu, allocator) = on("sim:h200", "sharing:completed,max_view_mappings:8");
    let held = chunks(&allocator, 8, MAIN);
    for index in [0, 2, 4, 6] {
        allocator.free(held[index]).unwrap();
    }
    let whole = allocator.allocate(4 * CHUNK, MAIN).unwrap();
    allocator.free(whole).unwrap();
    // Each stream has a half of the view; the side stream's is free and passed while the main one still computes.
    let side = allocator.allocate(2 * CHUNK, SIDE).unwrap();
    let main = allocator.allocate(2 * CHUNK, MAIN).unwrap();
    assert_eq!((allocator.stats().views_built, allocator.stats().views_reused), (1, 2));
    let range = seamalloc::driver::sim::Range { address: main, size: 2 * CHUNK };
    gpu.launch(MAIN, &[range], 1_000_000_000).unwrap();
    allocator.free(main).unwrap();
    allocator.free(side).unwrap();
    // No view serves it as it stands, and there is no room for another: the one that is there must stay mapped.
    allocator.free(held[1]).unwrap();
    allocator.allocate(6 * CHUNK, SIDE).unwrap();
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    gpu.advance(2_000_000_000);
    allocator.allocate(3 * CHUNK, MAIN).unwrap();
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    allocator.reports().check().unwrap();
}

#[test]
fn a_chunk_made_for_a_view_is_mapped_at_home_when_home_needs_it() {
    let (gpu, allocator) = on("sim:h200", "");
    let held = chunks(&allocator, 3, MAIN);
    allocator.free(held[1]).unwrap();
    let maps = || calls(&gpu, Call::Map);
    assert_eq!(maps(), 3);
    // One chunk is free, one is new: the view maps each once, and home neither.
    let stitched = allocator.allocate(2 * CHUNK, MAIN).unwrap();
    assert_eq!((maps(), calls(&gpu, Call::Create)), (5, 4));
    allocator.free(stitched).unwrap();
    // What home has mapped is handed out without a call; what it has not is mapped then, and once.
    assert_eq!(allocator.allocate(CHUNK, MAIN).unwrap(), held[1]);
    assert_eq!(maps(), 5);
    for _ in 0..2 {
        let bare = allocator.allocate(CHUNK, MAIN).unwrap();
        assert_eq!((bare, maps()), (held[2] + CHUNK, 6));
        gpu.launch(MAIN, &[Range { address: bare, size: CHUNK }], 1000).unwrap();
        allocator.free(bare).unwrap();
    }
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    allocator.reports().check().unwrap();
}

#[test]
fn a_hit_whose_memory_cannot_be_mapped_leaves_everything_as_it_was() {
    let (gpu, allocator) = on("sim:h200", "");
    let held = chunks(&allocator, 3, MAIN);
    allocator.free(held[1]).unwrap();
    let stitched = allocator.allocate(4 * CHUNK, MAIN).unwrap();
    allocator.free(stitched).unwrap();
    for call in [Call::Map, Call::SetAccess] {
        let before = (allocator.stats().allocation, reserved(&allocator), gpu.leaks());
        gpu.fail_nth(call, 1, Status::UNKNOWN);
        let error = allocator.allocate(2 * CHUNK, MAIN).unwrap_err();
        assert!(matches!(&error, Error::Driver(error) if error.call == call), "{error}");
        assert_eq!((allocator.stats().allocation, reserved(&allocator), gpu.leaks()), before);
        allocator.reports().check().unwrap();
    }
    assert!(allocator.allocate(2 * CHUNK, MAIN).is_ok());
    allocator.reports().check().unwrap();
}

#[test]
fn a_growth_whose_mapping_fails_is_undone() {
    let (gpu, allocator) = on("sim:h200", "");
    let held = chunks(&allocator, 3, MAIN);
    allocator.free(held[1]).unwrap();
    for (call, size) in [(Call::Map, CHUNK + MIB), (Call::SetAccess, 8 * CHUNK), (Call::Reserve, 2 * CHUNK)] {
        let before = (reserved(&allocator), gpu.leaks());
        gpu.fail_nth(call, 1, Status::UNKNOWN);
        assert!(allocator.allocate(size, MAIN).is_err());
        assert_eq!((reserved(&allocator), gpu.leaks()), before, "{call:?}");
        allocator.reports().check().unwrap();
    }
}

/// A part of what is reserved, up to a chunk of 20 MiB: many small requests leave few chunks.
#[test]
fn a_large_home_grows_ahead_of_small_requests() {
    for (held, grown) in [(1, 4), (24, 12), (64, 20)] {
        let (_, allocator) = on("sim:h200", "");
        allocator.allocate(held << 30, MAIN).unwrap();
        let before = reserved(&allocator);
        allocator.allocate(3 * MIB, MAIN).unwrap();
        assert_eq!(reserved(&allocator) - before, grown * MIB, "{held} GiB");
    }
}

/// Chunks that lie side by side become accessible by one call, and those that do not by one each.
#[test]
fn bare_chunks_are_mapped_at_home_in_runs() {
    let (gpu, allocator) = on("sim:h200", "");
    let held = chunks(&allocator, 4, MAIN);
    [held[0], held[2]].into_iter().for_each(|address| allocator.free(address).unwrap());
    // Three new chunks behind the last, which only the view maps.
    let stitched = [3, 2].map(|new| {
        let address = allocator.allocate(2 * CHUNK + new * CHUNK, MAIN).unwrap();
        allocator.free(address).unwrap();
        address
    });
    assert_ne!(stitched[0], held[3] + CHUNK);
    let before = gpu.call_stats();
    let address = allocator.allocate(3 * CHUNK, MAIN).unwrap();
    let made = gpu.call_stats().since(&before);
    assert_eq!(address, held[3] + CHUNK);
    assert_eq!(made.get(Call::SetAccess).count, 1, "{:?}", made.get(Call::Map));
    allocator.reports().check().unwrap();
}

/// Memory that another stream has passed, beside memory of the own stream, which has not.
#[test]
fn of_runs_that_need_no_view_the_smallest_is_taken() {
    let (gpu, allocator) = on("sim:h200", "sharing:wait");
    let chunk = |stream: &StreamId| allocator.allocate(CHUNK, *stream).unwrap();
    // Two runs, each with a live block behind it.
    let [large, small] = [&[SIDE, MAIN, SIDE, MAIN][..], &[SIDE, MAIN, MAIN]].map(|streams| {
        let mut run: Vec<u64> = streams.iter().map(chunk).collect();
        run.pop();
        run
    });
    gpu.hold(MAIN);
    large.iter().chain(&small).for_each(|address| allocator.free(*address).unwrap());
    let before = calls(&gpu, Call::Map);
    assert_eq!(allocator.allocate(CHUNK + 512, MAIN).unwrap(), small[0]);
    assert_eq!(allocator.allocate(3 * CHUNK, MAIN).unwrap(), large[0]);
    assert_eq!(calls(&gpu, Call::Map), before);
    allocator.reports().check().unwrap();
}

/// Steps of two streams that hand memory to each other, around blocks that stay: once home has grown, no step needs a
/// view that the steps before did not.
#[test]
fn steps_that_repeat_themselves_stop_building_views() {
    let (gpu, allocator) = on("sim:h200", "sharing:wait");
    let mut after_step = Vec::new();
    for step in 0..40 {
        let mut live = Vec::new();
        for layer in 0..12 {
            live.push(allocator.allocate((3 + layer % 5) * 7 * MIB, MAIN).unwrap());
            let gathered = allocator.allocate(40 * MIB, SIDE).unwrap();
            if step == 0 && layer % 3 == 0 {
                allocator.allocate(3 * MIB, MAIN).unwrap();
            }
            allocator.free(gathered).unwrap();
        }
        for index in (0..live.len()).step_by(2) {
            allocator.free(live[index]).unwrap();
        }
        let large = allocator.allocate(170 * MIB, SIDE).unwrap();
        allocator.free(large).unwrap();
        for index in (1..live.len()).step_by(2) {
            allocator.free(live[index]).unwrap();
        }
        after_step.push((allocator.stats().views_built, reserved(&allocator)));
        allocator.reports().check().unwrap();
    }
    assert!(after_step[0].0 > 0, "the steps need views");
    assert_eq!(after_step[39], after_step[20], "views and bytes after each step: {after_step:?}");
    assert!(gpu.faults().is_empty());
}

/// Memory that a stream frees belongs to an epoch that ends when it is long, before anyone misses: then a stream that
/// comes to wait need not wait for all that was given since.
#[test]
fn a_long_epoch_ends_without_a_miss() {
    let (gpu, allocator) = on("sim:h200", "sharing:wait");
    let of_main: Vec<u64> = (0..8).map(|_| allocator.allocate(4 * MIB, MAIN).unwrap()).collect();
    chunks(&allocator, 1, SIDE);
    let before = calls(&gpu, Call::EventRecord);
    for address in &of_main[..2] {
        allocator.free(*address).unwrap();
    }
    assert_eq!(calls(&gpu, Call::EventRecord), before, "8 MiB are not long");
    allocator.free(of_main[2]).unwrap();
    assert_eq!(calls(&gpu, Call::EventRecord), before + 1, "12 MiB are");
}
