//! A hit makes no driver call and allocates nothing. The checks of the feature `paranoid` allocate.

use crate::ALLOCATIONS;
use crate::simulated;
use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Call, Driver, StreamId};
use seamalloc::fragmentation::Owner;
use seamalloc::{Allocator, Block, Config, StrategyKind};
use std::sync::Arc;

/// The size and the stream of a step's request.
fn request(round: u64, streams: u64) -> (u64, StreamId) {
    ((round * 7919 % 4001) * 1021 + 1, StreamId(round % streams))
}

/// Allocates and frees many sizes on some streams, leaving nothing live.
fn step(allocator: &Allocator, live: &mut Vec<u64>, streams: u64) {
    for round in 0..2000u64 {
        let (size, stream) = request(round, streams);
        live.push(allocator.allocate(size, stream).unwrap());
        if round % 3 == 0 {
            let at = (round * 31) as usize % live.len();
            allocator.free(live.swap_remove(at)).unwrap();
        }
    }
    for address in live.drain(..) {
        allocator.free(address).unwrap();
    }
}

#[test]
fn a_hit_allocates_nothing_and_calls_nobody() {
    // The driver serves each request of `malloc-async`: it has no hits.
    for kind in StrategyKind::ALL.into_iter().filter(|kind| *kind != StrategyKind::MallocAsync) {
        let (gpu, allocator) = simulated::on("sim:h200", Config::with_strategy(kind));
        // Between streams stitched memory flows by events, which is told apart below; on one stream nothing calls anybody.
        let streams = if kind == StrategyKind::Stitch { 1 } else { 2 };
        let mut live = Vec::with_capacity(4000);
        for _ in 0..8 {
            step(&allocator, &mut live, streams);
        }
        let calls = gpu.call_stats();
        let allocations = ALLOCATIONS.get();
        assert!(allocations > 0, "the counter counts");
        step(&allocator, &mut live, streams);
        assert_eq!(ALLOCATIONS.get(), allocations, "{kind}: host memory");
        assert_eq!(gpu.call_stats(), calls, "{kind}: the driver");
    }
}

/// A block that frees itself is its allocator, its address and three numbers more.
#[test]
fn a_block_allocates_nothing_and_calls_nobody() {
    let (gpu, allocator) = simulated::on("sim:h200", Config::default());
    let allocator = Arc::new(allocator);
    let (mut borrowed, mut counted) = (Vec::with_capacity(4000), Vec::with_capacity(4000));
    let mut step = || {
        for round in 0..2000u64 {
            let (size, stream) = request(round, 1);
            match round % 2 {
                0 => borrowed.push(allocator.block(size, stream).unwrap()),
                _ => counted.push(Block::new(Arc::clone(&allocator), size, stream).unwrap()),
            }
            if round % 3 == 0 {
                drop(borrowed.swap_remove((round * 31) as usize % borrowed.len()));
            }
        }
        borrowed.clear();
        counted.clear();
    };
    for _ in 0..8 {
        step();
    }
    let (calls, allocations) = (gpu.call_stats(), ALLOCATIONS.get());
    step();
    assert_eq!(ALLOCATIONS.get(), allocations, "host memory");
    assert_eq!(gpu.call_stats(), calls, "the driver");
    assert_eq!(allocator.stats().allocation.all.current, 0);
}

/// The cost of an operation: allocations on the host, and calls of the driver.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    allocations: u64,
    calls: Vec<(Call, u64)>,
}

impl Cost {
    const NONE: Self = Self { allocations: 0, calls: Vec::new() };

    fn of(gpu: &SimGpu, operation: impl FnOnce()) -> Self {
        let (before, allocations) = (gpu.call_stats(), ALLOCATIONS.get());
        operation();
        let allocations = ALLOCATIONS.get() - allocations;
        let made = gpu.call_stats().since(&before);
        let calls = Call::ALL.into_iter().map(|call| (call, made.get(call).count)).filter(|(_, count)| *count > 0);
        Self { allocations, calls: calls.collect() }
    }

    /// Whether it called for nothing else than these.
    fn is_only(&self, calls: &[Call]) -> bool {
        self.calls.iter().all(|(call, _)| calls.contains(call))
    }
}

/// Whether a free block fits a request, by the public figures: one of its stream, or, if it is large, one that all have
/// passed.
fn fits(allocator: &Allocator, size: u64, stream: StreamId) -> bool {
    let (rounded, small) = (size.next_multiple_of(512), size <= 1 << 20);
    let memory = allocator.reports().fragmentation();
    let open = |owner| owner == Owner::Stream(stream) || (!small && owner == Owner::Everyone);
    memory.pools.iter().any(|pool| pool.small == small && open(pool.owner) && pool.largest >= rounded)
}

/// Several streams share all memory. A request that a free block fits costs nothing; neither does a free, unless an epoch
/// ends with it or memory is gathered at the low-water mark, which calls the driver for events alone. Misses may cost.
#[test]
fn hits_on_several_streams_cost_nothing() {
    const STREAMS: u64 = 3;
    let (gpu, allocator) = simulated::on("sim:h200", Config::with_strategy(StrategyKind::Stitch));
    let mut live = Vec::with_capacity(4000);
    for _ in 0..8 {
        step(&allocator, &mut live, STREAMS);
    }
    let events = [Call::EventCreate, Call::EventRecord, Call::EventQuery, Call::IsCapturing, Call::StreamNumber];
    let mapping = [Call::Map, Call::SetAccess];
    let (mut hits, mut misses, mut bare, mut frees, mut gathered) = ([0; STREAMS as usize], 0, 0, 0, 0);
    let mut free = |address: u64| {
        let cost = Cost::of(&gpu, || allocator.free(address).unwrap());
        assert!(cost == Cost::NONE || (!cost.calls.is_empty() && cost.is_only(&events)), "a free: {cost:?}");
        frees += 1;
        gathered += u64::from(cost != Cost::NONE);
    };
    for round in 0..2000u64 {
        let (size, stream) = request(round, STREAMS);
        let (is_hit, mapped) = (fits(&allocator, size, stream), allocator.reports().fragmentation().home_mappings);
        let cost = Cost::of(&gpu, || live.push(allocator.allocate(size, stream).unwrap()));
        match is_hit {
            false => misses += 1,
            // Memory at home that only views have used so far is mapped first.
            true if allocator.reports().fragmentation().home_mappings > mapped => {
                assert!(cost.is_only(&mapping), "a hit of bare memory: {cost:?}");
                bare += 1;
            }
            true => {
                assert_eq!(cost, Cost::NONE, "a hit of {size} bytes on stream {stream}");
                hits[stream.0 as usize] += 1;
            }
        }
        if round % 3 == 0 {
            free(live.swap_remove((round * 31) as usize % live.len()));
        }
    }
    live.drain(..).for_each(&mut free);
    assert!(hits.iter().all(|hits| *hits > 300), "hits {hits:?}, misses {misses}, bare {bare}");
    assert!(gathered * 20 < frees, "{gathered} of {frees} frees");
}
