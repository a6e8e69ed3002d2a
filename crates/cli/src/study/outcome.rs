//! The result of one setting of an option on a trace, in three passes, and the columns of every study.

use super::chart::DrawError;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::table::Table;
use seamalloc_trace::Trace;
use seamalloc_trace::columns::{Cell, Column, Kind, gib, ms, round_to, us};
use seamalloc_trace::replay::{PassReport, ReplayOptions, replay};
use serde_json::{Map, Value};
use std::path::Path;

/// The number of passes. From the third pass on, a training loop should need no further memory on any trace.
pub(super) const PASSES: u32 = 3;
/// The key that says that memory ran out.
const OOM: &str = "oom";

/// The result of one setting on one trace.
pub(super) struct Outcome<S> {
    pub(super) trace: String,
    pub(super) setting: S,
    /// The number of operations that the CPU ran ahead of the GPU.
    pub(super) lag: u64,
    /// Three passes, or fewer if the last one ran out of memory.
    pub(super) passes: Vec<PassReport>,
}

impl<S> Outcome<S> {
    pub(super) const TRACE: Column<Self> =
        Column::run("trace", |o: &Self| o.trace.as_str().into()).text("trace", |o| o.trace.as_str().into());
    pub(super) const DEVICE: Column<Self> =
        Column::run("device", |o: &Self| o.passes.first().map(|pass| pass.device.as_str()).into());
    pub(super) const LAG: Column<Self> = Column::run("lag", |o: &Self| o.lag.into());
    pub(super) const PASSES: Column<Self> = Column::run("passes", |_: &Self| PASSES.into());
    pub(super) const OOM: Column<Self> = Column::result(OOM, |o: &Self| o.first_and_third().is_none().into());
    pub(super) const LIVE: Column<Self> = Column::result("peak_live", |o: &Self| o.first(|pass| pass.peak_live.into()));
    pub(super) const LIVE_SHOWN: Column<Self> = Self::LIVE
        .figure("live\nGiB", |o| o.cell(|first, _| gib(first.peak_live).into()))
        .spare(2)
        .legend("live", "the most bytes requested and not freed");
    pub(super) const RESERVED_FIRST: Column<Self> =
        Column::result("peak_reserved_first", |o: &Self| o.first(|pass| pass.peak_reserved.into()));
    pub(super) const RESERVED_THIRD: Column<Self> =
        Column::result("peak_reserved_third", |o: &Self| o.third(|pass| pass.peak_reserved.into()));
    pub(super) const UTILIZATION_FIRST: Column<Self> =
        Column::result("utilization_first", |o: &Self| o.first(|pass| round_to(pass.utilization(), 6).into()))
            .figure("utilization\n1st pass", |o| o.cell(|first, _| Cell::Used(first.utilization())))
            .legend("utilization", "live / reserved, in the first and the third pass over the trace");
    pub(super) const UTILIZATION_THIRD: Column<Self> =
        Column::result("utilization_third", |o: &Self| o.third(|pass| round_to(pass.utilization(), 6).into()))
            .figure("utilization\n3rd pass", |o| o.cell(|_, third| Cell::Used(third.utilization())));
    pub(super) const DRIVER_TIME_FIRST: Column<Self> =
        Column::time("driver_time_us_first", |o: &Self| o.first(|pass| us(pass.driver.total_ns()).into()))
            .figure("driver ms\n1st pass", |o| o.cell(|first, _| ms(first.driver.total_ns()).into()))
            .spare(1)
            .legend("driver ms", "time in the driver, in the first and the third pass");
    pub(super) const DRIVER_TIME_THIRD: Column<Self> =
        Column::time("driver_time_us_third", |o: &Self| o.third(|pass| us(pass.driver.total_ns()).into()))
            .figure("driver ms\n3rd pass", |o| o.cell(|_, third| ms(third.driver.total_ns()).into()))
            .spare(3);
    pub(super) const DRIVER_TIME_ALL: Column<Self> = Column::time("driver_time_us_all", |o: &Self| {
        us(o.passes.iter().map(|pass| pass.driver.total_ns()).sum()).into()
    });
    pub(super) const WORST_STALL: Column<Self> =
        Column::time("worst_stall_us", |o: &Self| us(o.worst_stall_ns()).into())
            .figure("worst\nms", |o| o.cell(|_, _| ms(o.worst_stall_ns()).into()))
            .legend("worst ms", "the longest stall of all three passes");

    /// Returns the first and the third pass, unless memory ran out.
    pub(super) fn first_and_third(&self) -> Option<(&PassReport, &PassReport)> {
        match self.passes.as_slice() {
            [first, _, third] if third.oom.is_none() => Some((first, third)),
            _ => None,
        }
    }

    /// Returns a value of the first pass; null if memory ran out.
    pub(super) fn first(&self, read: impl Fn(&PassReport) -> Value) -> Value {
        self.first_and_third().map_or(Value::Null, |(first, _)| read(first))
    }

    /// Returns a value of the third pass; null if memory ran out.
    pub(super) fn third(&self, read: impl Fn(&PassReport) -> Value) -> Value {
        self.first_and_third().map_or(Value::Null, |(_, third)| read(third))
    }

    /// Returns a cell with values of the first and the third pass; an empty cell if memory ran out.
    pub(super) fn cell(&self, read: impl Fn(&PassReport, &PassReport) -> Cell) -> Cell {
        self.first_and_third().map_or_else(|| "".into(), |(first, third)| read(first, third))
    }

    /// Returns the longest time that one operation of any pass spent in the driver, in nanoseconds.
    pub(super) fn worst_stall_ns(&self) -> u64 {
        self.passes.iter().map(|pass| pass.stalls.worst_ns).max().unwrap_or_default()
    }

    /// Returns the line that `--json` prints. If memory ran out, the line has only this result and the keys that
    /// identify the run.
    pub(super) fn line(&self, columns: &[Column<Self>]) -> String {
        let ran = self.first_and_third().is_some();
        let kept = columns.iter().filter(|column| ran || column.kind == Kind::Run || column.key == OOM);
        let line = kept.map(|column| (column.key.to_owned(), (column.value)(self)));
        Value::from(line.collect::<Map<_, _>>()).to_string()
    }
}

/// Replays every trace with every setting, one after the other, and prints the results: as lines of JSON without an
/// `output`, as a table otherwise. `repeated` returns the number of cells that a row repeats from the row above.
/// `repeated` is told whether the row is the first of its trace.
pub(super) fn outcomes<S: Copy>(
    traces: &[Trace],
    settings: &[S],
    options: impl Fn(S) -> (String, ReplayOptions),
    columns: &'static [Column<Outcome<S>>],
    repeated: impl Fn(&Outcome<S>, bool) -> usize,
    output: Option<&mut Output>,
) -> Result<Vec<Outcome<S>>, Failure> {
    let mut table = Table::new(columns);
    let mut all = Vec::new();
    for trace in traces {
        for (index, &setting) in settings.iter().enumerate() {
            let (name, options) = options(setting);
            let progress = Progress::new(format!("{} / {name}", trace.name));
            let passes = replay(trace, &options, &mut |done, total| progress.set(done, total))?;
            drop(progress);
            let outcome = Outcome { trace: trace.name.clone(), setting, lag: options.lag, passes };
            let repeated = repeated(&outcome, index == 0);
            match outcome.first_and_third() {
                _ if output.is_none() => output::print(&outcome.line(columns))?,
                Some(_) => table.add(&outcome, repeated),
                None => table.add_failed(&outcome, repeated, "OOM"),
            }
            all.push(outcome);
        }
    }
    if let Some(output) = output {
        output.table(&table)?;
    }
    Ok(all)
}

/// Saves a plot, and returns the result of the runs. Returns a failure if memory ran out.
pub(super) fn finish<S>(all: &[Outcome<S>], svg: Option<(&Path, Result<String, DrawError>)>) -> Result<(), Failure> {
    if let Some((path, drawn)) = svg {
        let picture = drawn.map_err(|error| Failure::Draw { path: path.to_owned(), error: error.to_string() })?;
        std::fs::write(path, picture).map_err(|error| Failure::Write { path: path.to_owned(), error })?;
    }
    match all.iter().filter(|outcome| outcome.first_and_third().is_none()).count() {
        0 => Ok(()),
        failed => Err(Failure::OutOfMemory(failed, all.len())),
    }
}
