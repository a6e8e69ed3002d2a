//! The report of a replay of a timeline.
//!
//! Owns: the plain values and their columns.

use serde_json::Value;

use crate::columns::{Cell, Column, gib, line, ms, round_to};
use seamalloc::OutOfMemoryReport;
use seamalloc::driver::CallStats;

type Figure = Column<TimelineReport>;

/// The time of a step along its critical path, by the kind of item that the path goes through. The first four values
/// sum to the step's length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CriticalPath {
    /// The time in work of streams.
    pub work_ns: u64,
    /// The time of the program on the CPU, including launches.
    pub program_ns: u64,
    /// The time in driver calls of the allocator.
    pub driver_ns: u64,
    /// The time from launches to the begin of work, and between two pieces of work of a stream.
    pub launch_ns: u64,
    /// The time in which nothing but waits of the allocator delayed work on the critical path.
    pub held_ns: u64,
}

/// A step of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepReport {
    /// The step's length in nanoseconds.
    pub ns: u64,
    /// The step's critical path.
    pub path: CriticalPath,
}

/// The result of one pass over a timeline. Sizes are bytes. Counts are those of the pass.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineReport {
    /// The timeline's name.
    pub timeline: String,
    /// The allocator's name, as the caller gave it.
    pub policy: String,
    /// The device's name.
    pub device: String,
    /// The number of the pass, from 1.
    pub pass: u32,
    /// The steps, in order.
    pub steps: Vec<StepReport>,
    /// The lengths of the steps in the recording; empty if they are not known.
    pub recorded_ns: Vec<u64>,
    /// The mean time of a step in a replay without an allocator, in nanoseconds.
    pub bare_ns: u64,
    /// The most bytes of device memory that were held; 0 without an allocator.
    pub peak_reserved: u64,
    /// The most bytes that were requested and not freed.
    pub peak_live: u64,
    /// The driver calls of the allocator, and the time in them.
    pub driver: CallStats,
    /// The number of GPU-side waits of the allocator.
    pub stream_waits: u64,
    /// The number of waits among `stream_waits` that delayed work.
    pub effective_waits: u64,
    /// The number of waits of the CPU for the GPU in calls of the allocator.
    pub cpu_waits: u64,
    /// The line at which memory ran out, and the report. The pass ended at this line.
    pub oom: Option<(usize, OutOfMemoryReport)>,
}

impl TimelineReport {
    /// Returns the mean length of a step in nanoseconds.
    #[must_use]
    pub fn step_ns(&self) -> u64 {
        mean(self.steps.iter().map(|step| step.ns))
    }

    /// Returns the mean length of a recorded step in nanoseconds; `None` if it is not known.
    #[must_use]
    pub fn recorded_step_ns(&self) -> Option<u64> {
        (!self.recorded_ns.is_empty()).then(|| mean(self.recorded_ns.iter().copied()))
    }

    /// Returns one component of the critical paths of all steps, as a share of the steps' length.
    fn share(&self, part: impl Fn(&CriticalPath) -> u64) -> f64 {
        let whole = self.steps.iter().map(|step| step.ns).fold(0, u64::saturating_add);
        let of = self.steps.iter().map(|step| part(&step.path)).fold(0, u64::saturating_add);
        of as f64 / whole.max(1) as f64
    }

    /// Returns the length of the steps divided by their length in a replay without an allocator. 1 means that the steps
    /// are equally long.
    #[must_use]
    pub fn beside_bare(&self) -> f64 {
        self.step_ns() as f64 / self.bare_ns.max(1) as f64
    }

    /// The figures of the report.
    pub const COLUMNS: &'static [Figure] = &[
        Figure::run("timeline", |run| run.timeline.as_str().into())
            .text("timeline", |run| run.timeline.as_str().into()),
        Figure::run("policy", |run| run.policy.as_str().into()).text("policy", |run| run.policy.as_str().into()),
        Figure::run("device", |run| run.device.as_str().into()),
        Figure::run("pass", |run| run.pass.into()).figure("pass", |run| run.pass.into()),
        Figure::time("steps_ns", |run| run.steps.iter().map(|step| step.ns).collect::<Vec<_>>().into()),
        Figure::time("step_ns", |run| run.step_ns().into())
            .figure("step\nms", step_cell)
            .legend("step", "the mean length of the job's steps, by the simulated clock"),
        Figure::time("recorded_step_ns", |run| run.recorded_step_ns().into()),
        Figure::time("bare_step_ns", |run| run.bare_ns.into()),
        Figure::time("beside_bare", |run| round_to(run.beside_bare(), 6).into())
            .figure("beside\nnone", |run| format!("{:.3}", run.beside_bare()).into())
            .legend("beside none", "that by its length where allocating takes no time and waits for nothing"),
        Figure::time("work_share", |run| round_to(run.share(|path| path.work_ns), 6).into())
            .figure("path:\nwork", |run| percent(run.share(|path| path.work_ns)))
            .spare(2),
        Figure::time("program_share", |run| round_to(run.share(|path| path.program_ns), 6).into())
            .figure("path:\nCPU", |run| percent(run.share(|path| path.program_ns)))
            .spare(3),
        Figure::time("launch_share", |run| round_to(run.share(|path| path.launch_ns), 6).into())
            .figure("path:\nlaunch", |run| percent(run.share(|path| path.launch_ns)))
            .spare(4),
        Figure::time("driver_share", |run| round_to(run.share(|path| path.driver_ns), 6).into())
            .figure("path:\ndriver", |run| percent(run.share(|path| path.driver_ns)))
            .legend(
                "path",
                "what decides a step's length, walking back from its end: the GPU's work, \
                 the program on the CPU, launches and gaps between kernels, driver calls",
            ),
        Figure::time("held_share", |run| round_to(run.share(|path| path.held_ns), 6).into())
            .figure("waits\nhold", |run| percent(run.share(|path| path.held_ns)))
            .legend("waits hold", "for how much of it the allocator's GPU-side waits alone held work back"),
        Figure::result("stream_waits", |run| run.stream_waits.into())
            .figure("GPU\nwaits", |run| run.stream_waits.into())
            .legend("GPU waits", "GPU-side waits of the allocator in a pass"),
        Figure::time("effective_waits", |run| run.effective_waits.into()),
        Figure::result("cpu_waits", |run| run.cpu_waits.into())
            .figure("CPU\nwaits", |run| run.cpu_waits.into())
            .spare(1)
            .legend("CPU waits", "how often the allocator let the CPU wait for the GPU"),
        Figure::time("driver_ns", |run| run.driver.total_ns().into())
            .figure("driver\nms", |run| ms(run.driver.total_ns()).into())
            .legend("driver", "time in the allocator's driver calls in a pass, waiting left out"),
        Figure::result("peak_live", |run| run.peak_live.into()),
        Figure::result("peak_reserved", |run| run.peak_reserved.into())
            .figure("held\nGiB", |run| gib(run.peak_reserved).into())
            .legend("held", "the most bytes held of the device"),
        Figure::result("oom_line", |run| run.oom.as_ref().map(|(line, _)| *line).into()),
    ];

    /// Returns the line that `--json` prints: the values of all columns by their keys.
    #[must_use]
    pub fn to_json(&self) -> Value {
        line(Self::COLUMNS, self).into()
    }
}

fn step_cell(run: &TimelineReport) -> Cell {
    match run.oom {
        Some(_) => Cell::Failed("no memory".to_owned()),
        None => format!("{:.2}", run.step_ns() as f64 / 1e6).into(),
    }
}

fn percent(part: f64) -> Cell {
    format!("{:.1}%", part * 100.0).into()
}

fn mean(lengths: impl ExactSizeIterator<Item = u64>) -> u64 {
    let count = lengths.len() as u64;
    lengths.fold(0, u64::saturating_add) / count.max(1)
}
