//! The options of the subcommands.

use crate::failure::Failure;
use crate::values::{
    Device, Strategies, any_device, destination, device_help, options, picture, policy, strategies, times_live, whole,
};
use clap::{Args, ValueEnum, ValueHint};
use seamalloc::driver::sim::SimConfig;
use seamalloc::{Config, StrategyKind};
use seamalloc_trace::cliff::TIMES_LIVE;
use seamalloc_trace::replay::ReplayOptions;
use seamalloc_trace::timeline::Policy;
use seamalloc_trace::workload::MAX_STEPS;
use std::path::PathBuf;

/// The name of standard input.
pub(crate) const STDIN: &str = "-";
/// The most passes of a run. More would take days.
const MAX_PASSES: u32 = 10_000;

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

fn run_device_help() -> String {
    let more = ", or for replay and stress host[:SIZE] (host memory), cuda:N, pinned:N[,node=M] (page-locked memory)";
    let default = "[default: sim:h200; of whatif and report with the memory of the recorded device]";
    format!("{} {default}", device_help(more))
}

/// The options that every run takes.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Strategies by name or family, separated by commas: main, classic, paddle, driver, all [default: main].
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = strategies)]
    pub(crate) strategy: Vec<Strategies>,
    /// Allocator options in PyTorch's syntax: max_split_size_mb:512,roundup_power2_divisions:4.
    #[arg(long, value_name = "OPTIONS", default_value = "", value_parser = options, hide_default_value = true)]
    pub(crate) conf: Config,
    #[arg(long, value_name = "DEVICE", value_parser = any_device, help = run_device_help())]
    pub(crate) device: Option<Device>,
    /// How far the CPU runs ahead of the simulated GPU, in operations.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = |text: &str| whole(text, 0..=u64::MAX),
          allow_negative_numbers = true)]
    pub(crate) lag: u64,
    /// How often each trace is replayed in a row.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = |text: &str| whole(text, 1..=MAX_PASSES),
          allow_negative_numbers = true)]
    pub(crate) passes: u32,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Also save the printed output as a picture.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, value_parser = picture, conflicts_with = "json")]
    pub(crate) svg: Option<PathBuf>,
}

impl RunArgs {
    /// Returns the given device, or the default one.
    pub(crate) fn device(&self) -> Device {
        self.device.clone().unwrap_or_else(|| Device::Sim(SimConfig::default()))
    }

    /// Refuses a device whose memory the command cannot choose: a real device, or a device with a given size. `chooses`
    /// is the beginning of the error's text, which says what chooses the memory.
    pub(crate) fn must_be_of_any_size(&self, chooses: &str) -> Result<(), Failure> {
        let Device::Sim(device) = self.device() else {
            return Err(Failure::Usage(format!("{chooses} of a simulated device: --device sim:h200")));
        };
        if device.capacity != device.profile.memory() {
            let name = device.profile.name();
            return Err(Failure::Usage(format!("{chooses} itself; give --device sim:{name} without one")));
        }
        Ok(())
    }

    /// Returns the options of each given strategy. On a real device, the simulated device of the options has no
    /// meaning.
    pub(crate) fn runs(&self) -> Vec<ReplayOptions> {
        let device = match self.device() {
            Device::Sim(device) => device,
            _ => SimConfig::default(),
        };
        self.runs_on(&device)
    }

    /// Returns the options of each given strategy, on a simulated device.
    pub(crate) fn runs_on(&self, device: &SimConfig) -> Vec<ReplayOptions> {
        let all = StrategyKind::MAIN.to_vec();
        // A strategy that is named twice, by itself or in a family, runs once.
        let mut asked: Vec<StrategyKind> = Vec::new();
        for kind in self.strategy.iter().flat_map(|named| &named.0) {
            if !asked.contains(kind) {
                asked.push(*kind);
            }
        }
        // Options that name a strategy select this strategy alone, unless --strategy says otherwise.
        let named = (self.conf.strategy != StrategyKind::default()).then(|| vec![self.conf.strategy]);
        let kinds = if asked.is_empty() { named.unwrap_or(all) } else { asked };
        let run = |strategy| ReplayOptions {
            lag: self.lag,
            passes: self.passes,
            ..ReplayOptions::new(self.conf.clone().of_strategy(strategy), device.clone())
        };
        kinds.into_iter().map(run).collect()
    }
}

/// How generated workloads are generated.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct GenerateArgs {
    /// Seed of generated workloads; recorded jobs are the same with every seed.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = |text: &str| whole(text, 0..=u64::MAX),
          allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// Steps (rounds, requests) of generated workloads [default: their own number].
    #[arg(long, value_name = "N", value_parser = |text: &str| whole(text, 1..=MAX_STEPS),
          allow_negative_numbers = true)]
    pub(crate) steps: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct StressArgs {
    /// Workloads, by name or group [default: the default set; see --list].
    #[arg(value_name = "WORKLOAD")]
    pub(crate) workloads: Vec<String>,
    /// List the workloads.
    #[arg(long)]
    pub(crate) list: bool,
    #[command(flatten)]
    pub(crate) generate: GenerateArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// PyTorch snapshots (.pickle, .pickle.gz, .json), traces (.seam, .csv, .csv.gz), or names of `seamalloc stress --list`.
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub(crate) traces: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) generate: GenerateArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct WhatifArgs {
    #[command(flatten)]
    pub(crate) traces: TraceArgs,
    /// Leave out the largest step, which takes two to ten replays for each strategy.
    #[arg(long)]
    pub(crate) quick: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FitArgs {
    #[command(flatten)]
    pub(crate) traces: TraceArgs,
    /// Show what the job costs on devices of these sizes instead: multiples of the live bytes [default: from 1 to 2].
    #[arg(long, value_name = "N,...", num_args = 0..=1, value_delimiter = ',', value_parser = times_live)]
    pub(crate) times_live: Option<Vec<f64>>,
}

#[derive(Debug, Args)]
#[command(mut_arg("json", |arg| arg.help("Print the verdict and who holds the memory, a JSON object a trace; no page without --output")),
          mut_arg("svg", |arg| arg.hide(true)))]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub(crate) traces: TraceArgs,
    /// Make the page of a whole job instead, from the output of `python -m seamalloc fleet --json`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["traces", "strategy", "conf",
          "device", "lag", "passes", "seed", "steps", "map", "quick", "times_live", "library", "json"])]
    pub(crate) fleet: Option<PathBuf>,
    /// The HTML file to which the page is written.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present = "json")]
    pub(crate) output: Option<PathBuf>,
    /// Files whose paths contain this are a library's, not the user's own code; may be given several times.
    #[arg(long, value_name = "PART")]
    pub(crate) library: Vec<String>,
    /// Strategies whose addresses are shown as a map, separated by commas [default: all where a trace has up to 150,000
    /// events, else stitch].
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = strategies)]
    pub(crate) map: Vec<Strategies>,
    /// Leave out what takes many replays: larger steps and smaller devices.
    #[arg(long)]
    pub(crate) quick: bool,
    /// The sizes of devices, as multiples of the trace's live bytes, separated by commas.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = times_live, default_values_t = TIMES_LIVE)]
    pub(crate) times_live: Vec<f64>,
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(crate) traces: TraceArgs,
    /// Replay a timeline instead of traces: how long the job's steps take with each strategy. The last pass is shown.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["traces", "lag", "seed", "steps"])]
    pub(crate) timeline: Option<PathBuf>,
    /// With --timeline: also run these allocator options, such as sharing:wait. May be given several times.
    #[arg(long, value_name = "OPTIONS", value_parser = policy)]
    pub(crate) also: Vec<Policy>,
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// A trace in any format that is read, or the name of a recorded job or a generated workload.
    #[arg(value_name = "FROM", value_hint = ValueHint::FilePath)]
    pub(crate) from: PathBuf,
    /// The file to write; the name's end tells the format: .seam, .csv, .csv.gz, or .pickle, a snapshot for
    /// pytorch.org/memory_viz in which each block has an address of its own.
    #[arg(value_name = "TO", value_hint = ValueHint::FilePath, value_parser = destination)]
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) generate: GenerateArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Lines that `stress`, `replay`, `fit`, `whatif` or `study` printed with --json, gzipped or not.
    #[arg(value_name = "BASE", value_hint = ValueHint::FilePath)]
    pub(crate) base: PathBuf,
    /// The lines to be compared with BASE; `-` is standard input.
    #[arg(value_name = "NEW", value_hint = ValueHint::FilePath, default_value = STDIN)]
    pub(crate) new: PathBuf,
    /// NEW may lack rows of BASE.
    #[arg(long)]
    pub(crate) subset: bool,
    /// Compare the driver's times too, which on a simulated device come from its cost model; times of this machine's
    /// clock stay out.
    #[arg(long)]
    pub(crate) times: bool,
    /// Print one JSON object for each difference instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}
