//! Private pools over sources that fail at random, in random programs: whatever fails, memory is accounted to the byte, no
//! byte is anyone else's, and all of it goes back where it came from.

use crate::random::Random;
use crate::simulated::Device;
use crate::{MIB, Subject, with_options};
use seamalloc::driver::sim::Range;
use seamalloc::driver::{Call, PlainMemory, Status, StreamId};
use seamalloc::{Allocator, Error, PoolId, SegmentSource, Segments, SourceError, StrategyKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

const STREAMS: u64 = 3;
const POOLS: u64 = 4;
/// Operations of one program.
const OPS: u64 = 1_000;

/// The state that all sources of a program share.
struct Shared {
    random: Random,
    /// One call in so many goes wrong; 0 for none.
    wrong: u64,
    given: BTreeMap<u64, u64>,
    dropped: u64,
    failures: u64,
    shortages: u64,
    /// Blocks that lay in their segments.
    served: u64,
}

impl Shared {
    fn goes_wrong(&mut self) -> bool {
        self.wrong > 0 && self.random.below(self.wrong) == 0
    }
}

/// A source that panics holds it.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

struct Unreliable {
    gpu: Arc<Device>,
    shared: Arc<Mutex<Shared>>,
    /// The segments that this source gave.
    own: BTreeSet<u64>,
}

impl SegmentSource for Unreliable {
    fn malloc(&mut self, size: u64) -> Result<u64, SourceError> {
        let mut shared = lock(&self.shared);
        assert!(size.is_multiple_of(2 * MIB));
        if shared.goes_wrong() {
            let known = shared.given.keys().next().copied().unwrap_or(3);
            match shared.random.below(6) {
                0 | 1 => return Err(SourceError::OutOfMemory),
                2 => return Err(SourceError::Failed("at random".into())),
                3 => std::panic::resume_unwind(Box::new("at random")),
                4 => return Ok(0),
                _ => return Ok(known),
            }
        }
        let address = self.gpu.malloc(size).map_err(|error| match error.is_out_of_memory() {
            true => SourceError::OutOfMemory,
            false => SourceError::Failed(error.to_string()),
        })?;
        assert!(shared.given.insert(address, size).is_none() && self.own.insert(address));
        Ok(address)
    }

    fn free(&mut self, address: u64, size: u64) -> Result<(), SourceError> {
        let mut shared = lock(&self.shared);
        if shared.goes_wrong() {
            match shared.random.below(2) {
                0 => return Err(SourceError::Failed("at random".into())),
                _ => std::panic::resume_unwind(Box::new("at random")),
            }
        }
        assert!(self.own.contains(&address), "another source's");
        for stream in 0..STREAMS {
            let done = self.gpu.done_at(StreamId(stream)).unwrap_or(0);
            assert!(done <= self.gpu.now_ns(), "stream {stream} has not passed");
        }
        self.gpu.free(address).map_err(|error| SourceError::Failed(error.to_string()))?;
        self.own.remove(&address);
        assert_eq!(shared.given.remove(&address), Some(size));
        Ok(())
    }
}

impl Drop for Unreliable {
    fn drop(&mut self) {
        assert!(self.own.is_empty(), "dropped before its memory came back");
        lock(&self.shared).dropped += 1;
    }
}

struct Live {
    range: Range,
    stream: StreamId,
}

struct Program {
    gpu: Arc<Device>,
    allocator: Allocator,
    shared: Arc<Mutex<Shared>>,
    random: Random,
    live: Vec<Live>,
    /// The pools that are used.
    open: Vec<PoolId>,
    opened: u64,
    storm: bool,
}

impl Program {
    fn new(kind: StrategyKind, options: &str, seed: u64, storm: bool) -> Self {
        let (gpu, allocator) = with_options(kind, "sim:h200,capacity=400MiB", options);
        let shared = Shared {
            random: Random(seed ^ 0xabcd),
            wrong: if storm { 5 } else { 0 },
            given: BTreeMap::new(),
            dropped: 0,
            failures: 0,
            shortages: 0,
            served: 0,
        };
        Self {
            gpu,
            allocator,
            shared: Arc::new(Mutex::new(shared)),
            random: Random(seed),
            live: Vec::new(),
            open: Vec::new(),
            opened: 0,
            storm,
        }
    }

    /// Returns the result of an operation; `None` where it failed in a way that it may.
    fn done<T>(&self, result: Result<T, Error>) -> Option<T> {
        let mut shared = lock(&self.shared);
        match result {
            Ok(done) => return Some(done),
            Err(Error::OutOfMemory(_)) => shared.shortages += 1,
            Err(Error::Driver(_) | Error::Source { .. }) if self.storm => shared.failures += 1,
            Err(error) => panic!("{error}"),
        }
        None
    }

    fn step(&mut self) {
        if self.random.below(40) == 0 {
            self.gpu.fail_no_more();
        }
        if self.storm && self.random.below(6) == 0 {
            let call = Call::ALL[self.random.below(Call::COUNT as u64) as usize];
            let status = [Status::OUT_OF_MEMORY, Status::UNKNOWN][self.random.below(2) as usize];
            self.gpu.fail_nth(call, 1 + self.random.below(6), status);
        }
        match self.random.below(100) {
            0..50 => self.allocate(),
            50..80 => self.free(),
            80..84 => self.open(),
            84..88 => self.release(),
            88..91 => {
                let pool = PoolId(0, 1 + self.random.below(self.opened + 1));
                let emptied = self.allocator.pools().empty(pool);
                self.done(emptied);
            }
            91 => {
                let emptied = self.allocator.empty_cache();
                self.done(emptied);
            }
            92 => {
                let bytes = self.random.below(100 * MIB);
                let trimmed = self.allocator.trim(bytes);
                self.done(trimmed);
            }
            _ => self.gpu.advance(self.random.below(400_000)),
        }
    }

    fn open(&mut self) {
        if self.open.len() as u64 >= POOLS {
            return;
        }
        self.opened += 1;
        let pool = PoolId(0, self.opened);
        let source = Unreliable { gpu: Arc::clone(&self.gpu), shared: Arc::clone(&self.shared), own: BTreeSet::new() };
        let segments = Segments::from_source(source);
        let unsplit = self.random.below(4) == 0;
        self.allocator.pools().open_with(pool, if unsplit { segments.unsplit() } else { segments }).unwrap();
        self.open.push(pool);
    }

    fn release(&mut self) {
        if !self.open.is_empty() {
            let pool = self.open.swap_remove(self.random.below(self.open.len() as u64) as usize);
            self.allocator.pools().release(pool).unwrap();
        }
    }

    fn allocate(&mut self) {
        let most = [700, 900 << 10, 8 * MIB, 30 * MIB, 90 * MIB][self.random.below(5) as usize];
        let size = 1 + self.random.below(most);
        let stream = StreamId(self.random.below(STREAMS));
        let pool = self.open.get(self.random.below(2 * POOLS) as usize).copied();
        let before = self.allocator.stats();
        let allocated = match pool {
            Some(pool) => self.allocator.pools().allocate(pool, size, stream),
            None => self.allocator.allocate(size, stream),
        };
        let Some(address) = self.done(allocated) else {
            let after = self.allocator.stats();
            assert_eq!(before.allocation.all.current, after.allocation.all.current);
            assert_eq!(before.allocated_bytes.all.current, after.allocated_bytes.all.current);
            return self.free();
        };
        let range = Range { address, size: self.allocator.reports().size_of(address).unwrap() };
        let given = lock(&self.shared);
        let inside = given.given.range(..=address).next_back().is_some_and(|(start, size)| address < start + size);
        drop(given);
        assert_eq!(inside, pool.is_some(), "a source's memory is its pool's, and no one else's");
        for other in &self.live {
            let (one, two) = (other.range, range);
            assert!(one.address + one.size <= two.address || two.address + two.size <= one.address, "{one} and {two}");
        }
        self.gpu.launch(stream, &[range], 20_000).unwrap();
        lock(&self.shared).served += u64::from(inside);
        self.live.push(Live { range, stream });
    }

    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.random.below(self.live.len() as u64) as usize;
        let Live { range, stream } = self.live[at];
        let other = StreamId(self.random.below(STREAMS));
        if other != stream {
            self.allocator.record_stream(range.address, other).unwrap();
            self.gpu.launch(other, &[range], 30_000).unwrap();
        }
        let freed = self.allocator.free(range.address);
        if self.done(freed).is_some() {
            self.live.swap_remove(at);
        }
    }

    fn check(&self) {
        self.allocator.reports().check().unwrap();
        assert!(self.gpu.faults().is_empty(), "{}", self.gpu.faults()[0]);
        let stats = self.allocator.stats();
        assert_eq!(self.gpu.leaks().bytes, stats.reserved_bytes.all.current, "all that is held is accounted");
        assert_eq!(stats.allocation.all.current, self.live.len() as u64);
        let bytes = self.live.iter().map(|block| block.range.size).sum::<u64>();
        assert_eq!(stats.allocated_bytes.all.current, bytes);
        let held = self.allocator.pools().ids().into_iter().map(|pool| self.allocator.pools().stats(pool).unwrap());
        let of_sources: u64 = lock(&self.shared).given.values().sum();
        assert_eq!(held.map(|stats| stats.reserved_bytes).sum::<u64>(), of_sources);
    }

    /// Failures, shortages, and blocks of sources.
    fn finish(mut self) -> [u64; 3] {
        self.gpu.fail_no_more();
        lock(&self.shared).wrong = 0;
        for pool in std::mem::take(&mut self.open) {
            self.allocator.pools().release(pool).unwrap();
        }
        for block in std::mem::take(&mut self.live) {
            self.allocator.free(block.range.address).unwrap();
        }
        self.allocator.empty_cache().unwrap();
        self.check();
        assert_eq!(self.allocator.stats().reserved_bytes.all.current, 0);
        let shared = lock(&self.shared);
        assert_eq!(shared.dropped, self.opened, "each source has gone, once");
        [shared.failures, shared.shortages, shared.served]
    }
}

fn programs(kind: StrategyKind, storm: bool) -> [u64; 3] {
    let mut sums = [0; 3];
    let options = ["", "max_split_size_mb:40", "sharing:never", "memory_limit:300MiB"];
    for (seed, options) in (0..).zip(options) {
        let mut program = Program::new(kind, options, seed, storm);
        program.open();
        for _ in 0..OPS {
            program.step();
            program.check();
        }
        let of_one = program.finish();
        sums.iter_mut().zip(of_one).for_each(|(sum, more)| *sum += more);
    }
    sums
}

pub(crate) fn a_sources_memory_is_its_pools_and_goes_back_to_it(Subject { kind, .. }: Subject) {
    let [failures, shortages, served] = programs(kind, false);
    assert!(failures == 0 && shortages > 20 && served > 200, "{kind}: {shortages} shortages, {served} served");
}

pub(crate) fn whatever_sources_and_the_driver_fail_at(Subject { kind, .. }: Subject) {
    let [failures, shortages, served] = programs(kind, true);
    assert!(failures > 100 && shortages > 20 && served > 200, "{kind}: {failures}, {shortages}, {served}");
}
