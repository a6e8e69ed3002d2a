//! A job with larger steps, and the largest with which it still runs.
//!
//! Owns: the scaling of a trace, and the bisection over its factor.

use crate::replay::{PassReport, ReplayError, ReplayOptions, Spilled, replay};
use crate::trace::{MAX_BLOCK_SIZE, Trace, TraceEvent};

/// Steps are made larger in steps of this part: 1%.
const WHOLE: u64 = 100;

/// What a strategy makes of a job, and of the job with larger steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Growth {
    /// The most bytes that the strategy holds of the device; `None` where the job does not run on it.
    pub(super) reserved: Option<u64>,
    /// What of it was spilled.
    pub(super) spilled: Spilled,
    /// See [`super::WhatIf::largest_step`].
    pub(super) largest_step: Option<f64>,
    /// How many replays the search took.
    pub(super) tries: u32,
}

/// Replays a job on a device, once: no larger step is sought.
pub(super) fn once(
    trace: &Trace,
    options: &ReplayOptions,
    progress: &mut dyn FnMut(u32, u32),
) -> Result<Growth, ReplayError> {
    let passes = replay(trace, options, &mut |_, _| {})?;
    progress(1, 1);
    Ok(Growth { reserved: held(&passes), spilled: Spilled::of_all(&passes), largest_step: None, tries: 1 })
}

/// The most bytes held in any pass; `None` where memory ran out.
fn held(passes: &[PassReport]) -> Option<u64> {
    let ran = passes.last().is_some_and(|pass| pass.oom.is_none());
    ran.then(|| passes.iter().map(|pass| pass.peak_reserved).max().unwrap_or(0))
}

/// Replays a job on a device, and again and again with larger steps, until a hundredth more does not run.
pub(super) fn grow(
    trace: &Trace,
    options: &ReplayOptions,
    progress: &mut dyn FnMut(u32, u32),
) -> Result<Growth, ReplayError> {
    let mut tries = 0;
    let mut run = |trace: &Trace, expected: u32| {
        let passes = replay(trace, options, &mut |_, _| {})?;
        tries += 1;
        progress(tries, expected.max(tries));
        Ok::<_, ReplayError>((held(&passes), Spilled::of_all(&passes)))
    };
    let (reserved, spilled) = run(trace, 12)?;
    if !has_growth(trace) {
        return Ok(Growth { reserved, spilled, largest_step: None, tries });
    }
    // In hundredths: `low` runs, or is nothing at all; `high` does not run.
    let (mut low, mut high) = match reserved {
        Some(_) => (WHOLE, beyond(trace, options.device.capacity)),
        None => (0, WHOLE),
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let expected = 2 + (high - low).ilog2();
        match run(&scaled(trace, middle), expected)?.0 {
            Some(_) => low = middle,
            None => high = middle,
        }
    }
    Ok(Growth { reserved, spilled, largest_step: (low > 0).then_some(low as f64 / WHOLE as f64), tries })
}

/// Returns whether the job frees anything, so that there is something that grows with its steps.
pub(super) fn has_growth(trace: &Trace) -> bool {
    trace.events.iter().any(|event| !matches!(event, TraceEvent::Alloc { .. }))
}

/// The least factor, in hundredths, whose live bytes alone are more than the capacity. There is one: what grows is live at
/// some time, and the largest block is larger than the largest device.
fn beyond(trace: &Trace, capacity: u64) -> u64 {
    let fits = |hundredths: u64| scaled(trace, hundredths).summary().peak_live <= capacity;
    let (mut low, mut high) = (WHOLE, 2 * WHOLE);
    while fits(high) {
        (low, high) = (high, high.saturating_mul(2));
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The trace with every block that it frees `hundredths` of a hundred times as large.
fn scaled(trace: &Trace, hundredths: u64) -> Trace {
    let mut freed = Vec::new();
    for event in &trace.events {
        match *event {
            TraceEvent::Alloc { .. } => freed.push(false),
            TraceEvent::FreeRequested { block } | TraceEvent::FreeCompleted { block } => {
                if let Some(freed) = freed.get_mut(block as usize) {
                    *freed = true;
                }
            }
        }
    }
    let mut freed = freed.into_iter();
    let events = trace.events.iter().map(|event| match *event {
        TraceEvent::Alloc { size, stream } if freed.next() == Some(true) => {
            let size = (u128::from(size) * u128::from(hundredths)).div_ceil(u128::from(WHOLE));
            TraceEvent::Alloc { size: u64::try_from(size).unwrap_or(u64::MAX).clamp(1, MAX_BLOCK_SIZE), stream }
        }
        other => other,
    });
    Trace { events: events.collect(), ..trace.clone() }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MIB, job, options, training};
    use super::*;
    use seamalloc::StrategyKind;

    #[test]
    fn what_is_never_freed_does_not_grow() {
        let sizes = |hundredths| {
            let trace = scaled(&training(60), hundredths);
            let sizes = trace.events.iter().filter_map(|event| match event {
                TraceEvent::Alloc { size, .. } => Some(*size),
                _ => None,
            });
            sizes.collect::<Vec<_>>()
        };
        assert_eq!(sizes(100), [100 * MIB, 60 * MIB]);
        assert_eq!(sizes(250), [100 * MIB, 150 * MIB]);
        assert_eq!(sizes(0)[1], 1, "no block is of nothing");
        assert_eq!(sizes(u64::MAX)[1], MAX_BLOCK_SIZE);
    }

    #[test]
    fn the_step_found_runs_and_a_hundredth_more_does_not() {
        // The second is of steps that the device has room for a hundred times and more.
        for (capacity, step, least, most) in [(300, 60, 3.2, 3.34), (1100, 6, 163.0, 166.7)] {
            for strategy in StrategyKind::MAIN {
                let (trace, options) = (training(step), options(strategy, capacity * MIB));
                let found = grow(&trace, &options, &mut |_, _| {}).unwrap();
                let factor = found.largest_step.unwrap();
                assert!((least..=most).contains(&factor), "{strategy}: {found:?}");
                let hundredths = (factor * 100.0).round() as u64;
                for (hundredths, fits) in [(hundredths, true), (hundredths + 1, false)] {
                    let passes = replay(&scaled(&trace, hundredths), &options, &mut |_, _| {}).unwrap();
                    assert_eq!(passes[0].oom.is_none(), fits, "{strategy}: {hundredths}");
                }
            }
        }
    }

    #[test]
    fn the_bound_of_the_search_is_the_live_bytes() {
        let (trace, capacity) = (training(60), 400 * MIB);
        let least = beyond(&trace, capacity);
        assert_eq!(least, 501, "300 of 60 MiB are five times as much");
        assert_eq!(scaled(&trace, least - 1).summary().peak_live, capacity);
        let byte = job(&[(1, true)]);
        assert_eq!(beyond(&byte, 16 << 40), (16 << 40) * 100 + 1);
    }

    #[test]
    fn a_job_that_does_not_fit_is_told_how_much_smaller_it_must_be() {
        let found = grow(&training(60), &options(StrategyKind::Stitch, 130 * MIB), &mut |_, _| {}).unwrap();
        assert_eq!((found.reserved, found.largest_step), (None, Some(0.5)));
        let found = grow(&training(60), &options(StrategyKind::Stitch, 90 * MIB), &mut |_, _| {}).unwrap();
        assert_eq!(found.largest_step, None, "the weights alone are too much");
    }

    #[test]
    fn a_job_that_frees_nothing_has_no_steps_to_grow() {
        let found = grow(&job(&[(MIB, false)]), &options(StrategyKind::Caching, 90 * MIB), &mut |_, _| {}).unwrap();
        assert_eq!((found.reserved, found.largest_step, found.tries), (Some(2 * MIB), None, 1));
    }
}
