//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use memquilt::driver::sim::SimConfig;
use memquilt::trace::replay::ReplayOptions;
use memquilt::{Config, ConfigError, StrategyKind};
use std::path::PathBuf;

/// A GPU memory allocator, judged: replays allocation traces and stress patterns on a simulated GPU, strategy beside
/// strategy.
#[derive(Debug, Parser)]
#[command(name = "memquilt", version, after_help = EXIT_CODES, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// When to use colours; `auto` only on a terminal.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,
}

const EXIT_CODES: &str = "Exit codes: 0 success, 1 bad input or a failed run, 2 wrong command line, 3 a run did not have \
                          enough memory.\nSet MEMQUILT_LOG=debug to see what the allocator logs.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run real PyTorch jobs and generated recompute-style patterns, every strategy side by side.
    Stress(StressArgs),
    /// Replay traces: PyTorch memory snapshots (.pickle, .pickle.gz, .json), csv(.gz), .mqt.
    Replay(ReplayArgs),
    /// Find the smallest GPU memory on which each strategy still runs a trace.
    Fit(FitArgs),
    /// Convert a trace: from any format that is read, to .mqt, .csv or .csv.gz.
    Convert(ConvertArgs),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// What every run takes.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Strategies to run, separated by commas [default: all].
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = strategy)]
    pub(crate) strategy: Vec<StrategyKind>,
    /// Allocator options in PyTorch's syntax: max_split_size_mb:512,roundup_power2_divisions:4.
    #[arg(long, value_name = "OPTIONS", default_value = "", value_parser = options, hide_default_value = true)]
    pub(crate) conf: Config,
    /// The device: sim:PROFILE[,capacity=SIZE].
    #[arg(long, value_name = "DEVICE", default_value = "sim:h200", value_parser = device)]
    pub(crate) device: SimConfig,
    /// How far the CPU runs ahead of the GPU, in operations.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) lag: u64,
    /// How often each trace is replayed over.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) passes: u32,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Also save what is printed as a picture.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "json")]
    pub(crate) svg: Option<PathBuf>,
}

impl RunArgs {
    /// Options for each strategy asked for.
    pub(crate) fn runs(&self) -> Vec<ReplayOptions> {
        let all = StrategyKind::ALL.to_vec();
        // Options that themselves name a strategy mean that one alone, unless --strategy says otherwise.
        let named = (self.conf.strategy != StrategyKind::default()).then(|| vec![self.conf.strategy]);
        let kinds = if self.strategy.is_empty() { named.unwrap_or(all) } else { self.strategy.clone() };
        let run = |strategy| ReplayOptions {
            lag: self.lag,
            passes: self.passes,
            ..ReplayOptions::new(Config { strategy, ..self.conf.clone() }, self.device.clone())
        };
        kinds.into_iter().map(run).collect()
    }
}

#[derive(Debug, Args)]
pub(crate) struct StressArgs {
    /// Workloads, by name or group [default: the default set; see --list].
    #[arg(value_name = "WORKLOAD")]
    pub(crate) workloads: Vec<String>,
    /// List the workloads.
    #[arg(long)]
    pub(crate) list: bool,
    /// Seed of the generated workloads: the same seed gives the same trace on every machine.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Steps (rounds, requests) of each generated workload [default: its own number].
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<u32>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Trace files, or names of recorded jobs (see `memquilt stress --list`).
    #[arg(value_name = "TRACE", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) traces: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct FitArgs {
    /// Trace files, or names of recorded jobs (see `memquilt stress --list`).
    #[arg(value_name = "TRACE", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) traces: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// A trace in any format that is read, or the name of a recorded job or a generated workload.
    #[arg(value_name = "FROM", value_hint = ValueHint::FilePath)]
    pub(crate) from: PathBuf,
    /// Where to; the name's end tells the format: .mqt, .csv or .csv.gz.
    #[arg(value_name = "TO", value_hint = ValueHint::FilePath)]
    pub(crate) to: PathBuf,
    /// Seed, where FROM is a generated workload.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Steps, where FROM is a generated workload.
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<u32>,
}

fn strategy(text: &str) -> Result<StrategyKind, ConfigError> {
    text.parse()
}

fn options(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text)
}

fn device(text: &str) -> Result<SimConfig, String> {
    if text.starts_with("cuda") || text.starts_with("host") {
        return Err(format!("`{text}`: this version replays on a simulated device only, such as sim:h200"));
    }
    SimConfig::parse(text).map_err(|error| error.to_string())
}
