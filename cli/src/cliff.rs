//! `seamalloc cliff`: what traces cost on devices that are nearly too small.

use crate::args::{CliffArgs, Color};
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::source;
use crate::table::Table;
use seamalloc_trace::cliff::{CliffReport, cliff};

pub(crate) fn run(args: &CliffArgs, color: Color) -> Result<(), Failure> {
    let run = &args.traces.run;
    run.must_be_of_any_size("cliff chooses the memory")?;
    let (traces, mut inputs) = source::load_all(&args.traces.traces, args.traces.generate)?;
    let mut output = Output::new(color, run.svg.as_deref())?;
    let mut table = Table::new(CliffReport::COLUMNS);
    inputs.each(&traces, |trace| {
        let mut by_strategy = Vec::new();
        for options in run.runs() {
            let progress = Progress::new(format!("{} / {}", trace.name, options.config.strategy));
            let show = &mut |done: usize, total: usize| progress.set(done as u64, total as u64);
            by_strategy.push(cliff(trace, &options, &args.times_live, show)?);
        }
        // Side by side: all strategies on one device, and then the next device.
        for size in 0..args.times_live.len() {
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
    }
    output.finish()?;
    inputs.finish(Ok(()))
}
