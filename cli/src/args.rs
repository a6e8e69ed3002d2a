//! The command line.

use crate::study::Study;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use seamalloc::driver::cuda::CudaDriver;
use seamalloc::driver::sim::SimConfig;
use seamalloc::{Config, ConfigError, StrategyKind};
use seamalloc_trace::replay::ReplayOptions;
use seamalloc_trace::workload::MAX_STEPS;
use seamalloc_trace::{ENDINGS, can_write};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The most passes; a run of so many takes days.
const MAX_PASSES: u32 = 10_000;

/// A GPU memory allocator, judged: replays allocation traces and stress patterns on a simulated GPU, strategy beside
/// strategy.
#[derive(Debug, Parser)]
#[command(name = "seamalloc", version, after_help = EXIT_CODES, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// When to use colours; `auto` only on a terminal.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,
}

const EXIT_CODES: &str = "\
Exit codes: 0 success, 1 bad input or a failed run, 2 wrong command line, 3 a run did not have enough memory.
Set SEAMALLOC_LOG=debug to see what the allocator logs.";

const COLUMNS: &str = "\
What the columns say:
  live          the most bytes requested and not freed: no strategy can do with less
  reserved      the most bytes held of the device
  utilization   live / reserved: 100% is perfect
  driver calls  calls to the GPU's driver, and the time in them
  stalls        allocations and frees that had to call the driver, and the worst of them
  ns/op         time of one operation on this machine, the simulation, or the real driver, included";

const KEYS: &str = "\
What the keys of --json say; sizes are bytes, peaks and counts those of the pass:
  trace strategy device pass
                which run
  ops allocations
                operations carried out, and those of them that are allocations
  peak_live peak_active
                the most requested and not freed; the same with freed blocks that are still in use
  peak_reserved utilization
                the most held of the device; peak_live / peak_reserved
  driver_calls driver_us_by_call driver_time_us
                how often each call was made, and the time in it; in all of them
  stalls worst_stall_us
                operations that called the driver, and the longest of them
  stall_histogram
                how many took less than 1 us, less than 2 us, less than 4 us ...
  stall_p50_us stall_p99_us
                what half of them, and 99%, did not exceed: the upper edge of a bucket
  views_built views_reused views_dropped
                views made; requests served by one that was there; views unmapped
  mappings view_mappings
                mappings at the end, and those of them in views
  host_bytes    host memory of the allocator's own tables at the end
  stream_waits wait_bytes idle_waits
                GPU-side waits of streams for one another; what they passed on; waits for an event
                that was complete already
  wait_age_ops_min wait_age_ops_mean wait_age_ops_max
                how many operations before the wait its event was recorded; null without a wait
  cpu_syncs     how often the CPU waited for the GPU
  oom oom_report
                whether memory ran out, and who held what then
  ns_per_op     as above

  fragmentation is how memory was divided up while most was held, before anything was freed where
  possible; in a pass in which nothing grows, when most was live:
  event         at which event of the trace
  reserved      held of the device: allocated + pending + free + unsettled
  allocated pending
                in live blocks; in freed ones that other streams still use
  requested rounding_loss utilization
                what was asked for of these two; what rounding added; requested / reserved
  free unsettled
                free; left behind by driver calls that failed
  largest_free external
                longest free range that some stream may take; 1 - largest_free / free
  largest_reachable external_after_stitching
                largest request that stitching could meet; 1 - largest_reachable / free
  stranded      free, but only for one stream or private pool, or for blocks of up to 1 MiB
  pools         what is free, by owner, for blocks of up to 1 MiB (small) and for larger ones
  streams       by stream, the longest free range that it may take (largest), and the largest request that it
                could be given without new memory (reachable)
  chunks partly_free_chunks partly_free_bytes
                physical chunks; those of which a part is free; what is free in those
  landlocked_bytes
                free in the middle of a chunk, where no view can use it
  views view_mappings home_mappings
                views; mappings in views; mappings of memory at its own place";

const FIT_COLUMNS: &str = "\
What the columns say:
  live          the most bytes requested and not freed: no strategy can do with less
  smallest      the least GPU memory on which every pass still runs, to 2 MiB; at what cost,
                `seamalloc replay --device sim:h200,capacity=SIZE` shows
  above live    how much more that is than live
  reserved GiB where plenty
                the most bytes held where memory is plenty
  tries         replays that the search took";

const WHATIF_COLUMNS: &str = "\
What the columns say:
  live          the most bytes requested and not freed: no strategy can do with less
  reserved      the most bytes that the strategy would have held of the device
  utilization   live / reserved: 100% is perfect
  largest step  how many times as large all that the job frees again (activations, temporary
                buffers) can be on the device; what it never frees (weights, optimizer state) stays
  tries         replays that the search took

A snapshot is made in the job, a few steps after it began:
  torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks=\"python\", context=None)
  ...
  torch.cuda.memory._dump_snapshot(\"job.pickle\")
Where its history does not reach back to the job's beginning, what PyTorch held includes what it had
cached before. Memory that is not the allocator's (the CUDA context, libraries: about 1 GiB) is not
counted: give the device as much less (--device sim:h200,capacity=138GiB).";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run real PyTorch jobs and generated recompute-style patterns, every strategy side by side.
    #[command(after_help = COLUMNS, after_long_help = format!("{COLUMNS}\n\n{KEYS}"))]
    Stress(StressArgs),
    /// Replay traces: PyTorch memory snapshots (.pickle, .pickle.gz, .json), csv(.gz), .seam.
    #[command(after_help = COLUMNS, after_long_help = format!("{COLUMNS}\n\n{KEYS}"),
              override_usage = "seamalloc replay [OPTIONS] <TRACE>...")]
    Replay(TraceArgs),
    /// Find the smallest GPU memory on which each strategy still runs a trace.
    #[command(after_help = FIT_COLUMNS, override_usage = "seamalloc fit [OPTIONS] <TRACE>...")]
    Fit(TraceArgs),
    /// Tell from a snapshot of a running PyTorch job what each strategy would have held, and how much larger its steps
    /// could be.
    #[command(after_help = WHATIF_COLUMNS, override_usage = "seamalloc whatif [OPTIONS] <TRACE>...")]
    Whatif(TraceArgs),
    /// Replay traces with every value of an option of `stitch`, to see what it costs and gains.
    #[command(subcommand)]
    Study(Study),
    /// Convert a trace: from any format that is read, to .seam, .csv or .csv.gz.
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
    /// The device: sim:PROFILE[,capacity=SIZE], or a real one, cuda:N (replay and stress).
    #[arg(long, value_name = "DEVICE", default_value = "sim:h200", value_parser = any_device)]
    pub(crate) device: Device,
    /// How far the CPU runs ahead of the simulated GPU, in operations.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = |text: &str| whole(text, 0..=u64::MAX),
          allow_negative_numbers = true)]
    pub(crate) lag: u64,
    /// How often each trace is replayed over.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = |text: &str| whole(text, 1..=MAX_PASSES),
          allow_negative_numbers = true)]
    pub(crate) passes: u32,
    /// Print one JSON object a line instead of a table; --help says what its keys mean.
    #[arg(long)]
    pub(crate) json: bool,
    /// Also save what is printed as a picture.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "json")]
    pub(crate) svg: Option<PathBuf>,
}

impl RunArgs {
    /// Options for each strategy asked for. On a real device theirs has no meaning.
    pub(crate) fn runs(&self) -> Vec<ReplayOptions> {
        let device = match &self.device {
            Device::Sim(device) => device.clone(),
            Device::Cuda(_) => SimConfig::default(),
        };
        let all = StrategyKind::ALL.to_vec();
        // Options that themselves name a strategy mean that one alone, unless --strategy says otherwise.
        let named = (self.conf.strategy != StrategyKind::default()).then(|| vec![self.conf.strategy]);
        let kinds = if self.strategy.is_empty() { named.unwrap_or(all) } else { self.strategy.clone() };
        let run = |strategy| ReplayOptions {
            lag: self.lag,
            passes: self.passes,
            ..ReplayOptions::new(Config { strategy, ..self.conf.clone() }, device.clone())
        };
        kinds.into_iter().map(run).collect()
    }
}

/// How generated workloads are generated.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct GenerateArgs {
    /// Seed of generated workloads: the same seed gives the same trace on every machine.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = |text: &str| whole(text, 0..=u64::MAX),
          allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// Steps (rounds, requests) of each generated workload [default: its own number].
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
    /// Trace files, or names of recorded jobs and generated workloads (see `seamalloc stress --list`).
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub(crate) traces: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) generate: GenerateArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// A trace in any format that is read, or the name of a recorded job or a generated workload.
    #[arg(value_name = "FROM", value_hint = ValueHint::FilePath)]
    pub(crate) from: PathBuf,
    /// Where to; the name's end tells the format: .seam, .csv or .csv.gz.
    #[arg(value_name = "TO", value_hint = ValueHint::FilePath, value_parser = destination)]
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) generate: GenerateArgs,
}

fn strategy(text: &str) -> Result<StrategyKind, ConfigError> {
    text.parse()
}

/// Options in PyTorch's syntax.
pub(crate) fn options(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text)
}

/// Where a run takes place.
#[derive(Clone, Debug)]
pub(crate) enum Device {
    /// On a simulated GPU.
    Sim(SimConfig),
    /// On the GPU of that ordinal.
    Cuda(u32),
}

fn any_device(text: &str) -> Result<Device, String> {
    if text.starts_with("cuda") {
        return CudaDriver::parse_ordinal(text).map(Device::Cuda).map_err(|error| error.to_string());
    }
    device(text).map(Device::Sim)
}

/// A simulated device.
pub(crate) fn device(text: &str) -> Result<SimConfig, String> {
    if text.starts_with("cuda") || text.starts_with("host") {
        return Err(format!("`{text}`: only a simulated device will do here, such as sim:h200"));
    }
    SimConfig::parse(text).map_err(|error| error.to_string())
}

fn destination(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if can_write(&path) { Ok(path) } else { Err(format!("expected a name that ends in {}", ENDINGS.join(", "))) }
}

/// A whole number of a range, or what was expected.
pub(crate) fn whole<T: TryFrom<u64> + Into<u64> + Copy>(text: &str, range: RangeInclusive<T>) -> Result<T, String> {
    let (least, most): (u64, u64) = ((*range.start()).into(), (*range.end()).into());
    let number = text.parse().ok().filter(|number| (least..=most).contains(number)).and_then(|n| T::try_from(n).ok());
    number.ok_or_else(|| match most {
        u64::MAX => format!("expected a whole number, {least} or more"),
        _ => format!("expected a whole number from {least} to {most}"),
    })
}
