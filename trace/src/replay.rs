//! Replays a trace through an allocator, on the simulated GPU or on a real one, and says what came of it.
//!
//! Owns: the order of a replay, its clock, and the [`PassReport`]. The judge of every comparison: it asks the allocator
//! for what the trace says and nothing else, and reads the result from the allocator's own statistics and the driver's
//! own counters.

mod columns;
mod peak;
mod stage;

pub use self::columns::PEAK_EVENT;
use self::peak::Peak;
use self::stage::{CudaStage, Stage};
use super::{Summary, Trace, TraceEvent};
use rustc_hash::FxHashMap;
use seamalloc::driver::cuda::{CudaDriver, CudaOpenError};
use seamalloc::driver::sim::{Hold, SimConfig, SimConfigError, SimGpu};
use seamalloc::driver::{Call, CallStats, Driver, StreamId};
use seamalloc::{Allocator, Config, Error, Fragmentation, OutOfMemory, Stalls, Waits};
use std::sync::Arc;
use std::time::Instant;

/// How often the caller hears of progress, in events.
const PROGRESS_EVERY: usize = 1 << 14;

/// Streams that the trace does not name but whose work holds a freed block back: handles from here on, but for those
/// that the trace has.
const HOLDING_STREAMS: u64 = 1 << 62;

/// How to replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The allocator's options, its strategy among them.
    pub config: Config,
    /// The simulated device.
    pub device: SimConfig,
    /// How far the CPU runs ahead of the GPU, in operations: an event recorded at operation k completes when the replay
    /// has reached operation k + lag. 0: the GPU keeps up.
    pub lag: u64,
    /// How often the trace is replayed over. What is still live at a pass's end is freed in between.
    pub passes: u32,
}

impl ReplayOptions {
    /// One pass on a device, the GPU keeping up.
    #[must_use]
    pub fn new(config: Config, device: SimConfig) -> Self {
        Self { config, device, lag: 0, passes: 1 }
    }
}

/// Why a replay could not be carried out. Running out of memory is a result, not an error.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// The simulated device cannot be made so.
    #[error(transparent)]
    Device(#[from] SimConfigError),
    /// The real device cannot be opened, or has no streams to give.
    #[error(transparent)]
    Cuda(#[from] CudaOpenError),
    /// The allocator cannot be made, or failed otherwise than for want of memory.
    #[error("trace `{trace}`, event {event}: {error}")]
    Allocator {
        /// The trace's name.
        trace: String,
        /// Which event of the trace, from 0.
        event: usize,
        /// What the allocator said.
        error: Error,
    },
    /// The trace frees a block that it has not allocated, or names a stream that it does not have.
    #[error("trace `{trace}`, event {event}: {what}")]
    BadTrace {
        /// The trace's name.
        trace: String,
        /// Which event of the trace, from 0.
        event: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// What one pass over a trace came to. Sizes are bytes; peaks are those of this pass.
#[derive(Clone, Debug, PartialEq)]
pub struct PassReport {
    /// The trace's name.
    pub trace: String,
    /// The strategy's name.
    pub strategy: &'static str,
    /// The device's name.
    pub device: String,
    /// Which pass, from 1.
    pub pass: u32,
    /// Allocations and frees carried out.
    pub ops: u64,
    /// Allocations carried out.
    pub allocations: u64,
    /// The most bytes requested and not freed; where memory did not suffice, until then.
    pub peak_live: u64,
    /// The same with freed blocks that other streams still used.
    pub peak_active: u64,
    /// The most bytes held of the device.
    pub peak_reserved: u64,
    /// Wall time of the pass divided by `ops`, in nanoseconds, the replay's own work and the simulation included.
    pub ns_per_op: f64,
    /// Driver calls of the pass and the time in them (simulated).
    pub driver: CallStats,
    /// Operations that called the driver, and how long they spent there.
    pub stalls: Stalls,
    /// Views built in the pass.
    pub views_built: u64,
    /// Requests of the pass that were served by a view which was there already.
    pub views_reused: u64,
    /// Views dropped in the pass.
    pub views_dropped: u64,
    /// Mappings at the end of the pass.
    pub mappings: u64,
    /// Of these, mappings in views.
    pub view_mappings: u64,
    /// Bytes of host memory in the allocator's own tables at the end of the pass.
    pub host_bytes: u64,
    /// GPU-side waits of a stream for another.
    pub stream_waits: u64,
    /// Of these, waits for an event that was complete already, by the simulated clock.
    pub idle_waits: u64,
    /// What the waits passed on, and how many operations ago their events were recorded.
    pub waits: Waits,
    /// How often the CPU waited for the GPU: synchronisations, and frees that imply one.
    pub cpu_syncs: u64,
    /// How the memory was divided up while most of it was held: shortly after that was reached, before anything was freed
    /// where possible. In a pass in which nothing grows, when most was live.
    pub fragmentation: Fragmentation,
    /// The event at which that was.
    pub peak_event: usize,
    /// The event at which the memory did not suffice, and the report. The pass ended there.
    pub oom: Option<(usize, Box<OutOfMemory>)>,
}

impl PassReport {
    /// Peak live bytes over peak reserved bytes: 1 is perfect.
    #[must_use]
    pub fn utilization(&self) -> f64 {
        if self.peak_reserved == 0 { 1.0 } else { self.peak_live as f64 / self.peak_reserved as f64 }
    }
}

/// Replays `trace`. `progress` is told how many events of how many (all passes together) are done.
///
/// A pass that runs out of memory is the last one, and says so.
///
/// # Errors
/// Where the device or the allocator cannot be made, the trace is not valid, or a driver call failed for another reason
/// than want of memory.
pub fn replay(
    trace: &Trace,
    options: &ReplayOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<PassReport>, ReplayError> {
    let sim = Arc::new(SimGpu::new(SimConfig { calls_advance_clock: false, ..options.device.clone() })?);
    sim.set_run_ahead(options.lag);
    let driver: Arc<dyn Driver> = Arc::<SimGpu>::clone(&sim);
    let allocator = Allocator::new(driver, options.config.clone()).map_err(|error| ReplayError::Allocator {
        trace: trace.name.clone(),
        event: 0,
        error,
    })?;
    passes(&mut Replayer::new(trace, allocator, sim), options.passes, progress)
}

/// Replays `trace` on a real GPU, each of its streams as one made for it. Blocks are neither filled nor used: no work
/// runs. So a free of the trace that completes later than it was requested is a free with a use by one more stream, and
/// completes as soon as the GPU gets to it. Times are real ones.
///
/// # Errors
/// As [`replay`].
pub fn replay_on_cuda(
    trace: &Trace,
    ordinal: u32,
    config: Config,
    times: u32,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<PassReport>, ReplayError> {
    let driver = Arc::new(CudaDriver::open(ordinal)?);
    let failed = |error| ReplayError::Allocator { trace: trace.name.clone(), event: 0, error };
    let stage = CudaStage::new(Arc::clone(&driver), trace)?;
    let allocator = Allocator::new(driver, config).map_err(failed)?;
    passes(&mut Replayer::on(trace, allocator, Stage::Cuda(stage)), times, progress)
}

fn passes(
    replayer: &mut Replayer<'_>,
    times: u32,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<PassReport>, ReplayError> {
    let events = replayer.trace.events.len() as u64;
    let total = events * u64::from(times);
    let mut reports: Vec<PassReport> = Vec::new();
    for pass in 1..=times {
        let done = events * u64::from(pass - 1);
        let report = replayer.pass(pass, &mut |events| progress(done + events as u64, total))?;
        reports.push(report);
        if reports.last().is_some_and(|report| report.oom.is_some()) {
            break;
        }
    }
    Ok(reports)
}

/// One trace on its way through one allocator.
pub struct Replayer<'t> {
    trace: &'t Trace,
    // Dropped before the streams that it knows.
    allocator: Allocator,
    stage: Stage,
    /// The device's streams for the trace's.
    streams: Vec<StreamId>,
    /// Where each block of the pass lies; 0 once it is freed.
    addresses: Vec<u64>,
    peak_live: u64,
    peak: Peak,
    /// Whether the simulated clock matters: where frees complete later, or several streams run behind the CPU.
    clocked: bool,
    /// The stream that holds back each block whose free has not completed.
    holding: FxHashMap<u32, (StreamId, Hold)>,
    idle_holding: Vec<StreamId>,
    /// The handle to try for the next stream that holds.
    next_holding: u64,
}

impl<'t> Replayer<'t> {
    /// A replay of `trace` through `allocator`, which must allocate on `sim`.
    #[must_use]
    pub fn new(trace: &'t Trace, allocator: Allocator, sim: Arc<SimGpu>) -> Self {
        Self::on(trace, allocator, Stage::Sim(sim))
    }

    fn on(trace: &'t Trace, allocator: Allocator, stage: Stage) -> Self {
        let summary = trace.summary();
        Self {
            trace,
            allocator,
            streams: stage.streams(trace),
            stage,
            addresses: Vec::with_capacity(summary.allocations as usize),
            peak_live: summary.peak_live,
            peak: Peak::default(),
            clocked: summary.deferred_frees > 0 || trace.streams.len() > 1,
            holding: FxHashMap::default(),
            idle_holding: Vec::new(),
            next_holding: HOLDING_STREAMS,
        }
    }

    /// The allocator, to look at it between passes.
    #[must_use]
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Replays the trace once, and frees what is left live.
    ///
    /// # Errors
    /// As [`replay`].
    pub fn pass(&mut self, pass: u32, progress: &mut dyn FnMut(usize)) -> Result<PassReport, ReplayError> {
        self.addresses.clear();
        self.allocator.reset_peak_stats();
        let before = self.allocator.stats();
        let calls = self.stage.driver().call_stats();
        let idle_waits = self.stage.idle_waits();
        self.peak.begin(&self.allocator, self.stage.driver().busy_ns(), &self.trace.events);
        let start = Instant::now();
        let mut oom = None;
        let (mut ops, mut allocations, mut event) = (0u64, 0u64, 0);
        let events = &self.trace.events;
        while let Some(now) = events.get(event) {
            if event % PROGRESS_EVERY == 0 {
                progress(event);
            }
            if self.clocked {
                self.stage.tick();
            }
            match *now {
                TraceEvent::Alloc { size, stream } => {
                    let Some(stream) = self.streams.get(stream as usize) else {
                        return Err(self.bad_trace(event, "it names a stream that the trace does not have"));
                    };
                    match self.allocator.allocate(size, *stream) {
                        Ok(address) => self.addresses.push(address),
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
                    self.peak.before_free(&self.allocator, self.stage.driver().busy_ns(), event);
                    let at_once = events.get(event + 1) == Some(&TraceEvent::FreeCompleted { block });
                    self.free(event, block, at_once)?;
                    event += usize::from(at_once);
                    ops += 1;
                }
                TraceEvent::FreeCompleted { block } => {
                    if let Some((stream, hold)) = self.holding.remove(&block) {
                        self.finish_hold(stream, hold);
                    }
                }
            }
            event += 1;
        }
        let elapsed = start.elapsed();
        progress(event);
        // Looking is the judge's work, not the allocator's.
        let ns_per_op = elapsed.saturating_sub(self.peak.spent()).as_nanos() as f64 / ops.max(1) as f64;
        let (peak_event, fragmentation) = self.peak.end(&self.allocator, self.stage.driver().busy_ns(), event);
        let mut report = self.report(pass, &before, &calls);
        report.idle_waits -= idle_waits;
        if oom.is_some() {
            // What the rest of the trace would have held was never there.
            report.peak_live = Summary::of(events.get(..event).unwrap_or_default()).peak_live;
        }
        self.end_pass(event)?;
        Ok(PassReport { ops, allocations, ns_per_op, peak_event, fragmentation, oom, ..report })
    }

    fn free(&mut self, event: usize, block: u32, at_once: bool) -> Result<(), ReplayError> {
        let address = self.addresses.get_mut(block as usize).map_or(0, std::mem::take);
        if address == 0 {
            return Err(self.bad_trace(event, "it frees a block that is not live"));
        }
        if !at_once {
            // Work on a stream of its own keeps the block in use until the trace says that its free has completed.
            let stream = self.hold(block);
            self.allocator.record_stream(address, stream).map_err(|error| self.failed(event, error))?;
        }
        self.allocator.free(address).map_err(|error| self.failed(event, error))
    }

    /// A stream that uses the block until the trace says that its free has completed, as far as that can be.
    fn hold(&mut self, block: u32) -> StreamId {
        let sim = match &self.stage {
            Stage::Sim(sim) => Arc::clone(sim),
            Stage::Cuda(stage) => return stage.bystander,
        };
        let stream = self.holding_stream();
        self.holding.insert(block, (stream, sim.hold(stream)));
        stream
    }

    fn finish_hold(&mut self, stream: StreamId, hold: Hold) {
        if let Stage::Sim(sim) = &self.stage {
            // A CPU wait in the meantime may have ended it already.
            sim.finish_hold(hold);
        }
        self.idle_holding.push(stream);
    }

    /// A stream that is neither the trace's nor holds anything.
    fn holding_stream(&mut self) -> StreamId {
        if let Some(stream) = self.idle_holding.pop() {
            return stream;
        }
        loop {
            let stream = StreamId(self.next_holding);
            self.next_holding = self.next_holding.wrapping_add(1);
            if !self.trace.streams.contains(&stream) {
                return stream;
            }
        }
    }

    fn end_pass(&mut self, event: usize) -> Result<(), ReplayError> {
        for address in std::mem::take(&mut self.addresses) {
            self.allocator.free(address).map_err(|error| self.failed(event, error))?;
        }
        for (_, (stream, hold)) in std::mem::take(&mut self.holding) {
            self.finish_hold(stream, hold);
        }
        self.stage.settle().map_err(|error| self.failed(event, error.into()))
    }

    fn report(&self, pass: u32, before: &seamalloc::Stats, calls: &CallStats) -> PassReport {
        let stats = self.allocator.stats();
        let driver = self.stage.driver().call_stats().since(calls);
        let syncs = [Call::EventSynchronize, Call::StreamSynchronize, Call::Free];
        PassReport {
            trace: self.trace.name.clone(),
            strategy: self.allocator.config().strategy.name(),
            device: self.stage.driver().properties().name.clone(),
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
            mappings: stats.mappings,
            view_mappings: stats.view_mappings,
            host_bytes: stats.host_bytes,
            stream_waits: stats.stream_waits - before.stream_waits,
            idle_waits: self.stage.idle_waits(),
            waits: stats.waits.since(&before.waits),
            cpu_syncs: syncs.iter().map(|call| driver.get(*call).count).sum(),
            driver,
            fragmentation: Fragmentation::default(),
            peak_event: 0,
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
