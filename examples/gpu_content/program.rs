//! A random program that knows what every word of its memory has to be.
//!
//! It runs as far ahead of the GPU as the driver lets it, on several streams. Each block is filled on its own stream right
//! after it is handed out, checked there right before it is freed, and checked or copied on other streams in between, now and
//! then behind a long pause. The program obeys CUDA's and the allocator's rules, and waits for nothing: whether memory is
//! used again too early is the allocator's matter alone.

use crate::faults;
use crate::gpu::{Gpu, Kernel, Outcome, WORD, Words};
use crate::graphs::Graphs;
use crate::random::Random;
use crate::sabotage::Sabotage;
use seamalloc::driver::{Driver, EventId, StreamId};
use seamalloc::{Allocator, Error, PoolId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
/// Operations after which the program changes its habits.
const PHASE: u64 = 600;
/// Pauses in front of a kernel of another stream, in nanoseconds: the longest is far longer than any kernel.
const PAUSES: [u64; 3] = [20_000, 200_000, 2_000_000];

/// The state that all threads of a run have in common.
pub(crate) struct Shared {
    pub(crate) gpu: Arc<dyn Gpu>,
    pub(crate) allocator: Allocator,
    pub(crate) sabotage: Option<Sabotage>,
    /// Whether driver calls of the allocator fail at random.
    faults: bool,
    /// Whether a thread captures. Only one does at a time.
    pub(crate) capturing: AtomicBool,
    tags: AtomicU32,
}

impl Shared {
    pub(crate) fn new(gpu: Arc<dyn Gpu>, allocator: Allocator, sabotage: Option<Sabotage>, faults: bool) -> Self {
        Self { gpu, allocator, sabotage, faults, capturing: AtomicBool::new(false), tags: AtomicU32::new(1) }
    }

    /// A tag that no block had before.
    pub(crate) fn tag(&self) -> u32 {
        self.tags.fetch_add(1, Ordering::Relaxed)
    }
}

/// The operations that were done, for the report.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) operations: u64,
    pub(crate) allocations: u64,
    /// Blocks used on a stream that is not their own.
    pub(crate) used_elsewhere: u64,
    /// Of the blocks freed, those that another stream had been given work for.
    pub(crate) freed_in_use: u64,
    pub(crate) rewrites: u64,
    pub(crate) captures: u64,
    pub(crate) replays: u64,
    /// Requests that were refused for lack of memory.
    pub(crate) shortages: u64,
    /// Operations that failed by a driver call that was made to fail.
    pub(crate) failures: u64,
    /// Words that kernels were asked to check.
    pub(crate) words: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.operations, other.operations),
            (&mut self.allocations, other.allocations),
            (&mut self.used_elsewhere, other.used_elsewhere),
            (&mut self.freed_in_use, other.freed_in_use),
            (&mut self.rewrites, other.rewrites),
            (&mut self.captures, other.captures),
            (&mut self.replays, other.replays),
            (&mut self.shortages, other.shortages),
            (&mut self.failures, other.failures),
            (&mut self.words, other.words),
        ] {
            *sum += more;
        }
    }
}

/// How the program sees to it that a block is not used again before other streams are done with it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// By `record_stream`.
    Recorded,
    /// By `free_on`: one other stream at most uses the block.
    Named,
    /// Not at all: before the free, the block's own stream waits for the others.
    Joined,
}

struct Block {
    words: Words,
    tag: u32,
    stream: StreamId,
    told: Told,
    /// Streams that it was used on beside its own.
    readers: Vec<StreamId>,
}

/// One thread of the program.
pub(crate) struct Program {
    pub(crate) shared: Arc<Shared>,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) random: Random,
    pub(crate) tally: Tally,
    pub(crate) graphs: Graphs,
    streams: Vec<StreamId>,
    event: EventId,
    blocks: Vec<Block>,
    live: u64,
    most_live: u64,
    /// A private pool for eager work.
    pool: PoolId,
}

impl Program {
    /// A program on these streams that holds up to `most_live` bytes.
    pub(crate) fn new(shared: Arc<Shared>, streams: Vec<StreamId>, most_live: u64, seed: u64) -> Outcome<Self> {
        let driver = shared.gpu.driver();
        let (event, pool) = (driver.event_create()?, shared.allocator.pools().create());
        let (tally, graphs, blocks) = Default::default();
        Ok(Self {
            shared,
            driver,
            random: Random(seed),
            tally,
            graphs,
            streams,
            event,
            blocks,
            live: 0,
            most_live,
            pool,
        })
    }

    pub(crate) fn step(&mut self) -> Outcome<()> {
        if self.tally.operations % PHASE == PHASE - 1 {
            self.comb()?;
        }
        self.tally.operations += 1;
        if self.graphs.is_capturing() && self.random.below(2) == 0 {
            return self.capture_more();
        }
        match self.random.below(1000) {
            0..380 => self.allocate(),
            380..560 => self.use_one(),
            560..900 => self.free_one(),
            900..930 => self.rewrite_one(),
            930..980 => self.use_graphs(),
            980..986 => self.begin_capture(),
            996 => {
                self.shared.allocator.pools().release(self.pool)?;
                self.pool = self.shared.allocator.pools().create();
                Ok(())
            }
            // After a mistake memory may be unmapped in use, which ends a run before a word is found wrong.
            997.. if self.shared.sabotage.is_some() => Ok(()),
            997 if self.random.below(4) == 0 => {
                let bytes = self.random.below(self.most_live / 8);
                self.operate(|allocator| allocator.trim(bytes)).map(drop)
            }
            998 if self.random.below(4) == 0 => self.operate(Allocator::empty_cache).map(drop),
            _ => Ok(()),
        }
    }

    /// Checks and frees everything. Waits for nothing.
    pub(crate) fn finish(mut self) -> Outcome<Tally> {
        self.drop_graphs()?;
        while !self.blocks.is_empty() {
            self.free_at(0)?;
        }
        self.shared.allocator.pools().release(self.pool)?;
        self.driver.event_destroy(self.event)?;
        Ok(self.tally)
    }

    /// A size in bytes by the habits of the phase.
    pub(crate) fn size(&mut self) -> u64 {
        let (phase, largest) = (self.tally.operations / PHASE % 4, self.most_live / 8);
        1 + match phase {
            0 => {
                let most = [4 * KIB, MIB, 20 * MIB, largest / 4, largest][self.random.below(5) as usize];
                self.random.below(most)
            }
            // Odd sizes, that leave holes which nothing fits.
            1 => 2 * MIB + self.random.below(40 * MIB),
            // Ever larger ones: no hole fits the next.
            2 => 4 * MIB + self.tally.operations % PHASE * 256 * KIB,
            _ => self.random.below(MIB),
        }
    }

    /// A stream that can be given work now: one that is not being captured.
    pub(crate) fn stream(&mut self) -> StreamId {
        loop {
            let stream = self.streams[self.random.below(self.streams.len() as u64) as usize];
            if self.is_open(stream) {
                return stream;
            }
        }
    }

    fn is_open(&self, stream: StreamId) -> bool {
        // While any stream is captured the default stream is left alone, as CUDA's documentation advises.
        let reserved = stream == StreamId::DEFAULT && self.shared.capturing.load(Ordering::Relaxed);
        !reserved && !self.graphs.is_captured(stream)
    }

    /// Some block of which no stream is being captured.
    fn pick(&mut self) -> Option<usize> {
        let at = self.random.below(self.blocks.len() as u64) as usize;
        let block = self.blocks.get(at)?;
        let open = block.readers.iter().chain([&block.stream]).all(|stream| self.is_open(*stream));
        open.then_some(at)
    }

    pub(crate) fn launch(&mut self, stream: StreamId, kernel: Kernel) -> Outcome<()> {
        if let Kernel::Check { of, .. } = kernel {
            self.tally.words += of.count;
        }
        self.shared.gpu.launch(stream, kernel)
    }

    pub(crate) fn pause(&mut self, stream: StreamId) -> Outcome<()> {
        let ns = PAUSES[self.random.below(3) as usize];
        self.launch(stream, Kernel::Spin { ns })
    }

    /// Makes all later work of `waiting` come after all work that `other` was given.
    fn join(&self, waiting: StreamId, other: StreamId) -> Outcome<()> {
        self.driver.event_record(self.event, other)?;
        Ok(self.driver.stream_wait(waiting, self.event)?)
    }

    /// An operation of which driver calls may fail; `None` where it did, and so has changed nothing.
    fn operate<T>(&mut self, operate: impl FnOnce(&Allocator) -> seamalloc::Result<T>) -> Outcome<Option<T>> {
        let allocator = &self.shared.allocator;
        // In a capture no thread may find anything amiss: what fails there ends the capture.
        let fails = self.shared.faults && !self.graphs.is_capturing() && self.random.below(4) == 0;
        let result = if fails { faults::during(&mut self.random, || operate(allocator)) } else { operate(allocator) };
        match result {
            Err(Error::Driver(_) | Error::OutOfMemory(_)) if fails => {
                self.tally.failures += 1;
                Ok(None)
            }
            result => Ok(Some(result?)),
        }
    }

    /// Returns the outcome of a request: all words of the block; none where memory is short.
    pub(crate) fn obtained(&mut self, address: seamalloc::Result<u64>) -> Outcome<Option<Words>> {
        let address = match address {
            Ok(address) => address,
            Err(Error::OutOfMemory(_)) => {
                self.tally.shortages += 1;
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        self.tally.allocations += 1;
        Ok(Some(Words { address, count: self.shared.allocator.reports().size_of(address)? / WORD }))
    }

    fn allocate(&mut self) -> Outcome<()> {
        let (size, stream) = (self.size(), self.stream());
        self.allocate_on(size, stream)
    }

    fn allocate_on(&mut self, size: u64, stream: StreamId) -> Outcome<()> {
        let Some(words) = self.block_of(size, stream)? else { return Ok(()) };
        let tag = self.shared.tag();
        self.launch(stream, Kernel::Fill { to: words, tag })?;
        self.keep(words, tag, stream);
        Ok(())
    }

    fn block_of(&mut self, size: u64, stream: StreamId) -> Outcome<Option<Words>> {
        if self.live + size > self.most_live {
            return self.free_one().map(|()| None);
        }
        let (pool, is_private) = (self.pool, self.random.below(16) == 0);
        let allocated = self.operate(|allocator| {
            // A shortage is an answer.
            let allocated = match is_private {
                true => allocator.pools().allocate(pool, size, stream),
                false => allocator.allocate(size, stream),
            };
            match allocated {
                Err(Error::OutOfMemory(report)) => Ok(Err(Error::OutOfMemory(report))),
                other => other.map(Ok),
            }
        })?;
        let words = match allocated {
            Some(allocated) => self.obtained(allocated)?,
            None => None,
        };
        if words.is_none() {
            self.free_one()?;
        }
        Ok(words)
    }

    fn keep(&mut self, words: Words, tag: u32, stream: StreamId) {
        let told = [Told::Recorded, Told::Recorded, Told::Named, Told::Joined][self.random.below(4) as usize];
        self.live += words.bytes();
        self.blocks.push(Block { words, tag, stream, told, readers: Vec::new() });
    }

    /// Checks a block on some stream, or copies it there.
    fn use_one(&mut self) -> Outcome<()> {
        let Some(at) = self.pick() else { return Ok(()) };
        let mut on = self.stream();
        let Block { words, tag, stream: own, told, ref mut readers } = self.blocks[at];
        if let (Told::Named, Some(&named)) = (told, readers.first()) {
            on = named;
        }
        let elsewhere = on != own;
        if elsewhere && !readers.contains(&on) {
            readers.push(on);
        }
        if elsewhere {
            self.tally.used_elsewhere += 1;
            self.join(on, own)?;
            if told == Told::Recorded && self.shared.sabotage != Some(Sabotage::Untold) {
                self.shared.allocator.record_stream(words.address, on)?;
            }
        }
        if self.random.below(4) == 0 {
            self.pause(on)?;
        }
        if self.random.below(4) == 0
            && let Some(Words { address, .. }) = self.block_of(words.bytes(), on)?
        {
            self.launch(on, Kernel::Copy { from: words, to: address })?;
            self.keep(Words { address, ..words }, tag, on);
        }
        // The block itself may have been freed to make room.
        if self.blocks.iter().any(|block| block.words.address == words.address && block.tag == tag) {
            self.launch(on, Kernel::Check { of: words, tag })?;
        }
        Ok(())
    }

    fn rewrite_one(&mut self) -> Outcome<()> {
        let Some(at) = self.pick() else { return Ok(()) };
        let tag = self.shared.tag();
        let block = &mut self.blocks[at];
        block.tag = tag;
        let (own, to) = (block.stream, block.words);
        for reader in block.readers.clone() {
            self.join(own, reader)?;
        }
        self.tally.rewrites += 1;
        self.launch(own, Kernel::Fill { to, tag })
    }

    fn free_one(&mut self) -> Outcome<()> {
        match self.pick() {
            Some(at) => self.free_at(at),
            None => Ok(()),
        }
    }

    fn free_at(&mut self, at: usize) -> Outcome<()> {
        let block = self.blocks.swap_remove(at);
        let Block { words, tag, stream, told, ref readers } = block;
        self.launch(stream, Kernel::Check { of: words, tag })?;
        let tells = self.shared.sabotage != Some(Sabotage::Untold);
        self.tally.freed_in_use += u64::from(told != Told::Joined && !readers.is_empty());
        if told == Told::Joined {
            readers.iter().try_for_each(|reader| self.join(stream, *reader))?;
        }
        let last = readers.first().copied().filter(|_| told == Told::Named && tells);
        let freed = self.operate(|allocator| match last {
            Some(last) => allocator.free_on(words.address, last),
            None => allocator.free(words.address),
        })?;
        match freed {
            Some(()) => self.live -= words.bytes(),
            // It is as live as before.
            None => self.blocks.push(block),
        }
        Ok(())
    }

    /// Frees every other block, and asks for half of it in one: no hole fits.
    fn comb(&mut self) -> Outcome<()> {
        self.blocks.sort_unstable_by_key(|block| block.words.address);
        let before = self.live;
        for at in (0..self.blocks.len()).rev().step_by(2) {
            let block = &self.blocks[at];
            if block.readers.iter().chain([&block.stream]).all(|stream| self.is_open(*stream)) {
                self.free_at(at)?;
            }
        }
        let (size, stream) = ((before - self.live) / 2, self.stream());
        if size > 0 { self.allocate_on(size, stream) } else { Ok(()) }
    }
}
