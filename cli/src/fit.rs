//! `seamalloc fit`: the smallest memory on which each strategy still runs a trace.

use crate::args::{Color, Device, TraceArgs};
use crate::failure::Failure;
use crate::output::{self, Column, Output, gib};
use crate::progress::Progress;
use crate::source;
use comfy_table::Cell;
use seamalloc::units::format_bytes_exactly;
use seamalloc_trace::Trace;
use seamalloc_trace::fit::{FitReport, LARGEST, fit};
use seamalloc_trace::replay::ReplayOptions;

const COLUMNS: [Column; 7] = [
    Column::text("trace"),
    Column::text("strategy"),
    Column::figure("live\nGiB"),
    Column::figure("smallest\nGiB"),
    Column::figure("above\nlive"),
    Column::figure("reserved GiB\nwhere plenty"),
    Column::figure("tries").spare(1),
];

pub(crate) fn run(args: &TraceArgs, color: Color) -> Result<(), Failure> {
    let Device::Sim(device) = &args.run.device else {
        return Err(Failure::Usage("fit looks for the capacity of a simulated device: --device sim:h200".to_owned()));
    };
    if device.capacity != device.profile.memory() {
        let text =
            format!("fit looks for the capacity itself; give --device sim:{} without one", device.profile.name());
        return Err(Failure::Usage(text));
    }
    let traces = source::load_all(&args.traces, args.generate)?;
    let mut output = Output::new(color, args.run.svg.as_deref())?;
    let mut table = output::table(&COLUMNS);
    let (mut runs, mut failed) = (0, 0);
    for trace in &traces {
        for (index, options) in args.run.runs().iter().enumerate() {
            let progress = Progress::new(format!("{} / {}", trace.name, options.config.strategy));
            let report = fit(trace, options, &mut |done, total| progress.set(done.into(), total.into()))?;
            drop(progress);
            runs += 1;
            failed += usize::from(report.is_none());
            match (report, args.run.json) {
                (Some(report), true) => output::print(&report.to_json().to_string())?,
                (Some(report), false) => _ = table.add_row(row(&report, index == 0)),
                (None, true) => output::print(&does_not_fit(trace, options))?,
                (None, false) => {
                    _ = table.add_row([
                        Cell::new(if index == 0 { trace.name.as_str() } else { "" }),
                        Cell::new(options.config.strategy),
                        Cell::new(gib(trace.summary().peak_live)),
                        output::failed(&format!("more than {}", format_bytes_exactly(LARGEST))),
                    ]);
                }
            }
        }
    }
    if !args.run.json {
        output.table(&table, &COLUMNS)?;
    }
    output.finish()?;
    if failed > 0 { Err(Failure::OutOfMemory(failed, runs)) } else { Ok(()) }
}

fn row(report: &FitReport, first: bool) -> [Cell; 7] {
    [
        Cell::new(if first { report.trace.as_str() } else { "" }),
        Cell::new(report.strategy),
        Cell::new(gib(report.peak_live)),
        Cell::new(gib(report.capacity)),
        Cell::new(format!("+{:.1}%", report.overhead() * 100.0)),
        Cell::new(gib(report.peak_reserved)),
        Cell::new(report.tries),
    ]
}

/// The line of a trace that runs on no device: the keys of those that do, and nothing found.
fn does_not_fit(trace: &Trace, options: &ReplayOptions) -> String {
    let line = serde_json::json!({
        "trace": trace.name,
        "strategy": options.config.strategy.name(),
        "device": options.device.to_string(),
        "capacity": null,
        "peak_live": trace.summary().peak_live,
        "peak_reserved": null,
        "overhead": null,
        "tries": null,
    });
    line.to_string()
}
