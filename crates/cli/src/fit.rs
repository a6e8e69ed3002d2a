//! `seamalloc fit`: the smallest memory on which each strategy runs a trace.

use crate::args::{Color, FitArgs};
use crate::cliff;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::source;
use crate::table::Table;
use seamalloc::units::format_bytes_exactly;
use seamalloc_trace::Trace;
use seamalloc_trace::columns::{Cell, gib};
use seamalloc_trace::fit::{FitReport, LARGEST, fit};
use seamalloc_trace::replay::ReplayOptions;
use serde_json::{Map, Value};

pub(crate) fn run(args: &FitArgs, color: Color) -> Result<(), Failure> {
    if let Some(sizes) = &args.times_live {
        return cliff::run(&args.traces, sizes, color);
    }
    let args = &args.traces;
    args.run.must_be_of_any_size("fit looks for the capacity")?;
    let (traces, mut inputs) = source::load_all(&args.traces, args.generate)?;
    let mut output = Output::new(color, args.run.svg.as_deref())?;
    let mut table = Table::new(FitReport::COLUMNS);
    let (mut runs, mut failed) = (0, 0);
    inputs.each(&traces, |trace| {
        for (index, options) in args.run.runs().iter().enumerate() {
            let progress = Progress::new(format!("{} / {}", trace.name, options.config.strategy));
            let report = fit(trace, options, &mut |done, total| progress.set(done.into(), total.into()))?;
            drop(progress);
            runs += 1;
            failed += usize::from(report.is_none());
            match (report, args.run.json) {
                (Some(report), true) => output::print(&report.to_json().to_string())?,
                (Some(report), false) => table.add(&report, usize::from(index > 0)),
                (None, true) => output::print(&line_without_fit(trace, options))?,
                (None, false) => table.add_cells(does_not_fit(trace, options), usize::from(index > 0)),
            }
        }
        Ok(())
    })?;
    if !args.run.json {
        output.table(&table)?;
    }
    output.finish()?;
    inputs.finish(if failed > 0 { Err(Failure::OutOfMemory(failed, runs)) } else { Ok(()) })
}

/// Returns the cells of a trace that runs on no device.
fn does_not_fit(trace: &Trace, options: &ReplayOptions) -> [Cell; 4] {
    let live = trace.summary().peak_live;
    let why = format!("more than {}", format_bytes_exactly(LARGEST));
    [trace.name.as_str().into(), options.config.strategy.name().into(), gib(live).into(), Cell::Failed(why)]
}

/// Returns the line of a trace that runs on no device. The line has the same keys as other lines, without results.
fn line_without_fit(trace: &Trace, options: &ReplayOptions) -> String {
    let known = |key| match key {
        "trace" => trace.name.as_str().into(),
        "strategy" => options.config.strategy.name().into(),
        "device" => options.device.to_string().into(),
        "peak_live" => trace.summary().peak_live.into(),
        _ => Value::Null,
    };
    let line = FitReport::COLUMNS.iter().map(|column| (column.key.to_owned(), known(column.key)));
    Value::from(line.collect::<Map<_, _>>()).to_string()
}
