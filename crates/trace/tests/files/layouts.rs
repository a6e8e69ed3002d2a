//! Snapshots without a history: what their layouts say, of a real program and of allocators that show it.

use crate::random::Random;
use crate::simulated;
use seamalloc::driver::StreamId;
use seamalloc::{Allocator, Config, Error, StrategyKind};
use seamalloc_trace::layout::{Layout, LayoutVerdictKind};
use seamalloc_trace::{read_bytes, read_path, write_snapshot_json};
use std::path::Path;

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 1 << 30;
const STREAMS: [StreamId; 2] = [StreamId::DEFAULT, StreamId(7)];

/// Dumped behind the handler of a refusal: PyTorch had 5.85 GiB allocated at it, and tensors were freed since. The figures are
/// counted over the pickle by a program of its own.
#[test]
fn a_snapshot_from_behind_a_failure_is_said_to_be_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/snapshots/layout-only.snapshot.pickle.gz");
    let error = read_path(&path).unwrap_err();
    let [layout] = error.layouts() else { panic!("{error}") };
    let held = layout.held;
    assert_eq!((layout.name.as_str(), layout.device, layout.expandable), ("layout-only", 0, false));
    assert_eq!((layout.segments, held.reserved, held.allocated), (91, 6_373_244_928, 522_075_648));
    assert_eq!((held.pending, held.free, held.holes, held.largest_hole), (0, 5_851_169_280, 77, 268_435_456));
    let pools: Vec<_> = layout.pools.iter().map(|pool| (pool.small, pool.segments, pool.held.free)).collect();
    assert_eq!(pools, [(false, 79, 5_846_597_632), (true, 12, 4_571_648)]);
    // Segments that are wholly free, of which PyTorch keeps none when it refuses a request.
    assert_eq!((layout.releasable(), layout.largest_requests(None).native), (5_695_864_832, 5_695_864_832));
    assert_eq!(layout.verdict(None).kind, LayoutVerdictKind::NotShort);
}

/// An allocator after some requests and frees of two streams, and what they left.
fn used(strategy: StrategyKind, seed: u64) -> (Allocator, Layout) {
    // A limit on a large device: an expandable segment has addresses for all of the device, and more.
    let config = Config { memory_limit: Some(CAPACITY), ..Config::with_strategy(strategy) };
    let (_, allocator) = simulated::on("sim:h200", config);
    let (mut random, mut live) = (Random(seed), Vec::new());
    for _ in 0..80 {
        if random.below(5) < 3 {
            let size = if random.below(4) == 0 { 1 + random.below(MIB) } else { MIB + 1 + random.below(60 * MIB) };
            live.extend(allocator.allocate(size, STREAMS[random.below(2) as usize]).ok());
        } else if !live.is_empty() {
            allocator.free(live.swap_remove(random.below(live.len() as u64) as usize)).unwrap();
        }
    }
    let mut json = Vec::new();
    write_snapshot_json(&allocator.reports().snapshot(), &[], &mut json).unwrap();
    let error = read_bytes("state.json", &json).unwrap_err();
    let [layout] = error.layouts() else { panic!("{error}") };
    (allocator, layout.clone())
}

/// PyTorch's algorithms serve the largest request that a layout of theirs promises, and none that is a piece larger.
#[test]
fn the_largest_request_is_served_and_no_larger_one() {
    for (strategy, piece) in [(StrategyKind::Caching, 2 * MIB), (StrategyKind::Expandable, 20 * MIB)] {
        for seed in 0..40 {
            let largest = |layout: &Layout| match strategy {
                StrategyKind::Caching => layout.largest_requests(Some(CAPACITY)).native,
                _ => layout.largest_requests(Some(CAPACITY)).expandable,
            };
            let (allocator, layout) = used(strategy, seed);
            let held = allocator.reports().fragmentation();
            assert_eq!((layout.held.reserved, layout.held.free), (held.reserved, held.free), "{strategy}, {seed}");
            let ask = |more: u64, stream: StreamId| {
                let (allocator, layout) = used(strategy, seed);
                allocator.allocate(largest(&layout) + more, stream)
            };
            let is_served = STREAMS.iter().any(|stream| ask(0, *stream).is_ok());
            assert!(is_served, "{strategy}, {seed}: {} of {held}", largest(&layout));
            for stream in STREAMS {
                let refused = ask(piece, stream);
                assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{strategy}, {seed}: {refused:?} of {held}");
            }
        }
    }
}
