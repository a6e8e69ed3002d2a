//! `seamalloc study chunks`: the size of chunks, comparing memory with driver time and stalls.

use super::axis::Axis;
use super::chart::{self, Line, Mark, Panel, Point};
use super::options::StudyArgs;
use super::outcome::{Outcome, finish, outcomes};
use crate::args::Color;
use crate::explain::{KEYS, legend};
use crate::failure::Failure;
use crate::values::whole;
use clap::{Args, ValueHint};
use seamalloc::{Config, ConfigError};
use seamalloc_trace::columns::{Column, us};
use seamalloc_trace::replay::ReplayOptions;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

/// The most bytes of a chunk; `None` for the default rule.
type Size = Option<u64>;

type Chunks = Outcome<Size>;
type Figure = Column<Chunks>;

pub(super) const COLUMNS: &[Figure] = &[
    Figure::run("study", |_| "chunks".into()),
    Chunks::TRACE,
    Chunks::DEVICE,
    Chunks::LAG,
    Figure::run("chunk_size_mb", |chunks| chunks.setting.map(|size| size / MIB).into())
        .figure("chunk\nMiB", |chunks| name(chunks.setting).into())
        .legend("chunk MiB", "the most of a chunk; default: by the rule that is built in"),
    Chunks::PASSES,
    Chunks::OOM,
    Chunks::LIVE_SHOWN,
    Chunks::RESERVED_FIRST,
    Chunks::RESERVED_THIRD,
    Chunks::UTILIZATION_FIRST,
    Chunks::UTILIZATION_THIRD,
    Chunks::DRIVER_TIME_FIRST,
    Chunks::DRIVER_TIME_THIRD,
    Chunks::DRIVER_TIME_ALL,
    Figure::time("driver_us_per_gib", |chunks| us(chunks.driver_ns_per_gib()).into())
        .figure("ms per\nGiB", |chunks| {
            chunks.cell(|_, _| format!("{:.2}", chunks.driver_ns_per_gib() as f64 / 1e6).into())
        })
        .legend("ms per GiB", "the first pass's, for each GiB of live"),
    Figure::result("mappings", |chunks| chunks.third(|pass| pass.mappings.into())),
    Chunks::WORST_STALL,
];

pub(super) fn help() -> String {
    format!("{}\n\n{KEYS}", legend(COLUMNS))
}

/// The options of the study.
#[derive(Debug, Args)]
pub(crate) struct ChunksArgs {
    /// Trace files, or names of recorded jobs and generated workloads [default: the recorded jobs].
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    traces: Vec<PathBuf>,
    /// Chunk sizes in MiB, separated by commas; the default rule runs beside them.
    #[arg(long, value_name = "MIB", value_delimiter = ',', default_value = "2,4,8,12,16,20,24,32,64", value_parser = size)]
    sizes: Vec<u64>,
    /// How far the CPU runs ahead of the GPU, in operations.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = |text: &str| whole(text, 0..=u64::MAX),
          allow_negative_numbers = true)]
    lag: u64,
    #[command(flatten)]
    study: StudyArgs,
}

/// Parses a size in MiB. Returns bytes.
fn size(text: &str) -> Result<u64, ConfigError> {
    Config::parse(&format!("chunk_size_mb:{text}")).map(|config| config.chunk_size.unwrap_or_default())
}

pub(super) fn run(args: &ChunksArgs, color: Color) -> Result<(), Failure> {
    let study = &args.study;
    let (base, mut output) = study.begin(("chunk_size_mb", |config| config.chunk_size.is_some()), color)?;
    let (traces, inputs) = study.traces(&args.traces, |_| true)?;
    let mut settings: Vec<Size> = args.sizes.iter().copied().map(Some).collect();
    settings.sort_unstable();
    settings.dedup();
    settings.push(None);
    let options = |size: Size| {
        let config = Config { chunk_size: size, ..base.config.clone() };
        (name(size), ReplayOptions { config, lag: args.lag, ..base.clone() })
    };
    let repeated = |_: &Chunks, first: bool| usize::from(!first);
    let shown = (!study.json).then_some(&mut output);
    let all = outcomes(&traces, &settings, options, COLUMNS, repeated, shown)?;
    let plot = || draw(&all, settings.len(), &format!("{}, {}", base.device, ahead(args.lag)));
    inputs.finish(finish(&all, study.svg.as_deref().map(|path| (path, plot()))))
}

fn name(size: Size) -> String {
    size.map_or_else(|| "default".to_owned(), |size| (size / MIB).to_string())
}

fn ahead(lag: u64) -> String {
    if lag == 0 { "the GPU keeps up".to_owned() } else { format!("the CPU {lag} operations ahead") }
}

impl Chunks {
    /// Returns the driver's time in the first pass for each GiB of live memory, in nanoseconds.
    fn driver_ns_per_gib(&self) -> u64 {
        let Some(first) = self.passes.first() else { return 0 };
        (first.driver.total_ns() as f64 / (first.peak_live.max(1) as f64 / f64::from(1 << 30))) as u64
    }
}

/// Draws two panels: utilization against driver time, and utilization against the worst stall. Each trace has a line,
/// and each chunk size a point.
fn draw(all: &[Chunks], settings: usize, run: &str) -> Result<String, chart::DrawError> {
    let time = |outcome: &Chunks| outcome.driver_ns_per_gib() as f64 / 1e6;
    let stall = |outcome: &Chunks| outcome.worst_stall_ns() as f64 / 1e6;
    let used: Vec<f64> = all.iter().filter_map(|outcome| Some(outcome.first_and_third()?.1.utilization())).collect();
    let panel = |title: &str, x_name: &str, x: &dyn Fn(&Chunks) -> f64| {
        let ran = || all.iter().filter(|outcome| outcome.first_and_third().is_some());
        let across = Axis::log(x_name, ran().map(x));
        let up = Axis::used("reserved memory that the job uses, third pass", used.iter().copied());
        let of_trace = |(index, outcomes): (usize, &[Chunks])| {
            let point = |outcome: &Chunks| {
                let (_, third) = outcome.first_and_third()?;
                let (label, mark) = match outcome.setting {
                    Some(size) => (Some((size / MIB).to_string()), Mark::Dot),
                    None => (None, Mark::Diamond),
                };
                Some(Point { x: x(outcome), y: third.utilization(), label, mark })
            };
            let (sizes, default): (Vec<_>, Vec<_>) = outcomes.iter().partition(|outcome| outcome.setting.is_some());
            Line {
                name: outcomes.first().map(|outcome| outcome.trace.clone()).unwrap_or_default(),
                colour: chart::colour(index),
                dashed: false,
                points: sizes.into_iter().rev().filter_map(point).collect(),
                apart: default.into_iter().filter_map(point).collect(),
            }
        };
        let lines = all.chunks(settings).enumerate().map(of_trace).collect();
        Panel { title: title.to_owned(), x: across, y: up, lines, bars: Vec::new(), tiles: Vec::new() }
    };
    let heading = format!("Chunk sizes: what they cost and gain ({run})");
    let legend = "●  with the most MiB of a chunk  ·  ◆  the default rule  ·  up and left is better";
    let panels = [
        panel("Memory against driver time", "driver time of the first pass, ms per GiB of live memory", &time),
        panel("Memory against the worst stall", "worst single stall of three passes, ms", &stall),
    ];
    chart::draw(&heading, legend, &panels)
}
