//! The figures of a trace for a verdict: the job through each allocator, including the request that was refused when
//! the job was recorded.
//!
//! Owns: the choice of the replays for the verdict. `look.rs` chooses the moment of a replay at which memory is
//! measured.

use super::figures::{Figures, Holder, Judgement, OWNERS};
use crate::owners::owners;
use crate::persistent::persistent;
use crate::pytorch::Origins;
use crate::refused::RefusedRequest;
use crate::replay::{ReplayError, ReplayOptions};
use crate::summary::fullest;
use crate::trace::Trace;
use crate::whatif::{DeviceFrom, Recorded, Replays};
use serde_json::Value;

/// Returns the verdict on a job on the device of `options`. `device_from` is the source of the device's capacity.
/// `origins` are the stacks of the job's requests, if the recording has them. Files whose paths contain one of
/// `libraries` are not the user's.
///
/// # Errors
/// The errors of [`replay`](crate::replay::replay).
pub fn judged(
    trace: &Trace,
    origins: Option<&Origins>,
    libraries: &[String],
    options: &ReplayOptions,
    device_from: DeviceFrom,
) -> Result<Judgement, ReplayError> {
    Replays::new(trace, options, device_from).judged(origins, libraries)
}

impl Replays<'_> {
    /// Returns the verdict on the job, as [`judged`] does. Replays that were made already are not repeated.
    ///
    /// # Errors
    /// The errors of [`replay`](crate::replay::replay).
    pub fn judged(&mut self, origins: Option<&Origins>, libraries: &[String]) -> Result<Judgement, ReplayError> {
        let trace = self.trace();
        let rows = origins.map(|origins| owners(trace, origins, libraries, OWNERS).rows).unwrap_or_default();
        let holders = rows.into_iter().map(|owner| Holder { name: owner.name, bytes: owner.held.bytes });
        Ok(Judgement::of(self.figures(holders.collect())?))
    }

    /// Returns the figures of the job, as [`figures_of`] does.
    fn figures(&mut self, owners: Vec<Holder>) -> Result<Figures, ReplayError> {
        let trace = self.trace();
        let recorded = Recorded::of(trace);
        // At a refusal by a limit the capacity is the memory that PyTorch held. The device has at least this memory and
        // the memory that was free.
        let device = match (self.device_from(), recorded.free_beyond_limit) {
            (DeviceFrom::Refusal, Some(free)) => self.capacity().map(|held| held.saturating_add(free)),
            _ => self.capacity(),
        };
        let room = device.map(|device| recorded.available.map_or(device, |had| had.min(device)));
        let room = room.into_iter().chain(self.limit()).min();
        let of_room = match room.filter(|room| Some(*room) != self.capacity() || self.limit().is_some()) {
            Some(room) => self.on(room).three()?,
            None => self.three()?,
        };
        // A refused request counts only if it is made at the peak of the live bytes.
        let refused = RefusedRequest::of(trace).filter(|refused| refused.event == fullest(&self.job().events));
        let persistent = Some(persistent(self.job())).filter(|bytes| *bytes > 0);
        let [native, expandable, stitch] = of_room;
        let mut figures = Figures {
            capacity: room,
            device,
            device_from: Some(self.device_from()),
            live: self.job().summary().peak_live,
            refused: refused.map_or(0, |refused| refused.size),
            persistent,
            owners,
            native,
            expandable,
            stitch,
            shortage: None,
            available: recorded.available,
            free_beyond_limit: recorded.free_beyond_limit,
            is_expandable_set: is_expandable_set(trace),
            options: self.options_in_words(),
        };
        if figures.recommended().is_none() {
            self.seek(&mut figures)?;
        }
        Ok(figures)
    }
}

/// Returns the figures of a job on the device of `options`. `device_from` is the source of the device's capacity.
/// `owners` are the lines of the program with the most bytes at the peak. The job is replayed with three strategies,
/// and many more times if none of them runs it.
///
/// # Errors
/// The errors of [`replay`](crate::replay::replay).
pub fn figures_of(
    trace: &Trace,
    options: &ReplayOptions,
    device_from: DeviceFrom,
    owners: Vec<Holder>,
) -> Result<Figures, ReplayError> {
    Replays::new(trace, options, device_from).figures(owners)
}

/// Returns whether the settings of a snapshot switch expandable segments on.
fn is_expandable_set(trace: &Trace) -> bool {
    let settings = trace.meta.get("allocator_settings");
    let text = settings.and_then(|settings| settings.get("PYTORCH_CUDA_ALLOC_CONF")).and_then(Value::as_str);
    let flag = settings.and_then(|settings| settings.get("expandable_segments")).and_then(Value::as_bool);
    flag == Some(true) || text.is_some_and(|text| text.contains("expandable_segments:True"))
}
