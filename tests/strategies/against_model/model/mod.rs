//! An independent model of PyTorch's allocator (2.11, native and expandable segments): what the real one here is
//! compared with. It is written from PyTorch's rules, of which one is added to (it says so), simple and slow: every question is answered by looking at
//! every block.
//!
//! Owns: the rules of allocating and freeing. `segments` owns what lies where and how it grows, `release` how it is given
//! back, `tally` how PyTorch counts. It shares no code with the library but plain values and the simulated GPU.

mod release;
mod segments;
mod tally;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Driver, EventId, Events, StreamId};
use seamalloc::{Config, Stats, StrategyKind};

use segments::{Block, Segment, Use};
use tally::{decrease, increase, lower, raise};

const MIB: u64 = 1 << 20;

/// Why a request was not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    OutOfMemory { limit: Option<u64>, reserved: u64, allocated: u64, pending: u64, device_free: u64 },
    TooLarge,
    InvalidAddress,
}

/// A rule that is seldom reached; a test can ask whether it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Garbage collection gave back a segment.
    CollectGarbage,
    /// One oversize segment was given back for a request.
    ReleaseOne,
    /// More than one was.
    ReleaseSeveral,
    /// All that was cached was given back, and the request was met then.
    ReleaseCached,
    /// No more memory was to be had, but a block that became free in the wait fits. PyTorch does not look again.
    LookAgain,
    OutOfMemory,
    /// An expandable segment grew at more than one place for a request.
    FillHole,
    /// A growth failed after some of it was mapped.
    UndoGrowth,
    /// A larger hole was preferred to a block that can grow.
    PassOverEdge,
}

/// A request on its way through the ladder.
#[derive(Clone, Copy)]
struct Request {
    stream: StreamId,
    small: bool,
    /// Bytes, rounded.
    size: u64,
    /// Bytes of the segment it asks for.
    segment: u64,
}

pub struct Model {
    gpu: Arc<SimGpu>,
    config: Config,
    pub stats: Stats,
    pub steps: BTreeMap<Step, u64>,
    limit: Option<u64>,
    /// PyTorch's `total_allocated_memory`.
    held: u64,
    /// How often each pool was searched: large, small. The clock of garbage collection.
    searches: [u64; 2],
    segments: BTreeMap<u64, Segment>,
    /// Outstanding events of each stream, with the block that waits for each. PyTorch walks the streams in the order of
    /// a hash table, which is any order; this is that in which they came.
    events: Vec<(StreamId, VecDeque<(EventId, u64)>)>,
    spare_events: Vec<EventId>,
}

impl Model {
    pub fn new(gpu: Arc<SimGpu>, config: Config) -> Self {
        let mut stats = Stats::default();
        stats.max_split_size = config.max_split_size;
        let fraction = config.memory_fraction.unwrap_or(1.0);
        let mut model = Self {
            gpu,
            config,
            stats,
            steps: BTreeMap::new(),
            limit: None,
            held: 0,
            searches: [0; 2],
            segments: BTreeMap::new(),
            events: Vec::new(),
            spare_events: Vec::new(),
        };
        model.set_memory_fraction(fraction);
        model
    }

    pub fn set_memory_fraction(&mut self, fraction: f64) {
        let total = self.gpu.properties().total_memory as f64;
        self.limit = (fraction < 1.0).then_some((fraction * total) as u64);
    }

    pub fn allocate(&mut self, requested: u64, stream: StreamId) -> Result<u64, Refusal> {
        if requested == 0 {
            return Ok(0);
        }
        if requested > 1 << 60 {
            return Err(Refusal::TooLarge);
        }
        self.process_events();
        let size = self.round(requested);
        let segment = match size {
            _ if size <= MIB => 2 * MIB,
            _ if size < 10 * MIB => self.config.large_segment_size,
            _ => size.next_multiple_of(2 * MIB),
        };
        let request = Request { stream, small: size <= MIB, size, segment };
        let found = self.search(request).or_else(|| self.climb(request));
        match found {
            Some(address) => Ok(self.hand_out(address, requested, request)),
            None => Err(self.out_of_memory()),
        }
    }

    fn round(&self, size: u64) -> u64 {
        if size < 512 {
            return 512;
        }
        let log = 63 - u64::from(size.leading_zeros());
        let divisions = u64::from(self.config.roundup_power2_divisions[(log.max(20) - 20).min(15) as usize]);
        if divisions > 1 && size > 512 * divisions {
            let part = (1 << log) / divisions;
            return size.div_ceil(part) * part;
        }
        size.div_ceil(512) * 512
    }

    /// The steps that PyTorch takes on a miss, in its order.
    fn climb(&mut self, request: Request) -> Option<u64> {
        if self.collects_garbage() {
            self.collect_garbage();
        }
        if let Some(address) = self.grow(request) {
            return Some(address);
        }
        if self.release_available(request)
            && let Some(address) = self.grow(request)
        {
            return Some(address);
        }
        self.release_cached();
        self.stats.num_alloc_retries += 1;
        let grown = self.grow(request);
        if grown.is_some() {
            self.note(Step::ReleaseCached);
            return grown;
        }
        // The one rule here that is not PyTorch's.
        let stayed = self.best_fit(request);
        self.note(if stayed.is_some() { Step::LookAgain } else { Step::OutOfMemory });
        stayed
    }

    fn note(&mut self, step: Step) {
        *self.steps.entry(step).or_insert(0) += 1;
    }

    fn out_of_memory(&mut self) -> Refusal {
        let device_free = self.gpu.memory_info().unwrap().free;
        self.stats.num_ooms += 1;
        let (active, allocated) = (self.stats.active_bytes.all.current, self.stats.allocated_bytes.all.current);
        let (limit, reserved) = (self.limit, self.stats.reserved_bytes.all.current);
        Refusal::OutOfMemory { limit, reserved, allocated, pending: active - allocated, device_free }
    }

    fn collects_garbage(&self) -> bool {
        self.limit.is_some() && self.config.garbage_collection_threshold > 0.0
    }

    fn max_split(&self) -> u64 {
        self.config.max_split_size.unwrap_or(u64::MAX)
    }

    fn expandable(&self) -> bool {
        self.config.strategy == StrategyKind::Expandable
    }

    /// A search that counts for the age of free blocks.
    fn search(&mut self, request: Request) -> Option<u64> {
        if self.collects_garbage() {
            self.searches[usize::from(request.small)] += 1;
        }
        self.best_fit(request)
    }

    /// The best fit among free blocks: the smallest, then the lowest, except that an expandable block counts with the
    /// room that it can still grow into.
    fn best_fit(&mut self, request: Request) -> Option<u64> {
        let fits: Vec<(u64, u64)> = self
            .free_blocks(request.small)
            .into_iter()
            .filter(|(stream, size, _)| *stream == request.stream && *size >= request.size)
            .map(|(_, size, address)| (size, address))
            .collect();
        let mut at = 0;
        if self.expandable() {
            while at + 1 < fits.len() && self.with_growth(fits[at + 1]) < self.with_growth(fits[at]) {
                at += 1;
                self.note(Step::PassOverEdge);
            }
        }
        let (size, address) = *fits.get(at)?;
        let oversize = request.size >= self.max_split();
        if !oversize && size >= self.max_split() {
            return None;
        }
        if oversize && size >= request.size + self.config.max_non_split_rounding {
            return None;
        }
        Some(address)
    }

    fn with_growth(&self, (size, address): (u64, u64)) -> u64 {
        let (segment, at) = self.locate(address);
        let next = self.segments[&segment].blocks.get(at + 1).filter(|next| next.state == Use::Unmapped);
        size + next.map_or(0, |next| next.size)
    }

    /// Hands out the free block at `address`, split if the rest is worth it.
    fn hand_out(&mut self, address: u64, requested: u64, request: Request) -> u64 {
        let (max_split, expandable) = (self.max_split(), self.expandable());
        let age = self.searches[usize::from(request.small)];
        let (segment, at) = self.locate(address);
        let blocks = &mut self.segments.get_mut(&segment).unwrap().blocks;
        let already_split = blocks.len() > 1;
        let rest = blocks[at].size - request.size;
        let split = match request.small || expandable {
            true => rest >= 512,
            false => request.size < max_split && rest > MIB,
        };
        if split {
            let left = Block { address: address + request.size, size: rest, since: age, ..blocks[at].clone() };
            blocks.insert(at + 1, left);
            blocks[at].size = request.size;
        }
        blocks[at].state = Use::Live;
        blocks[at].requested = requested;
        let size = blocks[at].size;
        let (small, stats) = (request.small, &mut self.stats);
        if !expandable {
            match (split, already_split) {
                (true, true) => lower(&mut stats.inactive_split_bytes, small, size),
                (true, false) => {
                    raise(&mut stats.inactive_split_bytes, small, rest);
                    raise(&mut stats.inactive_split, small, 1);
                }
                (false, true) => {
                    lower(&mut stats.inactive_split_bytes, small, size);
                    lower(&mut stats.inactive_split, small, 1);
                }
                (false, false) => {}
            }
        }
        raise(&mut stats.allocation, small, 1);
        raise(&mut stats.allocated_bytes, small, size);
        raise(&mut stats.active, small, 1);
        raise(&mut stats.active_bytes, small, size);
        raise(&mut stats.requested_bytes, small, requested);
        if size >= max_split {
            increase(&mut stats.oversize_allocations, 1);
        }
        address
    }

    pub fn record_stream(&mut self, address: u64, stream: StreamId) -> Result<(), Refusal> {
        if address == 0 {
            return Ok(());
        }
        let (segment, at) = self.live(address).ok_or(Refusal::InvalidAddress)?;
        let segment = self.segments.get_mut(&segment).unwrap();
        let streams = &mut segment.blocks[at].streams;
        if segment.stream != stream && !streams.contains(&stream) {
            streams.push(stream);
        }
        Ok(())
    }

    pub fn free(&mut self, address: u64) -> Result<(), Refusal> {
        if address == 0 {
            return Ok(());
        }
        let max_split = self.max_split();
        let (segment, at) = self.live(address).ok_or(Refusal::InvalidAddress)?;
        let segment = self.segments.get_mut(&segment).unwrap();
        let (block, small) = (&mut segment.blocks[at], segment.small);
        lower(&mut self.stats.allocation, small, 1);
        lower(&mut self.stats.allocated_bytes, small, block.size);
        if block.size >= max_split {
            decrease(&mut self.stats.oversize_allocations, 1);
        }
        let streams = std::mem::take(&mut block.streams);
        block.state = Use::Pending(streams.len());
        if streams.is_empty() {
            self.complete(address);
        } else {
            self.record_events(address, streams);
        }
        Ok(())
    }

    fn record_events(&mut self, address: u64, streams: Vec<StreamId>) {
        for stream in streams {
            let event = self.spare_events.pop().unwrap_or_else(|| self.gpu.event_create().unwrap());
            self.gpu.event_record(event, stream).unwrap();
            let of = self.events.iter().position(|(of, _)| *of == stream).unwrap_or_else(|| {
                self.events.push((stream, VecDeque::new()));
                self.events.len() - 1
            });
            self.events[of].1.push_back((event, address));
        }
    }

    /// Frees blocks whose events are complete; in each stream as far as the first that is not.
    fn process_events(&mut self) {
        for of in 0..self.events.len() {
            while let Some(&(event, address)) = self.events[of].1.front() {
                if !self.gpu.event_query(event).unwrap() {
                    break;
                }
                self.event_done(of, event, address);
            }
        }
        self.events.retain(|(_, queue)| !queue.is_empty());
    }

    /// Waits for every event.
    fn synchronize_events(&mut self) {
        self.stats.num_sync_all_streams += 1;
        for of in 0..self.events.len() {
            while let Some(&(event, address)) = self.events[of].1.front() {
                self.gpu.event_synchronize(event).unwrap();
                self.event_done(of, event, address);
            }
        }
        self.events.clear();
    }

    fn event_done(&mut self, of: usize, event: EventId, address: u64) {
        self.events[of].1.pop_front();
        self.spare_events.push(event);
        let (segment, at) = self.locate(address);
        let block = &mut self.segments.get_mut(&segment).unwrap().blocks[at];
        let Use::Pending(events) = block.state else { panic!("an event of a block that waits for none") };
        block.state = Use::Pending(events - 1);
        if events == 1 {
            self.complete(address);
        }
    }

    /// The block that was freed, and that no stream uses any more, becomes free and merges with free neighbours.
    fn complete(&mut self, address: u64) {
        let (base, at) = self.locate(address);
        let segment = self.segments.get_mut(&base).unwrap();
        let (small, expandable) = (segment.small, segment.unit.is_some());
        let (size, requested) = (segment.blocks[at].size, segment.blocks[at].requested);
        segment.blocks[at].state = Use::Free;
        let (at, merged) = segment.merge(at);
        segment.blocks[at].since = self.searches[usize::from(small)];
        let (mut count, mut bytes) = (-(merged.len() as i64), -(merged.iter().sum::<u64>() as i64));
        if segment.blocks.len() > 1 {
            count += 1;
            bytes += segment.blocks[at].size as i64;
        }
        if !expandable {
            tally::change(&mut self.stats.inactive_split, small, count);
            tally::change(&mut self.stats.inactive_split_bytes, small, bytes);
        }
        lower(&mut self.stats.active, small, 1);
        lower(&mut self.stats.active_bytes, small, size);
        lower(&mut self.stats.requested_bytes, small, requested);
    }

    pub fn reset_peak_stats(&mut self) {
        tally::each(&mut self.stats, |stat| stat.peak = stat.current);
    }

    pub fn reset_accumulated_stats(&mut self) {
        tally::each(&mut self.stats, |stat| (stat.allocated, stat.freed) = (0, 0));
        let stats = &mut self.stats;
        (stats.num_alloc_retries, stats.num_ooms, stats.num_sync_all_streams) = (0, 0, 0);
        (stats.num_device_alloc, stats.num_device_free) = (0, 0);
    }
}
