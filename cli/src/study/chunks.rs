//! `seamalloc study chunks`: the size of chunks, memory against driver time and stalls.

use super::axis::Axis;
use super::chart::{self, Line, Mark, Panel, Point};
use super::{Outcome, PASSES, StudyArgs, failed, finish, outcomes, us, with_keys};
use crate::args::{Color, whole};
use crate::failure::Failure;
use crate::output::{self, Column, gib, ms};
use clap::{Args, ValueHint};
use comfy_table::Cell;
use seamalloc::{Config, ConfigError};
use seamalloc_trace::replay::ReplayOptions;
use serde_json::{Value, json};
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

pub(super) const HELP: &str = "\
What the columns say:
  chunk MiB     the most of a chunk; default: by the rule that is built in
  live          the most bytes requested and not freed
  utilization   live / reserved, in the first and the third pass over the trace
  driver ms     time in the driver, in the first and the third pass
  ms per GiB    the first pass's, for each GiB of live
  worst ms      the longest stall of all three passes

The keys of --json are those of `seamalloc replay`, with _first, _third and _all for the first,
the third and all three passes; chunk_size_mb is null for the default rule.";

const COLUMNS: [Column; 9] = [
    Column::text("trace"),
    Column::figure("chunk\nMiB"),
    Column::figure("live\nGiB").spare(2),
    Column::figure("utilization\n1st pass"),
    Column::figure("utilization\n3rd pass"),
    Column::figure("driver ms\n1st pass").spare(1),
    Column::figure("driver ms\n3rd pass").spare(3),
    Column::figure("ms per\nGiB"),
    Column::figure("worst\nms"),
];

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

/// The most bytes of a chunk; `None`: the default rule.
type Size = Option<u64>;

/// A size in MiB, in bytes.
fn size(text: &str) -> Result<u64, ConfigError> {
    Config::parse(&format!("chunk_size_mb:{text}")).map(|config| config.chunk_size.unwrap_or_default())
}

pub(super) fn run(args: &ChunksArgs, color: Color) -> Result<(), Failure> {
    let study = &args.study;
    let (base, mut output) = study.begin(("chunk_size_mb", |config| config.chunk_size.is_some()), color)?;
    let traces = study.traces(&args.traces, |_| true)?;
    let mut settings: Vec<Size> = args.sizes.iter().copied().map(Some).collect();
    settings.sort_unstable();
    settings.dedup();
    settings.push(None);
    let options = |size: Size| {
        let config = Config { chunk_size: size, ..base.config.clone() };
        (name(size), ReplayOptions { config, lag: args.lag, ..base.clone() })
    };
    let mut table = output::table(&COLUMNS);
    let all = outcomes(&traces, &settings, options, |outcome, first| {
        if study.json {
            return output::print(&line(outcome, args.lag).to_string());
        }
        table.add_row(row(outcome, first));
        Ok(())
    })?;
    if !study.json {
        output.table(&table, &COLUMNS)?;
    }
    let plot = || draw(&all, settings.len(), &format!("{}, {}", base.device, ahead(args.lag)));
    finish(&all, study.svg.as_deref().map(|path| (path, plot())))
}

fn name(size: Size) -> String {
    size.map_or_else(|| "default".to_owned(), |size| (size / MIB).to_string())
}

fn ahead(lag: u64) -> String {
    if lag == 0 { "the GPU keeps up".to_owned() } else { format!("the CPU {lag} operations ahead") }
}

fn line(outcome: &Outcome<Size>, lag: u64) -> Value {
    let head = json!({
        "study": "chunks",
        "trace": outcome.trace,
        "device": outcome.passes.first().map(|pass| pass.device.as_str()),
        "lag": lag,
        "chunk_size_mb": outcome.setting.map(|size| size / MIB),
        "passes": PASSES,
    });
    with_keys(
        head,
        outcome.figures(|first, third| {
            json!({
                "driver_us_per_gib": us(per_gib(first.driver.total_ns(), first.peak_live)),
                "mappings": third.mappings,
            })
        }),
    )
}

fn row(outcome: &Outcome<Size>, first_row: bool) -> Vec<Cell> {
    let head = [Cell::new(if first_row { outcome.trace.as_str() } else { "" }), Cell::new(name(outcome.setting))];
    let Some((first, third)) = outcome.first_and_third() else { return failed::<{ COLUMNS.len() }>(head) };
    let figures = [
        Cell::new(gib(first.peak_live)),
        output::utilization(first.utilization()),
        output::utilization(third.utilization()),
        Cell::new(ms(first.driver.total_ns())),
        Cell::new(ms(third.driver.total_ns())),
        Cell::new(format!("{:.2}", per_gib(first.driver.total_ns(), first.peak_live) as f64 / 1e6)),
        Cell::new(ms(outcome.worst_stall_ns())),
    ];
    head.into_iter().chain(figures).collect()
}

/// Nanoseconds for each GiB.
fn per_gib(ns: u64, bytes: u64) -> u64 {
    (ns as f64 / (bytes.max(1) as f64 / f64::from(1 << 30))) as u64
}

/// Two panels: what is used against driver time, and against the worst stall; a line a trace, a point a size.
fn draw(all: &[Outcome<Size>], settings: usize, run: &str) -> Result<String, chart::DrawError> {
    let time = |outcome: &Outcome<Size>| {
        let first = outcome.passes.first();
        first.map_or(0.0, |first| per_gib(first.driver.total_ns(), first.peak_live) as f64 / 1e6)
    };
    let stall = |outcome: &Outcome<Size>| outcome.worst_stall_ns() as f64 / 1e6;
    let used: Vec<f64> = all.iter().filter_map(|outcome| Some(outcome.first_and_third()?.1.utilization())).collect();
    let panel = |title: &str, x_name: &str, x: &dyn Fn(&Outcome<Size>) -> f64| {
        let ran = || all.iter().filter(|outcome| outcome.first_and_third().is_some());
        let across = Axis::log(x_name, ran().map(x));
        let up = Axis::used("reserved memory that the job uses, third pass", used.iter().copied());
        let of_trace = |(index, outcomes): (usize, &[Outcome<Size>])| {
            let point = |outcome: &Outcome<Size>| {
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
        Panel { title: title.to_owned(), x: across, y: up, lines, bars: Vec::new() }
    };
    let heading = format!("Chunk sizes: what they cost and gain ({run})");
    let legend = "●  with the most MiB of a chunk  ·  ◆  the default rule  ·  up and left is better";
    let panels = [
        panel("Memory against driver time", "driver time of the first pass, ms per GiB of live memory", &time),
        panel("Memory against the worst stall", "worst single stall of three passes, ms", &stall),
    ];
    chart::draw(&heading, legend, &panels)
}
