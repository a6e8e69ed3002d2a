//! `memquilt replay`: traces through every strategy, side by side. What `stress` prints comes from here too.

use crate::args::{Color, ReplayArgs, RunArgs};
use crate::failure::Failure;
use crate::output::{self, Output, gib, ms};
use crate::progress::Progress;
use crate::source;
use comfy_table::{Cell, Table};
use memquilt::StrategyKind;
use memquilt::trace::Trace;
use memquilt::trace::replay::{PassReport, replay};

pub(crate) fn run(args: &ReplayArgs, color: Color) -> Result<(), Failure> {
    let mut comparison = Comparison::new(&args.run, color);
    for path in &args.traces {
        for trace in source::load(path)? {
            comparison.run(&trace)?;
        }
    }
    let names: Vec<_> = args.traces.iter().map(|path| path.display().to_string()).collect();
    comparison.finish(&format!("memquilt replay {}", names.join(" ")))
}

/// Every trace through every strategy.
pub(crate) struct Comparison<'a> {
    args: &'a RunArgs,
    output: Output,
    table: Table,
    totals: Vec<Total>,
    runs: usize,
    out_of_memory: usize,
}

/// One strategy over all traces, in the first pass of each.
struct Total {
    strategy: StrategyKind,
    live: u64,
    reserved: u64,
    worst: Option<(f64, String)>,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(args: &'a RunArgs, color: Color) -> Self {
        let strategies = args.runs().into_iter().map(|run| run.config.strategy);
        let totals = strategies.map(|strategy| Total { strategy, live: 0, reserved: 0, worst: None }).collect();
        let output = Output::new(color);
        Self { args, output, table: columns(args), totals, runs: 0, out_of_memory: 0 }
    }

    pub(crate) fn heading(&mut self, text: &str) -> Result<(), Failure> {
        if self.args.json { Ok(()) } else { self.output.text(text) }
    }

    /// Replays one trace through every strategy; its rows are printed with the table, its JSON at once.
    pub(crate) fn run(&mut self, trace: &Trace) -> Result<(), Failure> {
        for (index, options) in self.args.runs().into_iter().enumerate() {
            let progress = Progress::new(format!("{} / {}", trace.name, options.config.strategy));
            let reports = replay(trace, &options, &mut |done, total| progress.set(done, total))?;
            drop(progress);
            self.runs += 1;
            for report in &reports {
                self.out_of_memory += usize::from(report.oom.is_some());
                if self.args.json {
                    output::print(&report.to_json().to_string())?;
                } else {
                    self.table.add_row(row(report, index == 0 && report.pass == 1, self.args));
                }
            }
            if let (Some(first), Some(total)) = (reports.first(), self.totals.get_mut(index)) {
                total.add(first);
            }
        }
        Ok(())
    }

    /// Prints the rows that have come together, and begins a new table.
    pub(crate) fn print_table(&mut self) -> Result<(), Failure> {
        if !self.args.json && self.table.row_count() > 0 {
            let table = std::mem::replace(&mut self.table, columns(self.args));
            self.output.table(&table)?;
        }
        Ok(())
    }

    /// Prints what is left and the sum of it; out of memory anywhere is a failure.
    pub(crate) fn finish(mut self, command: &str) -> Result<(), Failure> {
        self.print_table()?;
        if !self.args.json {
            for total in &self.totals {
                self.output.text(&total.to_string())?;
            }
            self.output
                .text("Reserved above live is memory that the job holds and cannot use. See --help for more.")?;
        }
        self.output.finish(command, self.args)?;
        if self.out_of_memory > 0 {
            return Err(Failure::OutOfMemory(self.out_of_memory, self.runs));
        }
        Ok(())
    }
}

fn columns(args: &RunArgs) -> Table {
    let mut columns = vec!["trace", "strategy"];
    if args.passes > 1 {
        columns.push(">pass");
    }
    columns.extend([
        ">live GiB",
        ">reserved GiB",
        ">utilization",
        ">driver calls",
        ">driver ms",
        ">stalls",
        ">worst ms",
        ">ns/op",
    ]);
    output::table(&columns)
}

fn row(report: &PassReport, first: bool, args: &RunArgs) -> Vec<Cell> {
    let mut row = vec![
        Cell::new(if first { report.trace.as_str() } else { "" }),
        Cell::new(if report.pass == 1 { report.strategy } else { "" }),
    ];
    if args.passes > 1 {
        row.push(Cell::new(report.pass));
    }
    let utilization = match &report.oom {
        None => output::utilization(report.utilization()),
        Some((event, _)) => output::failed(&format!("OOM at event {event}")),
    };
    row.extend([
        Cell::new(gib(report.peak_live)),
        Cell::new(gib(report.peak_reserved)),
        utilization,
        Cell::new(output::count(&report.driver)),
        Cell::new(ms(report.driver.total_ns())),
        Cell::new(report.stalls),
        Cell::new(ms(report.worst_stall_ns)),
        Cell::new(format!("{:.0}", report.ns_per_op)),
    ]);
    row
}

impl Total {
    fn add(&mut self, report: &PassReport) {
        if report.oom.is_some() {
            return;
        }
        self.live += report.peak_live;
        self.reserved += report.peak_reserved;
        let utilization = report.utilization();
        if self.worst.as_ref().is_none_or(|(worst, _)| utilization < *worst) {
            self.worst = Some((utilization, report.trace.clone()));
        }
    }
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some((worst, trace)) = &self.worst else {
            return write!(f, "{:<10} ran nothing to the end", self.strategy.name());
        };
        let part = self.live as f64 / self.reserved.max(1) as f64;
        write!(
            f,
            "{:<10} uses {:5.1}% of what it reserves ({:5.1}% at worst, {trace})",
            self.strategy.name(),
            part * 100.0,
            worst * 100.0,
        )
    }
}
