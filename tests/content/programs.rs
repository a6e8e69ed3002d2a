//! The guarantees that every program relies on: two live blocks never share a byte of physical memory, no byte is
//! handed out while a kernel of another stream may still use it, and nothing is unmapped under a kernel.
//!
//! Random programs that run ahead of the simulated GPU: kernels with a duration, blocks used on several streams and
//! freed right after the launch, some of them without a word of the stream that used them but that it is the current one,
//! memory so short that everything is given back now and then. The test keeps its own
//! book, of physical memory and not of addresses, so that it holds for views too. In half of the programs chunks may be
//! split: then the book follows, and no kernel may run. In a storm, driver calls fail at random
//! besides, several at once and while failures are undone: the same must hold, and what failed must have changed nothing.

use crate::length::rounds;
use crate::physical::{Taken, lies};
use crate::random::Random;
use crate::simulated;
use seamalloc::driver::sim::{Piece, Range, SimGpu};
use seamalloc::driver::{Call, DriverResult, EventId, Events, Status, StreamId};
use seamalloc::{Allocator, Config, Error, Split, StrategyKind, StreamSharing};
use std::collections::HashMap;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const STREAMS: u64 = 5;
/// Operations after which a stream is left for a new one, by programs that do so.
const STREAM_STEPS: u64 = 25;
/// Returns the operations of one program; more for a long hunt with `SEAMALLOC_CONTENT_OPS`, fewer where each of them checks all tables.
fn ops() -> u64 {
    if cfg!(feature = "paranoid") { 1_000 } else { rounds(2_000, 3_000) }
}
/// Operations of a program that lives on views, which take longer to be many.
const VIEWS_OPS: u64 = 3_000;

/// The statuses that a failing call returns: shortage, which is overcome where possible, and worse.
const STATUSES: [Status; 5] =
    [Status::OUT_OF_MEMORY, Status::OUT_OF_MEMORY, Status::UNKNOWN, Status::INVALID_VALUE, Status::ILLEGAL_ADDRESS];

struct Live {
    range: Range,
    stream: StreamId,
    pieces: Vec<Piece>,
}

/// A kernel's use of a part of some physical memory.
struct Use {
    from: u64,
    to: u64,
    stream: StreamId,
    ends: u64,
    /// The stream of the block, if nobody told the allocator of this use: that stream gets the memory at once. Whoever
    /// uses it there without having waited is wrong, and was so before.
    own: Option<StreamId>,
}

#[derive(Debug, Default)]
struct Tally {
    handed_out: u64,
    over_running_kernels: u64,
    shortages: u64,
    failures: u64,
    views_built: u64,
    views_reused: u64,
    views_dropped: u64,
    stream_waits: u64,
    streams: u64,
    /// Blocks freed under a stream that used them without a word.
    freed_under: u64,
    /// Blocks handed out of which a chunk was in the hands of another block too.
    shared_chunks: u64,
    /// Chunks that were split.
    splits: u64,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.handed_out, other.handed_out),
            (&mut self.over_running_kernels, other.over_running_kernels),
            (&mut self.shortages, other.shortages),
            (&mut self.failures, other.failures),
            (&mut self.views_built, other.views_built),
            (&mut self.views_reused, other.views_reused),
            (&mut self.views_dropped, other.views_dropped),
            (&mut self.stream_waits, other.stream_waits),
            (&mut self.streams, other.streams),
            (&mut self.freed_under, other.freed_under),
            (&mut self.shared_chunks, other.shared_chunks),
            (&mut self.splits, other.splits),
        ] {
            *sum += more;
        }
    }
}

/// The habit of a program: the operations that it does more often than others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// Memory goes back now and then, and driver calls do not fail.
    Calm,
    /// Memory goes back now and then, and driver calls fail.
    Storm,
    /// Memory goes back seldom, so that views grow old; large blocks; streams that are made anew again and again.
    Views,
}

struct Program {
    gpu: Arc<SimGpu>,
    allocator: Allocator,
    random: Random,
    live: Vec<Live>,
    taken: Taken,
    /// The memory that kernels that have not ended use, by piece of memory.
    uses: HashMap<u64, Vec<Use>>,
    event: EventId,
    habit: Habit,
    steps: u64,
    /// Splits, and bytes that came back from host memory.
    moves: u64,
    tally: Tally,
}

impl Program {
    fn new(device: &str, config: Config, seed: u64, habit: Habit) -> Self {
        let (gpu, allocator) = simulated::on(device, config);
        let event = gpu.event_create().unwrap();
        let (live, taken, uses) = Default::default();
        Self {
            gpu,
            allocator,
            random: Random(seed),
            live,
            taken,
            uses,
            event,
            habit,
            steps: 0,
            moves: 0,
            tally: Tally::default(),
        }
    }

    fn stream(&mut self) -> StreamId {
        let oldest = if self.habit == Habit::Views { self.steps / STREAM_STEPS } else { 0 };
        StreamId(oldest + self.random.below(STREAMS))
    }

    fn size(&mut self) -> u64 {
        let sizes = match self.habit {
            Habit::Views => [300 << 10, 5 * MIB, 20 * MIB, 60 * MIB, 60 * MIB],
            _ => [600, 300 << 10, 9 * MIB, 60 * MIB, 150 * MIB],
        };
        let most = sizes[self.random.below(5) as usize];
        1 + self.random.below(most)
    }

    fn live_bytes(&self) -> u64 {
        self.live.iter().map(|block| block.range.size).sum()
    }

    fn step(&mut self) {
        self.steps += 1;
        let seldom = self.habit == Habit::Views && self.random.below(8) > 0;
        if self.random.below(50) == 0 {
            // Else those of calls that are never made would pile up.
            self.gpu.fail_no_more();
        }
        if self.habit == Habit::Storm && self.random.below(4) == 0 {
            // Often the calls of an undoing too.
            for _ in 0..1 + self.random.below(3) {
                let call = Call::ALL[self.random.below(Call::COUNT as u64) as usize];
                let status = STATUSES[self.random.below(STATUSES.len() as u64) as usize];
                self.gpu.fail_nth(call, 1 + self.random.below(8), status);
            }
        }
        match self.random.below(100) {
            0..40 => self.allocate(),
            40..65 => self.launch(),
            65..95 => self.free(),
            95 if !seldom => {
                let emptied = self.allocator.empty_cache();
                self.done(emptied);
            }
            96 if !seldom => {
                let bytes = self.random.below(200 * MIB);
                let trimmed = self.allocator.trim(bytes);
                self.done(trimmed);
            }
            97 => self.gpu.set_run_ahead([0, 0, 100_000, 3_000_000][self.random.below(4) as usize]),
            _ => self.gpu.advance(self.random.below(500_000)),
        }
    }

    /// Returns the result of an operation; `None` where it failed in a way that it may.
    fn done<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(done) => return Some(done),
            Err(Error::OutOfMemory(_)) => self.tally.shortages += 1,
            Err(Error::Driver(_)) if self.habit == Habit::Storm => self.tally.failures += 1,
            Err(error) => panic!("{error}"),
        }
        None
    }

    fn allocate(&mut self) {
        let (size, stream) = (self.size(), self.stream());
        // Where memory is always short, the CPU waits so often that hardly anything is in use any more.
        let most = self.gpu.config().capacity * 4 / 5;
        if self.habit == Habit::Views && self.live_bytes() + size > most {
            return self.free();
        }
        let allocated = self.allocator.allocate(size, stream);
        self.follow_splits();
        let Some(address) = self.done(allocated) else { return self.free() };
        let range = Range { address, size: self.allocator.reports().size_of(address).unwrap() };
        assert!(range.size >= size && address.is_multiple_of(512) && range.size.is_multiple_of(512));
        let pieces = lies(&self.gpu, range);
        let shares = |piece: &Piece| self.taken.last_below(piece.memory, u64::MAX).is_some();
        self.tally.shared_chunks += u64::from(pieces.iter().any(shares));
        self.taken.take(&pieces);
        // The first kernel of the new owner starts no earlier than this.
        let starts = self.gpu.now_ns().max(self.gpu.done_at(stream).unwrap());
        let mut running = false;
        for piece in &pieces {
            let meets = |other: &Use| other.from < piece.offset + piece.size && other.to > piece.offset;
            let uses = self.uses.entry(piece.memory).or_default();
            uses.retain(|other| !meets(other) || other.own != Some(stream));
            for other in uses.iter().filter(|other| meets(other)) {
                running |= other.ends > self.gpu.now_ns();
                assert!(
                    other.stream == stream || other.ends <= starts,
                    "{range} of stream {stream} is used by stream {} until {}, handed out for {starts}",
                    other.stream,
                    other.ends,
                );
            }
        }
        self.tally.handed_out += 1;
        self.tally.over_running_kernels += u64::from(running);
        self.live.push(Live { range, stream, pieces });
        if self.random.below(2) == 0 {
            self.launch_on(self.live.len() - 1, stream, true);
        }
    }

    /// Notes where live blocks lie if a chunk was split since the last operation, or if a part came back from host memory.
    fn follow_splits(&mut self) {
        let stats = self.allocator.stats();
        let moves = stats.splits.chunks + stats.spilled_bytes.freed;
        if moves == self.moves {
            return;
        }
        (self.tally.splits, self.moves) = (stats.splits.chunks, moves);
        let now = self.gpu.now_ns();
        let is_over = self.uses.values().flatten().all(|used| used.ends <= now);
        assert!(is_over, "a kernel ran while memory came under live addresses");
        self.taken = Taken::default();
        for block in &mut self.live {
            block.pieces = lies(&self.gpu, block.range);
            self.taken.take(&block.pieces);
        }
    }

    fn launch(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.random.below(self.live.len() as u64) as usize;
        let stream = if self.random.below(2) == 0 { self.live[at].stream } else { self.stream() };
        self.launch_on(at, stream, true);
    }

    fn launch_on(&mut self, at: usize, stream: StreamId, told: bool) {
        self.follow_splits();
        let block = &self.live[at];
        assert_eq!(self.gpu.physical(block.range), block.pieces, "a live block's memory stays where it is");
        if stream != block.stream {
            // As a program has to: the other stream waits for the block's own, and the allocator is told.
            until_done(|| self.gpu.event_record(self.event, block.stream));
            until_done(|| self.gpu.stream_wait(stream, self.event));
            if told {
                self.allocator.record_stream(block.range.address, stream).unwrap();
            }
        }
        let longer = if self.habit == Habit::Views { 8 } else { 1 };
        let duration = longer * [0, 2_000, 50_000, 900_000][self.random.below(4) as usize];
        self.gpu.launch(stream, &[block.range], duration).unwrap();
        let ends = self.gpu.done_at(stream).unwrap();
        let own = (!told).then_some(block.stream);
        for piece in &block.pieces {
            let (from, to) = (piece.offset, piece.offset + piece.size);
            self.uses.entry(piece.memory).or_default().push(Use { from, to, stream, ends, own });
        }
    }

    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.random.below(self.live.len() as u64) as usize;
        self.follow_splits();
        let Range { address, .. } = self.live[at].range;
        let lies = self.gpu.physical(self.live[at].range);
        assert_eq!(lies, self.live[at].pieces, "a live block's memory stays where it is");
        let freed = match self.random.below(4) {
            0 => {
                let stream = self.stream();
                self.launch_on(at, stream, false);
                let freed = self.allocator.free_with_current_stream(address, stream);
                self.tally.freed_under += u64::from(stream != self.live[at].stream);
                if freed.is_err() {
                    self.allocator.record_stream(address, stream).unwrap();
                }
                freed
            }
            1 => {
                let stream = self.stream();
                self.launch_on(at, stream, true);
                self.allocator.free(address)
            }
            _ => self.allocator.free(address),
        };
        if self.done(freed).is_none() {
            return;
        }
        let block = self.live.swap_remove(at);
        self.taken.release(&block.pieces);
    }

    fn check(&mut self) {
        let faults = self.gpu.faults();
        assert!(faults.is_empty(), "{}", faults[0]);
        self.allocator.reports().check().unwrap();
        let stats = self.allocator.stats();
        // What a driver's pool holds it says itself; where that call has failed, its last answer stands.
        let asks = self.allocator.config().strategy == StrategyKind::MallocAsync && self.habit == Habit::Storm;
        assert!(asks || self.gpu.leaks().bytes == stats.reserved_bytes.all.current);
        assert_eq!(stats.allocation.all.current, self.live.len() as u64);
        assert_eq!(stats.allocated_bytes.all.current, self.live_bytes());
        let now = self.gpu.now_ns();
        self.uses.retain(|_, uses| {
            uses.retain(|used| used.ends > now);
            !uses.is_empty()
        });
    }

    fn finish(mut self) -> Tally {
        self.gpu.fail_no_more();
        let stats = self.allocator.stats();
        self.tally.views_built = stats.views_built;
        self.tally.views_reused = stats.views_reused;
        self.tally.views_dropped = stats.views_built - stats.views;
        self.tally.stream_waits = stats.stream_waits;
        self.tally.streams = self.steps / STREAM_STEPS;
        for block in std::mem::take(&mut self.live) {
            self.allocator.free(block.range.address).unwrap();
        }
        self.allocator.empty_cache().unwrap();
        self.check();
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

fn run(device: &str, config: &Config, seed: u64, habit: Habit) -> Tally {
    let most = if habit == Habit::Views { VIEWS_OPS } else { ops() };
    let ops = std::env::var("SEAMALLOC_CONTENT_OPS").ok().and_then(|ops| ops.parse().ok()).unwrap_or(most);
    let mut program = Program::new(device, config.clone(), seed, habit);
    for _ in 0..ops {
        program.step();
        program.check();
    }
    program.finish()
}

/// Programs under every option, on a device that is often full and on one that seldom is.
fn programs(kind: StrategyKind, habit: Habit) -> Tally {
    let mut all = Tally::default();
    for (seed, options) in [
        "",
        "sharing:wait,max_split_size_mb:40",
        "large_segment_size_mb:12,max_non_split_rounding_mb:64,fragLimit:40000000,defragLevel:2",
        "roundup_power2_divisions:4",
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
        "sharing:completed,max_view_mappings:40",
        "sharing:never,reuseLimit:1,defragLevel:1",
        "max_views:2,max_view_address_space:400MiB,memory_limit:290MiB",
    ]
    .into_iter()
    .enumerate()
    {
        let config = Config { strategy: kind, ..Config::parse(options).unwrap() };
        for (at, device) in ["sim:h200,capacity=300MiB", "sim:h200,capacity=1GiB"].into_iter().enumerate() {
            all.add(&run(device, &in_turn(&config, seed + at), seed as u64, habit));
        }
    }
    // Otherwise the programs would be too tame to show anything.
    assert!(all.handed_out > 500, "{kind}: {} blocks handed out", all.handed_out);
    assert!(all.over_running_kernels > 20, "{kind}: {} before the GPU was done", all.over_running_kernels);
    assert!(all.shortages > 20, "{kind}: {} shortages", all.shortages);
    assert!(all.freed_under > 100, "{kind}: {} freed under another stream", all.freed_under);
    assert!(all.splits > 20 || kind != StrategyKind::Stitch, "{kind}: {} splits", all.splits);
    all
}

/// Every other program has chunks that are not split: the memory of live blocks stays where it is.
fn in_turn(config: &Config, number: usize) -> Config {
    let split = if number.is_multiple_of(2) { Split::LastResort } else { Split::Off };
    Config { split, ..config.clone() }
}

#[test]
fn no_byte_is_handed_out_while_another_stream_uses_it() {
    for kind in StrategyKind::ALL {
        programs(kind, Habit::Calm);
    }
}

#[test]
fn nor_where_driver_calls_fail_at_random() {
    for kind in StrategyKind::ALL {
        let tally = programs(kind, Habit::Storm);
        assert!(tally.failures > 100, "{kind}: {} failures", tally.failures);
    }
}

/// Programs that live on views: chunks that two live blocks share, views under bounds so tight that each has to make room,
/// waits behind streams that run far behind, streams that come and go.
#[test]
fn nor_through_views_that_share_chunks() {
    let first = std::env::var("SEAMALLOC_CONTENT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for (number, options) in [
        "sharing:wait,chunk_size_mb:2,max_view_mappings:60",
        "sharing:wait,chunk_size_mb:6,max_view_mappings:24",
        "sharing:wait,chunk_size_mb:4,max_views:6",
        "sharing:wait,chunk_size_mb:8",
        "chunk_size_mb:2,max_view_mappings:60",
        "chunk_size_mb:2,max_view_mappings:100,sharing:completed",
        "sharing:never,chunk_size_mb:4,max_view_mappings:30",
    ]
    .into_iter()
    .enumerate()
    {
        let config = Config { strategy: StrategyKind::Stitch, ..Config::parse(options).unwrap() };
        let mut all = Tally::default();
        for (at, device) in ["sim:h200,capacity=300MiB", "sim:h200,capacity=700MiB"].into_iter().enumerate() {
            all.add(&run(device, &in_turn(&config, number + at), first + at as u64, Habit::Views));
        }
        assert!(all.over_running_kernels > 20, "{options}: {all:?}");
        let Tally { views_built, views_reused, views_dropped, stream_waits, shared_chunks, .. } = all;
        assert!(
            views_built > 100 && views_reused > 0 && views_dropped > 90 && shared_chunks > 100,
            "{options}: {all:?}"
        );
        assert!(stream_waits > 50 || config.sharing != StreamSharing::Wait, "{options}: {all:?}");
    }
}
