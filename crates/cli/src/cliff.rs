//! `seamalloc fit --times-live`: the costs of traces on devices with hardly enough memory.

use crate::args::{Color, TraceArgs};
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::source;
use crate::table::Table;
use seamalloc_trace::cliff::{CliffReport, TIMES_LIVE, cliff};

/// Prints a row for each device with these sizes, or with the default sizes.
pub(crate) fn run(args: &TraceArgs, sizes: &[f64], color: Color) -> Result<(), Failure> {
    let run = &args.run;
    let sizes = if sizes.is_empty() { &TIMES_LIVE } else { sizes };
    run.must_be_of_any_size("--times-live chooses the memory")?;
    let (traces, mut inputs) = source::load_all(&args.traces, args.generate)?;
    let mut output = Output::new(color, run.svg.as_deref())?;
    let mut table = Table::new(CliffReport::COLUMNS);
    inputs.each(&traces, |trace| {
        let mut by_strategy = Vec::new();
        for options in run.runs() {
            let progress = Progress::new(format!("{} / {}", trace.name, options.config.strategy));
            let show = &mut |done: usize, total: usize| progress.set(done as u64, total as u64);
            by_strategy.push(cliff(trace, &options, sizes, show)?);
        }
        // The rows are ordered by device: all strategies on one device, then on the next.
        for size in 0..sizes.len() {
            for (index, report) in by_strategy.iter().filter_map(|reports| reports.get(size)).enumerate() {
                if run.json {
                    output::print(&report.to_json().to_string())?;
                } else {
                    table.add(report, if index > 0 { 2 } else { usize::from(size > 0) });
                }
            }
        }
        Ok(())
    })?;
    if !run.json {
        output.table(&table)?;
        output.text("")?;
        output.lines(&table.legend())?;
    }
    output.finish()?;
    inputs.finish(Ok(()))
}
