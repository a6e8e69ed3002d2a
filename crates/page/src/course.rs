//! The course of a replay: the memory, the calls and the waits of a strategy, operation by operation.
//!
//! Owns: the figures that are recorded while a trace is replayed, and their times. An operation is an allocation or a
//! free, numbered from 0 in a pass. A value after operation n holds from n on.

use crate::memory::{Memory, Piece};
use crate::tap::Tap;
use rustc_hash::FxHashMap;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Call, CallStats, Driver};
use seamalloc::{Allocator, Fragmentation};
use seamalloc_trace::Trace;
use seamalloc_trace::TraceEvent;
use seamalloc_trace::replay::{PassReport, ReplayError, ReplayOptions, Replayer, Step, Watcher};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of times in a pass at which the division of memory into used and free parts ([`Fragmentation`]) is
/// measured.
const SAMPLES: u64 = 200;

/// The course of a strategy in the last pass of a replay.
#[derive(Debug)]
pub struct Course {
    /// The strategy's name.
    pub strategy: &'static str,
    /// The figures of each pass. The course is that of the last pass.
    pub passes: Vec<PassReport>,
    /// The bytes of device memory that are held. Each entry has an operation, and the value from this operation on.
    pub reserved: Vec<(u32, u64)>,
    /// The bytes that the program has freed and that other streams still use, in the same form.
    pub pending: Vec<(u32, u64)>,
    /// The operations that called the driver. The last one may be the request that was refused.
    pub work: Vec<Work>,
    /// The distinct combinations of driver calls of an operation.
    pub call_sets: Vec<Vec<(Call, u64)>>,
    /// The operations in which all cached memory was given back before a request was tried again.
    pub retries: Vec<u32>,
    /// The division of memory after an operation.
    pub samples: Vec<(u32, Fragmentation)>,
    /// The places of blocks, if they were requested.
    pub(crate) map: Option<Map>,
}

/// The driver calls of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The operation.
    pub op: u32,
    /// The time in the driver, in nanoseconds.
    pub ns: u64,
    /// The driver calls, as an index into [`Course::call_sets`].
    pub calls: u32,
}

/// The places of blocks.
#[derive(Debug, Default)]
pub(crate) struct Map {
    pub(crate) places: Vec<Place>,
    numbers: FxHashMap<Place, u32>,
    /// The place of each block at its allocation.
    pub(crate) first: Vec<u32>,
    /// Blocks whose memory was exchanged, or was reused while other streams still used it: the operation, the block,
    /// and the block's place from this operation on.
    pub(crate) later: Vec<(u32, u32, u32)>,
    pub(crate) memory: Memory,
    /// The blocks in use, by address.
    live: BTreeMap<u64, (u32, u64)>,
    /// The address of each block.
    addresses: Vec<u64>,
    /// The blocks that were freed and that other streams still use, with their places.
    pending: Vec<(u32, u32)>,
}

/// The place of a block: its addresses, and its pieces of physical memory in the order of the addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) pieces: Vec<Piece>,
}

/// Replays a trace and records its course; with `with_map` also the place of every block. `progress` gets the number of
/// events done and the number of all events.
///
/// # Errors
/// The errors of [`seamalloc_trace::replay::replay`].
pub fn course(
    trace: &Trace,
    options: &ReplayOptions,
    with_map: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Course, ReplayError> {
    let gpu = Arc::new(SimGpu::new(SimConfig { calls_advance_clock: false, ..options.device.clone() })?);
    gpu.set_run_ahead(options.lag);
    let tap = Arc::new(Tap::new(Arc::clone(&gpu)));
    let driver: Arc<dyn Driver> = Arc::<Tap>::clone(&tap);
    let allocator = Allocator::new(driver, options.config.clone()).map_err(|error| ReplayError::Allocator {
        trace: trace.name.clone(),
        event: 0,
        error,
    })?;
    let mut replayer = Replayer::new(trace, allocator, Arc::clone(&gpu));
    let mut looker = Looker::new(trace, &gpu, tap, with_map);
    let events = trace.events.len() as u64;
    let mut passes: Vec<PassReport> = Vec::new();
    for pass in 1..=options.passes {
        looker.begin_pass();
        let done = events * u64::from(pass - 1);
        let total = events * u64::from(options.passes);
        let show = &mut |events: usize| progress(done + events as u64, total);
        let report = replayer.watched_pass(pass, &mut looker, show)?;
        let is_last = report.oom.is_some();
        passes.push(report);
        if is_last {
            break;
        }
    }
    Ok(looker.finish(options, passes))
}

/// Records the course of a replay.
struct Looker<'t> {
    gpu: &'t SimGpu,
    tap: Arc<Tap>,
    notes: Vec<crate::tap::Note>,
    defers: bool,
    /// The number of operations done.
    op: u32,
    /// The bytes that the program has not freed.
    live: u64,
    sizes: Vec<u64>,
    busy_ns: u64,
    calls: CallStats,
    retries: u64,
    /// The number of operations of the trace.
    operations: u32,
    sample_every: u64,
    numbers: FxHashMap<Vec<(Call, u64)>, u32>,
    course: Course,
}

impl<'t> Looker<'t> {
    fn new(trace: &'t Trace, gpu: &'t SimGpu, tap: Arc<Tap>, with_map: bool) -> Self {
        let summary = trace.summary();
        let operations = summary.allocations + summary.frees;
        let course = Course {
            strategy: "",
            passes: Vec::new(),
            reserved: Vec::new(),
            pending: Vec::new(),
            work: Vec::new(),
            call_sets: Vec::new(),
            retries: Vec::new(),
            samples: Vec::new(),
            map: with_map.then(Map::default),
        };
        Self {
            gpu,
            tap,
            notes: Vec::new(),
            defers: summary.deferred_frees > 0,
            op: 0,
            live: 0,
            sizes: Vec::new(),
            busy_ns: 0,
            calls: CallStats::default(),
            retries: 0,
            operations: operations as u32,
            sample_every: operations.div_ceil(SAMPLES).max(1),
            numbers: FxHashMap::default(),
            course,
        }
    }

    fn begin_pass(&mut self) {
        // Notes made between two passes belong to neither pass.
        self.take_notes(0);
        (self.op, self.live) = (0, 0);
        (self.busy_ns, self.calls) = (self.gpu.busy_ns(), self.gpu.call_stats());
        self.sizes.clear();
        self.numbers.clear();
        let old = &mut self.course;
        old.reserved.clear();
        old.pending.clear();
        old.work.clear();
        old.call_sets.clear();
        old.retries.clear();
        old.samples.clear();
        if let Some(map) = &mut old.map {
            let mut memory = std::mem::take(&mut map.memory);
            memory.begin_pass();
            *map = Map { memory, ..Map::default() };
        }
    }

    /// Processes the notes of the driver calls that were made before operation `now`.
    fn take_notes(&mut self, now: u32) {
        self.tap.take(&mut self.notes);
        if let Some(map) = &mut self.course.map {
            map.apply(&self.notes, now);
        }
    }

    /// Records the driver calls of operation `op`, if there are any.
    fn take_work(&mut self, op: u32, allocator: &Allocator) {
        let busy_ns = self.gpu.busy_ns();
        if busy_ns == self.busy_ns {
            return;
        }
        let calls = self.gpu.call_stats();
        let set: Vec<_> = calls.since(&self.calls).iter().map(|(call, stat)| (call, stat.count)).collect();
        let set: Vec<_> = set.into_iter().filter(|(_, count)| *count > 0).collect();
        let sets = &mut self.course.call_sets;
        let number = *self.numbers.entry(set).or_insert_with_key(|set| {
            sets.push(set.clone());
            sets.len() as u32 - 1
        });
        let work = Work { op, ns: busy_ns - self.busy_ns, calls: number };
        match self.course.work.last_mut() {
            // The completion of a free is not an operation of its own.
            Some(last) if last.op == op && last.calls == number => last.ns += work.ns,
            _ => self.course.work.push(work),
        }
        (self.busy_ns, self.calls) = (busy_ns, calls);
        change(&mut self.course.reserved, op, allocator.reports().reserved());
        let retries = allocator.stats().num_alloc_retries;
        if retries > self.retries {
            self.retries = retries;
            self.course.retries.push(op);
        }
    }

    fn finish(self, options: &ReplayOptions, passes: Vec<PassReport>) -> Course {
        let strategy = passes.last().map_or(options.config.strategy.name(), |last| last.strategy);
        Course { strategy, passes, ..self.course }
    }
}

impl Watcher for Looker<'_> {
    fn step(&mut self, step: &Step<'_>) {
        let op = match step.what {
            TraceEvent::FreeCompleted { .. } => self.op.saturating_sub(1),
            _ => self.op,
        };
        self.take_notes(op);
        if op == 0 && self.course.reserved.is_empty() {
            change(&mut self.course.reserved, 0, step.allocator.reports().reserved());
        }
        match step.what {
            TraceEvent::Alloc { size, .. } => {
                self.live += size;
                self.sizes.push(size);
                if let Some(map) = &mut self.course.map {
                    // A live block always has a size.
                    map.add(step.address, step.allocator.reports().size_of(step.address).unwrap_or(size), op);
                }
            }
            TraceEvent::FreeRequested { block } => {
                self.live -= self.sizes.get(block as usize).copied().unwrap_or(0);
                if let Some(map) = self.course.map.as_mut().filter(|_| self.defers) {
                    map.pending.extend(map.place_of(block).map(|place| (block, place)));
                }
            }
            TraceEvent::FreeCompleted { block } => {
                if let Some(map) = &mut self.course.map {
                    map.remove(block);
                }
            }
        }
        self.take_work(op, step.allocator);
        if self.defers {
            let active = step.allocator.stats().requested_bytes.all.current;
            change(&mut self.course.pending, op, active.saturating_sub(self.live));
        }
        if !matches!(step.what, TraceEvent::FreeCompleted { .. }) {
            self.op += 1;
            if u64::from(op) % self.sample_every == 0 {
                self.course.samples.push((op, step.allocator.reports().fragmentation()));
            }
        }
    }

    fn end(&mut self, allocator: &Allocator) {
        // A refused request has called the driver too, and may have given memory back.
        let is_refused = self.op < self.operations;
        let op = if is_refused { self.op } else { self.op.saturating_sub(1) };
        self.take_notes(op);
        self.take_work(op, allocator);
        if self.course.samples.last().is_none_or(|(last, _)| *last < op) {
            self.course.samples.push((op, allocator.reports().fragmentation()));
        }
    }
}

/// Records the value of a figure from an operation on, if it has changed.
fn change(figure: &mut Vec<(u32, u64)>, op: u32, value: u64) {
    match figure.last_mut() {
        Some((_, last)) if *last == value => {}
        Some((at, last)) if *at == op => *last = value,
        _ => figure.push((op, value)),
    }
}

impl Map {
    fn add(&mut self, address: u64, size: u64, now: u32) {
        let place = Place { address, size, pieces: self.memory.pieces(address, size) };
        self.end_taken(&place, now);
        let block = self.first.len() as u32;
        let number = self.number(place);
        self.first.push(number);
        self.addresses.push(address);
        self.live.insert(address, (block, size));
    }

    /// Removes the pending blocks whose memory a new block reuses. The new block's stream waits on the GPU for the
    /// streams that use these blocks.
    fn end_taken(&mut self, new: &Place, now: u32) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|(block, place)| {
            let Some(place) = self.places.get(*place as usize) else { return false };
            let shares = |piece: &Piece| new.pieces.iter().any(|other| piece.overlaps(*other));
            if !place.pieces.iter().any(shares) {
                return true;
            }
            let nowhere = Place { address: place.address, size: 0, pieces: Vec::new() };
            let number = self.number(nowhere);
            self.later.push((*block, now, number));
            self.remove(*block);
            false
        });
        self.pending = pending;
    }

    /// Returns the current place of a block; `None` if the block has no place.
    fn place_of(&self, block: u32) -> Option<u32> {
        let last = self.later.iter().rev().find(|(of, ..)| *of == block).map(|(.., place)| *place);
        last.or_else(|| self.first.get(block as usize).copied())
    }

    fn remove(&mut self, block: u32) {
        self.pending.retain(|(pending, _)| *pending != block);
        let Some(address) = self.addresses.get(block as usize) else { return };
        // Another block may have got the address already.
        if self.live.get(address).is_some_and(|(there, _)| *there == block) {
            self.live.remove(address);
        }
    }

    fn number(&mut self, place: Place) -> u32 {
        let places = &mut self.places;
        *self.numbers.entry(place).or_insert_with_key(|place| {
            places.push(place.clone());
            places.len() as u32 - 1
        })
    }

    /// Processes notes of driver calls. Blocks whose memory was exchanged get new places.
    fn apply(&mut self, notes: &[crate::tap::Note], now: u32) {
        let mut changed: Vec<(u32, u64, u64)> = Vec::new();
        for note in notes {
            let Some((start, end)) = self.memory.apply(*note, now) else { continue };
            let first = self.live.range(..=start).next_back().map_or(start, |(at, _)| *at);
            let beside = self.live.range(first..end).filter(|(at, (_, size))| **at + size > start);
            changed.extend(beside.map(|(at, (block, size))| (*block, *at, *size)));
        }
        changed.sort_unstable();
        changed.dedup();
        for (block, address, size) in changed {
            let place = Place { address, size, pieces: self.memory.pieces(address, size) };
            let number = self.number(place);
            if self.place_of(block) != Some(number) {
                self.later.push((block, now, number));
                if let Some((_, place)) = self.pending.iter_mut().find(|(of, _)| *of == block) {
                    *place = number;
                }
            }
        }
    }
}
