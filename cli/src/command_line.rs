//! The command line: the subcommands, and the help that is printed below their options.

use crate::args::{
    CliffArgs, Color, CompareArgs, ConvertArgs, ReplayArgs, ReportArgs, StressArgs, TraceArgs, WhatifArgs,
};
use crate::evict::{self, EvictArgs};
use crate::explain::{keys, legend};
use crate::order::{self, OrderArgs};
use crate::plan::{self, PlanArgs};
use crate::study::Study;
use clap::{Parser, Subcommand, ValueHint};
use seamalloc_trace::FRAGMENTATION_COLUMNS;
use seamalloc_trace::cliff::CliffReport;
use seamalloc_trace::fit::FitReport;
use seamalloc_trace::pinned::PinnedReport;
use seamalloc_trace::replay::{PEAK_EVENT, PassReport};
use seamalloc_trace::timeline::TimelineReport;
use seamalloc_trace::whatif::WhatIf;
use std::path::PathBuf;

/// A GPU memory allocator, judged: replays allocation traces and stress patterns on a simulated GPU, strategy beside
/// strategy.
#[derive(Debug, Parser)]
#[command(name = "seamalloc", version, after_help = AFTER_HELP, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// When to use colours; `auto` only on a terminal.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,
}

const AFTER_HELP: &str = "\
The Python package has two more: `python -m seamalloc run` runs a program with this allocator, `python -m seamalloc fleet`
shows what every rank of a job would hold.
Exit codes: 0 success, 1 bad input or a failed run, 2 wrong command line, 3 a run did not have enough memory,
4 some of several inputs are broken, and the others were processed.
Set SEAMALLOC_LOG=debug to see what the allocator logs.";

const SNAPSHOTS: &str = "\
A snapshot is made in the job, best from its beginning on:
  torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks=\"python\")
  ...
  torch.cuda.memory._dump_snapshot(\"job.pickle\")
Where its history does not reach back to the job's beginning, what PyTorch held includes what it had
cached before. Memory that is not the allocator's (the CUDA context, libraries: about 1 GiB) is not
counted: give the device as much less (--device sim:h200,capacity=138GiB).";

const PINNED: &str = "\
Without --strategy the host pool is one of stitch. With --device pinned:0 it has page-locked memory of this
machine; PyTorch's cache is counted all the same. A job's page-locked memory is recorded so:
  SEAMALLOC_PINNED=1 python -m seamalloc run --record job-{device}.seam train.py
job-pinned.seam is the trace. Its free blocks serve again when the streams have passed that used them.";

const REPORTED: &str = "\
The page needs no network and no other file; any browser of 2023 or later shows it. Where the device is not
given, it is an H200 with the memory of the recorded device. With --passes the last pass is shown.
Who holds the memory is known of snapshots that were recorded with stacks:
  torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks=\"python\")";

const COMPARED: &str = "\
Rows are matched by trace, strategy, device, pass and what else says which run it was; those that
agree in all of it by their order. Every other key is compared, but times, simulated ones too.
With --json: run, key (null: the whole row), base, new, missing (the side that lacks it).
Exit code 1 where a row differs or one file lacks it.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run real PyTorch jobs and generated recompute-style patterns, every strategy side by side.
    #[command(after_help = pass_legend(), after_long_help = pass_help())]
    Stress(StressArgs),
    /// Replay traces: PyTorch memory snapshots (.pickle, .pickle.gz, .json), csv(.gz), .seam; or a timeline.
    #[command(after_help = replay_legend(), after_long_help = replay_help(),
              override_usage = "seamalloc replay [OPTIONS] <TRACE>...\n       seamalloc replay [OPTIONS] --timeline <FILE>")]
    Replay(ReplayArgs),
    /// Write one page for looking: memory over time, a map of addresses, refusals, driver calls, in a browser.
    #[command(after_help = REPORTED, override_usage = "seamalloc report [OPTIONS] --output <FILE> <TRACE>...\n       seamalloc report --json <TRACE>...\n       seamalloc report --fleet <FILE> --output <FILE>")]
    Report(ReportArgs),
    /// Find the smallest GPU memory on which each strategy still runs a trace.
    #[command(after_help = legend(FitReport::COLUMNS), override_usage = "seamalloc fit [OPTIONS] <TRACE>...")]
    Fit(TraceArgs),
    /// Show what traces cost on devices that are nearly too small, up to the one below which they do not run.
    #[command(after_help = legend(CliffReport::COLUMNS), override_usage = "seamalloc cliff [OPTIONS] <TRACE>...")]
    Cliff(CliffArgs),
    /// Show what caches of page-locked memory hold for traces of it: PyTorch's, and a host pool of each strategy.
    #[command(after_help = legend(PinnedReport::COLUMNS), after_long_help = pinned_help(),
              override_usage = "seamalloc pinned [OPTIONS] <TRACE>...")]
    Pinned(TraceArgs),
    /// Tell from a snapshot of a running PyTorch job what each strategy would have held, and how much larger its steps
    /// could be.
    #[command(after_help = whatif_help(), override_usage = "seamalloc whatif [OPTIONS] <TRACE>...")]
    Whatif(WhatifArgs),
    /// Replay traces with every value of an option of `stitch`, to see what it costs and gains.
    #[command(subcommand)]
    Study(Study),
    /// Plan offsets for buffers whose sizes and lifetimes are known: of a csv (MiniMalloc's form), or of one iteration of a
    /// trace.
    #[command(after_help = plan::help(), override_usage = "seamalloc plan [OPTIONS] <TRACE|CSV>...")]
    Plan(PlanArgs),
    /// Order the operators of a graph, such as a training step, so that they need little memory.
    #[command(after_help = order::help(), override_usage = "seamalloc order [OPTIONS] <GRAPH>...")]
    Order(OrderArgs),
    /// Run programs under a memory budget: which eviction scheme, over which allocator, computes least again.
    #[command(after_help = evict::short_help(), after_long_help = evict::help(),
              override_usage = "seamalloc evict [OPTIONS] <GRAPH|NAME>...")]
    Evict(EvictArgs),
    /// Show what the allocators of running programs do that opted in.
    #[cfg(unix)]
    #[command(after_help = top_help())]
    Top(crate::top::TopArgs),
    /// Lend free memory between the processes of this user on one GPU; or show which take part.
    #[cfg(unix)]
    #[command(after_help = crate::broker::HELP)]
    Broker(crate::broker::BrokerArgs),
    /// Compare what two versions print with --json, times left out.
    #[command(after_help = COMPARED)]
    Compare(CompareArgs),
    /// Convert a trace: from any format that is read, to .seam, .csv, .csv.gz or a snapshot (.pickle).
    Convert(ConvertArgs),
    /// Write man pages: one of the command, and one of each subcommand.
    Man {
        /// The folder to write them to, which is made where it is not there: ~/.local/share/man/man1.
        #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        folder: PathBuf,
    },
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// What the columns of a pass say.
fn pass_legend() -> String {
    legend(PassReport::COLUMNS)
}

/// The same, and what the keys of its line say.
fn pass_help() -> String {
    format!(
        "{}\n\n\
         What the keys of --json say; sizes are bytes, peaks and counts those of the pass:{}\n\n  \
         fragmentation is how memory was divided up while most was held, before anything was freed where\n  \
         possible; in a pass in which nothing grows, when most was live:{}{}",
        pass_legend(),
        keys(PassReport::COLUMNS),
        keys(&[PEAK_EVENT]),
        keys(FRAGMENTATION_COLUMNS)
    )
}

/// The same for traces and for timelines.
fn replay_legend() -> String {
    format!("{}\n\nOf a timeline (--timeline). {}", pass_legend(), legend(TimelineReport::COLUMNS))
}

fn replay_help() -> String {
    format!(
        "{}\n\nOf a timeline (--timeline). {}\n\nWhat the keys of --json say of a timeline, the length of each pass's steps among them:{}",
        pass_help(),
        legend(TimelineReport::COLUMNS),
        keys(TimelineReport::COLUMNS)
    )
}

fn pinned_help() -> String {
    format!(
        "{}\n\nWhat the keys of --json say:{}\n\n{PINNED}",
        legend(PinnedReport::COLUMNS),
        keys(PinnedReport::COLUMNS)
    )
}

#[cfg(unix)]
fn top_help() -> String {
    format!("{}\n\n{}", crate::top::legend(), crate::top::HELP)
}

fn whatif_help() -> String {
    format!("{}\n\n{SNAPSHOTS}", legend(WhatIf::COLUMNS))
}
