//! Traces through every strategy, side by side: what `replay` and `stress` print.

use crate::args::{Color, RunArgs};
use crate::failure::Failure;
use crate::output::{self, Output, bytes, grouped};
use crate::progress::Progress;
use crate::table::Table;
use crate::values::Device;
use seamalloc::{OutOfMemory, StrategyKind};
use seamalloc_trace::Trace;
use seamalloc_trace::replay::{PassReport, replay, replay_on_cuda, replay_on_host, replay_on_pinned};

/// Every trace through every strategy.
pub(crate) struct SideBySide<'a> {
    args: &'a RunArgs,
    output: Output,
    heading: Option<&'static str>,
    table: Table<PassReport>,
    shortages: Vec<String>,
    totals: Vec<Total>,
}

/// One strategy over all traces, in the first pass of each.
struct Total {
    strategy: StrategyKind,
    /// How many passes there are; of what follows only the first counts.
    passes: u32,
    live: u64,
    reserved: u64,
    worst: Option<(f64, String)>,
    runs: usize,
    out_of_memory: usize,
}

impl<'a> SideBySide<'a> {
    pub(crate) fn new(args: &'a RunArgs, color: Color) -> Result<Self, Failure> {
        if args.device().is_real() && args.lag > 0 {
            let text = "a real device keeps its own time: --lag is for simulated devices";
            return Err(Failure::Usage(text.to_owned()));
        }
        let strategies = args.runs().into_iter().map(|run| run.config.strategy);
        let totals = strategies.map(|kind| Total::new(kind, args.passes)).collect();
        let output = Output::new(color, args.svg.as_deref())?;
        Ok(Self { args, output, heading: None, table: Table::new(PassReport::COLUMNS), shortages: Vec::new(), totals })
    }

    /// Words above the table of what runs from here on.
    pub(crate) fn heading(&mut self, text: &'static str) {
        self.heading = Some(text);
    }

    /// Replays one trace through every strategy; its rows are printed with the table, its JSON at once.
    pub(crate) fn run(&mut self, trace: &Trace) -> Result<(), Failure> {
        for (index, options) in self.args.runs().into_iter().enumerate() {
            let progress = Progress::new(format!("{} / {}", trace.name, options.config.strategy));
            let show = &mut |done, total| progress.set(done, total);
            let reports = match self.args.device() {
                Device::Sim(_) => replay(trace, &options, show)?,
                Device::Host(host) => replay_on_host(trace, host, options.config, options.passes, show)?,
                Device::Pinned(ordinal, node) => {
                    replay_on_pinned(trace, ordinal, node, options.config, options.passes, show)?
                }
                Device::Cuda(ordinal) => replay_on_cuda(trace, ordinal, options.config, options.passes, show)?,
            };
            drop(progress);
            for report in &reports {
                if self.args.json {
                    output::print(&report.to_json().to_string())?;
                } else {
                    // The trace is named once, the strategy in its first pass.
                    self.table.add(report, if report.pass > 1 { 2 } else { usize::from(index > 0) });
                }
                if let Some((_, shortage)) = &report.oom {
                    self.shortages.push(in_words(trace, report, shortage));
                }
            }
            if let Some(total) = self.totals.get_mut(index) {
                total.add(&reports);
            }
        }
        Ok(())
    }

    /// Prints the rows that have come together, and begins a new table.
    pub(crate) fn print_table(&mut self) -> Result<(), Failure> {
        if self.args.json || self.table.is_empty() {
            return Ok(());
        }
        if let Some(heading) = self.heading.take() {
            self.output.text(heading)?;
        }
        let mut table = std::mem::replace(&mut self.table, Table::new(PassReport::COLUMNS));
        if self.args.passes == 1 {
            table.hide("pass");
        }
        self.output.table(&table)?;
        for shortage in std::mem::take(&mut self.shortages) {
            self.output.text("")?;
            self.output.text(&shortage)?;
        }
        self.output.text("")
    }

    /// What memory above live is, where there is any: streams that run behind the CPU may still read it.
    fn of_no_use(&self) -> Option<&'static str> {
        let is_behind = self.args.lag > 0 || self.args.device().is_real();
        self.totals.iter().any(|total| total.reserved > total.live).then_some(match is_behind {
            true => "Reserved above live is of no use to the job, or still read by another stream.",
            false => "Reserved above live is of no use to the job.",
        })
    }

    /// Prints what is left and the sum of it, all that there is if `ran` is a failure. Out of memory anywhere is one.
    pub(crate) fn finish(mut self, ran: Result<(), Failure>) -> Result<(), Failure> {
        self.print_table()?;
        ran?;
        if !self.args.json {
            let names = self.totals.iter().map(|total| total.strategy.name().len());
            let width = names.max().unwrap_or(0).max(10);
            for total in self.totals.iter().filter(|total| total.runs > 1) {
                self.output.text(&format!("{total:<width$}"))?;
            }
            if let Some(text) = self.of_no_use() {
                self.output.text(text)?;
            }
        }
        self.output.finish()?;
        let runs = self.totals.iter().map(|total| total.runs).sum();
        match self.totals.iter().map(|total| total.out_of_memory).sum() {
            0 => Ok(()),
            out_of_memory => Err(Failure::OutOfMemory(out_of_memory, runs)),
        }
    }
}

/// A shortage in a sentence: who asked for what, and what there was.
fn in_words(trace: &Trace, report: &PassReport, shortage: &OutOfMemory) -> String {
    let summary = trace.summary();
    let mut out = format!(
        "{}, {}: out of memory at operation {} of {}. Asked for {} on stream {}; free were {} of the device's {}, and {} of \
         the {} that {} held, at most {} of it in one piece for this request.",
        report.trace,
        report.strategy,
        grouped(report.ops),
        grouped(summary.allocations + summary.frees),
        bytes(shortage.requested),
        shortage.stream,
        bytes(shortage.device_free),
        bytes(shortage.device_total),
        bytes(shortage.unallocated()),
        bytes(shortage.reserved),
        report.strategy,
        bytes(shortage.largest_free),
    );
    if shortage.pending > 0 {
        out.push_str(&format!(" {} was freed but still in use by other streams.", bytes(shortage.pending)));
    }
    let whereabouts = shortage.whereabouts();
    if !whereabouts.is_empty() {
        out.push_str(&format!(" Free: {whereabouts}."));
    }
    out.push(' ');
    let live = summary.peak_live;
    let most = shortage.limit.unwrap_or(u64::MAX).min(shortage.device_total);
    if live > most {
        // No advice: what helps this request does not help the job.
        let whole = format!("The trace's live bytes alone reach {}, more than {}", bytes(live), bytes(most));
        out.push_str(&format!("{} {whole}: no strategy could run it there.", shortage.cause_in_words()));
    } else {
        out.push_str(&shortage.explanation());
    }
    out
}

impl Total {
    fn new(strategy: StrategyKind, passes: u32) -> Self {
        Self { strategy, passes, live: 0, reserved: 0, worst: None, runs: 0, out_of_memory: 0 }
    }

    fn add(&mut self, passes: &[PassReport]) {
        self.runs += 1;
        if passes.iter().any(|pass| pass.oom.is_some()) {
            self.out_of_memory += 1;
            return;
        }
        let Some(first) = passes.first() else { return };
        self.live += first.peak_live;
        self.reserved += first.peak_reserved;
        let utilization = first.utilization();
        if self.worst.as_ref().is_none_or(|(worst, _)| utilization < *worst) {
            self.worst = Some((utilization, first.trace.clone()));
        }
    }
}

impl std::fmt::Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:<width$}", self.strategy.name(), width = f.width().unwrap_or(0))?;
        if let Some((worst, trace)) = &self.worst {
            let part = self.live as f64 / self.reserved.max(1) as f64;
            let passes = if self.passes > 1 { " in first passes" } else { "" };
            let (part, worst) = (part * 100.0, worst * 100.0);
            write!(f, " uses {part:.1}% of what it reserves{passes}, {worst:.1}% at worst ({trace})")?;
        }
        match self.out_of_memory {
            0 => Ok(()),
            some if some == self.runs => write!(f, " ran nothing to the end"),
            some => write!(f, "; {some} of {} ran out of memory", self.runs),
        }
    }
}
