//! The replay of a timeline through an allocator.
//!
//! Owns: the order in which threads continue, and the effect of each line (a recorded call).

use std::sync::Arc;

use parking_lot::Mutex;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Driver, StreamId};
use seamalloc::{Allocator, Config, Error, OutOfMemoryReport};

use super::clock::{Clock, Moment, Part};
use super::driver::TimedDriver;
use super::recording::{Line, StartBlock, Synchronized, Timeline, What};
use super::report::{StepReport, TimelineReport};
use crate::replay::ReplayError;

/// The number of lines (recorded calls) between two calls of `progress`.
const PROGRESS_EVERY: usize = 1 << 12;

/// The allocator with which a timeline is replayed.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The allocator's name for output.
    pub name: String,
    /// The allocator's options; `None` for a replay without an allocator, in which requests and frees take no time.
    pub config: Option<Config>,
}

/// Replays a timeline in several passes. `progress` gets the number of lines (recorded calls) done and the number of
/// all lines (all passes together).
///
/// Between two passes, all work ends, blocks of [`Timeline::start`] that were freed are allocated again, and all other
/// live blocks are freed. A pass that runs out of memory is the last one, and its report has `oom` set.
///
/// # Errors
/// The device or the allocator cannot be made, or a driver call failed for a reason other than lack of memory.
pub fn replay_timeline(
    timeline: &Timeline,
    policy: &Policy,
    device: &SimConfig,
    passes: u32,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<TimelineReport>, ReplayError> {
    let bare = Run::new(timeline, &Policy { name: String::new(), config: None }, device)?.pass(&mut |_| ())?;
    let bare_ns = bare.step_ns();
    let mut run = Run::new(timeline, policy, device)?;
    let lines = timeline.lines.len() as u64;
    let total = lines.saturating_mul(passes.into());
    let mut reports = Vec::new();
    for pass in 1..=passes {
        let done = lines.saturating_mul(u64::from(pass - 1));
        let report = run.pass(&mut |line| progress(done + line as u64, total))?;
        let ended = report.oom.is_some();
        reports.push(TimelineReport { pass, bare_ns, ..report });
        if ended {
            break;
        }
    }
    Ok(reports)
}

/// A replay of a timeline through an allocator.
struct Run<'t> {
    timeline: &'t Timeline,
    policy: String,
    device: SimConfig,
    clock: Arc<Mutex<Clock>>,
    memory: Option<Memory>,
    /// The address of each block; 0 while the block is not live.
    addresses: Vec<u64>,
    /// The bytes that are requested and not freed now, and the most so far.
    live: u64,
    peak_live: u64,
    sizes: Vec<u64>,
}

/// The allocator and its device.
struct Memory {
    allocator: Allocator,
    driver: Arc<TimedDriver>,
}

/// The remaining lines (recorded calls) of each thread, and the times at which lines ended.
struct Order {
    /// The lines (recorded calls) of each thread, and the index of its next line.
    lines: Vec<Vec<u32>>,
    next: Vec<usize>,
    /// The time at which each line (a recorded call) ended; `None` before its end.
    over: Vec<Option<Moment>>,
}

impl Order {
    fn of(timeline: &Timeline) -> Self {
        let mut lines = vec![Vec::new(); timeline.threads as usize];
        for (index, line) in (0u32..).zip(&timeline.lines) {
            if let Some(of_thread) = lines.get_mut(line.thread as usize) {
                of_thread.push(index);
            }
        }
        Self { next: vec![0; lines.len()], lines, over: vec![None; timeline.lines.len()] }
    }

    /// Takes the line (a recorded call) that begins first of those that can begin. Returns the line with the moment
    /// until which it must wait; `None` if no line can begin.
    fn take(&mut self, timeline: &Timeline, clock: &Clock) -> Option<(u32, Line, Option<Moment>)> {
        let mut first: Option<(u64, u32, Line, Option<Moment>)> = None;
        for (thread, (lines, next)) in self.lines.iter().zip(&self.next).enumerate() {
            let Some(&index) = lines.get(*next) else { continue };
            let Some(&line) = timeline.lines.get(index as usize) else { continue };
            let needed = match line.needs.map(|needs| self.over.get(needs as usize).copied().flatten()) {
                Some(None) => continue,
                Some(Some(moment)) => Some(moment),
                None => None,
            };
            let own = clock.now(thread).at.saturating_add(line.gap_ns);
            let begin = needed.map_or(own, |needed| own.max(needed.at));
            if first.is_none_or(|(earliest, other, ..)| (begin, index) < (earliest, other)) {
                first = Some((begin, index, line, needed));
            }
        }
        let (_, index, line, needed) = first?;
        if let Some(next) = self.next.get_mut(line.thread as usize) {
            *next += 1;
        }
        Some((index, line, needed))
    }

    fn is_over(&mut self, index: u32, at: Moment) {
        if let Some(over) = self.over.get_mut(index as usize) {
            *over = Some(at);
        }
    }
}

impl<'t> Run<'t> {
    fn new(timeline: &'t Timeline, policy: &Policy, device: &SimConfig) -> Result<Self, ReplayError> {
        let clock =
            Clock::new(timeline.threads as usize, timeline.events as usize, timeline.gap_ns, timeline.latency_ns);
        let clock = Arc::new(Mutex::new(clock));
        let device = SimConfig { calls_advance_clock: false, ..device.clone() };
        let memory = match &policy.config {
            None => None,
            Some(config) => {
                let gpu = SimGpu::new(device.clone())?;
                let driver = Arc::new(TimedDriver::new(gpu, Arc::clone(&clock)));
                let shared: Arc<dyn Driver> = Arc::<TimedDriver>::clone(&driver);
                let failed = |error| ReplayError::Allocator { trace: timeline.name.clone(), event: 0, error };
                let allocator = Allocator::new(shared, config.clone()).map_err(failed)?;
                Some(Memory { allocator, driver })
            }
        };
        let blocks = timeline.blocks as usize;
        Ok(Self {
            timeline,
            policy: policy.name.clone(),
            device,
            clock,
            memory,
            addresses: vec![0; blocks],
            live: 0,
            peak_live: 0,
            sizes: vec![0; blocks],
        })
    }

    fn pass(&mut self, progress: &mut dyn FnMut(usize)) -> Result<TimelineReport, ReplayError> {
        let mut report = TimelineReport {
            timeline: self.timeline.name.clone(),
            policy: self.policy.clone(),
            device: self.device.to_string(),
            pass: 1,
            steps: Vec::new(),
            recorded_ns: self.timeline.recorded_ns.clone(),
            bare_ns: 0,
            peak_reserved: 0,
            peak_live: 0,
            driver: seamalloc::driver::CallStats::default(),
            stream_waits: 0,
            effective_waits: 0,
            cpu_waits: 0,
            oom: None,
        };
        report.oom = self.begin()?;
        let calls = self.memory.as_ref().map(|memory| memory.driver.call_stats());
        let before = self.memory.as_ref().map(|memory| memory.allocator.stats().stream_waits).unwrap_or_default();
        let (cpu_waits, effective_waits) = self.clock.lock().waits();
        if let Some(memory) = &self.memory {
            memory.allocator.reports().reset_peaks();
        }
        let mut order = Order::of(self.timeline);
        let mut begun = None;
        let mut done = 0;
        while report.oom.is_none() {
            let taken = order.take(self.timeline, &self.clock.lock());
            let Some((index, line, needed)) = taken else { break };
            if done % PROGRESS_EVERY == 0 {
                progress(done);
            }
            done += 1;
            let thread = line.thread as usize;
            {
                let mut clock = self.clock.lock();
                clock.busy(thread, line.gap_ns, Part::Program);
                if let Some(moment) = needed {
                    clock.after(thread, moment);
                }
            }
            match line.what {
                What::StepBegins => begun = Some(self.clock.lock().now(thread)),
                What::StepEnds => {
                    let clock = self.clock.lock();
                    let end = clock.now(thread);
                    if let Some(begin) = begun.take() {
                        let ns = end.at.saturating_sub(begin.at);
                        report.steps.push(StepReport { ns, path: clock.path(begin, end) });
                    }
                }
                What::Allocate { block, size, stream } => {
                    report.oom = self.allocate(thread, block, size, stream, index)?;
                }
                What::Use { block, stream } => self.use_on(thread, block, stream, index)?,
                What::Free { block } => self.free(thread, block, index)?,
                _ => self.on_the_gpu(thread, line),
            }
            let now = self.clock.lock().now(thread);
            order.is_over(index, now);
        }
        progress(done);
        let waits = self.clock.lock().waits();
        report.cpu_waits = waits.0 - cpu_waits;
        report.effective_waits = waits.1 - effective_waits;
        report.peak_live = self.peak_live;
        if let (Some(memory), Some(calls)) = (&self.memory, calls) {
            let stats = memory.allocator.stats();
            report.peak_reserved = stats.reserved_bytes.all.peak;
            report.stream_waits = stats.stream_waits - before;
            report.driver = memory.driver.call_stats().since(&calls);
        }
        Ok(report)
    }

    /// Ends all work, and allocates the blocks of [`Timeline::start`] again. If memory runs out, returns the report,
    /// with 0 as the number of the recorded call.
    fn begin(&mut self) -> Result<Option<(usize, OutOfMemoryReport)>, ReplayError> {
        self.clock.lock().begin_pass();
        for block in self.timeline.start.len()..self.addresses.len() {
            self.free(0, u32::try_from(block).unwrap_or(u32::MAX), 0)?;
        }
        self.clock.lock().begin_pass();
        for (block, StartBlock { size, stream }) in (0u32..).zip(&self.timeline.start) {
            if self.addresses.get(block as usize) == Some(&0) {
                let oom = self.allocate(0, block, *size, *stream, 0)?;
                if oom.is_some() {
                    return Ok(oom);
                }
            }
        }
        self.clock.lock().begin_pass();
        self.peak_live = self.live;
        Ok(None)
    }

    fn on_the_gpu(&self, thread: usize, line: Line) {
        let mut clock = self.clock.lock();
        if let What::Synchronize(what) = line.what {
            let done = match what {
                Synchronized::Device => clock.all_done(),
                Synchronized::Stream(stream) => clock.done(self.stream(stream)),
                Synchronized::Event(event) => clock.event(event as usize),
            };
            clock.after(thread, done);
            clock.busy(thread, line.call_ns, Part::Program);
            return;
        }
        clock.busy(thread, line.call_ns, Part::Program);
        match line.what {
            What::Work { stream, duration_ns } => clock.work(thread, self.stream(stream), duration_ns),
            What::Record { event, stream } => clock.record_event(thread, event as usize, self.stream(stream)),
            What::Wait { event, stream } => clock.wait(self.stream(stream), event as usize),
            _ => {}
        }
    }

    /// Runs one operation of the allocator under its lock. Returns `None` without an allocator.
    fn locked<T>(&self, thread: usize, run: impl FnOnce(&Memory) -> Result<T, Error>) -> Option<Result<T, Error>> {
        let memory = self.memory.as_ref()?;
        self.clock.lock().lock(thread);
        let answer = run(memory);
        self.clock.lock().unlock();
        Some(answer)
    }

    fn allocate(
        &mut self,
        thread: usize,
        block: u32,
        size: u64,
        stream: u32,
        line: u32,
    ) -> Result<Option<(usize, OutOfMemoryReport)>, ReplayError> {
        let stream = self.stream(stream);
        let address = match self.locked(thread, |memory| memory.allocator.allocate(size, stream)) {
            // Without an allocator, any address but 0 will do.
            None => 1,
            Some(Ok(address)) => address,
            Some(Err(Error::OutOfMemory(report))) => return Ok(Some((line as usize, report))),
            Some(Err(error)) => return Err(self.failed(line, error)),
        };
        if let (Some(place), Some(known)) = (self.addresses.get_mut(block as usize), self.sizes.get_mut(block as usize))
        {
            (*place, *known) = (address, size);
        }
        self.live = self.live.saturating_add(size);
        self.peak_live = self.peak_live.max(self.live);
        Ok(None)
    }

    fn use_on(&self, thread: usize, block: u32, stream: u32, line: u32) -> Result<(), ReplayError> {
        let address = self.addresses.get(block as usize).copied().unwrap_or_default();
        let stream = self.stream(stream);
        let used = self.locked(thread, |memory| memory.allocator.record_stream(address, stream));
        used.unwrap_or(Ok(())).map_err(|error| self.failed(line, error))
    }

    /// Frees a block if it is live.
    fn free(&mut self, thread: usize, block: u32, line: u32) -> Result<(), ReplayError> {
        let address = self.addresses.get_mut(block as usize).map_or(0, std::mem::take);
        if address == 0 {
            return Ok(());
        }
        self.live = self.live.saturating_sub(self.sizes.get(block as usize).copied().unwrap_or_default());
        let freed = self.locked(thread, |memory| memory.allocator.free(address));
        freed.unwrap_or(Ok(())).map_err(|error| self.failed(line, error))
    }

    fn stream(&self, index: u32) -> StreamId {
        self.timeline.streams.get(index as usize).copied().unwrap_or_default()
    }

    fn failed(&self, line: u32, error: Error) -> ReplayError {
        ReplayError::Allocator { trace: self.timeline.name.clone(), event: line as usize, error }
    }
}
