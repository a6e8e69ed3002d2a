//! The operations that are tried, in the order of a program.

use crate::world::{CAPTURED, Done, MAIN, MIB, SIDE, THIRD, World};
use seamalloc::driver::StreamId;
use seamalloc::{Advice, Error, PoolId, Segments, StrategyKind};

/// An operation with its name.
pub(crate) type Step = (&'static str, fn(&mut World) -> Done);

/// A pool that the program numbers itself.
const OWN_SEGMENTS: PoolId = PoolId(7, 0);

/// Returns the program for a strategy with these options.
pub(crate) fn script(kind: StrategyKind, options: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    steps.extend(BLOCKS);
    steps.extend(STREAMS);
    steps.extend(SHORTAGE);
    steps.extend(CAPTURE);
    if kind == StrategyKind::Stitch {
        steps.extend(CHECKPOINT);
    }
    if options.contains("split:") {
        steps.extend(HOLES);
    }
    steps.extend(POOLS);
    steps.extend(MANY_BLOCKS);
    if kind != StrategyKind::Caching {
        steps.extend(SHARED);
    }
    steps.extend(REPORTS);
    steps.extend(RELEASE);
    steps
}

/// Growth, small and large; hits; stitching, where the strategy does it.
const BLOCKS: &[Step] = &[
    ("the first request", |w| w.allocate(0, 24 * MIB, MAIN)),
    ("a second one", |w| w.allocate(1, 24 * MIB, MAIN)),
    ("a third one", |w| w.allocate(2, 24 * MIB, MAIN)),
    ("a small request", |w| w.allocate(3, 512, MAIN)),
    ("a small hit", |w| w.allocate(4, 100 << 10, MAIN)),
    ("free the first", |w| w.free(0)),
    ("a large hit that splits", |w| w.allocate(5, 3 * MIB, MAIN)),
    ("free it", |w| w.free(5)),
    ("free the third", |w| w.free(2)),
    ("a request of two ranges", |w| w.allocate(6, 44 * MIB, MAIN)),
    ("free it", |w| w.free(6)),
    ("the same request", |w| w.allocate(6, 44 * MIB, MAIN)),
    ("free it", |w| w.free(6)),
    ("a part of it", |w| w.allocate(6, 40 * MIB, MAIN)),
    ("an address that is not live", |w| match w.allocator.free(12345) {
        Err(Error::InvalidAddress { .. }) => Ok(()),
        other => other,
    }),
];

/// New streams, frees that wait, memory that passes from stream to stream.
const STREAMS: &[Step] = &[
    ("a request of a new stream", |w| w.allocate(10, 20 * MIB, SIDE)),
    ("another handle of the default stream", |w| w.allocate(11, MIB, StreamId(1))),
    ("a small request of it", |w| w.allocate(12, 4096, SIDE)),
    ("record_stream", |w| w.record(6, SIDE)),
    ("record_stream again", |w| w.record(6, THIRD)),
    ("record_stream of another", |w| w.record(10, MAIN)),
    ("the side stream works", |w| w.hold(SIDE)),
    ("a free that waits for two streams", |w| w.free(6)),
    ("a free that waits for one", |w| w.free(10)),
    ("a request meanwhile", |w| w.allocate(13, 2 * MIB, THIRD)),
    ("free_on another stream", |w| w.free_on(13, SIDE)),
    ("the side stream is done", |w| w.finish(SIDE)),
    ("a request that finds what has waited", |w| w.allocate(6, 30 * MIB, MAIN)),
    ("free it under another stream", |w| w.free_under(6, THIRD)),
    ("work on the side", |w| w.allocate(14, 60 * MIB, SIDE)),
    ("it is at work", |w| w.hold(SIDE)),
    ("free it", |w| w.free(14)),
    ("no more than is held", |w| w.grow_no_more()),
    ("a stream without memory", |w| w.allocate(15, 50 * MIB, THIRD)),
    ("no limit", |w| w.allocator.limits().set_bytes(None)),
    ("it is done", |w| w.finish(SIDE)),
    ("free under its own stream", |w| w.free_under(15, THIRD)),
    ("a borrowed stream", |w| w.allocator.streams().mark_external(StreamId(20))),
    ("a request of it", |w| w.allocate(16, 3 * MIB, StreamId(20))),
    ("free under it", |w| w.free_under(16, StreamId(20))),
    ("forget it", |w| w.allocator.streams().forget(StreamId(20))),
    ("forget a stream with memory", |w| w.allocator.streams().forget(THIRD)),
];

/// Requests for which everything is tried.
const SHORTAGE: &[Step] = &[
    ("more than is left", |w| w.is_refused(250 * MIB, MAIN)),
    ("more than there is", |w| w.is_refused(1 << 40, SIDE)),
    ("a large one that takes memory back", |w| w.allocate(20, 150 * MIB, SIDE)),
    ("free it", |w| w.free(20)),
    ("a limit", |w| w.allocator.limits().set_bytes(Some(120 * MIB))),
    ("a request beyond it", |w| w.is_refused(130 * MIB, MAIN)),
    ("no limit", |w| w.allocator.limits().set_bytes(None)),
    ("a fraction", |w| w.allocator.limits().set_fraction(0.9)),
    ("no fraction", |w| w.allocator.limits().set_fraction(1.0)),
];

/// A capture into a private pool.
const CAPTURE: &[Step] = &[
    ("create a pool", |w| w.create_pool(0)),
    ("allocate in it", |w| w.allocate_in(30, 0, 3 * MIB, CAPTURED)),
    ("free it", |w| w.free(30)),
    ("begin a route by a filter", |w| w.route_by_filter(0)),
    ("end it", |w| w.end_route(0)),
    ("begin its route", |w| w.route(0)),
    ("begin a capture", |w| w.begin_capture()),
    ("a captured request", |w| w.allocate(31, 20 * MIB, CAPTURED)),
    ("another", |w| w.allocate(32, 12 * MIB, CAPTURED)),
    ("a small one", |w| w.allocate(33, 2048, CAPTURED)),
    ("another stream's use", |w| w.record(31, SIDE)),
    ("a free in the capture", |w| w.free(31)),
    ("free the other", |w| w.free(32)),
    ("a larger one", |w| w.allocate(34, 24 * MIB, CAPTURED)),
    ("end the capture", |w| w.end_capture()),
    ("end the route", |w| w.end_route(0)),
    ("a request after it", |w| w.allocate(35, 4 * MIB, SIDE)),
    ("free that", |w| w.free(35)),
    ("the state of the pool", |w| w.allocator.pools().stats(w.pools[0]).map(drop)),
];

const CHECKPOINT: &[Step] =
    &[("save the pool", |w| w.save(0)), ("restore it", |w| w.restore(0)), ("save it again", |w| w.save(0))];

/// Free memory inside of chunks, and a request that needs it: chunks are split.
const HOLES: &[Step] = &[
    ("empty the cache", |w| w.allocator.empty_cache().map(drop)),
    ("two chunks", |w| w.allocate(50, 64 * MIB, MAIN)),
    ("free them", |w| w.free(50)),
    ("the front of one", |w| w.allocate(51, 12 * MIB, MAIN)),
    ("its middle", |w| w.allocate(52, 8 * MIB, MAIN)),
    ("its end", |w| w.allocate(53, 12 * MIB, MAIN)),
    ("the front of the other", |w| w.allocate(54, 12 * MIB, MAIN)),
    ("its middle", |w| w.allocate(55, 8 * MIB, MAIN)),
    ("its end", |w| w.allocate(56, 12 * MIB, MAIN)),
    ("free a middle", |w| w.free(52)),
    ("free the other", |w| w.free(55)),
    ("a limit close to what is held", |w| {
        let held = w.allocator.stats().reserved_bytes.all.current;
        w.allocator.limits().set_bytes(Some(held + 26 * MIB))
    }),
    ("a request of the middles and all the rest", |w| w.allocate(57, 40 * MIB, MAIN)),
    ("no limit", |w| w.allocator.limits().set_bytes(None)),
    ("free it", |w| w.free(57)),
    ("free the front", |w| w.free(51)),
    ("free the other front", |w| w.free(54)),
    ("free an end", |w| w.free(53)),
    ("free the other end", |w| w.free(56)),
];

/// Tags that sleep and wake.
pub(crate) const TAGS: &[Step] = &[
    ("a tag", |w| w.create_tag(0)),
    ("allocate in it", |w| w.allocate_in(0, 0, 2 * MIB, MAIN)),
    ("once more", |w| w.allocate_in(1, 0, 2 * MIB, MAIN)),
    ("and more", |w| w.allocate_in(2, 0, 2 * MIB, MAIN)),
    ("a small one", |w| w.allocate_in(3, 0, 512, SIDE)),
    ("free the first", |w| w.free(0)),
    ("free the last", |w| w.free(2)),
    ("one that is stitched", |w| w.allocate_in(4, 0, 4 * MIB, MAIN)),
    ("sleep", |w| w.sleep(0, false)),
    ("allocate beside it", |w| w.allocate(5, 200 * MIB, MAIN)),
    ("free one of the tag", |w| w.free(1)),
    ("empty the cache", |w| w.allocator.empty_cache().map(drop)),
    ("make room", |w| w.free(5)),
    ("wake", |w| w.wake(0)),
    ("sleep with a file", |w| w.sleep(0, true)),
    ("wake from it", |w| w.wake(0)),
    ("sleep page-locked", |w| w.sleep_pinned(0)),
    ("wake from that", |w| w.wake(0)),
    ("allocate in it again", |w| w.allocate_in(1, 0, 6 * MIB, MAIN)),
    ("sleep for the last time", |w| w.sleep(0, false)),
    ("release it", |w| w.release(0)),
    ("free a small one", |w| w.free(3)),
    ("free a large one", |w| w.free(1)),
    ("free a stitched one", |w| w.free(4)),
    ("end it", |w| w.allocator.empty_cache().map(drop)),
];

/// A tag that sleeps without a backup, so that each attempt takes little time.
pub(crate) const ASLEEP: &[Step] = &[
    ("a tag", |w| w.create_tag(0)),
    ("allocate in it", |w| w.allocate_in(0, 0, 2 * MIB, MAIN)),
    ("once more", |w| w.allocate_in(1, 0, 2 * MIB, MAIN)),
    ("and more", |w| w.allocate_in(2, 0, 2 * MIB, MAIN)),
    ("a small one", |w| w.allocate_in(3, 0, 512, SIDE)),
    ("free the first", |w| w.free(0)),
    ("free the last", |w| w.free(2)),
    ("one that is stitched", |w| w.allocate_in(4, 0, 4 * MIB, MAIN)),
    ("one that grows", |w| w.reserve_in(5, 0, 40 * MIB)),
    ("grow it", |w| w.resize(5, 18 * MIB)),
    ("sleep", |w| w.discard(0)),
    ("wake", |w| w.wake(0)),
    ("sleep again", |w| w.discard(0)),
    ("free one of the tag", |w| w.free(1)),
    ("release it", |w| w.release(0)),
    ("free a small one", |w| w.free(3)),
    ("free a stitched one", |w| w.free(4)),
    ("free what grows", |w| w.free(5)),
    ("end it", |w| w.allocator.empty_cache().map(drop)),
];

/// Chunks with holes, and room on the device for all memory of one of them once more.
pub(crate) const SPLIT: &[Step] = &[
    ("two chunks", |w| w.allocate(0, 16 * MIB, MAIN)),
    ("free them", |w| w.free(0)),
    ("the front of one", |w| w.allocate(1, 2 * MIB, MAIN)),
    ("its middle", |w| w.allocate(2, 4 * MIB, MAIN)),
    ("its end", |w| w.allocate(3, 2 * MIB, MAIN)),
    ("the front of the other", |w| w.allocate(4, 2 * MIB, MAIN)),
    ("its middle", |w| w.allocate(5, 2 * MIB, MAIN)),
    ("free a middle", |w| w.free(2)),
    ("free a front", |w| w.free(4)),
    ("a limit of half as much again", |w| w.allocator.limits().set_bytes(Some(24 * MIB))),
    ("a request of the holes and all the rest", |w| w.allocate(7, 16 * MIB, MAIN)),
    ("free it", |w| w.free(7)),
    ("free a front", |w| w.free(1)),
    ("free an end", |w| w.free(3)),
    ("free a middle", |w| w.free(5)),
];

/// An allocation that grows, and memory that is spilled for it and comes back, to host memory that is new and that was
/// kept.
pub(crate) const GROWN: &[Step] = &[
    ("addresses", |w| w.reserve(0, 200 * MIB)),
    ("grow", |w| w.resize(0, 60 * MIB)),
    ("another beside it", |w| w.allocate(1, 101 * MIB, MAIN)),
    ("it is cold", |w| w.advise(1, Advice::Cold)),
    ("grow more", |w| w.resize(0, 130 * MIB)),
    ("spill for a third", |w| w.allocate(2, 60 * MIB, SIDE)),
    ("grow by what is spilled", |w| w.resize(0, 170 * MIB)),
    ("a snapshot", |w| w.allocator.reports().try_snapshot().map(drop)),
    ("fragmentation", |w| w.allocator.reports().try_fragmentation().map(drop)),
    ("shrink", |w| w.resize(0, 20 * MIB)),
    ("free the third", |w| w.free(2)),
    ("come back", |w| w.allocator.spill().restore().map(drop)),
    ("grow to what was kept", |w| w.resize(0, 180 * MIB)),
    ("more than the budget", |w| w.is_refused(250 * MIB, MAIN)),
    ("free what is spilled", |w| w.free(1)),
    ("hot", |w| w.advise(0, Advice::Hot)),
    ("free it", |w| w.free(0)),
    ("empty the cache", |w| w.allocator.empty_cache().map(drop)),
];

/// Pools end; a pool with segments of its own.
const POOLS: &[Step] = &[
    ("free a block of the pool", |w| w.free(34)),
    ("release it", |w| w.release(0)),
    ("open a pool with segments", |w| w.allocator.pools().open_with(OWN_SEGMENTS, Segments::by_malloc())),
    ("allocate in it", |w| {
        w.pools[1] = OWN_SEGMENTS;
        w.allocate_in(40, 1, 5 * MIB, MAIN)
    }),
    ("a small one", |w| w.allocate_in(41, 1, 1024, SIDE)),
    ("unsplit", |w| w.allocator.pools().set_unsplit(OWN_SEGMENTS)),
    ("free one", |w| w.free(40)),
    ("of what it holds", |w| w.allocator.pools().allocate_held(OWN_SEGMENTS, 600 * MIB, MAIN).map(drop)),
    ("release it", |w| w.release(1)),
    ("empty it", |w| w.allocator.pools().empty(OWN_SEGMENTS).map(drop)),
    ("free the other", |w| w.free(41)),
    ("empty it again", |w| w.allocator.pools().empty(OWN_SEGMENTS).map(drop)),
    ("open a pool with a source", World::open_with_source),
    ("allocate in it", |w| w.allocate_in(43, 3, 5 * MIB, MAIN)),
    ("free it", |w| w.free(43)),
    ("release it", |w| w.release(3)),
    ("empty it", |w| w.allocator.pools().empty(w.pools[3]).map(drop)),
    ("a public pool", |w| w.create_pool(2)),
    ("allocate in it", |w| w.allocate_in(42, 2, 7 * MIB, SIDE)),
    ("release it", |w| w.release(2)),
    ("a peer", World::enable_peer),
];

/// Tables grow, and pools of streams without memory pass to others.
pub(crate) const MANY_BLOCKS: &[Step] =
    &[("many blocks", World::many_blocks), ("free the many", World::free_many), ("many streams", World::many_streams)];

/// A block of several chunks, and one of a single chunk, for other processes.
const SHARED: &[Step] = &[
    ("a block to share", |w| w.allocate(45, 30 * MIB, MAIN)),
    ("a small one", |w| w.allocate(46, 2048, MAIN)),
    ("share it", |w| w.share(45)),
    ("share the small one", |w| w.share(46)),
    ("share it again", |w| w.share(45)),
    ("free it", |w| w.free(45)),
    ("free the small one", |w| w.free(46)),
];

const REPORTS: &[Step] = &[
    ("statistics", |w| {
        let _ = w.allocator.stats();
        Ok(())
    }),
    ("a snapshot", |w| w.allocator.reports().try_snapshot().map(drop)),
    ("fragmentation", |w| w.allocator.reports().try_fragmentation().map(drop)),
    ("the largest request", |w| w.allocator.reports().largest_request().map(drop)),
];

/// Memory goes back.
const RELEASE: &[Step] = &[
    ("fill up", |w| w.allocate(50, 60 * MIB, MAIN)),
    ("more", |w| w.allocate(51, 30 * MIB, SIDE)),
    ("free the first", |w| w.free(50)),
    ("trim a little", |w| w.allocator.trim(5 * MIB).map(drop)),
    ("free the other", |w| w.free(51)),
    ("trim more", |w| w.allocator.trim(45 * MIB).map(drop)),
    ("take it again", |w| w.allocate(52, 40 * MIB, MAIN)),
    ("trim with it live", |w| w.allocator.trim(500 * MIB).map(drop)),
    ("free it", |w| w.free(52)),
    ("empty the cache", |w| w.allocator.empty_cache().map(drop)),
    ("from the beginning", |w| w.allocate(53, 2 * MIB, MAIN)),
];
