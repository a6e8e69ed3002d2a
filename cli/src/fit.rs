//! `memquilt fit`: the smallest memory on which each strategy still runs a trace.

use crate::args::{Color, FitArgs};
use crate::failure::Failure;
use crate::output::{self, Output, gib};
use crate::progress::Progress;
use crate::source;
use comfy_table::Cell;
use memquilt::trace::fit::fit;

pub(crate) fn run(args: &FitArgs, color: Color) -> Result<(), Failure> {
    let columns =
        ["trace", "strategy", ">live GiB", ">smallest GiB", ">above live", ">reserved GiB where plenty", ">tries"];
    let mut table = output::table(&columns);
    let (mut runs, mut failed) = (0, 0);
    for path in &args.traces {
        for trace in source::load(path)? {
            for (index, options) in args.run.runs().iter().enumerate() {
                let progress = Progress::new(format!("{} / {}", trace.name, options.config.strategy));
                let report = fit(&trace, options, &mut |done, total| progress.set(done.into(), total.into()))?;
                drop(progress);
                runs += 1;
                let Some(report) = report else {
                    failed += 1;
                    continue;
                };
                if args.run.json {
                    output::print(&report.to_json().to_string())?;
                    continue;
                }
                table.add_row([
                    Cell::new(if index == 0 { report.trace.as_str() } else { "" }),
                    Cell::new(report.strategy),
                    Cell::new(gib(report.peak_live)),
                    Cell::new(gib(report.capacity)),
                    Cell::new(format!("+{:.1}%", report.overhead() * 100.0)),
                    Cell::new(gib(report.peak_reserved)),
                    Cell::new(report.tries),
                ]);
            }
        }
    }
    let mut output = Output::new(color);
    if !args.run.json {
        output.table(&table)?;
    }
    let names: Vec<_> = args.traces.iter().map(|path| path.display().to_string()).collect();
    output.finish(&format!("memquilt fit {}", names.join(" ")), &args.run)?;
    if failed > 0 { Err(Failure::OutOfMemory(failed, runs)) } else { Ok(()) }
}
