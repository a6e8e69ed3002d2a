//! The guarantees that every program with CUDA graphs relies on: a graph's addresses lead to the same memory for as
//! long as its pool is used, nobody else's live block shares it, and a graph gets no byte that anyone may still be
//! using.
//!
//! Random programs that run ahead of the simulated GPU: captures in every mode, sometimes two at once, replays on any
//! stream, pools routed by stream and named, used several times and released at any moment, also with live blocks and
//! with replays still running; beside them ordinary traffic, short of memory. The test keeps its own book of physical
//! memory. In half of the programs chunks may be split: then the book follows, and no kernel may run. In a storm driver calls fail at random besides. A capture that does not end valid fails the test.

use crate::physical::{Taken, lies};
use crate::random::Random;
use crate::simulated;
use seamalloc::driver::sim::{CaptureMode, Piece, Range, SimGpu};
use seamalloc::driver::{Call, DriverResult, EventId, Events, Status, StreamCapture, StreamId};
use seamalloc::{Allocator, Config, Error, PoolId, Route, Split, StrategyKind};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// Streams 0 to 3 are never captured, 4 and 5 now and then.
const STREAMS: u64 = 6;
const FIRST_CAPTURED: u64 = 4;
/// Operations of one program; more for a long hunt with `SEAMALLOC_CONTENT_OPS`.
const OPS: u64 = 900;
const MOST_POOLS: usize = 5;
const MOST_GRAPHS: usize = 6;
const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];
const STATUSES: [Status; 4] = [Status::OUT_OF_MEMORY, Status::OUT_OF_MEMORY, Status::UNKNOWN, Status::INVALID_VALUE];

struct Live {
    range: Range,
    stream: StreamId,
    pieces: Vec<Piece>,
    /// The pool that it is from, while anyone uses that.
    pool: Option<PoolId>,
}

/// A kernel's use of a part of some physical memory.
struct Use {
    piece: Piece,
    stream: StreamId,
    ends: u64,
    /// The pool of the graph that it is part of.
    graph_of: Option<PoolId>,
}

#[derive(Default)]
struct Graph(Vec<(Range, Vec<Piece>)>);

struct Pool {
    id: PoolId,
    uses: u64,
    graphs: Vec<Graph>,
}

/// A route, and the graph if it captures.
struct Routed {
    pool: PoolId,
    stream: StreamId,
    capture: Option<Graph>,
}

#[derive(Default)]
struct Tally {
    private: u64,
    captured: u64,
    replays: u64,
    released_while_running: u64,
    shortages: u64,
    failures: u64,
    splits: u64,
}

struct Program {
    gpu: Arc<SimGpu>,
    allocator: Allocator,
    random: Random,
    live: Vec<Live>,
    pools: Vec<Pool>,
    routes: Vec<Routed>,
    taken: Taken,
    uses: Vec<Use>,
    event: EventId,
    storm: bool,
    tally: Tally,
}

fn meet(a: &Piece, b: &Piece) -> bool {
    a.memory == b.memory && a.offset < b.offset + b.size && b.offset < a.offset + a.size
}

impl Program {
    fn new(device: &str, config: Config, seed: u64, storm: bool) -> Self {
        let (gpu, allocator) = simulated::on(device, config);
        let event = gpu.event_create().unwrap();
        let (live, pools, routes, taken, uses, tally) = Default::default();
        Self { gpu, allocator, random: Random(seed), live, pools, routes, taken, uses, event, storm, tally }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit as u64) as usize
    }

    fn is_captured(&self, stream: StreamId) -> bool {
        self.routes.iter().any(|route| route.capture.is_some() && route.stream == stream)
    }

    /// Any stream that is not being captured.
    fn eager_stream(&mut self) -> StreamId {
        let stream = StreamId(self.random.below(STREAMS));
        if self.is_captured(stream) { StreamId(stream.0 - FIRST_CAPTURED) } else { stream }
    }

    fn step(&mut self) {
        if self.random.below(50) == 0 {
            self.gpu.fail_no_more();
        }
        // A mode that could not be given back would hide what the next capture forbids.
        until_done(|| self.gpu.exchange_capture_mode(CaptureMode::Global).map(drop));
        if self.storm && self.random.below(4) == 0 {
            for _ in 0..1 + self.random.below(3) {
                let call = Call::ALL[self.below(Call::COUNT)];
                let status = STATUSES[self.below(STATUSES.len())];
                self.gpu.fail_nth(call, 1 + self.random.below(8), status);
            }
        }
        match self.random.below(100) {
            0..30 => self.allocate(),
            30..36 => self.allocate_in(),
            36..52 => self.launch(),
            52..72 => self.free(),
            72..80 => self.begin(),
            80..86 => self.end(),
            86..92 => self.replay(),
            92..94 => self.release(),
            94 => {
                let bytes = self.random.below(200 * MIB);
                let given =
                    if bytes.is_multiple_of(3) { self.allocator.empty_cache() } else { self.allocator.trim(bytes) };
                self.done(given);
            }
            95 => self.gpu.set_run_ahead([0, 0, 100_000, 3_000_000][self.random.below(4) as usize]),
            _ => self.gpu.advance(self.random.below(500_000)),
        }
    }

    /// Returns the result of an operation; `None` where it failed in a way that it may.
    fn done<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(done) => return Some(done),
            Err(Error::OutOfMemory(_)) => self.tally.shortages += 1,
            Err(Error::Driver(_)) if self.storm => self.tally.failures += 1,
            Err(error) => panic!("{error}"),
        }
        None
    }

    fn size(&mut self) -> u64 {
        let most = [600, 300 << 10, 9 * MIB, 40 * MIB, 90 * MIB][self.below(5)];
        1 + self.random.below(most)
    }

    fn allocate(&mut self) {
        let (size, stream) = (self.size(), StreamId(self.random.below(STREAMS)));
        let pool = self.routes.iter().rev().find(|route| route.stream == stream).map(|route| route.pool);
        let allocated = self.allocator.allocate(size, stream);
        self.got(allocated, size, stream, pool);
    }

    fn allocate_in(&mut self) {
        let used: Vec<PoolId> = self.pools.iter().filter(|pool| pool.uses > 0).map(|pool| pool.id).collect();
        if used.is_empty() {
            return;
        }
        let pool = used[self.below(used.len())];
        let (size, stream) = (self.size(), StreamId(self.random.below(STREAMS)));
        // What a graph uses must be of the pool that its capture pins.
        if self.is_captured(stream) && !self.routes.iter().any(|route| route.pool == pool && route.stream == stream) {
            return;
        }
        let allocated = self.allocator.pools().allocate(pool, size, stream);
        self.got(allocated, size, stream, Some(pool));
    }

    fn got(&mut self, allocated: Result<u64, Error>, size: u64, stream: StreamId, pool: Option<PoolId>) {
        self.follow_splits();
        let Some(address) = self.done(allocated) else { return self.free() };
        let range = Range { address, size: self.allocator.reports().size_of(address).unwrap() };
        assert!(range.size >= size && address.is_multiple_of(512));
        let pieces = lies(&self.gpu, range);
        self.taken.take(&pieces);
        for piece in &pieces {
            for other in self.pools.iter().filter(|other| Some(other.id) != pool) {
                let recorded = self.routes.iter().filter(|route| route.pool == other.id);
                let graphs = other.graphs.iter().chain(recorded.filter_map(|route| route.capture.as_ref()));
                let pinned =
                    graphs.flat_map(|graph| &graph.0).flat_map(|(_, pieces)| pieces).any(|own| meet(own, piece));
                assert!(!pinned, "{piece:?} is memory of a graph of pool {}", other.id);
            }
        }
        let captured = self.is_captured(stream);
        let starts = match captured {
            // The graph may be replayed on any stream, right after the capture.
            true => self.gpu.now_ns(),
            false => self.gpu.now_ns().max(self.gpu.done_at(stream).unwrap()),
        };
        for other in self.uses.iter().filter(|other| pieces.iter().any(|piece| meet(&other.piece, piece))) {
            // Graphs of one pool share its memory: their order is the program's matter.
            let own = other.graph_of.is_some() && other.graph_of == pool;
            assert!(
                own || other.ends <= starts || (!captured && other.stream == stream),
                "{range} of stream {stream} (captured: {captured}) is used by stream {} until {}, handed out for {starts}",
                other.stream,
                other.ends,
            );
        }
        self.tally.private += u64::from(pool.is_some());
        self.tally.captured += u64::from(captured);
        self.live.push(Live { range, stream, pieces, pool });
        if self.random.below(2) == 0 {
            self.launch_on(self.live.len() - 1, stream);
        }
    }

    /// Notes where live blocks and the memory of graphs lie if a chunk was split since the last request.
    fn follow_splits(&mut self) {
        let splits = self.allocator.stats().splits.chunks;
        if splits == self.tally.splits {
            return;
        }
        self.tally.splits = splits;
        let now = self.gpu.now_ns();
        assert!(self.uses.iter().all(|used| used.ends <= now), "a kernel ran while memory came under live addresses");
        self.taken = Taken::default();
        for block in &mut self.live {
            block.pieces = lies(&self.gpu, block.range);
            self.taken.take(&block.pieces);
        }
        let recorded = self.routes.iter_mut().filter_map(|route| route.capture.as_mut());
        for graph in self.pools.iter_mut().flat_map(|pool| &mut pool.graphs).chain(recorded) {
            for (range, pieces) in &mut graph.0 {
                *pieces = lies(&self.gpu, *range);
            }
        }
    }

    fn launch(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.below(self.live.len());
        let stream = if self.random.below(2) == 0 { self.live[at].stream } else { self.eager_stream() };
        self.launch_on(at, stream);
    }

    fn launch_on(&mut self, at: usize, stream: StreamId) {
        let block = &self.live[at];
        assert_eq!(self.gpu.physical(block.range), block.pieces, "a live block's memory stays where it is");
        if self.is_captured(stream) {
            let of_graph = |route: &&mut Routed| route.stream == stream && Some(route.pool) == block.pool;
            if let Some(Routed { capture: Some(graph), .. }) = self.routes.iter_mut().find(of_graph) {
                self.gpu.launch(stream, &[block.range], 0).unwrap();
                graph.0.push((block.range, block.pieces.clone()));
            }
            return;
        }
        if stream != block.stream {
            if self.is_captured(block.stream) {
                // What it has written there is not written yet.
                return;
            }
            until_done(|| self.gpu.event_record(self.event, block.stream));
            until_done(|| self.gpu.stream_wait(stream, self.event));
            self.allocator.record_stream(block.range.address, stream).unwrap();
        }
        let duration = [0, 2_000, 50_000, 900_000][self.random.below(4) as usize];
        self.gpu.launch(stream, &[block.range], duration).unwrap();
        let ends = self.gpu.done_at(stream).unwrap();
        let used = |piece: &Piece| Use { piece: *piece, stream, ends, graph_of: None };
        self.uses.extend(block.pieces.iter().map(used));
    }

    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.below(self.live.len());
        if self.random.below(2) == 0 {
            let stream = self.eager_stream();
            self.launch_on(at, stream);
        }
        let freed = self.allocator.free(self.live[at].range.address);
        if self.done(freed).is_none() {
            return;
        }
        let block = self.live.swap_remove(at);
        assert_eq!(self.gpu.physical(block.range), block.pieces, "a live block's memory stays where it is");
        self.taken.release(&block.pieces);
    }

    /// A pool to use: a new one, or one more use of an old one.
    fn some_pool(&mut self) -> PoolId {
        let at = self.below(MOST_POOLS);
        if let Some(pool) = self.pools.get_mut(at).filter(|pool| pool.uses > 0) {
            pool.uses += 1;
            self.allocator.pools().retain(pool.id).unwrap();
            return pool.id;
        }
        let id = self.allocator.pools().create();
        self.pools.push(Pool { id, uses: 1, graphs: Vec::new() });
        id
    }

    fn begin(&mut self) {
        let pool = self.some_pool();
        if self.routes.iter().any(|route| route.pool == pool) {
            return;
        }
        let captures = self.random.below(3) > 0;
        let first = if captures { FIRST_CAPTURED } else { 0 };
        let stream = StreamId(first + self.random.below(STREAMS - first));
        if self.routes.iter().any(|route| route.stream == stream) {
            return;
        }
        let route = if captures { Route::stream(stream).capturing() } else { Route::stream(stream) };
        let begun = self.allocator.pools().begin(pool, route);
        if self.done(begun).is_none() {
            return;
        }
        if captures {
            let mode = MODES[self.below(3)];
            self.gpu.begin_capture(stream, mode).unwrap();
        }
        self.routes.push(Routed { pool, stream, capture: captures.then(Graph::default) });
    }

    fn end(&mut self) {
        if self.routes.is_empty() {
            return;
        }
        let at = self.below(self.routes.len());
        let Routed { pool, stream, capture } = self.routes.remove(at);
        if capture.is_some() {
            self.gpu.end_capture(stream).unwrap();
        }
        self.allocator.pools().end(pool).unwrap();
        let at = self.pools.iter().position(|other| other.id == pool).unwrap();
        match capture {
            Some(graph) if self.pools[at].uses > 0 => self.pools[at].graphs.push(graph),
            _ => {}
        }
        // The program forgets its oldest graph now and then, or its book would grow for ever.
        if self.pools[at].graphs.len() > MOST_GRAPHS {
            self.pools[at].graphs.remove(0);
        }
        self.forget_unused();
    }

    fn replay(&mut self) {
        let graphs = self.pools.iter().flat_map(|pool| pool.graphs.iter().map(|graph| (pool.id, graph)));
        let graphs: Vec<_> = graphs.collect();
        if graphs.is_empty() {
            return;
        }
        let (pool, graph) = graphs[self.random.below(graphs.len() as u64) as usize];
        let duration = [2_000, 100_000, 900_000][self.random.below(3) as usize];
        let mut stream = StreamId(self.random.below(STREAMS));
        if self.routes.iter().any(|route| route.capture.is_some() && route.stream == stream) {
            stream = StreamId(1);
        }
        for (range, pieces) in &graph.0 {
            assert_eq!(self.gpu.physical(*range), *pieces, "{range} of a graph of pool {pool}");
            self.gpu.launch(stream, &[*range], duration).unwrap();
            let ends = self.gpu.done_at(stream).unwrap();
            let used = |piece: &Piece| Use { piece: *piece, stream, ends, graph_of: Some(pool) };
            self.uses.extend(pieces.iter().map(used));
        }
        self.tally.replays += 1;
        if self.random.below(8) == 0 {
            let at = self.pools.iter().position(|other| other.id == pool).unwrap();
            self.release_one(at, true);
        }
    }

    fn release(&mut self) {
        let used: Vec<usize> = (0..self.pools.len()).filter(|at| self.pools[*at].uses > 0).collect();
        if used.is_empty() {
            return;
        }
        let at = used[self.below(used.len())];
        let wholly = self.random.below(2) == 0;
        self.release_one(at, wholly);
    }

    fn release_one(&mut self, at: usize, wholly: bool) {
        let id = self.pools[at].id;
        let times = if wholly { self.pools[at].uses } else { 1 };
        for _ in 0..times {
            self.allocator.pools().release(id).unwrap();
            self.pools[at].uses -= 1;
        }
        if self.pools[at].uses == 0 {
            assert!(self.allocator.pools().release(id).is_err(), "released too often");
            self.pools[at].graphs.clear();
            let running = |used: &Use| used.graph_of == Some(id) && used.ends > self.gpu.now_ns();
            self.tally.released_while_running += u64::from(self.uses.iter().any(running));
        }
        self.forget_unused();
    }

    /// Pools that nobody uses and nothing is routed to are no more.
    fn forget_unused(&mut self) {
        let routed = |id: PoolId| self.routes.iter().any(|route| route.pool == id);
        self.pools.retain(|pool| pool.uses > 0 || routed(pool.id));
        for block in &mut self.live {
            block.pool = block.pool.filter(|id| self.pools.iter().any(|pool| pool.id == *id));
        }
        for used in &mut self.uses {
            used.graph_of = used.graph_of.filter(|id| self.pools.iter().any(|pool| pool.id == *id));
        }
    }

    fn check(&mut self) {
        let faults = self.gpu.faults();
        assert!(faults.is_empty(), "{}", faults[0]);
        self.allocator.reports().check().unwrap();
        let stats = self.allocator.stats();
        assert_eq!(self.gpu.leaks().bytes, stats.reserved_bytes.all.current);
        assert_eq!(stats.allocation.all.current, self.live.len() as u64);
        for pool in &self.pools {
            let held = self.allocator.pools().stats(pool.id).unwrap();
            assert_eq!(held.uses, pool.uses);
            assert_eq!(held.routed, self.routes.iter().any(|route| route.pool == pool.id));
            let live = self.live.iter().filter(|block| block.pool == Some(pool.id));
            assert_eq!(held.allocated_bytes, live.map(|block| block.range.size).sum::<u64>());
            assert!(held.allocated_bytes <= held.active_bytes && held.active_bytes <= held.reserved_bytes);
        }
        let now = self.gpu.now_ns();
        self.uses.retain(|used| used.ends > now);
    }

    fn finish(mut self) -> Tally {
        self.gpu.fail_no_more();
        self.gpu.exchange_capture_mode(CaptureMode::Global).unwrap();
        while !self.routes.is_empty() {
            self.end();
        }
        for block in std::mem::take(&mut self.live) {
            self.allocator.free(block.range.address).unwrap();
        }
        self.allocator.empty_cache().unwrap();
        for pool in std::mem::take(&mut self.pools) {
            for (range, pieces) in pool.graphs.iter().flat_map(|graph| &graph.0) {
                assert_eq!(self.gpu.physical(*range), *pieces, "{range} of a graph of pool {}", pool.id);
            }
            (0..pool.uses).for_each(|_| self.allocator.pools().release(pool.id).unwrap());
        }
        self.allocator.empty_cache().unwrap();
        self.check();
        assert!(self.allocator.pools().ids().is_empty());
        assert_eq!(self.allocator.stats().reserved_bytes.all.current, 0, "all can be given back");
        drop(self.allocator);
        self.gpu.event_destroy(self.event).unwrap();
        assert!(self.gpu.leaks().is_empty(), "{}", self.gpu.leaks());
        self.tally
    }
}

/// The program's own calls, which may fail in a storm as well.
fn until_done(call: impl Fn() -> DriverResult<()>) {
    while call().is_err() {}
}

fn programs(kind: StrategyKind, storm: bool) -> Tally {
    let ops = std::env::var("SEAMALLOC_CONTENT_OPS").ok().and_then(|ops| ops.parse().ok()).unwrap_or(OPS);
    let mut all = Tally::default();
    for (seed, options) in [
        "",
        "max_split_size_mb:40",
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
        "max_view_mappings:20",
    ]
    .into_iter()
    .enumerate()
    {
        let config = Config { strategy: kind, ..Config::parse(options).unwrap() };
        for (at, device) in ["sim:h200,capacity=400MiB", "sim:h200,capacity=2GiB"].into_iter().enumerate() {
            // In every other program the memory of live blocks stays where it is.
            let split = if (seed + at).is_multiple_of(2) { Split::LastResort } else { Split::Off };
            let config = Config { split, ..config.clone() };
            let mut program = Program::new(device, config, seed as u64, storm);
            for _ in 0..ops {
                program.step();
                program.check();
            }
            let tally = program.finish();
            all.private += tally.private;
            all.captured += tally.captured;
            all.replays += tally.replays;
            all.released_while_running += tally.released_while_running;
            all.shortages += tally.shortages;
            all.failures += tally.failures;
            all.splits += tally.splits;
        }
    }
    // Otherwise the programs would be too tame to show anything.
    assert!(all.private > 500 && all.captured > 100, "{kind}: {} private, {} captured", all.private, all.captured);
    assert!(all.replays > 200, "{kind}: {} replays", all.replays);
    assert!(all.released_while_running > 5, "{kind}: {} released while running", all.released_while_running);
    assert!(all.shortages > 20, "{kind}: {} shortages", all.shortages);
    assert!(all.splits > 0 || kind != StrategyKind::Stitch, "{kind}: {} splits", all.splits);
    all
}

#[test]
fn a_graphs_memory_is_its_own() {
    for kind in StrategyKind::MAIN {
        programs(kind, false);
    }
}

#[test]
fn also_where_driver_calls_fail_at_random() {
    for kind in StrategyKind::MAIN {
        let tally = programs(kind, true);
        assert!(tally.failures > 100, "{kind}: {} failures", tally.failures);
    }
}
