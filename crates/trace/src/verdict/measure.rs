//! The figures of a trace for a verdict: the job through each allocator, with the request that was refused when it was
//! recorded.
//!
//! Owns: which moment of a replay counts, and what of the memory held is out of reach at it.

use super::figures::{Figures, Holder, Judgement, Need, OWNERS};
use super::rules::near;
use crate::owners::owners;
use crate::pytorch::Origins;
use crate::refused::RefusedRequest;
use crate::replay::{PassReport, ReplayError, ReplayOptions, Replayer, Step, Watcher, simulated};
use crate::trace::{Trace, TraceEvent};
use crate::whatif::{DeviceFrom, Recorded};
use seamalloc::driver::sim::{MAX_CAPACITY, SimConfig, SimGpu};
use seamalloc::driver::{Driver, StreamId};
use seamalloc::fragmentation::Owner;
use seamalloc::{Allocator, Fragmentation, StrategyKind};
use serde_json::Value;
use std::sync::Arc;

/// A look at how memory is divided up is taken whenever so much more is held than at the last one: a hundredth part.
const LOOK_PART: u64 = 100;

/// Returns the verdict on a job on the device of `options`, of which `device_from` says how it is known. `origins` are the
/// stacks of its requests, where the recording has them; files whose paths contain one of `libraries` are not the user's.
///
/// # Errors
/// As [`replay`](crate::replay::replay).
pub fn judged(
    trace: &Trace,
    origins: Option<&Origins>,
    libraries: &[String],
    options: &ReplayOptions,
    device_from: DeviceFrom,
) -> Result<Judgement, ReplayError> {
    let rows = origins.map(|origins| owners(trace, origins, libraries, OWNERS).rows).unwrap_or_default();
    let holders = rows.into_iter().map(|owner| Holder { name: owner.name, bytes: owner.held.bytes });
    Ok(Judgement::of(figures_of(trace, options, device_from, None, holders.collect())?))
}

/// Returns the figures of a job on the device of `options`, of which `device_from` says how it is known. `owners` are the
/// lines of the program that hold most at the peak, `persistent` the bytes that no step frees. The job is replayed with
/// three strategies.
///
/// # Errors
/// As [`replay`](crate::replay::replay).
pub fn figures_of(
    trace: &Trace,
    options: &ReplayOptions,
    device_from: DeviceFrom,
    persistent: Option<u64>,
    owners: Vec<Holder>,
) -> Result<Figures, ReplayError> {
    let refused = RefusedRequest::of(trace);
    let made = refused.map(|refused| refused.made_in(trace));
    let job = made.as_ref().unwrap_or(trace);
    let recorded = Recorded::of(trace);
    let is_known = device_from != DeviceFrom::Unknown;
    let others = recorded.others().filter(|_| device_from == DeviceFrom::Noted);
    // A CUDA context and libraries stay, so that only the rest of the device counts.
    let (others, stays) = match others {
        Some(others) if others < near(options.device.capacity) => (None, others),
        others => (others, 0),
    };
    let of_device = options.device.capacity.saturating_sub(stays);
    // Where the device is unknown, no allocator is to run out of memory.
    let capacity = if is_known { of_device } else { MAX_CAPACITY };
    let device = SimConfig { capacity, calls_advance_clock: false, ..options.device.clone() };
    let need = |strategy: StrategyKind| {
        let config = options.config.clone().of_strategy(strategy);
        need_of(job, &ReplayOptions { config, device: device.clone(), ..options.clone() })
    };
    let live = job.summary().peak_live;
    // A refused request that is no part of the most that is live says nothing of it.
    let is_at_peak = live > trace.summary().peak_live;
    Ok(Figures {
        capacity: is_known.then_some(of_device),
        live,
        refused: refused.filter(|_| is_at_peak).map_or(0, |refused| refused.size),
        persistent,
        owners,
        native: need(StrategyKind::Caching)?,
        expandable: need(StrategyKind::Expandable)?,
        stitch: need(StrategyKind::Stitch)?,
        others,
        available: recorded.available,
        free_beyond_limit: recorded.free_beyond_limit,
        is_expandable_set: is_expandable_set(trace),
    })
}

/// Replays a job, and looks at the moment at which most is held, or at the refusal.
fn need_of(job: &Trace, options: &ReplayOptions) -> Result<Need, ReplayError> {
    let sim = Arc::new(SimGpu::new(options.device.clone())?);
    sim.set_run_ahead(options.lag);
    let driver: Arc<dyn Driver> = Arc::<SimGpu>::clone(&sim);
    let allocator = Allocator::new(driver, options.config.clone()).map_err(|error| ReplayError::Allocator {
        trace: job.name.clone(),
        event: 0,
        error,
    })?;
    let mut replayer = Replayer::new(job, allocator, sim);
    let mut look = Look::default();
    let mut need = Need::default();
    for pass in 1..=options.passes {
        let report = replayer.watched_pass(pass, &mut look, &mut |_| {})?;
        need.waits = need.waits.saturating_add(report.cpu_syncs);
        if report.oom.is_some() {
            return Ok(Need { waits: need.waits, ..refused_need(&report) });
        }
        need.reserved = need.reserved.max(Some(report.peak_reserved));
    }
    let asking = asking(job, look.event);
    need.idle = look.memory.free.saturating_add(look.memory.pending);
    need.elsewhere = free_elsewhere(&look.memory, asking);
    need.pending = look.memory.pending;
    Ok(need)
}

/// The division of memory shortly before most was held.
#[derive(Default)]
struct Look {
    reserved: u64,
    event: usize,
    memory: Fragmentation,
}

impl Watcher for Look {
    fn step(&mut self, step: &Step<'_>) {
        if !matches!(step.what, TraceEvent::Alloc { .. }) {
            return;
        }
        let reserved = step.allocator.reports().reserved();
        if reserved > self.reserved.saturating_add(self.reserved / LOOK_PART) {
            (self.reserved, self.event, self.memory) = (reserved, step.event, step.allocator.reports().fragmentation());
        }
    }

    fn end(&mut self, _: &Allocator) {}
}

/// The need of an allocator that ran out of memory.
fn refused_need(report: &PassReport) -> Need {
    let Some((_, report)) = &report.oom else { return Need::default() };
    Need {
        idle: report.unallocated().saturating_add(report.pending),
        elsewhere: free_elsewhere(&report.memory, report.stream),
        pending: report.pending,
        ..Need::default()
    }
}

/// The stream of the last request up to an event.
fn asking(trace: &Trace, event: usize) -> StreamId {
    let before = trace.events.iter().take(event.saturating_add(1)).rev();
    let last = before.copied().find_map(|event| match event {
        TraceEvent::Alloc { stream, .. } => Some(stream as usize),
        _ => None,
    });
    last.and_then(|stream| simulated(&trace.streams).get(stream).copied()).unwrap_or(StreamId::DEFAULT)
}

/// Free bytes of other streams than the one that asks, without those among small blocks.
fn free_elsewhere(memory: &Fragmentation, asking: StreamId) -> u64 {
    let others = memory.pools.iter().filter(|pool| match pool.owner {
        Owner::Stream(stream) => stream != asking && !pool.small,
        _ => false,
    });
    others.map(|pool| pool.free).sum()
}

/// Returns whether the settings of a snapshot switch expandable segments on.
fn is_expandable_set(trace: &Trace) -> bool {
    let settings = trace.meta.get("allocator_settings");
    let text = settings.and_then(|settings| settings.get("PYTORCH_CUDA_ALLOC_CONF")).and_then(Value::as_str);
    let flag = settings.and_then(|settings| settings.get("expandable_segments")).and_then(Value::as_bool);
    flag == Some(true) || text.is_some_and(|text| text.contains("expandable_segments:True"))
}
