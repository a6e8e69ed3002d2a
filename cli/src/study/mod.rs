//! `seamalloc study`: what an option of `stitch` costs and gains, over its values.
//!
//! Owns: the command lines of the studies, their runs of three passes, and what the studies have in common.

mod axis;
mod chart;
mod chunks;
mod labels;
mod lag;

use crate::args::{self, Color, GenerateArgs};
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::picture::check_writable;
use crate::progress::Progress;
use crate::source;
use clap::{Args, Subcommand, ValueHint};
use comfy_table::Cell;
use seamalloc::driver::sim::SimConfig;
use seamalloc::{Config, StrategyKind};
use seamalloc_trace::replay::{PassReport, ReplayOptions, replay};
use seamalloc_trace::{Trace, recorded};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// From the third pass on a training loop is expected to find what it needs, on every trace.
const PASSES: u32 = 3;

/// Which option is studied.
#[derive(Debug, Subcommand)]
pub(crate) enum Study {
    /// The size of chunks (chunk_size_mb): memory against driver time and stalls.
    #[command(after_help = chunks::HELP)]
    Chunks(chunks::ChunksArgs),
    /// Sharing between streams (sharing), by how far the CPU runs ahead of the GPU.
    #[command(after_help = lag::HELP)]
    Lag(lag::LagArgs),
}

/// What every study takes.
#[derive(Debug, Args)]
pub(crate) struct StudyArgs {
    #[command(flatten)]
    generate: GenerateArgs,
    /// The other options of the allocator, in PyTorch's syntax.
    #[arg(long, value_name = "OPTIONS", default_value = "", value_parser = args::options, hide_default_value = true)]
    conf: Config,
    /// The device: sim:PROFILE[,capacity=SIZE].
    #[arg(long, value_name = "DEVICE", default_value = "sim:h200", value_parser = args::device)]
    device: SimConfig,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
    /// Save a plot of the results.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,
}

pub(crate) fn run(study: &Study, color: Color) -> Result<(), Failure> {
    match study {
        Study::Chunks(args) => chunks::run(args, color),
        Study::Lag(args) => lag::run(args, color),
    }
}

impl StudyArgs {
    /// The traces of all files and names, or the recorded jobs of these names.
    fn traces(&self, paths: &[PathBuf], default: impl Fn(&str) -> bool) -> Result<Vec<Trace>, Failure> {
        if paths.is_empty() {
            let jobs = recorded::JOBS.iter().filter(|job| default(job.name));
            return jobs.map(|job| Ok(job.load()?)).collect();
        }
        source::load_all(paths, self.generate)
    }

    /// What is the same in all runs, and where the output goes. `studied` says whether options set what is studied.
    fn begin(
        &self,
        studied: (&str, impl Fn(&Config) -> bool),
        color: Color,
    ) -> Result<(ReplayOptions, Output), Failure> {
        let kind = self.conf.strategy;
        if kind != StrategyKind::Stitch && kind != StrategyKind::default() {
            return Err(Failure::Usage(format!("a study is of the strategy `stitch`; --conf names `{kind}`")));
        }
        let (option, is_set) = studied;
        if is_set(&self.conf) {
            return Err(Failure::Usage(format!("the study sets `{option}` itself; leave it out of --conf")));
        }
        self.svg.as_deref().map_or(Ok(()), check_writable)?;
        let config = Config { strategy: StrategyKind::Stitch, ..self.conf.clone() };
        let options = ReplayOptions { passes: PASSES, ..ReplayOptions::new(config, self.device.clone()) };
        Ok((options, Output::new(color, None)?))
    }
}

/// What one setting came to on one trace.
struct Outcome<S> {
    trace: String,
    setting: S,
    /// Three passes; fewer where the last one ran out of memory.
    passes: Vec<PassReport>,
}

impl<S> Outcome<S> {
    /// The first and the third pass, unless memory ran out.
    fn first_and_third(&self) -> Option<(&PassReport, &PassReport)> {
        match self.passes.as_slice() {
            [first, _, third] if third.oom.is_none() => Some((first, third)),
            _ => None,
        }
    }

    /// The keys of `--json` that every study has, and `more` of its own; without figures where memory ran out.
    fn figures(&self, more: impl Fn(&PassReport, &PassReport) -> Value) -> Value {
        let Some((first, third)) = self.first_and_third() else { return json!({ "oom": true }) };
        let common = json!({
            "oom": false,
            "peak_live": first.peak_live,
            "peak_reserved_first": first.peak_reserved,
            "peak_reserved_third": third.peak_reserved,
            "utilization_first": digits(first.utilization(), 6),
            "utilization_third": digits(third.utilization(), 6),
            "driver_time_us_first": us(first.driver.total_ns()),
            "driver_time_us_third": us(third.driver.total_ns()),
            "driver_time_us_all": us(self.passes.iter().map(|pass| pass.driver.total_ns()).sum()),
            "worst_stall_us": us(self.worst_stall_ns()),
        });
        with_keys(common, more(first, third))
    }

    /// The longest that one operation of any pass spent in the driver, in nanoseconds.
    fn worst_stall_ns(&self) -> u64 {
        self.passes.iter().map(|pass| pass.stalls.worst_ns).max().unwrap_or_default()
    }
}

/// Replays every trace with every setting, one after the other. `each` hears of every outcome at once.
fn outcomes<S: Copy>(
    traces: &[Trace],
    settings: &[S],
    options: impl Fn(S) -> (String, ReplayOptions),
    mut each: impl FnMut(&Outcome<S>, bool) -> Result<(), Failure>,
) -> Result<Vec<Outcome<S>>, Failure> {
    let mut all = Vec::new();
    for trace in traces {
        for (index, &setting) in settings.iter().enumerate() {
            let (name, options) = options(setting);
            let progress = Progress::new(format!("{} / {name}", trace.name));
            let passes = replay(trace, &options, &mut |done, total| progress.set(done, total))?;
            drop(progress);
            let outcome = Outcome { trace: trace.name.clone(), setting, passes };
            each(&outcome, index == 0)?;
            all.push(outcome);
        }
    }
    Ok(all)
}

/// Saves a plot, and ends as the runs did: out of memory anywhere is a failure.
fn finish<S>(all: &[Outcome<S>], svg: Option<(&Path, Result<String, chart::DrawError>)>) -> Result<(), Failure> {
    if let Some((path, drawn)) = svg {
        let picture = drawn.map_err(|error| Failure::Draw { path: path.to_owned(), error: error.to_string() })?;
        std::fs::write(path, picture).map_err(|error| Failure::Write { path: path.to_owned(), error })?;
    }
    match all.iter().filter(|outcome| outcome.first_and_third().is_none()).count() {
        0 => Ok(()),
        failed => Err(Failure::OutOfMemory(failed, all.len())),
    }
}

/// Adds keys to a line of JSON.
fn with_keys(mut line: Value, more: Value) -> Value {
    if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
        line.extend(more);
    }
    line
}

/// Nanoseconds in microseconds, with one digit behind the point.
fn us(ns: u64) -> f64 {
    digits(ns as f64 / 1e3, 1)
}

/// Rounded to so many digits behind the point.
fn digits(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// What stands for the figures of a run that ran out of memory.
fn failed<const CELLS: usize>(head: impl IntoIterator<Item = Cell>) -> Vec<Cell> {
    let mut cells: Vec<Cell> = head.into_iter().chain([output::failed("OOM")]).collect();
    cells.resize(CELLS, Cell::new(""));
    cells
}
