//! `seamalloc plan`: compares methods that plan offsets for buffers with known lifetimes.
//!
//! ```text
//! input.rs     what is planned: a csv of buffers, or an iteration of a trace
//! picture.rs   the plan: time against address
//! ```

mod input;
mod picture;
mod report;

use crate::args::{Color, GenerateArgs};
use crate::explain::{KEYS, legend};
use crate::failure::Failure;
use crate::inputs::Inputs;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::svg::check_writable;
use crate::table::Table;
use crate::values::{picture, seconds, whole};
use clap::{Args, ValueHint};
use input::Input;
pub(crate) use report::PlanReport;
use seamalloc::units::{format_bytes, parse_bytes};
use seamalloc_plan::{Limits, Method, Outcome, Plan, plan, write_csv};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Files of buffers (csv with columns id,lower,upper,size), traces in any format, or names of recorded jobs and
    /// generated workloads (see `seamalloc stress --list`).
    #[arg(value_name = "TRACE|CSV", value_hint = ValueHint::FilePath, required = true)]
    inputs: Vec<PathBuf>,
    /// Methods, separated by commas: first-fit, decreasing-size, chainer, annealing, exact, portfolio (all of them, on
    /// threads).
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "portfolio", value_parser = |name: &str| name.parse::<Method>())]
    method: Vec<Method>,
    /// Stop as soon as a plan needs this many bytes or fewer: 20MiB, 1048576.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    capacity: Option<u64>,
    /// Stop after so many seconds, for each input and method, with the best plan so far.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, allow_negative_numbers = true)]
    time_limit: Duration,
    /// Seed of annealing, and of generated workloads.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = |text: &str| whole(text, 0..=u64::MAX),
          allow_negative_numbers = true)]
    seed: u64,
    /// Write the best plan: the buffers with a column of offsets, as csv.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Draw the best plan: time against address.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, value_parser = picture)]
    svg: Option<PathBuf>,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn help() -> String {
    format!(
        "{}\n\n\
         Of a trace, one step is planned, the one with the peak of live memory. Persistent memory (weights, optimizer state) \
         is not. Exit code 3 where no plan was found that needs --capacity or less. {KEYS}",
        legend(PlanReport::COLUMNS)
    )
}

pub(crate) fn run(args: &PlanArgs, color: Color) -> Result<(), Failure> {
    let generate = GenerateArgs { seed: args.seed, steps: None };
    let (loaded, mut inputs) = Inputs::read(&args.inputs, |path| input::load(path, generate))?;
    let places: Vec<&Path> = [&args.output, &args.svg].into_iter().flatten().map(PathBuf::as_path).collect();
    let count = loaded.len().max(inputs.count());
    if count > 1 && !places.is_empty() {
        let text = format!("--output and --svg are for one plan; there are {count} inputs");
        return Err(Failure::Usage(text));
    }
    places.iter().try_for_each(|place| check_writable(place))?;
    let mut output = Output::new(color, None)?;
    let mut table = Table::new(PlanReport::COLUMNS);
    let (mut runs, mut too_large) = (0, 0);
    let mut plans = Vec::new();
    inputs.each(&loaded, |input| {
        let mut best: Option<Outcome> = None;
        for (index, &method) in args.method.iter().enumerate() {
            let outcome = run_one(args, input, method)?;
            let report = PlanReport::new(input.problem.name(), &outcome);
            runs += 1;
            too_large += usize::from(args.capacity.is_some_and(|capacity| report.peak > capacity));
            if args.json {
                output::print(&report.to_json().to_string())?;
            } else {
                table.add(&report, usize::from(index > 0));
            }
            if best.as_ref().is_none_or(|best| outcome.plan.peak < best.plan.peak) {
                best = Some(outcome);
            }
        }
        plans.push((input, best));
        Ok(())
    })?;
    if !args.json {
        output.table(&table)?;
        for text in plans.iter().filter_map(|(input, _)| input.in_words()) {
            output.text("")?;
            output.text(&text)?;
        }
    }
    // The output is printed even if a file cannot be written.
    for (input, best) in plans.iter().filter_map(|(input, best)| Some((input, best.as_ref()?))) {
        save(args, input, best)?;
    }
    let ran = if too_large > 0 { Err(Failure::Capacity(too_large, runs)) } else { Ok(()) };
    inputs.finish(ran)
}

fn run_one(args: &PlanArgs, input: &Input, method: Method) -> Result<Outcome, Failure> {
    let limits = Limits { time: args.time_limit, capacity: args.capacity, seed: args.seed };
    let name = input.problem.name();
    let progress = Progress::new(format!("{name} / {method}"));
    let limit = u64::try_from(limits.time.as_millis()).unwrap_or(u64::MAX);
    let found = plan(&input.problem, method, &limits, &mut |now| {
        progress.set(u64::try_from(now.elapsed.as_millis()).unwrap_or(limit).min(limit), limit);
        if let Some(peak) = now.peak {
            progress.say(format!("{name} / {method}: {}", format_bytes(peak)));
        }
    });
    found.map_err(|error| Failure::Plan { input: name.to_owned(), error })
}

/// Writes and draws the plan of an input, if requested.
fn save(args: &PlanArgs, input: &Input, best: &Outcome) -> Result<(), Failure> {
    if let Some(path) = &args.output {
        let write = |plan: &Plan| write_csv(&input.problem, plan, File::create(path)?);
        write(&best.plan).map_err(|error| Failure::Write { path: path.clone(), error })?;
    }
    if let Some(path) = &args.svg {
        let drawn = picture::draw(&input.problem, best);
        let svg = drawn.map_err(|error| Failure::Draw { path: path.clone(), error: error.to_string() })?;
        std::fs::write(path, svg).map_err(|error| Failure::Write { path: path.clone(), error })?;
    }
    Ok(())
}
