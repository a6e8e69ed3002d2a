//! The replays of a job as it was recorded, on one device: each strategy's once, for the verdict and for the figures.
//!
//! Owns: the device on which the job is replayed, and what is kept of a replay. The request that was refused when the job was
//! recorded is a part of the job.

use super::{DeviceFrom, Recorded};
use crate::refused::RefusedRequest;
use crate::replay::{ReplayError, ReplayOptions, Spilled, watched_replay};
use crate::trace::Trace;
use crate::verdict::{Look, NEAR_PERCENT, Need};
use seamalloc::StrategyKind;
use seamalloc::driver::sim::{MAX_CAPACITY, SimConfig};
use std::borrow::Cow;

/// A job of which the device is unknown is replayed on one with at least so many times the live bytes.
const PLENTY: u64 = 16;

/// A job on a device, with what each strategy makes of it: a strategy is replayed when it is first asked for.
#[derive(Debug)]
pub struct Replays<'t> {
    trace: &'t Trace,
    job: Cow<'t, Trace>,
    options: ReplayOptions,
    /// The device's name, with its capacity.
    device: String,
    device_from: DeviceFrom,
    others: Option<u64>,
    known: Vec<(StrategyKind, Replayed)>,
}

/// What a strategy makes of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replayed {
    /// What it needs.
    pub(crate) need: Need,
    /// What of it was spilled.
    pub(crate) spilled: Spilled,
}

impl<'t> Replays<'t> {
    /// A job on the device of `options`, of which `device_from` says how its capacity is known. Where the recording shows what a
    /// CUDA context and libraries held of its device, they have it here too. Where the device is unknown, no strategy is to run
    /// out of memory.
    #[must_use]
    pub fn new(trace: &'t Trace, options: &ReplayOptions, device_from: DeviceFrom) -> Self {
        let mut device = SimConfig { calls_advance_clock: false, ..options.device.clone() };
        let others = Recorded::of(trace).others().filter(|_| device_from == DeviceFrom::Noted);
        // A CUDA context and libraries stay, so that only the rest of the device counts. Who holds more may end.
        let near = u128::from(device.capacity) * u128::from(NEAR_PERCENT) / 100;
        let stays = others.filter(|others| u128::from(*others) < near);
        device.capacity = device.capacity.saturating_sub(stays.unwrap_or(0));
        let name = device.to_string();
        let job = RefusedRequest::job(trace);
        if device_from == DeviceFrom::Unknown {
            let plenty = job.summary().peak_live.saturating_mul(PLENTY);
            device.capacity = device.capacity.max(plenty).min(MAX_CAPACITY);
        }
        Self {
            trace,
            job,
            options: ReplayOptions { device, ..options.clone() },
            device: name,
            device_from,
            others: if stays.is_some() { None } else { others },
            known: Vec::new(),
        }
    }

    /// The recording.
    pub(crate) fn trace(&self) -> &'t Trace {
        self.trace
    }

    /// The job, with the request that was refused when it was recorded.
    pub(crate) fn job(&self) -> &Cow<'t, Trace> {
        &self.job
    }

    /// The memory of the device that the allocator can have; `None` if it is unknown.
    pub(crate) fn capacity(&self) -> Option<u64> {
        (self.device_from != DeviceFrom::Unknown).then_some(self.options.device.capacity)
    }

    /// The device as it was named, with the memory that the allocator can have.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// How the capacity is known.
    pub(crate) fn device_from(&self) -> DeviceFrom {
        self.device_from
    }

    /// What others held of the device when the job was recorded, where that is more than a CUDA context takes.
    pub(crate) fn others(&self) -> Option<u64> {
        self.others
    }

    /// The options of a strategy's replays.
    pub(crate) fn options(&self, strategy: StrategyKind) -> ReplayOptions {
        ReplayOptions { config: self.options.config.clone().of_strategy(strategy), ..self.options.clone() }
    }

    /// Returns what a strategy makes of the job.
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
