//! The replay of one trace through one allocator.
//!
//! Owns: the order of the calls in a replay, and the advance of its clock.

use super::device::{Held, ReplayDevice};
use super::peak::Peak;
use super::report::{PassReport, ReplayError};
use super::streams::HoldingStreams;
use super::watch::{Step, Unwatched, Watcher};
use crate::summary::Summary;
use crate::trace::{Trace, TraceEvent};
use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Call, CallStats, DriverResult, StreamId};
use seamalloc::{Allocator, Error, Fragmentation, IdleRelease, OutOfMemoryReport, Stats, StrategyKind};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of events between two calls of `progress`.
const PROGRESS_EVERY: usize = 1 << 14;

/// A replay of one trace through one allocator.
pub struct Replayer<'t> {
    trace: &'t Trace,
    // Before `device` in this struct, so that the allocator is dropped before the streams that it knows.
    allocator: Allocator,
    device: ReplayDevice,
    /// The device's streams for the trace's streams.
    streams: Vec<StreamId>,
    /// The address of each block of the pass; 0 after its free.
    addresses: Vec<u64>,
    peak_live: u64,
    peak: Peak,
    /// Whether the simulated clock matters. The clock matters if frees complete later than they are requested, if
    /// several streams run behind the CPU, or if the driver's pool reuses memory that the GPU has passed.
    clocked: bool,
    /// The stream that keeps in use each freed block whose free has not completed in the trace.
    holding: BTreeMap<u32, (StreamId, Held)>,
    holding_streams: HoldingStreams,
}

/// The events of a pass that were carried out.
struct Run {
    /// The event at which the pass ended: the trace's end, or the request for which memory ran out.
    event: usize,
    /// The number of allocations and frees that were made.
    ops: u64,
    allocations: u64,
    oom: Option<(usize, OutOfMemoryReport)>,
}

impl<'t> Replayer<'t> {
    /// Makes a replay of `trace` through `allocator`, which must allocate on `sim`.
    #[must_use]
    pub fn new(trace: &'t Trace, allocator: Allocator, sim: Arc<SimGpu>) -> Self {
        Self::on(trace, allocator, ReplayDevice::Sim(sim))
    }

    pub(super) fn on(trace: &'t Trace, allocator: Allocator, device: ReplayDevice) -> Self {
        let summary = trace.summary();
        let streams = device.streams(trace);
        let of_pool = allocator.config().strategy == StrategyKind::MallocAsync;
        Self {
            trace,
            allocator,
            holding_streams: HoldingStreams::beside(&streams),
            streams,
            device,
            addresses: Vec::with_capacity(summary.allocations as usize),
            peak_live: summary.peak_live,
            peak: Peak::default(),
            clocked: summary.deferred_frees > 0 || trace.streams.len() > 1 || of_pool,
            holding: BTreeMap::new(),
        }
    }

    /// Returns the number of events of the trace.
    pub(super) fn events(&self) -> usize {
        self.trace.events.len()
    }

    /// Returns the allocator, for inspection between passes.
    #[must_use]
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Replays the trace once, then frees the blocks that are still live.
    ///
    /// # Errors
    /// The errors of [`replay`](crate::replay::replay).
    pub fn pass(&mut self, pass: u32, progress: &mut dyn FnMut(usize)) -> Result<PassReport, ReplayError> {
        self.watched_pass(pass, &mut Unwatched, progress)
    }

    /// Replays the trace as [`Self::pass`] does, and passes each operation to `watcher`. The time per operation
    /// includes the watcher's time.
    ///
    /// # Errors
    /// The errors of [`Self::pass`].
    pub fn watched_pass<W: Watcher>(
        &mut self,
        pass: u32,
        watcher: &mut W,
        progress: &mut dyn FnMut(usize),
    ) -> Result<PassReport, ReplayError> {
        self.addresses.clear();
        self.allocator.reports().reset_peaks();
        let before = self.allocator.stats();
        let calls = self.device.driver().call_stats();
        let idle_waits = self.device.idle_waits();
        self.peak.begin(&self.allocator, self.device.driver().busy_ns(), &self.trace.events);
        let start = Instant::now();
        let Run { event, ops, allocations, oom } = self.run(watcher, progress)?;
        let elapsed = start.elapsed();
        watcher.end(&self.allocator);
        progress(event);
        // The time of the measurements is not time of the allocator.
        let ns_per_op = elapsed.saturating_sub(self.peak.spent()).as_nanos() as f64 / ops.max(1) as f64;
        let (peak_event, fragmentation) = self.peak.end(&self.allocator, self.device.driver().busy_ns(), event);
        let mut report = self.report(pass, &before, &calls);
        report.idle_waits -= idle_waits;
        if oom.is_some() {
            // Events after the end of the pass do not count.
            report.peak_live = Summary::of(self.trace.events.get(..event).unwrap_or_default()).peak_live;
        }
        self.end_pass(event)?;
        Ok(PassReport { ops, allocations, ns_per_op, peak_event, fragmentation, oom, ..report })
    }

    /// Executes the events of the trace, up to the first request for which memory runs out.
    fn run<W: Watcher>(&mut self, watcher: &mut W, progress: &mut dyn FnMut(usize)) -> Result<Run, ReplayError> {
        let mut oom = None;
        let (mut ops, mut allocations, mut event) = (0u64, 0u64, 0);
        let events = &self.trace.events;
        while let Some(now) = events.get(event) {
            if event % PROGRESS_EVERY == 0 {
                progress(event);
            }
            if self.clocked {
                self.device.tick();
            }
            match *now {
                TraceEvent::Alloc { size, stream } => {
                    let Some(stream) = self.streams.get(stream as usize) else {
                        return Err(self.bad_trace(event, "it names a stream that the trace does not have"));
                    };
                    match self.allocator.allocate(size, *stream) {
                        Ok(address) => {
                            self.addresses.push(address);
                            watcher.step(&Step { event, what: *now, address, allocator: &self.allocator });
                        }
                        Err(Error::OutOfMemory(report)) => {
                            oom = Some((event, report));
                            break;
                        }
                        Err(error) => return Err(self.failed(event, error)),
                    }
                    allocations += 1;
                    ops += 1;
                }
                TraceEvent::FreeRequested { block } => {
                    self.peak.before_free(&self.allocator, self.device.driver().busy_ns(), event);
                    let at_once = events.get(event + 1) == Some(&TraceEvent::FreeCompleted { block });
                    let address = self.free(event, block, at_once)?;
                    watcher.step(&Step { event, what: *now, address, allocator: &self.allocator });
                    if at_once {
                        event += 1;
                        let what = TraceEvent::FreeCompleted { block };
                        watcher.step(&Step { event, what, address: 0, allocator: &self.allocator });
                    }
                    ops += 1;
                }
                TraceEvent::FreeCompleted { block } => {
                    if let Some((stream, hold)) = self.holding.remove(&block) {
                        self.finish_hold(stream, hold);
                    }
                    watcher.step(&Step { event, what: *now, address: 0, allocator: &self.allocator });
                }
            }
            event += 1;
        }
        Ok(Run { event, ops, allocations, oom })
    }

    /// Frees a block, and returns its address.
    fn free(&mut self, event: usize, block: u32, at_once: bool) -> Result<u64, ReplayError> {
        let address = self.addresses.get_mut(block as usize).map_or(0, std::mem::take);
        if address == 0 {
            return Err(self.bad_trace(event, "it frees a block that is not live"));
        }
        if !at_once {
            // Work on a separate stream keeps the block in use until the block's free completes in the trace.
            let stream = self.hold(block).map_err(|error| self.failed(event, error.into()))?;
            self.allocator.record_stream(address, stream).map_err(|error| self.failed(event, error))?;
        }
        self.allocator.free(address).map_err(|error| self.failed(event, error))?;
        Ok(address)
    }

    /// Returns a stream that uses the block until the block's free completes in the trace; on a real GPU, until the GPU
    /// reaches the free.
    fn hold(&mut self, block: u32) -> DriverResult<StreamId> {
        if let ReplayDevice::Cuda(device) = &self.device {
            return Ok(device.side_stream);
        }
        let stream = self.holding_streams.take();
        if let Some(held) = self.device.hold(stream)? {
            self.holding.insert(block, (stream, held));
        }
        Ok(stream)
    }

    fn finish_hold(&mut self, stream: StreamId, held: Held) {
        self.device.finish(held);
        self.holding_streams.give_back(stream);
    }

    fn end_pass(&mut self, event: usize) -> Result<(), ReplayError> {
        for address in std::mem::take(&mut self.addresses) {
            self.allocator.free(address).map_err(|error| self.failed(event, error))?;
        }
        for (_, (stream, hold)) in std::mem::take(&mut self.holding) {
            self.finish_hold(stream, hold);
        }
        self.device.synchronize().map_err(|error| self.failed(event, error.into()))
    }

    /// Pauses after a pass. With `idle_release_s`, the program makes no calls for the required time. Returns the bytes
    /// held afterwards.
    pub(super) fn pause(&mut self) -> Result<u64, ReplayError> {
        if self.allocator.config().idle_release_s.is_some() {
            let mut idle = IdleRelease::new(Duration::ZERO);
            for hours in [0, 1, 2] {
                self.device.driver().synchronize().map_err(|error| self.failed(0, error.into()))?;
                idle.tick(&self.allocator, Duration::from_secs(hours * 3600)).map_err(|error| self.failed(0, error))?;
            }
        }
        Ok(self.allocator.reports().reserved())
    }

    fn report(&self, pass: u32, before: &Stats, calls: &CallStats) -> PassReport {
        let stats = self.allocator.stats();
        let driver = self.device.driver().call_stats().since(calls);
        let syncs = [Call::EventSynchronize, Call::StreamSynchronize, Call::Free];
        PassReport {
            trace: self.trace.name.clone(),
            strategy: self.allocator.config().strategy.name(),
            device: self.device.driver().properties().name.clone(),
            pass,
            ops: 0,
            allocations: 0,
            peak_live: self.peak_live,
            peak_active: stats.requested_bytes.all.peak,
            peak_reserved: stats.reserved_bytes.all.peak,
            ns_per_op: 0.0,
            stalls: stats.stalls.since(&before.stalls),
            views_built: stats.views_built - before.views_built,
            views_reused: stats.views_reused - before.views_reused,
            views_dropped: stats.views_dropped - before.views_dropped,
            splits: stats.splits.since(&before.splits),
            spills: stats.spills.since(&before.spills),
            peak_spilled: stats.spilled_bytes.peak,
            spilled_bytes: stats.spilled_bytes.allocated.saturating_sub(before.spilled_bytes.allocated),
            pending_waits: stats.pending_waits.since(&before.pending_waits),
            mappings: stats.mappings,
            view_mappings: stats.view_mappings,
            host_bytes: stats.host_bytes,
            stream_waits: stats.stream_waits - before.stream_waits,
            idle_waits: self.device.idle_waits(),
            waits: stats.waits.since(&before.waits),
            cpu_syncs: syncs.iter().map(|call| driver.get(*call).count).sum(),
            driver,
            fragmentation: Fragmentation::default(),
            peak_event: 0,
            held_after: 0,
            oom: None,
        }
    }

    fn failed(&self, event: usize, error: Error) -> ReplayError {
        ReplayError::Allocator { trace: self.trace.name.clone(), event, error }
    }

    fn bad_trace(&self, event: usize, what: &'static str) -> ReplayError {
        ReplayError::BadTrace { trace: self.trace.name.clone(), event, what }
    }
}
