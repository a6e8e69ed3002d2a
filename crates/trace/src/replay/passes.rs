//! Whole replays. Each replay makes a device and an allocator, and replays a trace on them in several passes.

use super::device::{CudaReplayDevice, ReplayDevice};
use super::replayer::Replayer;
use super::report::{PassReport, ReplayError, ReplayOptions};
use super::watch::{Unwatched, Watcher};
use crate::trace::Trace;
use seamalloc::driver::Driver;
use seamalloc::driver::cuda::CudaDriver;
use seamalloc::driver::host::{HostConfig, HostDriver};
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::{Allocator, Config, HostPool};
use std::sync::Arc;

/// Replays `trace`. `progress` gets the number of events done and the number of all events (all passes together).
///
/// A pass that runs out of memory is the last one, and its report has `oom` set.
///
/// # Errors
/// The device or the allocator cannot be made, the trace is invalid, or a driver call failed for a reason other than
/// lack of memory.
pub fn replay(
    trace: &Trace,
    options: &ReplayOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<PassReport>, ReplayError> {
    watched_replay(trace, options, &mut Unwatched, progress)
}

/// Replays `trace` as [`replay`] does, and passes each operation of all passes to `watcher`.
pub(crate) fn watched_replay<W: Watcher>(
    trace: &Trace,
    options: &ReplayOptions,
    watcher: &mut W,
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
    passes(&mut Replayer::new(trace, allocator, sim), options.passes, watcher, progress)
}

/// Replays `trace` on a real GPU, with a new stream for each of its streams. Blocks are neither filled nor used, since
/// no work runs. A free that completes later than it was requested therefore becomes a free with a use by one more
/// stream, and completes as soon as the GPU reaches it. Times are real.
///
/// # Errors
/// The errors of [`replay`].
pub fn replay_on_cuda(
    trace: &Trace,
    ordinal: u32,
    config: Config,
    times: u32,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<PassReport>, ReplayError> {
    let driver = Arc::new(CudaDriver::open(ordinal)?);
    let device = CudaReplayDevice::new(Arc::clone(&driver), trace)?;
    passes_on(trace, driver, ReplayDevice::Cuda(device), config, times, progress)
}

/// Replays `trace` on page-locked host memory with a host pool ([`HostPool`]). All requests are for one stream, which
/// has no work. `node` is a NUMA node; without it, the node nearest to the device is used. Other rules are those of
/// [`replay_on_cuda`].
///
/// # Errors
/// The errors of [`replay`], and those for options that a host pool refuses.
pub fn replay_on_pinned(
    trace: &Trace,
    ordinal: u32,
    node: Option<u32>,
    config: Config,
    times: u32,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<PassReport>, ReplayError> {
    let config = HostPool::config(config)?;
    let trace = &trace.on_one_stream();
    let driver = Arc::new(CudaDriver::open_pinned(ordinal, node)?);
    let device = CudaReplayDevice::new(Arc::clone(&driver), trace)?;
    passes_on(trace, driver, ReplayDevice::Cuda(device), config, times, progress)
}

/// Replays `trace` on host memory. Blocks are neither filled nor used, so even large blocks take no host memory. A free
/// completes when the trace says so. Times are real.
///
/// # Errors
/// The errors of [`replay`].
pub fn replay_on_host(
    trace: &Trace,
    host: HostConfig,
    config: Config,
    times: u32,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<PassReport>, ReplayError> {
    let driver = Arc::new(HostDriver::new(host)?);
    let device = ReplayDevice::Host(Arc::clone(&driver));
    passes_on(trace, driver, device, config, times, progress)
}

/// Replays `trace` with a new allocator over the driver of a device.
fn passes_on(
    trace: &Trace,
    driver: Arc<dyn Driver>,
    device: ReplayDevice,
    config: Config,
    times: u32,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<PassReport>, ReplayError> {
    let failed = |error| ReplayError::Allocator { trace: trace.name.clone(), event: 0, error };
    let allocator = Allocator::new(driver, config).map_err(failed)?;
    passes(&mut Replayer::on(trace, allocator, device), times, &mut Unwatched, progress)
}

fn passes<W: Watcher>(
    replayer: &mut Replayer<'_>,
    times: u32,
    watcher: &mut W,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<PassReport>, ReplayError> {
    let events = replayer.events() as u64;
    let total = events * u64::from(times);
    let mut reports: Vec<PassReport> = Vec::new();
    for pass in 1..=times {
        let done = events * u64::from(pass - 1);
        let mut report = replayer.watched_pass(pass, watcher, &mut |events| progress(done + events as u64, total))?;
        report.held_after = replayer.pause()?;
        reports.push(report);
        if reports.last().is_some_and(|report| report.oom.is_some()) {
            break;
        }
    }
    Ok(reports)
}
