//! Jobs with larger steps, and the largest step with which a job still runs.
//!
//! Owns: the choice of the blocks that grow with a job's steps, the scaling of a trace, and the search for the factor.

use crate::persistent::Persistent;
use crate::replay::{ReplayError, ReplayOptions, replay};
use crate::trace::{MAX_BLOCK_SIZE, Trace, TraceEvent};

/// The usual number of replays in a search, for the display of progress.
pub(super) const EXPECTED_TRIES: u32 = 8;

/// The number of units in a factor of 1. Factors are hundredths.
const WHOLE: u64 = 100;
/// The largest factor that is tried, in hundredths.
const MOST: u64 = 8 * WHOLE;
/// The precision of the search, as a part (1/n). The search ends when a factor that does not run exceeds the largest
/// factor that runs by at most 1/n of the latter, or by at most 0.01.
const EXACT_PART: u64 = 100;

/// The factor at which the search for larger steps stops.
pub const MOST_GROWTH: f64 = (MOST / WHOLE) as f64;

/// The largest step of a job with a strategy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Growth {
    /// The value of [`super::WhatIf::largest_step`].
    pub(crate) largest_step: Option<f64>,
    /// The number of replays in the search, including that of the recorded job.
    pub(super) tries: u32,
}

impl Default for Growth {
    /// Returns the result if no search is made: the recorded job is replayed once.
    fn default() -> Self {
        Self { largest_step: None, tries: 1 }
    }
}

/// The part of a job that grows with its steps.
pub(crate) struct Growing<'t> {
    /// The job whose steps grow, including the request that was refused when the job was recorded.
    job: &'t Trace,
    /// The blocks of the job that keep their size.
    persistent: Persistent,
}

impl<'t> Growing<'t> {
    pub(crate) fn of(job: &'t Trace) -> Self {
        Self { job, persistent: Persistent::of(job) }
    }

    /// Returns the bytes of blocks that keep their size.
    pub(super) fn persistent(&self) -> u64 {
        self.persistent.bytes
    }

    /// Returns whether any memory grows: the job frees blocks, and has memory that is not persistent.
    pub(super) fn grows(&self) -> bool {
        let frees = self.job.events.iter().any(|event| !matches!(event, TraceEvent::Alloc { .. }));
        frees && self.persistent.blocks.contains(&false)
    }

    /// Searches for the largest step on a device. The caller gives the result of the first replay, which is of the
    /// recorded job. The search replays the job with larger steps, until one runs and one that is a hundredth larger
    /// does not. The first factor tried is the one that would just fit at the job's utilization.
    pub(crate) fn sought(
        &self,
        reserved: Option<u64>,
        options: &ReplayOptions,
        progress: &mut dyn FnMut(u32, u32),
    ) -> Result<Growth, ReplayError> {
        let mut tries = 1;
        let mut run = |trace: &Trace| {
            let passes = replay(trace, options, &mut |_, _| {})?;
            tries += 1;
            progress(tries, EXPECTED_TRIES.max(tries));
            Ok::<_, ReplayError>(passes)
        };
        if !self.grows() {
            return Ok(Growth::default());
        }
        let capacity = options.device.capacity;
        // The bounds of the factor are in hundredths. The job runs with `low`, or `low` is 0. The job does not run with
        // `high`, or `high` is beyond the search.
        let runs = reserved.is_some();
        let mut low = if runs { WHOLE } else { 0 };
        let mut high = self.beyond(capacity).min(if low > 0 { MOST + 1 } else { WHOLE });
        let used = |reserved: u64| self.job.summary().peak_live as f64 / reserved.max(1) as f64;
        let usable = (capacity as f64 * reserved.map_or(1.0, used)) as u64;
        let mut next = self.beyond(usable).saturating_sub(1).clamp(low + 1, high.max(low + 2) - 1);
        let mut stride = 1;
        while high > low + (low / EXACT_PART).max(1) {
            let runs = run(&self.scaled(next))?.last().is_some_and(|pass| pass.oom.is_none());
            if runs {
                low = next;
            } else {
                high = next;
            }
            // Until replays have found a factor that runs and one that does not, the distance to the wanted factor is
            // unknown, so each try is further from the previous one.
            let middle = low + (high - low) / 2;
            let exact = (next / EXACT_PART).max(1).saturating_mul(stride);
            next = if runs { middle.min(low + exact) } else { middle.max(high.saturating_sub(exact)) };
            next = next.clamp(low + 1, high.max(low + 2) - 1);
            stride *= 3;
        }
        Ok(Growth { largest_step: (low > 0).then_some(low as f64 / WHOLE as f64), tries })
    }

    /// Returns a factor, in hundredths, whose live bytes alone exceed the capacity. The result is the least such
    /// factor, apart from the rounding of sizes.
    fn beyond(&self, capacity: u64) -> u64 {
        let mut sizes = Vec::with_capacity(self.persistent.blocks.len());
        let (mut stays, mut grows) = (0_u64, 0_u64);
        let mut least = u64::MAX;
        for event in &self.job.events {
            match *event {
                TraceEvent::Alloc { size, .. } => {
                    let part = if self.stays(sizes.len()) { &mut stays } else { &mut grows };
                    *part = part.saturating_add(size);
                    sizes.push(size);
                    if grows > 0 {
                        let room = u128::from(capacity.saturating_sub(stays)) * u128::from(WHOLE);
                        let fits = room / u128::from(grows);
                        least = least.min(u64::try_from(fits).unwrap_or(u64::MAX));
                    }
                }
                TraceEvent::FreeRequested { block } => {
                    let part = if self.stays(block as usize) { &mut stays } else { &mut grows };
                    *part = part.saturating_sub(sizes.get(block as usize).copied().unwrap_or(0));
                }
                TraceEvent::FreeCompleted { .. } => {}
            }
        }
        least.saturating_add(1)
    }

    fn stays(&self, block: usize) -> bool {
        self.persistent.blocks.get(block).copied().unwrap_or(false)
    }

    /// Returns the trace with every block that is not persistent scaled by `hundredths` / 100.
    fn scaled(&self, hundredths: u64) -> Trace {
        let mut stays = self.persistent.blocks.iter();
        let events = self.job.events.iter().map(|event| match *event {
            TraceEvent::Alloc { size, stream } if stays.next() != Some(&true) => {
                let size = (u128::from(size) * u128::from(hundredths)).div_ceil(u128::from(WHOLE));
                TraceEvent::Alloc { size: u64::try_from(size).unwrap_or(u64::MAX).clamp(1, MAX_BLOCK_SIZE), stream }
            }
            other => other,
        });
        Trace {
            name: self.job.name.clone(),
            meta: serde_json::Map::new(),
            streams: self.job.streams.clone(),
            events: events.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MIB, job, options, training};
    use super::super::{DeviceFrom, WhatIf, whatif};
    use super::*;
    use crate::refused::RefusedRequest;
    use seamalloc::StrategyKind;
    use seamalloc::driver::StreamId;

    fn sought(trace: &Trace, strategy: StrategyKind, capacity: u64) -> WhatIf {
        let options = options(strategy, capacity);
        whatif(trace, &[strategy], &options, DeviceFrom::Asked, &mut |_, _, _| {}).unwrap().remove(0)
    }

    #[test]
    fn what_is_persistent_does_not_grow_however_the_recording_ends() {
        let sizes = |trace: &Trace, hundredths| {
            let trace = Growing::of(trace).scaled(hundredths);
            let sizes = trace.events.iter().filter_map(|event| match event {
                TraceEvent::Alloc { size, .. } => Some(*size),
                _ => None,
            });
            sizes.collect::<Vec<_>>()
        };
        assert_eq!(sizes(&training(60), 100), [100 * MIB, 60 * MIB]);
        assert_eq!(sizes(&training(60), 250), [100 * MIB, 150 * MIB]);
        assert_eq!(sizes(&training(60), 0)[1], 1, "no block is of nothing");
        assert_eq!(sizes(&training(60), u64::MAX)[1], MAX_BLOCK_SIZE);
        let steps = steps(60, true);
        assert_eq!(Growing::of(&steps).persistent(), 100 * MIB);
        assert_eq!(sizes(&steps, 200), [100, 120, 120, 120].map(|size| size * MIB));
    }

    /// Returns a trace with weights of 100 MiB and three steps of `step` MiB, with or without the end of the job.
    fn steps(step: u64, ends: bool) -> Trace {
        let freed = |block| [TraceEvent::FreeRequested { block }, TraceEvent::FreeCompleted { block }];
        let alloc = |size| TraceEvent::Alloc { size: size * MIB, stream: 0 };
        let mut events = vec![alloc(100)];
        for block in 1..=3 {
            events.push(alloc(step));
            events.extend(freed(block));
        }
        events.extend(freed(0).into_iter().filter(|_| ends));
        Trace { events, ..training(step) }
    }

    #[test]
    fn the_end_of_the_job_changes_no_factor() {
        for strategy in StrategyKind::MAIN {
            let [open, ended] = [false, true].map(|ends| sought(&steps(60, ends), strategy, 400 * MIB));
            assert_eq!(open.largest_step, ended.largest_step, "{strategy}");
            assert!((4.8..=5.0).contains(&ended.largest_step.unwrap()), "{strategy}: {ended:?}");
        }
    }

    #[test]
    fn the_step_found_runs_and_a_hundredth_part_more_does_not() {
        for (capacity, step, least, most) in [(300, 60, 3.2, 3.34), (1100, 140, 6.7, 7.15)] {
            for strategy in StrategyKind::MAIN {
                let (trace, options) = (training(step), options(strategy, capacity * MIB));
                let growing = Growing::of(&trace);
                let found = sought(&trace, strategy, capacity * MIB);
                let factor = found.largest_step.unwrap();
                assert!((least..=most).contains(&factor), "{strategy}: {found:?}");
                let hundredths = (factor * 100.0).round() as u64;
                for (hundredths, fits) in [(hundredths, true), (hundredths + (hundredths / 100).max(1), false)] {
                    let passes = replay(&growing.scaled(hundredths), &options, &mut |_, _| {}).unwrap();
                    assert_eq!(passes[0].oom.is_none(), fits, "{strategy}: {hundredths}");
                }
                assert!(found.tries <= 8, "{strategy}: {found:?}");
            }
        }
    }

    #[test]
    fn the_search_stops_at_steps_eight_times_as_large() {
        for strategy in StrategyKind::MAIN {
            let found = sought(&training(6), strategy, 1100 * MIB);
            assert_eq!((found.largest_step, found.tries), (Some(MOST_GROWTH), 2), "{strategy}");
        }
    }

    #[test]
    fn the_bound_of_the_search_is_the_live_bytes() {
        let (trace, capacity) = (training(60), 400 * MIB);
        let growing = Growing::of(&trace);
        let least = growing.beyond(capacity);
        assert_eq!(least, 501, "300 of 60 MiB are five times as much");
        assert_eq!(growing.scaled(least - 1).summary().peak_live, capacity);
        assert_eq!(Growing::of(&job(&[(1, true)])).beyond(16 << 40), (16 << 40) * 100 + 1);
    }

    #[test]
    fn a_job_that_does_not_fit_is_told_how_much_smaller_it_must_be() {
        let found = sought(&training(60), StrategyKind::Stitch, 130 * MIB);
        assert_eq!((found.peak_reserved, found.largest_step), (None, Some(0.5)));
        let found = sought(&training(60), StrategyKind::Stitch, 90 * MIB);
        assert_eq!(found.largest_step, None, "the weights alone are too much");
    }

    /// The job has weights of 100 MiB, a step of 60, and a refused request of 60 more. The device leaves 100 MiB for
    /// these 120 MiB.
    #[test]
    fn a_refused_request_is_a_part_of_the_step() {
        let mut trace = steps(60, false);
        let refused =
            RefusedRequest { event: trace.events.len() - 2, size: 60 * MIB, stream: StreamId::DEFAULT, is_made: false };
        trace.meta.insert(RefusedRequest::KEY.to_owned(), refused.to_json());
        let found = sought(&trace, StrategyKind::Stitch, 200 * MIB);
        assert_eq!((found.peak_reserved, found.peak_live, found.refused), (None, 220 * MIB, 60 * MIB), "{found:?}");
        assert!((0.8..0.84).contains(&found.largest_step.unwrap()), "{found:?}");
        assert_eq!(found.persistent, 100 * MIB);
        let found = sought(&trace, StrategyKind::Stitch, 300 * MIB);
        assert!(found.peak_reserved.is_some_and(|reserved| reserved >= 220 * MIB), "{found:?}");
    }

    #[test]
    fn a_job_that_frees_nothing_has_no_steps_to_grow() {
        let found = sought(&job(&[(MIB, false)]), StrategyKind::Caching, 90 * MIB);
        assert_eq!((found.peak_reserved, found.largest_step, found.tries), (Some(2 * MIB), None, 1));
    }
}
