//! The figures of a trace for a verdict: the job through each allocator, with the request that was refused when it was
//! recorded.
//!
//! Owns: which moment of a replay counts, and what of the memory held is out of reach at it.

use super::{Figures, Holder, Need};
use crate::refused::RefusedRequest;
use crate::replay::{PassReport, ReplayError, ReplayOptions, replay, simulated};
use crate::trace::{Trace, TraceEvent};
use crate::whatif::{DeviceFrom, others_of};
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{MAX_CAPACITY, SimConfig};
use seamalloc::fragmentation::Owner;
use seamalloc::{Fragmentation, OutOfMemoryReport, StrategyKind};
use serde_json::Value;

/// Returns the figures of a job on the device of `options`, of which `device_from` says how it is known. `owners` are the
/// lines of the program that hold most at the peak. The job is replayed three times.
///
/// # Errors
/// As [`replay`](crate::replay::replay).
pub fn figures_of(
    trace: &Trace,
    options: &ReplayOptions,
    device_from: DeviceFrom,
    owners: Vec<Holder>,
) -> Result<Figures, ReplayError> {
    let refused = RefusedRequest::of(trace);
    let made = refused.map(|refused| refused.made_in(trace));
    let job = made.as_ref().unwrap_or(trace);
    let is_known = device_from != DeviceFrom::Unknown;
    let capacity = if is_known { options.device.capacity } else { MAX_CAPACITY };
    let need = |strategy: StrategyKind| {
        let config = options.config.clone().of_strategy(strategy);
        let device = SimConfig { capacity, ..options.device.clone() };
        let options = ReplayOptions { config, device, ..options.clone() };
        Ok::<_, ReplayError>(need_of(job, &replay(job, &options, &mut |_, _| {})?))
    };
    let live = job.summary().peak_live;
    // A refused request that is not part of the most that is live is no reason to name it.
    let is_at_peak = refused.is_some() && live > trace.summary().peak_live;
    Ok(Figures {
        capacity: is_known.then_some(options.device.capacity),
        live,
        refused: refused.filter(|_| is_at_peak).map_or(0, |refused| refused.size),
        persistent: None,
        owners,
        native: need(StrategyKind::Caching)?,
        expandable: need(StrategyKind::Expandable)?,
        stitch: need(StrategyKind::Stitch)?,
        others: others_of(trace).filter(|_| device_from == DeviceFrom::Noted),
        is_expandable_set: is_expandable_set(trace),
    })
}

/// The need of an allocator: of the pass in which it holds most, or of the refusal.
fn need_of(trace: &Trace, passes: &[PassReport]) -> Need {
    if let Some((_, report)) = passes.last().and_then(|pass| pass.oom.as_ref()) {
        return refused_need(report);
    }
    let Some(pass) = passes.iter().max_by_key(|pass| pass.peak_reserved) else { return Need::default() };
    let memory = &pass.fragmentation;
    let asking = asking(trace, pass.peak_event);
    Need {
        reserved: Some(pass.peak_reserved),
        idle: memory.free.saturating_add(memory.pending),
        elsewhere: free_elsewhere(memory, asking),
        pending: memory.pending,
    }
}

fn refused_need(report: &OutOfMemoryReport) -> Need {
    Need {
        reserved: None,
        idle: report.unallocated().saturating_add(report.pending),
        elsewhere: free_elsewhere(&report.memory, report.stream),
        pending: report.pending,
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
