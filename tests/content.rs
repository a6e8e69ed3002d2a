//! What every program relies on: two live blocks never share a byte of physical memory, no byte is handed out while a
//! kernel of another stream may still use it, and nothing is unmapped under a kernel.
//!
//! Random programs that run ahead of the simulated GPU: kernels with a duration, blocks used on several streams and
//! freed right after the launch, memory so short that everything is given back now and then. The test keeps its own
//! book, of physical memory and not of addresses, so that it holds for views too. In a storm, driver calls fail at random
//! besides, several at once and while failures are undone: the same must hold, and what failed must have changed nothing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic fails the test")]

mod random;

use memquilt::driver::sim::{Piece, Range, SimConfig, SimGpu};
use memquilt::driver::{Call, Driver, DriverResult, EventId, Status, StreamId};
use memquilt::{Allocator, Config, Error, StrategyKind};
use random::Random;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const STREAMS: u64 = 5;
/// Operations of one program; more for a long hunt with `MEMQUILT_CONTENT_OPS`.
const OPS: u64 = 3_000;

/// What a failing call answers: shortage, which is overcome where possible, and worse.
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
}

#[derive(Default)]
struct Tally {
    handed_out: u64,
    over_running_kernels: u64,
    shortages: u64,
    failures: u64,
}

struct Program {
    gpu: Arc<SimGpu>,
    allocator: Allocator,
    random: Random,
    live: Vec<Live>,
    /// Where live blocks lie: memory and offset to the end there.
    taken: BTreeMap<(u64, u64), u64>,
    /// What kernels that have not ended use, by memory.
    uses: HashMap<u64, Vec<Use>>,
    event: EventId,
    storm: bool,
    tally: Tally,
}

impl Program {
    fn new(device: &str, config: Config, seed: u64, storm: bool) -> Self {
        let gpu = Arc::new(SimGpu::new(SimConfig::parse(device).unwrap()).unwrap());
        let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), config).unwrap();
        let event = gpu.event_create().unwrap();
        let (live, taken, uses) = Default::default();
        Self { gpu, allocator, random: Random(seed), live, taken, uses, event, storm, tally: Tally::default() }
    }

    fn stream(&mut self) -> StreamId {
        StreamId(self.random.below(STREAMS))
    }

    fn size(&mut self) -> u64 {
        let most = [600, 300 << 10, 9 * MIB, 60 * MIB, 150 * MIB][self.random.below(5) as usize];
        1 + self.random.below(most)
    }

    fn step(&mut self) {
        if self.random.below(50) == 0 {
            // Else those of calls that are never made would pile up.
            self.gpu.fail_no_more();
        }
        if self.storm && self.random.below(4) == 0 {
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
            95 => {
                let emptied = self.allocator.empty_cache();
                self.done(emptied);
            }
            96 => self.gpu.set_run_ahead([0, 0, 100_000, 3_000_000][self.random.below(4) as usize]),
            _ => self.gpu.advance(self.random.below(500_000)),
        }
    }

    /// What an operation gave; `None` where it failed in a way that it may.
    fn done<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(done) => return Some(done),
            Err(Error::OutOfMemory(_)) => self.tally.shortages += 1,
            Err(Error::Driver(_)) if self.storm => self.tally.failures += 1,
            Err(error) => panic!("{error}"),
        }
        None
    }

    fn allocate(&mut self) {
        let (size, stream) = (self.size(), self.stream());
        let allocated = self.allocator.allocate(size, stream);
        let Some(address) = self.done(allocated) else { return self.free() };
        let range = Range { address, size: self.allocator.size_of(address).unwrap() };
        assert!(range.size >= size && address.is_multiple_of(512) && range.size.is_multiple_of(512));
        let pieces = self.gpu.physical(range);
        assert_eq!(pieces.iter().map(|piece| piece.size).sum::<u64>(), range.size, "memory behind every byte");
        for piece in &pieces {
            self.take(piece);
        }
        // The first kernel of the new owner starts no earlier than this.
        let starts = self.gpu.now_ns().max(self.gpu.done_at(stream).unwrap());
        let mut running = false;
        for piece in &pieces {
            for other in self.uses.get(&piece.memory).into_iter().flatten() {
                if other.from >= piece.offset + piece.size || other.to <= piece.offset {
                    continue;
                }
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
            self.launch_on(self.live.len() - 1, stream);
        }
    }

    fn take(&mut self, piece: &Piece) {
        let (memory, from, to) = (piece.memory, piece.offset, piece.offset + piece.size);
        let before = self.taken.range(..(memory, to)).next_back();
        let clash = before.is_some_and(|(&(other, _), &end)| other == memory && end > from);
        assert!(!clash, "{piece:?} is part of a live block already: {before:?}");
        self.taken.insert((memory, from), to);
    }

    fn launch(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.random.below(self.live.len() as u64) as usize;
        let stream = if self.random.below(2) == 0 { self.live[at].stream } else { self.stream() };
        self.launch_on(at, stream);
    }

    fn launch_on(&mut self, at: usize, stream: StreamId) {
        let block = &self.live[at];
        assert_eq!(self.gpu.physical(block.range), block.pieces, "a live block's memory stays where it is");
        if stream != block.stream {
            // As a program has to: the other stream waits for the block's own, and the allocator is told.
            until_done(|| self.gpu.event_record(self.event, block.stream));
            until_done(|| self.gpu.stream_wait(stream, self.event));
            self.allocator.record_stream(block.range.address, stream).unwrap();
        }
        self.gpu.launch(stream, &[block.range], [0, 2_000, 50_000, 900_000][self.random.below(4) as usize]).unwrap();
        let ends = self.gpu.done_at(stream).unwrap();
        for piece in &block.pieces {
            let (from, to) = (piece.offset, piece.offset + piece.size);
            self.uses.entry(piece.memory).or_default().push(Use { from, to, stream, ends });
        }
    }

    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.random.below(self.live.len() as u64) as usize;
        if self.random.below(2) == 0 {
            let stream = self.stream();
            self.launch_on(at, stream);
        }
        let freed = self.allocator.free(self.live[at].range.address);
        if self.done(freed).is_none() {
            return;
        }
        let block = self.live.swap_remove(at);
        assert_eq!(self.gpu.physical(block.range), block.pieces, "a live block's memory stays where it is");
        for piece in &block.pieces {
            assert_eq!(self.taken.remove(&(piece.memory, piece.offset)), Some(piece.offset + piece.size));
        }
    }

    fn check(&mut self) {
        let faults = self.gpu.faults();
        assert!(faults.is_empty(), "{}", faults[0]);
        self.allocator.check().unwrap();
        let stats = self.allocator.stats();
        assert_eq!(self.gpu.leaks().bytes, stats.reserved_bytes.all.current);
        assert_eq!(stats.allocation.all.current, self.live.len() as u64);
        assert_eq!(stats.allocated_bytes.all.current, self.live.iter().map(|block| block.range.size).sum::<u64>());
        let now = self.gpu.now_ns();
        self.uses.retain(|_, uses| {
            uses.retain(|used| used.ends > now);
            !uses.is_empty()
        });
    }

    fn finish(mut self) -> Tally {
        self.gpu.fail_no_more();
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

fn run(device: &str, config: &Config, seed: u64, storm: bool) -> Tally {
    let ops = std::env::var("MEMQUILT_CONTENT_OPS").ok().and_then(|ops| ops.parse().ok()).unwrap_or(OPS);
    let mut program = Program::new(device, config.clone(), seed, storm);
    for _ in 0..ops {
        program.step();
        program.check();
    }
    program.finish()
}

/// Programs under every option, on a device that is often full and on one that seldom is.
fn programs(kind: StrategyKind, storm: bool) -> Tally {
    let mut all = Tally::default();
    for (seed, options) in [
        "",
        "max_split_size_mb:40",
        "large_segment_size_mb:12,max_non_split_rounding_mb:64",
        "roundup_power2_divisions:4",
        "garbage_collection_threshold:0.5,memory_fraction:0.9",
        "sharing:completed,max_view_mappings:40",
        "sharing:never",
    ]
    .into_iter()
    .enumerate()
    {
        let config = Config { strategy: kind, ..Config::parse(options).unwrap() };
        for device in ["sim:h200,capacity=300MiB", "sim:h200,capacity=1GiB"] {
            let tally = run(device, &config, seed as u64, storm);
            all.handed_out += tally.handed_out;
            all.over_running_kernels += tally.over_running_kernels;
            all.shortages += tally.shortages;
            all.failures += tally.failures;
        }
    }
    // Otherwise the programs would be too tame to show anything.
    assert!(all.handed_out > 500, "{kind}: {} blocks handed out", all.handed_out);
    assert!(all.over_running_kernels > 20, "{kind}: {} before the GPU was done", all.over_running_kernels);
    assert!(all.shortages > 20, "{kind}: {} shortages", all.shortages);
    all
}

#[test]
fn no_byte_is_handed_out_while_another_stream_uses_it() {
    for kind in StrategyKind::ALL {
        programs(kind, false);
    }
}

#[test]
fn nor_where_driver_calls_fail_at_random() {
    for kind in StrategyKind::ALL {
        let tally = programs(kind, true);
        assert!(tally.failures > 100, "{kind}: {} failures", tally.failures);
    }
}
