//! The replays of a recorded job on one device. Each strategy is replayed once, for the verdict and for the figures.
//!
//! Owns: the device of the replays, and the figures that are kept of a replay. The request that was refused when the
//! job was recorded is a part of the job.

use super::{DeviceFrom, Recorded};
use crate::refused::RefusedRequest;
use crate::replay::{ReplayError, ReplayOptions, Spilled, replay, watched_replay};
use crate::trace::Trace;
use crate::verdict::{Look, Need, near};
use seamalloc::driver::sim::{MAX_CAPACITY, SimConfig};
use seamalloc::{Config, Headroom, StrategyKind};
use std::borrow::Cow;

/// The least memory of the device for a job with an unknown device, as a multiple of the live bytes.
const PLENTY: u64 = 16;

/// A job on a device, with the result of each strategy. A strategy is replayed when its result is first needed.
#[derive(Debug)]
pub struct Replays<'t> {
    trace: &'t Trace,
    job: Cow<'t, Trace>,
    options: ReplayOptions,
    /// The device's name, with its capacity.
    device: String,
    device_from: DeviceFrom,
    known: Vec<(StrategyKind, Replayed)>,
}

/// The result of a strategy on a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replayed {
    /// The memory and the waits of the allocator.
    pub(crate) need: Need,
    /// The memory that was spilled.
    pub(crate) spilled: Spilled,
}

impl<'t> Replays<'t> {
    /// Makes the replays of a job on the device of `options`. `device_from` is the source of the capacity. If the
    /// recording shows the memory that a CUDA context and libraries held on the recorded device, the same memory is
    /// subtracted from this device. An unknown device is made so large that no strategy runs out of memory.
    #[must_use]
    pub fn new(trace: &'t Trace, options: &ReplayOptions, device_from: DeviceFrom) -> Self {
        let mut device = SimConfig { calls_advance_clock: false, ..options.device.clone() };
        let others = Recorded::of(trace).others().filter(|_| device_from == DeviceFrom::Noted);
        // A CUDA context and libraries never give their memory back, so only the rest of the device counts. If others
        // hold more than a context and libraries do, these may be other processes, which may end.
        let stays = others.filter(|others| *others < near(device.capacity));
        device.capacity = device.capacity.saturating_sub(stays.unwrap_or(0));
        let name = device.to_string();
        let job = RefusedRequest::job(trace);
        if device_from == DeviceFrom::Unknown {
            device.capacity = device.capacity.max(plenty_for(&job));
        }
        Self {
            trace,
            job,
            options: ReplayOptions { device, ..options.clone() },
            device: name,
            device_from,
            known: Vec::new(),
        }
    }

    /// Returns the recording.
    pub(crate) fn trace(&self) -> &'t Trace {
        self.trace
    }

    /// Returns the job, including the request that was refused when the job was recorded.
    pub(crate) fn job(&self) -> &Cow<'t, Trace> {
        &self.job
    }

    /// Returns the memory of the device that the allocator can have; `None` if it is unknown.
    pub(crate) fn capacity(&self) -> Option<u64> {
        (self.device_from != DeviceFrom::Unknown).then_some(self.options.device.capacity)
    }

    /// Returns the device as it was named, with the memory that the allocator can have.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// Returns the source of the capacity.
    pub(crate) fn device_from(&self) -> DeviceFrom {
        self.device_from
    }

    /// Returns the most memory that the options let an allocator have; `None` if they do not limit it.
    pub(crate) fn limit(&self) -> Option<u64> {
        let (config, all) = (&self.options.config, self.options.device.capacity);
        let kept = config.headroom.kept_bytes();
        let shared = (kept > 0).then(|| all.saturating_sub(kept));
        config.limit_on(all).into_iter().chain(shared).min()
    }

    /// Returns replays of the same job on a device with `capacity` bytes, all of them for the allocator.
    pub(crate) fn on(&self, capacity: u64) -> Replays<'_> {
        let config = Config {
            memory_fraction: None,
            memory_limit: None,
            headroom: Headroom::NONE,
            ..self.options.config.clone()
        };
        let device = SimConfig { capacity, ..self.options.device.clone() };
        Replays {
            trace: self.trace,
            job: Cow::Borrowed(&self.job),
            options: ReplayOptions { config, device, ..self.options.clone() },
            device: self.device.clone(),
            device_from: self.device_from,
            known: Vec::new(),
        }
    }

    /// Returns replays of the same job on a device on which no strategy runs out of memory.
    pub(crate) fn on_plenty(&self) -> Replays<'_> {
        self.on(plenty_for(&self.job))
    }

    /// Returns the strategies that are known to run the job.
    pub(crate) fn known_to_run(&self) -> impl Iterator<Item = StrategyKind> {
        self.known.iter().filter(|(_, known)| known.need.reserved.is_some()).map(|(kind, _)| *kind)
    }

    /// Returns whether the job runs with these options.
    pub(crate) fn runs(&self, config: Config) -> Result<bool, ReplayError> {
        let passes = replay(&self.job, &ReplayOptions { config, ..self.options.clone() }, &mut |_, _| {})?;
        Ok(passes.last().is_some_and(|pass| pass.oom.is_none()))
    }

    /// Returns the options of a strategy's replays.
    pub(crate) fn options(&self, strategy: StrategyKind) -> ReplayOptions {
        ReplayOptions { config: self.options.config.clone().of_strategy(strategy), ..self.options.clone() }
    }

    /// Returns the result of a strategy on the job.
    pub(crate) fn of(&mut self, strategy: StrategyKind) -> Result<Replayed, ReplayError> {
        if let Some((_, known)) = self.known.iter().find(|(kind, _)| *kind == strategy) {
            return Ok(*known);
        }
        let mut look = Look::default();
        let passes = watched_replay(&self.job, &self.options(strategy), &mut look, &mut |_, _| {})?;
        let new = Replayed { need: look.need(&self.job, &passes), spilled: Spilled::of_all(&passes) };
        self.known.push((strategy, new));
        Ok(new)
    }
}

/// Returns the bytes of memory with which no strategy runs out of memory on a job.
fn plenty_for(job: &Trace) -> u64 {
    job.summary().peak_live.saturating_mul(PLENTY).clamp(1 << 30, MAX_CAPACITY)
}
