//! A program that is hard on an allocator for as long as one likes.
//!
//! It runs ahead of the GPU, on streams that it makes anew again and again, through phases that follow one another: sizes of
//! all kinds; buffers that are replaced by ones a little larger, so that no hole fits the next; every other block freed and
//! larger ones asked for; tens of thousands of small blocks. Other streams use some of the blocks, and free some. Private pools
//! are made and released, limits set and lifted, and some of its streams end with a word and some without. Driver calls fail at
//! random. Now and then it gives memory back, and memory runs short. It holds no trace, so that a run may be of any length.

use super::heap::{At, Part, held_by};
use super::instrumented::Instrumented;
use super::process;
use super::random::Random;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::{Allocator, Config, Error, PoolId, Result};
use std::collections::VecDeque;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// How large a program is.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// Bytes that it holds live, about.
    pub(crate) live: u64,
    /// Blocks that it holds live at most.
    pub(crate) blocks: usize,
    /// Operations of a phase.
    pub(crate) phase: u64,
    /// Operations after which it makes a new stream.
    pub(crate) stream: u64,
    /// How far it runs ahead of the GPU, in operations.
    pub(crate) ahead: u64,
    /// Operations after which it makes a private pool, and releases an older one.
    pub(crate) pool: u64,
    /// Operations after which a driver call fails.
    pub(crate) fault: u64,
}

/// How things stand.
#[derive(Clone, Copy)]
pub(crate) struct State {
    pub(crate) ops: u64,
    pub(crate) live: u64,
    pub(crate) reserved: u64,
    /// The size of the allocator's tables, as the allocator reports it.
    pub(crate) host_bytes: u64,
    /// The host memory that the allocator really holds.
    pub(crate) held: i64,
    pub(crate) views: u64,
    pub(crate) mappings: u64,
    /// The driver's events that exist.
    pub(crate) events: usize,
    /// Operations that called the driver, and its time in ms.
    pub(crate) stalls: u64,
    pub(crate) driver_ms: u64,
    /// Streams and private pools that the program has made.
    pub(crate) streams: u64,
    pub(crate) pools: u64,
    /// Private pools that the allocator knows.
    pub(crate) pools_known: usize,
    pub(crate) shortages: u64,
    /// Operations that failed because a driver call did.
    pub(crate) failures: u64,
    /// Ranges of addresses that are reserved of the driver, and the bytes of those of views.
    pub(crate) reservations: usize,
    pub(crate) view_addresses: u64,
    /// Physical memory of the driver: handles.
    pub(crate) handles: usize,
    /// Of the process, the simulated GPU and this program included: resident bytes and open descriptors.
    pub(crate) resident: u64,
    pub(crate) descriptors: usize,
}

pub(crate) struct Program {
    gpu: Arc<SimGpu>,
    allocator: Allocator,
    random: Random,
    scale: Scale,
    /// Address and bytes.
    live: Vec<(u64, u64)>,
    live_bytes: u64,
    pools: VecDeque<PoolId>,
    pools_made: u64,
    ops: u64,
    shortages: u64,
    failures: u64,
}

/// Streams in use at a time.
const STREAMS: u64 = 4;
/// Handles of streams: one that was destroyed is given to a new stream later, as drivers do.
const HANDLES: u64 = 64;
/// Private pools in use at a time.
const POOLS: usize = 4;
/// The statuses that a failing call returns: shortage, which is overcome where possible, and worse.
const STATUSES: [Status; 3] = [Status::OUT_OF_MEMORY, Status::UNKNOWN, Status::INVALID_VALUE];

impl Program {
    pub(crate) fn new(device: &str, options: &str, scale: Scale) -> Self {
        let config = SimConfig { calls_advance_clock: false, ..SimConfig::parse(device).expect("a device") };
        let gpu = Arc::new(SimGpu::new(config).expect("a device"));
        gpu.set_run_ahead(scale.ahead);
        let begin = || At::work(Part::Driver);
        let driver: Arc<dyn Driver> = Arc::new(Instrumented { gpu: Arc::clone(&gpu), begin });
        let config = Config::parse(options).expect("options");
        let allocator = {
            let _at = At::work(Part::Allocator);
            Allocator::new(driver, config).expect("an allocator")
        };
        let live = Vec::with_capacity(scale.blocks + 1);
        Self {
            gpu,
            allocator,
            random: Random(7),
            scale,
            live,
            live_bytes: 0,
            pools: VecDeque::with_capacity(POOLS + 1),
            pools_made: 0,
            ops: 0,
            shortages: 0,
            failures: 0,
        }
    }

    pub(crate) fn state(&self) -> State {
        let stats = self.allocator.stats();
        let device = self.gpu.leaks();
        State {
            ops: self.ops,
            live: self.live_bytes,
            reserved: stats.reserved_bytes.all.current,
            host_bytes: stats.host_bytes,
            held: held_by(Part::Allocator),
            views: stats.views,
            mappings: stats.mappings,
            events: device.events,
            stalls: stats.stalls.count,
            driver_ms: stats.stalls.total_ns / 1_000_000,
            streams: self.newest(),
            pools: self.pools_made,
            pools_known: self.allocator.pools().ids().len(),
            shortages: self.shortages,
            failures: self.failures,
            reservations: device.reservations,
            view_addresses: stats.view_address_space_bytes,
            handles: device.handles,
            resident: process::resident(),
            descriptors: process::descriptors(),
        }
    }

    /// Runs so many operations.
    pub(crate) fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            self.step();
        }
    }

    /// All rules that always hold.
    ///
    /// # Errors
    /// What is broken.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        self.allocator.reports().check()?;
        let [is, counted] = [self.gpu.leaks().bytes, self.allocator.stats().reserved_bytes.all.current];
        if is != counted {
            return Err(format!("{is} bytes are held of the device, {counted} counted"));
        }
        match self.gpu.faults().first() {
            Some(fault) => Err(fault.to_string()),
            None => Ok(()),
        }
    }

    /// The number of the newest stream.
    fn newest(&self) -> u64 {
        STREAMS + self.ops / self.scale.stream
    }

    fn step(&mut self) {
        self.ops += 1;
        {
            let _at = At::work(Part::Driver);
            self.gpu.advance(1);
        }
        if self.ops.is_multiple_of(self.scale.fault) {
            self.fail();
        }
        if self.ops.is_multiple_of(self.scale.pool) {
            self.change_pools();
        }
        if self.ops.is_multiple_of(self.scale.stream) {
            self.change_streams();
        }
        if self.ops.is_multiple_of(self.scale.phase) {
            return self.turn();
        }
        let full = self.live_bytes > self.scale.live || self.live.len() >= self.scale.blocks;
        match self.random.below(100) {
            0..4 => self.use_elsewhere(),
            4..54 if !full => self.allocate(),
            _ => self.free(),
        }
    }

    /// One of the next driver calls fails; those of calls that were not made since are taken back.
    fn fail(&mut self) {
        // Of those that this program's allocator makes: a call that nobody makes here would only shift the random numbers.
        let made = |call: &Call| !call.is_of_contents() && !call.is_of_pools();
        let count = Call::ALL.iter().filter(|call| made(call)).count() as u64;
        let chosen = self.random.below(count) as usize;
        let call = Call::ALL.into_iter().filter(made).nth(chosen).expect("there are as many");
        let status = STATUSES[self.random.below(STATUSES.len() as u64) as usize];
        let _at = At::work(Part::Driver);
        self.gpu.fail_no_more();
        self.gpu.fail_nth(call, 1 + self.random.below(4), status);
    }

    /// A pool is made, and the oldest released. Its blocks stay live.
    fn change_pools(&mut self) {
        let _at = At::work(Part::Allocator);
        self.pools.push_back(self.allocator.pools().create());
        self.pools_made += 1;
        if self.pools.len() > POOLS
            && let Some(oldest) = self.pools.pop_front()
        {
            self.allocator.pools().release(oldest).expect("it has one use");
        }
    }

    /// The oldest stream in use is destroyed, every other one with a word before, and the newest is made.
    fn change_streams(&mut self) {
        let newest = self.newest();
        let oldest = handle(newest - STREAMS);
        if newest.is_multiple_of(2) {
            let forgotten = self.working(|allocator| allocator.streams().forget(oldest));
            self.done(forgotten);
        }
        let _at = At::work(Part::Driver);
        self.gpu.destroy_stream(oldest);
        if newest >= HANDLES {
            self.gpu.replace_stream(handle(newest));
        }
    }

    /// Lets the allocator do something.
    fn working<T>(&self, operation: impl FnOnce(&Allocator) -> Result<T>) -> Outcome<T> {
        let _at = At::work(Part::Allocator);
        // The report of a shortage goes where it came from.
        operation(&self.allocator).map_err(|error| {
            let short = error.is_out_of_memory();
            assert!(short || matches!(error, Error::Driver(_)), "{error}");
            if short { Refusal::Shortage } else { Refusal::Driver }
        })
    }

    /// Returns the result of an operation; `None` where it failed, which is counted.
    fn done<T>(&mut self, outcome: Outcome<T>) -> Option<T> {
        match outcome {
            Ok(done) => return Some(done),
            Err(Refusal::Shortage) => self.shortages += 1,
            Err(Refusal::Driver) => self.failures += 1,
        }
        None
    }

    /// Between two phases: memory goes back, a limit is set or lifted, or every other block goes.
    fn turn(&mut self) {
        let turns = self.ops / self.scale.phase;
        if turns.is_multiple_of(16) {
            let emptied = self.working(Allocator::empty_cache);
            self.done(emptied);
        } else if turns.is_multiple_of(3) {
            let bytes = self.scale.live / 20;
            let trimmed = self.working(|allocator| allocator.trim(bytes));
            self.done(trimmed);
        }
        let limit = match turns % 8 {
            5 => Some(Some(self.scale.live)),
            6 => Some(None),
            _ => None,
        };
        if let Some(limit) = limit {
            let set = self.working(|allocator| allocator.limits().set_bytes(limit));
            self.done(set);
        }
        if self.phase() == 2 {
            for index in (0..self.live.len() / 2).rev() {
                self.free_at(2 * index);
            }
        }
    }

    fn phase(&self) -> u64 {
        self.ops / self.scale.phase % 4
    }

    fn size(&mut self) -> u64 {
        let of = self.phase();
        let most = match (of, self.random.below(100)) {
            (1, 0..60) => {
                // A little larger than any before.
                let grown = self.ops % (4 * self.scale.phase) * 512;
                return 10 * MIB + grown + self.random.below(1000) * 512;
            }
            (2, 0..70) => 200 * MIB,
            (3, 0..98) => 64 << 10,
            (_, 0..40) => MIB,
            (_, 40..97) => 40 * MIB,
            _ => self.scale.live / 12,
        };
        1 + self.random.below(most)
    }

    fn stream(&mut self) -> StreamId {
        handle(self.newest() - self.random.below(STREAMS))
    }

    fn allocate(&mut self) {
        let (size, stream) = (self.size(), self.stream());
        // Of few requests, since a pool's free memory serves no others.
        let pool = if self.random.below(64) == 0 { self.pools.back().copied() } else { None };
        let allocated = self.working(|allocator| match pool {
            Some(pool) => allocator.pools().allocate(pool, size, stream),
            None => allocator.allocate(size, stream),
        });
        let short = matches!(allocated, Err(Refusal::Shortage));
        if let Some(address) = self.done(allocated) {
            self.live.push((address, size));
            self.live_bytes += size;
        } else if short {
            (0..self.live.len() / 4).for_each(|_| self.free());
        }
    }

    fn use_elsewhere(&mut self) {
        let stream = self.stream();
        let index = self.random.below(self.live.len() as u64) as usize;
        let Some(&(address, _)) = self.live.get(index) else { return };
        let recorded = self.working(|allocator| allocator.record_stream(address, stream));
        self.done(recorded);
    }

    fn free(&mut self) {
        let index = self.random.below(self.live.len() as u64) as usize;
        if index < self.live.len() {
            self.free_at(index);
        }
    }

    /// A free that fails leaves the block live.
    fn free_at(&mut self, index: usize) {
        let (address, size) = self.live[index];
        let (how, stream) = (self.random.below(16), self.stream());
        let freed = self.working(|allocator| match how {
            0 => allocator.free_on(address, stream),
            1 => allocator.free_with_current_stream(address, stream),
            _ => allocator.free(address),
        });
        if self.done(freed).is_some() {
            self.live.swap_remove(index);
            self.live_bytes -= size;
        }
    }
}

/// The handle of the stream of this number. 0 is the default stream's.
fn handle(number: u64) -> StreamId {
    StreamId(1 + number % HANDLES)
}

/// Why an operation failed.
enum Refusal {
    Shortage,
    Driver,
}

type Outcome<T> = std::result::Result<T, Refusal>;
