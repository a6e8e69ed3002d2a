//! The command line: the subcommands, and the help that is printed below their options.

use crate::args::{
    Color, CompareArgs, ConvertArgs, FitArgs, ReplayArgs, ReportArgs, StressArgs, TraceArgs, WhatifArgs,
};
use crate::evict::{self, EvictArgs};
use crate::explain::{KEYS, entries, legend};
use crate::order::{self, OrderArgs};
use crate::plan::{self, PlanArgs};
use crate::source::groups;
use crate::study::Study;
use clap::{CommandFactory, Parser, Subcommand, ValueHint};
use seamalloc_trace::fit::FitReport;
use seamalloc_trace::pinned::PinnedReport;
use seamalloc_trace::replay::PassReport;
use seamalloc_trace::whatif::WhatIf;
use std::path::PathBuf;

/// Compare GPU memory allocators on recorded and generated workloads.
#[derive(Debug, Parser)]
#[command(name = "seamalloc", version, after_help = AFTER_HELP, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// When to use colours; `auto` only on a terminal.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,
}

/// The subcommands by subject, as `--help` lists them.
const SUBJECTS: [(&str, &[&str]); 4] = [
    ("Your job", &["whatif", "report", "replay", "fit"]),
    ("Experiments", &["stress", "study", "order", "evict", "pinned", "plan"]),
    ("Running programs", &["top", "broker"]),
    ("Files and this command", &["convert", "compare", "man", "completions"]),
];

/// Returns the command line, with the subcommands listed by subject.
pub(crate) fn command() -> clap::Command {
    let plain = Cli::command();
    let mut list = String::new();
    for (subject, names) in SUBJECTS {
        let about = |name: &&'static str| Some((*name, plain.find_subcommand(name)?.get_about()?.to_string()));
        let named: Vec<_> = names.iter().filter_map(about).collect();
        list.push_str(&format!("\n\n{subject}:"));
        list.push_str(&entries(named.iter().map(|(name, about)| (*name, about.as_str()))));
    }
    let template =
        format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}{list}\n\nOptions:\n{{options}}{{after-help}}");
    plain.help_template(template)
}

const AFTER_HELP: &str = "\
`seamalloc SUBCOMMAND --help` explains a subcommand.\n\
The Python package has two more: `python -m seamalloc run` runs a program with this allocator, \
`python -m seamalloc fleet` shows what each rank of a job holds.\n\
Exit codes: 0 success, 1 bad input or a failed run, 2 wrong command line, 3 a run did not have enough memory \
(whatif, report: no run that the verdict advises), 4 some of several inputs are broken, and the others were processed.\n\
Set SEAMALLOC_LOG=debug to see what the allocator logs.";

const SNAPSHOTS: &str = "\
A snapshot is made in the job, best from its beginning on:
torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks=\"python\")
...
torch.cuda.memory._dump_snapshot(\"job.pickle\")
If its history does not reach back to the job's beginning, what PyTorch held includes what it had cached before. \
Memory that is not the allocator's (the CUDA context, libraries: about 1 GiB) is not counted: give the device \
as much less (--device sim:h200,capacity=138GiB).";

const PINNED: &str = "\
Without --strategy the host pool is one of stitch. With --device pinned:0 it has page-locked memory of this machine; \
PyTorch's cache is counted all the same. Snapshots of a GPU's memory are refused. A job's page-locked memory is recorded so:
  SEAMALLOC_PINNED=1 python -m seamalloc run --record job-{device}.seam train.py
job-pinned.seam is the trace. Its free blocks serve again when the streams have passed that used them.";

const REPORTED: &str = "\
In figures and charts caching is native, PyTorch's default, and stitch is seamalloc's.
The page needs no network and no other file; any browser of 2023 or later shows it. If the device is not given, \
it is an H200 with the memory of the recorded device. With --passes the last pass is shown.
Who holds the memory is known of snapshots that were recorded with stacks:
torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks=\"python\")";

const COMPARED: &str = "\
Rows are matched by trace, strategy, device, pass and what else says which run it was; those that agree in all of it \
by their order. Every other key is compared, but times, simulated ones too. Exit code 1 if a row differs or one \
file lacks it.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say what fills a PyTorch job's memory, and what would help.
    #[command(after_help = format!("{}\n\n{SNAPSHOTS}\n{KEYS}", legend(WhatIf::COLUMNS)),
              override_usage = "seamalloc whatif [OPTIONS] <TRACE>...")]
    Whatif(WhatifArgs),
    /// Write a page about a job: memory over time, blocks, owners.
    #[command(after_help = REPORTED, override_usage = "seamalloc report [OPTIONS] --output <FILE> <TRACE>...\n       seamalloc report --json <TRACE>...\n       seamalloc report --fleet <FILE> --output <FILE>")]
    Report(ReportArgs),
    /// Replay traces, or a timeline, with each strategy.
    #[command(after_help = replay_help(),
              override_usage = "seamalloc replay [OPTIONS] <TRACE>...\n       seamalloc replay [OPTIONS] --timeline <FILE>")]
    Replay(ReplayArgs),
    /// Find the smallest GPU memory on which each strategy runs a job.
    #[command(after_help = format!("{}\nThose of --times-live are explained below its table. {KEYS}", legend(FitReport::COLUMNS)), override_usage = "seamalloc fit [OPTIONS] <TRACE>...")]
    Fit(FitArgs),
    /// Compare strategies on recorded jobs and recompute patterns.
    #[command(after_help = stress_help())]
    Stress(StressArgs),
    /// Replay traces with every value of an option of `stitch`.
    #[command(subcommand)]
    Study(Study),
    /// Order the operators of a graph so that they need little memory.
    #[command(after_help = order::help(), override_usage = "seamalloc order [OPTIONS] <GRAPH>...")]
    Order(OrderArgs),
    /// Compare eviction schemes for programs under a memory budget.
    #[command(after_help = evict::help(), override_usage = "seamalloc evict [OPTIONS] <GRAPH|NAME>...")]
    Evict(EvictArgs),
    /// Compare caches of page-locked memory on traces of it.
    #[command(after_help = format!("{}\n\n{PINNED}\n{KEYS}", legend(PinnedReport::COLUMNS)),
              override_usage = "seamalloc pinned [OPTIONS] <TRACE>...")]
    Pinned(TraceArgs),
    /// Plan offsets for buffers whose sizes and lifetimes are known.
    #[command(after_help = plan::help(), override_usage = "seamalloc plan [OPTIONS] <TRACE|CSV>...")]
    Plan(PlanArgs),
    /// Show what allocators do in the running programs that opted in.
    #[cfg(unix)]
    #[command(after_help = format!("{}\n\n{}", crate::top::legend(), crate::top::HELP))]
    Top(crate::top::TopArgs),
    /// Lend free memory between the processes of this user on one GPU.
    #[cfg(unix)]
    #[command(after_help = crate::broker::HELP)]
    Broker(crate::broker::BrokerArgs),
    /// Convert a trace to .seam, .csv, .csv.gz or .pickle.
    Convert(ConvertArgs),
    /// Compare the --json output of two versions, without times.
    #[command(after_help = format!("{COMPARED} {KEYS}"))]
    Compare(CompareArgs),
    /// Write man pages of the command and its subcommands.
    Man {
        /// The folder to write them to, which is made if it does not exist: ~/.local/share/man/man1.
        #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        folder: PathBuf,
    },
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

fn stress_help() -> String {
    let names = "The letters behind a model's name: N none of these, R recompute, L LoRA, O offload; LR, RO, LO and \
                 LRO are several at once.";
    format!("{names}\nGroups: {}.\nThe columns are explained below the table. {KEYS}", groups().join(", "))
}

fn replay_help() -> String {
    format!("{}\nThose of a timeline are explained below its table. {KEYS}", legend(PassReport::COLUMNS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[cfg(unix)]
    #[test]
    fn each_subcommand_is_listed_under_one_subject() {
        let listed: Vec<_> = SUBJECTS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let there: BTreeSet<_> = Cli::command().get_subcommands().map(|it| it.get_name().to_owned()).collect();
        assert_eq!(listed.len(), there.len());
        assert_eq!(listed.into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), there);
    }
}
