//! The memory that a recorded job holds with each strategy, and the possible growth of its steps, compared with
//! PyTorch's own allocators on the same device.
//!
//! Owns: the report and its figures. `replays.rs` has the replays for the verdict and the figures. `growth.rs` finds
//! the largest step, and `device.rs` the device.

mod device;
mod growth;
mod replays;

pub use device::{DeviceFrom, device_of};
pub(crate) use device::{FREE_BEYOND_LIMIT, Recorded};
pub(crate) use growth::Growing;
pub use growth::MOST_GROWTH;
pub use replays::Replays;

use crate::columns::{Cell, Column, gib, line, round_to};
use crate::refused::RefusedRequest;
use crate::replay::{ReplayError, ReplayOptions, Spilled};
use crate::trace::Trace;
use crate::verdict::Judgement;
use growth::{EXPECTED_TRIES, Growth};
use replays::Replayed;
use seamalloc::StrategyKind;
use serde_json::Value;

type Figure = Column<WhatIf>;

/// The figures of a job with a strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIf {
    /// The trace's name.
    pub trace: String,
    /// The strategy.
    pub strategy: StrategyKind,
    /// The device, with its capacity.
    pub device: String,
    /// The bytes of the device that the allocator can have; `None` if they are unknown.
    pub capacity: Option<u64>,
    /// The source of the device's capacity.
    pub device_from: DeviceFrom,
    /// The most bytes that were requested and not freed, including a request that was refused while the job was
    /// recorded.
    pub peak_live: u64,
    /// The bytes of the request that was refused while the job was recorded, which is a part of the job; 0 if none was
    /// refused.
    pub refused: u64,
    /// The most bytes of device memory that the strategy holds; `None` if the job does not run on the device.
    pub peak_reserved: Option<u64>,
    /// The memory that was spilled, in all passes of the recorded job.
    pub spilled: Spilled,
    /// The most bytes that PyTorch held while the job was recorded, if the trace has the figure.
    pub recorded_reserved: Option<u64>,
    /// The bytes that PyTorch held before the recording began, including memory of earlier blocks that the recording
    /// does not contain. If this value is not 0, `recorded_reserved` cannot be compared with `peak_reserved`.
    pub reserved_before: u64,
    /// The bytes of persistent memory at the peak, from [`persistent`](crate::persistent()).
    pub persistent: u64,
    /// Whether the job frees any block. If it does not, no memory grows with its steps, and there is no largest step.
    pub grows: bool,
    /// Whether the largest step was sought. [`whatif`] seeks it if the device is known; [`held`] does not.
    pub sought: bool,
    /// The largest factor by which all memory that is not persistent can grow on the device, at most [`MOST_GROWTH`].
    /// `None` if not even a hundredth of it fits, if the job frees no memory, or if no step was sought.
    pub largest_step: Option<f64>,
    /// The figures of PyTorch's native allocator on the same device.
    pub native: Baseline,
    /// The figures of PyTorch's expandable segments on the same device.
    pub expandable: Baseline,
    /// The number of replays in the search for the largest step.
    pub tries: u32,
    /// The verdict on the job, which is the same for each strategy; `None` if none was requested.
    pub verdict: Option<Judgement>,
}

/// The figures of a job with one of PyTorch's allocators, from the strategy with the same algorithm on the simulated
/// device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Baseline {
    /// The value of [`WhatIf::peak_reserved`] for this allocator.
    pub reserved: Option<u64>,
    /// The value of [`WhatIf::largest_step`] for this allocator.
    pub largest_step: Option<f64>,
}

impl WhatIf {
    /// Returns the peak of the live bytes divided by the peak of the reserved bytes; `None` if the job does not run.
    #[must_use]
    pub fn utilization(&self) -> Option<f64> {
        self.peak_reserved.filter(|held| *held > 0).map(|held| self.peak_live as f64 / held as f64)
    }

    /// The figures of the report.
    pub const COLUMNS: &'static [Figure] = &[
        Figure::run("trace", |job| job.trace.as_str().into()).text("trace", |job| job.trace.as_str().into()),
        Figure::run("strategy", |job| job.strategy.name().into())
            .text("strategy", |job| job.strategy.name().into())
            .legend("strategy", "caching is native, PyTorch's default; stitch is seamalloc's"),
        Figure::run("device", |job| job.device.as_str().into()),
        Figure::result("device_from", |job| job.device_from.name().into()),
        Figure::result("capacity", |job| job.capacity.into()),
        Figure::result("peak_live", |job| job.peak_live.into())
            .figure("live\nGiB", |job| gib(job.peak_live).into())
            .spare(2)
            .legend("live", "the most bytes requested and not freed: no strategy can do with less"),
        Figure::result("refused", |job| job.refused.into()),
        Figure::result("peak_reserved", |job| job.peak_reserved.into())
            .figure("reserved\nGiB", |job| {
                job.peak_reserved.map_or_else(|| Cell::Failed("too much".to_owned()), |held| gib(held).into())
            })
            .legend("reserved", "the most bytes that the strategy would have held of the device"),
        Figure::result("utilization", |job| job.utilization().map(|part| round_to(part, 6)).into())
            .figure("utilization", |job| job.utilization().map_or_else(|| "".into(), Cell::Used))
            .legend("utilization", "live / reserved: 100% is perfect"),
        Figure::result(Spilled::PEAK, |job| job.spilled.peak.into())
            .figure("spilled\nGiB", |job| job.spilled.cell())
            .rare()
            .legend("spilled", "the most live memory that lay in host memory (spill:host=SIZE), where any did"),
        Figure::result(Spilled::MOVED, |job| job.spilled.moved_bytes.into()),
        Figure::result(Spilled::PIECES, |job| job.spilled.pieces.into()),
        Figure::time(Spilled::TIME, |job| job.spilled.us()),
        Figure::result("recorded_reserved", |job| job.recorded_reserved.into()),
        Figure::result("reserved_before", |job| job.reserved_before.into()),
        Figure::result("persistent", |job| job.persistent.into()),
        Figure::result("grows", |job| job.grows.into()),
        Figure::result("sought", |job| job.sought.into()),
        Figure::result("largest_step", |job| job.largest_step.into())
            .figure("largest\nstep", |job| match job.largest_step {
                Some(factor) if factor >= MOST_GROWTH => format!("x{MOST_GROWTH:.0}+").into(),
                Some(factor) => times(factor).into(),
                None if job.device_from == DeviceFrom::Unknown => "--device?".into(),
                None if job.grows && !job.sought => "not sought".into(),
                None if job.grows => "none".into(),
                None => "nothing grows".into(),
            })
            .legend(
                "largest step",
                "how many times as large all that is not persistent (activations, temporary buffers)\n\
                 can be on the device, beside weights and optimizer state that stay;\n\
                 x8+: 8 or more; --device?: name the device",
            ),
        Figure::result("native_reserved", |job| job.native.reserved.into()),
        Figure::result("native_step", |job| job.native.largest_step.into()),
        Figure::result("expandable_reserved", |job| job.expandable.reserved.into()),
        Figure::result("expandable_step", |job| job.expandable.largest_step.into()),
        Figure::result("tries", |job| job.tries.into())
            .figure("tries", |job| job.tries.into())
            .spare(1)
            .legend("tries", "replays that the search took"),
        Figure::result("verdict", |job| job.verdict.as_ref().map(Judgement::to_json).into()),
    ];

    /// Returns the line that `--json` prints: the values of all columns by their keys.
    #[must_use]
    pub fn to_json(&self) -> Value {
        line(Self::COLUMNS, self).into()
    }
}

/// Returns a factor as text for readers.
#[must_use]
pub fn times(factor: f64) -> String {
    if factor < MOST_GROWTH { format!("x{factor:.2}") } else { format!("x{MOST_GROWTH:.0} or more") }
}

/// Replays a job with each of these strategies, and repeatedly with larger steps. PyTorch's two allocators are always
/// replayed on the same device, since a strategy's gain is measured against them. `device_from` is the source of the
/// capacity of the options' device. [`device_of`] returns the recorded device.
///
/// Persistent memory ([`persistent`](crate::persistent())), such as weights and optimizer state, keeps its size. All
/// other memory is assumed to grow with the batch. Activations and temporary buffers do grow. Gradients and the
/// optimizer's temporary buffers do not grow, so the factor is a low estimate, in the same way for every strategy. If
/// no memory is found to be persistent, all memory grows. Memory outside of the allocator (the CUDA context, libraries)
/// is not counted, so the device's capacity should not include it.
///
/// A request that was refused while the job was recorded is a part of the step. The factor is below 1 if the job ran
/// out of memory on a device of this size.
///
/// If the device is unknown, no larger step is sought, and the job is replayed on a device that is large enough.
///
/// The search assumes that a smaller step runs if a larger one does. If this assumption is wrong, several factors run
/// although the next larger one does not, and the search finds one of them, to a hundredth. The search stops at
/// [`MOST_GROWTH`]. `progress` gets the strategy, the number of tries done, and their approximate total.
///
/// # Errors
/// The errors of [`replay`](crate::replay::replay).
pub fn whatif(
    trace: &Trace,
    strategies: &[StrategyKind],
    options: &ReplayOptions,
    device_from: DeviceFrom,
    progress: &mut dyn FnMut(StrategyKind, u32, u32),
) -> Result<Vec<WhatIf>, ReplayError> {
    Replays::new(trace, options, device_from).whatif(strategies, true, progress)
}

/// Replays a job once with each of these strategies and with PyTorch's two allocators. The rules are those of
/// [`whatif`], but no larger step is sought, which would take two to ten replays for each strategy.
///
/// # Errors
/// The errors of [`replay`](crate::replay::replay).
pub fn held(
    trace: &Trace,
    strategies: &[StrategyKind],
    options: &ReplayOptions,
    device_from: DeviceFrom,
    progress: &mut dyn FnMut(StrategyKind, u32, u32),
) -> Result<Vec<WhatIf>, ReplayError> {
    Replays::new(trace, options, device_from).whatif(strategies, false, progress)
}

impl Replays<'_> {
    /// Returns the figures of the job with each of these strategies: as [`whatif`] does if the largest step is
    /// `sought`, otherwise as [`held`] does.
    ///
    /// # Errors
    /// The errors of [`replay`](crate::replay::replay).
    pub fn whatif(
        &mut self,
        strategies: &[StrategyKind],
        sought: bool,
        progress: &mut dyn FnMut(StrategyKind, u32, u32),
    ) -> Result<Vec<WhatIf>, ReplayError> {
        let sought = sought && self.device_from() != DeviceFrom::Unknown;
        let mut all = vec![StrategyKind::Caching, StrategyKind::Expandable];
        all.extend(strategies.iter().filter(|kind| !all.contains(kind)).collect::<Vec<_>>());
        let job = self.job().clone();
        let growing = Growing::of(&job);
        let mut grown = Vec::new();
        for kind in all {
            let replayed = self.of(kind)?;
            let mut show = |done, total| progress(kind, done, total);
            show(1, if sought { EXPECTED_TRIES } else { 1 });
            let growth = match sought {
                true => growing.sought(replayed.need.reserved, &self.options(kind), &mut show)?,
                false => Growth::default(),
            };
            grown.push((kind, replayed, growth));
        }
        let of = |strategy: StrategyKind| grown.iter().find(|(kind, ..)| *kind == strategy);
        let baseline = |strategy: StrategyKind| {
            let known = of(strategy).map(|(_, replayed, growth)| (replayed.need.reserved, growth.largest_step));
            let (reserved, largest_step) = known.unwrap_or_default();
            Baseline { reserved, largest_step }
        };
        let one = |(strategy, replayed, growth): &(StrategyKind, Replayed, Growth)| WhatIf {
            trace: job.name.clone(),
            strategy: *strategy,
            device: self.device().to_owned(),
            capacity: self.capacity(),
            device_from: self.device_from(),
            peak_live: job.summary().peak_live,
            refused: RefusedRequest::of(&job).map_or(0, |refused| refused.size),
            peak_reserved: replayed.need.reserved,
            spilled: replayed.spilled,
            recorded_reserved: recorded_reserved(&job),
            reserved_before: job.meta.get("reserved_before").and_then(Value::as_u64).unwrap_or(0),
            persistent: growing.persistent(),
            grows: growing.grows(),
            sought,
            largest_step: growth.largest_step,
            native: baseline(StrategyKind::Caching),
            expandable: baseline(StrategyKind::Expandable),
            tries: growth.tries,
            verdict: None,
        };
        Ok(strategies.iter().filter_map(|strategy| of(*strategy)).map(one).collect())
    }
}

/// Returns PyTorch's peak from the trace: from a snapshot's own history, or from the note of the recording program.
fn recorded_reserved(trace: &Trace) -> Option<u64> {
    ["peak_reserved", "peak_res_native"].into_iter().find_map(|key| trace.meta.get(key)?.as_u64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceEvent;
    use seamalloc::driver::StreamId;
    use seamalloc::driver::sim::SimConfig;

    pub(super) const MIB: u64 = 1 << 20;

    /// Returns a job of blocks with these sizes, one after the other. The flag says whether the block is freed in the
    /// end.
    pub(super) fn job(blocks: &[(u64, bool)]) -> Trace {
        let allocated = blocks.iter().map(|(size, _)| TraceEvent::Alloc { size: *size, stream: 0 });
        let freed = blocks.iter().zip(0..).filter(|((_, freed), _)| *freed);
        let freed =
            freed.flat_map(|(_, block)| [TraceEvent::FreeRequested { block }, TraceEvent::FreeCompleted { block }]);
        let events = allocated.chain(freed).collect();
        Trace { name: "job".into(), streams: vec![StreamId::DEFAULT], events, ..Trace::default() }
    }

    pub(super) fn options(strategy: StrategyKind, capacity: u64) -> ReplayOptions {
        let device = SimConfig { capacity, ..SimConfig::default() };
        ReplayOptions::new(seamalloc::Config::with_strategy(strategy), device)
    }

    /// Returns a job of weights of 100 MiB that stay, and a step of `step` MiB.
    pub(super) fn training(step: u64) -> Trace {
        job(&[(100 * MIB, false), (step * MIB, true)])
    }

    #[test]
    fn pytorchs_allocators_stand_beside_every_strategy_on_the_same_device() {
        let options = options(StrategyKind::Stitch, 300 * MIB);
        let mut tried = Vec::new();
        let mut note = |kind, _, _| tried.push(kind);
        let alone = whatif(&training(60), &[StrategyKind::Stitch], &options, DeviceFrom::Asked, &mut note).unwrap();
        tried.dedup();
        assert_eq!(tried, [StrategyKind::Caching, StrategyKind::Expandable, StrategyKind::Stitch]);
        let all = whatif(&training(60), &StrategyKind::MAIN, &options, DeviceFrom::Asked, &mut |_, _, _| {}).unwrap();
        assert_eq!(alone[..], all[3..]);
        for one in &all {
            let beside = |other: &WhatIf| Baseline { reserved: other.peak_reserved, largest_step: other.largest_step };
            assert_eq!((one.native, one.expandable), (beside(&all[0]), beside(&all[1])), "{one:?}");
            assert_eq!((one.peak_live, one.recorded_reserved, one.grows), (160 * MIB, None, true));
            assert_eq!((one.capacity, one.sought, one.persistent), (Some(300 * MIB), true, 100 * MIB));
            assert_eq!(one.device, "sim:h200,capacity=300MiB");
        }
    }

    #[test]
    fn what_is_held_takes_one_replay_and_is_the_same() {
        let options = options(StrategyKind::Stitch, 300 * MIB);
        let kinds = StrategyKind::MAIN;
        let sought = whatif(&training(60), &kinds, &options, DeviceFrom::Asked, &mut |_, _, _| {}).unwrap();
        let held = held(&training(60), &kinds, &options, DeviceFrom::Asked, &mut |_, _, _| {}).unwrap();
        for (one, other) in held.iter().zip(&sought) {
            assert_eq!((one.tries, one.sought, one.largest_step), (1, false, None));
            assert_eq!((one.peak_reserved, one.native.reserved), (other.peak_reserved, other.native.reserved));
        }
        assert_eq!(held.len(), sought.len());
    }

    #[test]
    fn a_job_of_which_the_device_is_unknown_is_told_what_it_needs() {
        let options = options(StrategyKind::Stitch, 80 * MIB);
        let found =
            whatif(&training(60), &StrategyKind::MAIN, &options, DeviceFrom::Unknown, &mut |_, _, _| {}).unwrap();
        for one in found {
            assert_eq!((one.largest_step, one.sought, one.tries), (None, false, 1), "{one:?}");
            assert!(one.peak_reserved.is_some_and(|held| held >= 160 * MIB), "{one:?}");
        }
    }

    #[test]
    fn what_pytorch_held_is_taken_from_the_trace() {
        let mut trace = training(60);
        trace.meta.insert("peak_res_native".into(), 7.into());
        assert_eq!(recorded_reserved(&trace), Some(7));
        trace.meta.insert("peak_reserved".into(), 9.into());
        assert_eq!(recorded_reserved(&trace), Some(9));
    }

    #[test]
    fn factors_are_exact_where_that_says_something() {
        assert_eq!([0.5, 1.0, 7.994, 8.0].map(times), ["x0.50", "x1.00", "x7.99", "x8 or more"]);
    }
}
