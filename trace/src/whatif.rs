//! What a recorded job would have held with another strategy, and how much larger its steps could have been.
//!
//! Owns: the scaling of a trace, and the bisection over its factor.

use crate::columns::{Cell, Column, gib, line, round_to};
use crate::replay::{ReplayError, ReplayOptions, replay};
use crate::trace::{MAX_BLOCK_SIZE, Trace, TraceEvent};
use serde_json::Value;

/// Steps are made larger in steps of this part: 1%.
const WHOLE: u64 = 100;
/// No step is made more than this many times as large.
pub const LARGEST_FACTOR: f64 = 100.0;
const MOST: u64 = 100 * WHOLE;

type Figure = Column<WhatIf>;

/// What a strategy would have made of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIf {
    /// The trace's name.
    pub trace: String,
    /// The strategy's name.
    pub strategy: &'static str,
    /// The device, with its capacity.
    pub device: String,
    /// The most bytes requested and not freed.
    pub peak_live: u64,
    /// The most bytes that the strategy holds of the device; `None` where the job does not run on it.
    pub peak_reserved: Option<u64>,
    /// The most bytes that PyTorch held while the job was recorded, where the trace knows it.
    pub recorded_reserved: Option<u64>,
    /// What it held before the recording began: memory of earlier blocks too, of which the recording knows nothing. Where
    /// this is not 0, `recorded_reserved` does not compare with `peak_reserved`.
    pub reserved_before: u64,
    /// The largest factor by which everything that the job frees again can be larger on the device; `None` where not
    /// even a hundredth of it fits.
    pub largest_step: Option<f64>,
    /// How many replays the search took.
    pub tries: u32,
}

impl WhatIf {
    /// The part of the memory held that the job uses, at the peaks.
    #[must_use]
    pub fn utilization(&self) -> Option<f64> {
        self.peak_reserved.filter(|held| *held > 0).map(|held| self.peak_live as f64 / held as f64)
    }

    /// Its figures.
    pub const COLUMNS: &'static [Figure] = &[
        Figure::run("trace", |job| job.trace.as_str().into()).text("trace", |job| job.trace.as_str().into()),
        Figure::run("strategy", |job| job.strategy.into()).text("strategy", |job| job.strategy.into()),
        Figure::run("device", |job| job.device.as_str().into()),
        Figure::result("peak_live", |job| job.peak_live.into())
            .figure("live\nGiB", |job| gib(job.peak_live).into())
            .spare(2)
            .legend("live", "the most bytes requested and not freed: no strategy can do with less"),
        Figure::result("peak_reserved", |job| job.peak_reserved.into())
            .figure("reserved\nGiB", |job| {
                job.peak_reserved.map_or_else(|| Cell::Failed("too much".to_owned()), |held| gib(held).into())
            })
            .legend("reserved", "the most bytes that the strategy would have held of the device"),
        Figure::result("utilization", |job| job.utilization().map(|part| round_to(part, 6)).into())
            .figure("utilization", |job| job.utilization().map_or_else(|| "".into(), Cell::Used))
            .legend("utilization", "live / reserved: 100% is perfect"),
        Figure::result("recorded_reserved", |job| job.recorded_reserved.into()),
        Figure::result("reserved_before", |job| job.reserved_before.into()),
        Figure::result("largest_step", |job| job.largest_step.into())
            .figure("largest\nstep", |job| {
                job.largest_step.map_or_else(|| "none".into(), |factor| format!("x {}", times(factor)).into())
            })
            .legend(
                "largest step",
                "how many times as large all that the job frees again (activations, temporary\n\
                 buffers) can be on the device; what it never frees (weights, optimizer state) stays",
            ),
        Figure::result("tries", |job| job.tries.into())
            .figure("tries", |job| job.tries.into())
            .spare(1)
            .legend("tries", "replays that the search took"),
    ];

    /// Returns the line that `--json` prints: the values of all columns by their keys.
    #[must_use]
    pub fn to_json(&self) -> Value {
        line(Self::COLUMNS, self).into()
    }
}

/// Returns a factor for people; at the search's limit it may be more.
#[must_use]
pub fn times(factor: f64) -> String {
    format!("{factor:.2}{}", if factor >= LARGEST_FACTOR { " or more" } else { "" })
}

/// Replays a job on a device, and again and again with larger steps.
///
/// What a job never frees is taken for its weights and its optimizer's state, and stays as it is; all else is taken to
/// grow with the batch or the length of a sequence. Gradients that are freed in every step grow too, though in truth they
/// do not: the factor is a careful estimate, the same for every strategy. Memory that is not the allocator's (the CUDA
/// context, libraries) is not counted: give the device a capacity without it.
///
/// Bisection takes it that a smaller step runs where a larger one does; where it does not, one of its limits is found.
/// `progress` is told the tries done, and about how many there will be.
///
/// # Errors
/// As [`replay`].
pub fn whatif(
    trace: &Trace,
    options: &ReplayOptions,
    progress: &mut dyn FnMut(u32, u32),
) -> Result<WhatIf, ReplayError> {
    let mut tries = 0;
    let mut run = |trace: &Trace, expected: u32| {
        let passes = replay(trace, options, &mut |_, _| {})?;
        tries += 1;
        progress(tries, expected.max(tries));
        let ran = passes.last().is_some_and(|pass| pass.oom.is_none());
        Ok::<_, ReplayError>(ran.then(|| passes.iter().map(|pass| pass.peak_reserved).max().unwrap_or(0)))
    };
    let peak_reserved = run(trace, 12)?;
    // In hundredths: `low` runs, or is nothing at all; `high` does not run.
    let (mut low, mut high) = match peak_reserved {
        Some(_) => (WHOLE, beyond(trace, options.device.capacity)),
        None => (0, WHOLE),
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let expected = 2 + (high - low).ilog2();
        match run(&scaled(trace, middle), expected)? {
            Some(_) => low = middle,
            None => high = middle,
        }
    }
    Ok(WhatIf {
        trace: trace.name.clone(),
        strategy: options.config.strategy.name(),
        device: options.device.to_string(),
        peak_live: trace.summary().peak_live,
        peak_reserved,
        recorded_reserved: recorded_reserved(trace),
        reserved_before: trace.meta.get("reserved_before").and_then(Value::as_u64).unwrap_or(0),
        largest_step: (low > 0).then_some(low as f64 / WHOLE as f64),
        tries,
    })
}

/// What the trace knows of PyTorch's peak: a snapshot's own history, or what the recording program noted.
fn recorded_reserved(trace: &Trace) -> Option<u64> {
    ["peak_reserved", "peak_res_native"].into_iter().find_map(|key| trace.meta.get(key)?.as_u64())
}

/// The least factor, in hundredths, whose live bytes alone are more than the capacity; one above [`MOST`] at most.
fn beyond(trace: &Trace, capacity: u64) -> u64 {
    let (mut low, mut high) = (WHOLE, MOST + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if scaled(trace, middle).summary().peak_live <= capacity {
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
    use super::*;
    use seamalloc::driver::sim::SimConfig;
    use seamalloc::{Config, StrategyKind};

    const MIB: u64 = 1 << 20;

    fn alloc(size: u64) -> TraceEvent {
        TraceEvent::Alloc { size, stream: 0 }
    }

    fn job(events: Vec<TraceEvent>) -> Trace {
        Trace { name: "job".into(), streams: vec![seamalloc::driver::StreamId::DEFAULT], events, ..Trace::default() }
    }

    fn options(strategy: StrategyKind, capacity: u64) -> ReplayOptions {
        let device = SimConfig { capacity, ..SimConfig::default() };
        ReplayOptions::new(Config { strategy, ..Config::default() }, device)
    }

    /// Weights of 100 MiB that stay, and a step of 60 MiB.
    fn training() -> Trace {
        job(vec![
            alloc(100 * MIB),
            alloc(60 * MIB),
            TraceEvent::FreeRequested { block: 1 },
            TraceEvent::FreeCompleted { block: 1 },
        ])
    }

    #[test]
    fn what_is_never_freed_does_not_grow() {
        let sizes = |hundredths| {
            let trace = scaled(&training(), hundredths);
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
        for strategy in StrategyKind::ALL {
            let found = whatif(&training(), &options(strategy, 300 * MIB), &mut |_, _| {}).unwrap();
            let factor = found.largest_step.unwrap();
            assert!((3.2..=3.34).contains(&factor), "{found:?}: 200 of 60 MiB are 3.33");
            assert_eq!((found.peak_live, found.recorded_reserved), (160 * MIB, None));
            let hundredths = (factor * 100.0).round() as u64;
            for (hundredths, fits) in [(hundredths, true), (hundredths + 1, false)] {
                let passes =
                    replay(&scaled(&training(), hundredths), &options(strategy, 300 * MIB), &mut |_, _| {}).unwrap();
                assert_eq!(passes[0].oom.is_none(), fits, "{strategy}: {hundredths}");
            }
        }
    }

    #[test]
    fn a_job_that_does_not_fit_is_told_how_much_smaller_it_must_be() {
        let found = whatif(&training(), &options(StrategyKind::Stitch, 130 * MIB), &mut |_, _| {}).unwrap();
        assert_eq!((found.peak_reserved, found.utilization()), (None, None));
        assert_eq!(found.largest_step, Some(0.5));
        let found = whatif(&training(), &options(StrategyKind::Stitch, 90 * MIB), &mut |_, _| {}).unwrap();
        assert_eq!(found.largest_step, None, "the weights alone are too much");
    }

    #[test]
    fn a_job_that_frees_nothing_cannot_grow_and_ends_at_the_limit() {
        let found = whatif(&job(vec![alloc(MIB)]), &options(StrategyKind::Caching, 90 * MIB), &mut |_, _| {}).unwrap();
        assert_eq!(found.largest_step, Some(100.0));
    }

    #[test]
    fn what_pytorch_held_is_taken_from_the_trace() {
        let mut trace = training();
        trace.meta.insert("peak_res_native".into(), 7.into());
        assert_eq!(recorded_reserved(&trace), Some(7));
        trace.meta.insert("peak_reserved".into(), 9.into());
        assert_eq!(recorded_reserved(&trace), Some(9));
    }
}
