//! A program that is hard on an allocator for as long as one likes.
//!
//! It runs ahead of the GPU, on streams that it makes anew again and again, through phases that follow one another: sizes of
//! all kinds; buffers that are replaced by ones a little larger, so that no hole fits the next; every other block freed and
//! larger ones asked for; tens of thousands of small blocks. Other streams use some of the blocks. Now and then it gives
//! memory back, and memory runs short. It holds no trace, so that a run may be of any length.

use super::heap::{At, Part, held_by};
use super::instrumented::Instrumented;
use super::random::Random;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Driver, StreamId};
use seamalloc::{Allocator, Config, Error};
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
}

/// How things stand.
#[derive(Clone, Copy)]
pub(crate) struct State {
    pub(crate) ops: u64,
    pub(crate) live: u64,
    pub(crate) reserved: u64,
    /// What the allocator says that its tables take.
    pub(crate) host_bytes: u64,
    /// What it really holds of the host's memory.
    pub(crate) held: i64,
    pub(crate) views: u64,
    pub(crate) mappings: u64,
    /// The driver's events that exist.
    pub(crate) events: usize,
    /// Operations that called the driver, and its time in ms.
    pub(crate) stalls: u64,
    pub(crate) driver_ms: u64,
    /// Streams that the program has made.
    pub(crate) streams: u64,
    pub(crate) shortages: u64,
}

pub(crate) struct Program {
    gpu: Arc<SimGpu>,
    allocator: Allocator,
    random: Random,
    scale: Scale,
    /// Address and bytes.
    live: Vec<(u64, u64)>,
    live_bytes: u64,
    ops: u64,
    shortages: u64,
}

/// Streams in use at a time.
const STREAMS: u64 = 4;

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
        Self { gpu, allocator, random: Random(7), scale, live, live_bytes: 0, ops: 0, shortages: 0 }
    }

    pub(crate) fn state(&self) -> State {
        let stats = self.allocator.stats();
        State {
            ops: self.ops,
            live: self.live_bytes,
            reserved: stats.reserved_bytes.all.current,
            host_bytes: stats.host_bytes,
            held: held_by(Part::Allocator),
            views: stats.views,
            mappings: stats.mappings,
            events: self.gpu.leaks().events,
            stalls: stats.stalls.count,
            driver_ms: stats.stalls.total_ns / 1_000_000,
            streams: self.newest(),
            shortages: self.shortages,
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
    pub(crate) fn check(&self) -> Result<(), String> {
        self.allocator.check()?;
        let [is, counted] = [self.gpu.leaks().bytes, self.allocator.stats().reserved_bytes.all.current];
        if is != counted {
            return Err(format!("{is} bytes are held of the device, {counted} counted"));
        }
        match self.gpu.faults().first() {
            Some(fault) => Err(fault.to_string()),
            None => Ok(()),
        }
    }

    /// The newest stream.
    fn newest(&self) -> u64 {
        STREAMS + self.ops / self.scale.stream
    }

    fn step(&mut self) {
        self.ops += 1;
        {
            let _at = At::work(Part::Driver);
            self.gpu.advance(1);
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

    fn phase(&self) -> u64 {
        self.ops / self.scale.phase % 4
    }

    /// Between two phases: memory goes back, or every other block goes.
    fn turn(&mut self) {
        let turns = self.ops / self.scale.phase;
        let _at = At::work(Part::Allocator);
        if turns.is_multiple_of(16) {
            self.allocator.empty_cache().expect("no call fails");
        } else if turns.is_multiple_of(3) {
            self.allocator.trim(self.scale.live / 20).expect("no call fails");
        }
        drop(_at);
        if self.phase() == 2 {
            for index in (0..self.live.len() / 2).rev() {
                self.free_at(2 * index);
            }
        }
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
        StreamId(self.newest() - self.random.below(STREAMS))
    }

    fn allocate(&mut self) {
        let (size, stream) = (self.size(), self.stream());
        let allocated = {
            let _at = At::work(Part::Allocator);
            // The report of a shortage goes where it came from.
            self.allocator.allocate(size, stream).map_err(|error| matches!(error, Error::OutOfMemory(_)))
        };
        match allocated {
            Ok(address) => {
                self.live.push((address, size));
                self.live_bytes += size;
            }
            Err(of_memory) => {
                assert!(of_memory, "no call fails");
                self.shortages += 1;
                (0..self.live.len() / 4).for_each(|_| self.free());
            }
        }
    }

    fn use_elsewhere(&mut self) {
        let stream = self.stream();
        let index = self.random.below(self.live.len() as u64) as usize;
        let Some((address, _)) = self.live.get(index) else { return };
        let _at = At::work(Part::Allocator);
        self.allocator.record_stream(*address, stream).expect("it is live");
    }

    fn free(&mut self) {
        let index = self.random.below(self.live.len() as u64) as usize;
        if index < self.live.len() {
            self.free_at(index);
        }
    }

    fn free_at(&mut self, index: usize) {
        let (address, size) = self.live.swap_remove(index);
        self.live_bytes -= size;
        let _at = At::work(Part::Allocator);
        self.allocator.free(address).expect("it is live");
    }
}
