//! The comparison of all strategies on traces, for `replay` and `stress`.

use crate::args::{Color, RunArgs};
use crate::comparison::Comparison;
use crate::explain::entries;
use crate::failure::Failure;
use crate::output::{self, Output, bytes, grouped};
use crate::progress::Progress;
use crate::table::Table;
use crate::values::Device;
use seamalloc::{OutOfMemory, StrategyKind};
use seamalloc_trace::Trace;
use seamalloc_trace::replay::{PassReport, replay, replay_on_cuda, replay_on_host, replay_on_pinned};

/// The comparison of every strategy on every trace.
pub(crate) struct SideBySide<'a> {
    args: &'a RunArgs,
    output: Output,
    set: Option<Set>,
    table: Table<PassReport>,
    shortages: Vec<String>,
    totals: Vec<Total>,
    comparison: Comparison,
    /// The legend of the columns, if it is printed below the tables.
    legend: Option<String>,
    /// Whether any strategy held more than the live bytes.
    is_above_live: bool,
    runs: usize,
    out_of_memory: usize,
}

/// A set of workloads with a table and totals of its own, and an explanation of its columns.
#[derive(Clone, Copy)]
struct Set {
    kind: &'static str,
    heading: &'static str,
}

/// The columns that the table of a set of workloads leaves out, so that five figures remain.
const NOT_IN_SETS: [&str; 2] = ["driver_calls", "stalls"];

/// The totals of one strategy over the traces of a table, in the first pass of each trace.
struct Total {
    strategy: StrategyKind,
    /// The number of passes. The fields below count only the first pass of each trace.
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
        let totals: Vec<_> = strategies.map(|kind| Total::new(kind, args.passes)).collect();
        let comparison = Comparison::new(totals.iter().map(|total| total.strategy).collect());
        let output = Output::new(color, args.svg.as_deref())?;
        let table = Table::new(PassReport::COLUMNS);
        Ok(Self {
            args,
            output,
            set: None,
            table,
            shortages: Vec::new(),
            totals,
            comparison,
            legend: None,
            is_above_live: false,
            runs: 0,
            out_of_memory: 0,
        })
    }

    /// Begins a set of workloads. `kind` is a plural, and `heading` is the heading of the table.
    pub(crate) fn begin(&mut self, kind: &'static str, heading: &'static str) {
        self.set = Some(Set { kind, heading });
    }

    /// Replays one trace with every strategy. JSON lines are printed immediately, rows later with the table.
    pub(crate) fn run(&mut self, trace: &Trace) -> Result<(), Failure> {
        self.comparison.begin(self.set.map_or("traces", |set| set.kind));
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
                    // Only a trace's first row has the trace's name, and only a strategy's first pass has the
                    // strategy's name.
                    self.table.add(report, if report.pass > 1 { 2 } else { usize::from(index > 0) });
                }
                if let Some((_, shortage)) = &report.oom {
                    self.shortages.push(in_words(trace, report, shortage));
                }
            }
            if let Some(total) = self.totals.get_mut(index) {
                total.add(&reports);
            }
            self.comparison.add(&reports);
        }
        Ok(())
    }

    /// Prints the collected rows, and begins a new table.
    pub(crate) fn print_table(&mut self) -> Result<(), Failure> {
        if self.args.json || self.table.is_empty() {
            return Ok(());
        }
        let mut table = std::mem::replace(&mut self.table, Table::new(PassReport::COLUMNS));
        if let Some(set) = self.set {
            self.output.text(set.heading)?;
            NOT_IN_SETS.iter().for_each(|key| table.hide(key));
            self.legend = Some(table.legend());
        }
        if self.args.passes == 1 {
            table.hide("pass");
        }
        self.output.table(&table)?;
        for shortage in std::mem::take(&mut self.shortages) {
            self.output.text("")?;
            self.output.text(&shortage)?;
        }
        self.output.text("")?;
        self.print_totals()
    }

    /// Prints the totals of the strategies over a table of several traces, and resets them.
    fn print_totals(&mut self) -> Result<(), Failure> {
        let names = self.totals.iter().map(|total| total.strategy.name().len());
        let width = names.max().unwrap_or(0).max(10);
        for total in &mut self.totals {
            if total.runs > 1 {
                self.output.text(&format!("{total:<width$}"))?;
            }
            self.is_above_live |= total.reserved > total.live;
        }
        if self.set.is_some() && self.totals.iter().any(|total| total.runs > 1) {
            self.output.text("")?;
        }
        self.count();
        Ok(())
    }

    /// Adds the totals of a table to the counts of all tables, and resets the totals.
    fn count(&mut self) {
        for total in &mut self.totals {
            self.runs += total.runs;
            self.out_of_memory += total.out_of_memory;
            *total = Total::new(total.strategy, total.passes);
        }
    }

    /// Returns the line about memory reserved beyond the live bytes, if there was any: the job has no use for this
    /// memory or, where the CPU runs ahead, another stream may still read the memory.
    fn of_no_use(&self) -> Option<&'static str> {
        let is_behind = self.args.lag > 0 || self.args.device().is_real();
        self.is_above_live.then_some(match is_behind {
            true => "Reserved above live is of no use to the job, or still read by another stream.",
            false => "Reserved above live is of no use to the job.",
        })
    }

    /// Prints the remaining rows and the summary; after a failure in `ran`, only the rows so far. Returns a failure if
    /// memory ran out.
    pub(crate) fn finish(mut self, ran: Result<(), Failure>) -> Result<(), Failure> {
        self.print_table()?;
        ran?;
        self.count();
        if !self.args.json {
            if let Some(legend) = self.legend.take() {
                self.output.lines(&format!("{legend}{}", self.strategies()))?;
                self.output.text("")?;
            }
            if let Some(text) = self.of_no_use() {
                self.output.text(text)?;
            }
            if let Some(verdict) = self.set.and_then(|_| self.comparison.in_words()) {
                self.output.text(&verdict)?;
            }
        }
        self.output.finish()?;
        match self.out_of_memory {
            0 => Ok(()),
            out_of_memory => Err(Failure::OutOfMemory(out_of_memory, self.runs)),
        }
    }

    /// Returns a line for each strategy of the main family that ran, to be printed below the columns.
    fn strategies(&self) -> String {
        let ran = self.totals.iter().filter_map(|total| {
            let what = match total.strategy {
                StrategyKind::Caching => "PyTorch's default: segments of cudaMalloc, cached",
                StrategyKind::Expandable => "PyTorch's option expandable_segments:True",
                StrategyKind::Gmlake => "GMLake's algorithm, which joins free memory as stitch does",
                StrategyKind::Stitch => "seamalloc's own strategy",
                _ => return None,
            };
            Some((total.strategy.name(), what))
        });
        entries(ran)
    }
}

/// Returns a shortage in a sentence: the request, and the available memory.
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
        // No advice is given, since a remedy for this request would not help the job.
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
