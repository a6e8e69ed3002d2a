//! `seamalloc order`: compares methods that find orders of operators with a small memory peak.

use crate::args::Color;
use crate::explain::{KEYS, legend};
use crate::failure::Failure;
use crate::inputs::Inputs;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::svg::check_writable;
use crate::table::Table;
use crate::values::seconds;
use clap::{Args, ValueHint};
use seamalloc_order::{Graph, Limits, Load, Method, OrderReport, Outcome, Planner, layout, order, read_path};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct OrderArgs {
    /// Graphs of operators as JSON, also .gz (docs/ordering.md has the format, crates/order/export/export.py makes them of PyTorch's models).
    #[arg(value_name = "GRAPH", value_hint = ValueHint::FilePath, required = true)]
    graphs: Vec<PathBuf>,
    /// Methods, separated by commas: program, eager, greedy, depth-first, exact, roam, model (in builds with the feature highs).
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "program,eager,exact,roam",
          value_parser = |name: &str| name.parse::<Method>())]
    method: Vec<Method>,
    /// The planner of the addresses of each order: portfolio (as `seamalloc plan`), model (in builds with the feature
    /// highs), or none.
    #[arg(long, value_name = "NAME", default_value = "portfolio", value_parser = planner)]
    layout: Layouts,
    /// Stop after this many seconds for each graph and method, with the best order so far; planning its addresses may
    /// take as long again.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds, allow_negative_numbers = true)]
    time_limit: Duration,
    /// Write the best order: the places of the operators in the program, from 0 on, as a list of JSON.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
}

/// The planner of addresses; `None` if addresses are not planned.
#[derive(Clone, Copy, Debug)]
struct Layouts(Option<Planner>);

fn planner(name: &str) -> Result<Layouts, String> {
    if name == "none" {
        return Ok(Layouts(None));
    }
    let planner = name.parse().map_err(|error: seamalloc_order::UnknownPlanner| format!("{error}, none"))?;
    Ok(Layouts(Some(planner)))
}

pub(crate) fn help() -> String {
    format!("{}\n\n{KEYS}", legend(OrderReport::COLUMNS))
}

pub(crate) fn run(args: &OrderArgs, color: Color) -> Result<(), Failure> {
    let (graphs, mut inputs) = Inputs::read(&args.graphs, |path| Ok(vec![read_path(path)?]))?;
    if let (Some(path), true) = (&args.output, inputs.count() > 1) {
        let text = format!("--output {} is for one order; there are {} graphs", path.display(), inputs.count());
        return Err(Failure::Usage(text));
    }
    args.output.iter().try_for_each(|path| check_writable(path))?;
    let mut output = Output::new(color, None)?;
    let mut table = Table::new(OrderReport::COLUMNS);
    let mut orders = Vec::new();
    inputs.each(&graphs, |graph| {
        let program: Vec<usize> = (0..graph.operators().len()).collect();
        let program = Load::of(graph, &program).map_err(|error| failure(graph, error))?.peak;
        let mut best: Option<Outcome> = None;
        for (index, &method) in args.method.iter().enumerate() {
            let (outcome, report) = run_one(args, graph, program, method)?;
            if args.json {
                output::print(&report.to_json().to_string())?;
            } else {
                table.add(&report, usize::from(index > 0));
            }
            if best.as_ref().is_none_or(|best| outcome.load.peak < best.load.peak) {
                best = Some(outcome);
            }
        }
        orders.extend(best);
        Ok(())
    })?;
    if !args.json {
        output.table(&table)?;
        for graph in graphs.iter().filter(|graph| !graph.about().is_empty()) {
            output.text("")?;
            output.text(&format!("{}: {}.", graph.name(), graph.about()))?;
        }
    }
    // The output is printed even if the file cannot be written.
    if let (Some(path), [best]) = (&args.output, &orders[..]) {
        save(path, best)?;
    }
    inputs.finish(Ok(()))
}

fn failure(graph: &Graph, error: impl ToString) -> Failure {
    Failure::Order { input: graph.name().to_owned(), error: error.to_string() }
}

fn run_one(args: &OrderArgs, graph: &Graph, program: u64, method: Method) -> Result<(Outcome, OrderReport), Failure> {
    // The progress bar ends with the run.
    let _progress = Progress::new(format!("{} / {method}", graph.name()));
    let limits = Limits { time: args.time_limit };
    let outcome = order(graph, method, &limits).map_err(|error| failure(graph, error))?;
    let planned = args.layout.0.map(|planner| layout(graph, &outcome.load, planner, args.time_limit));
    let planned = planned.transpose().map_err(|error| failure(graph, error))?;
    let report = OrderReport::new(graph, program, &outcome, planned.as_ref());
    Ok((outcome, report))
}

fn save(path: &Path, best: &Outcome) -> Result<(), Failure> {
    let text = serde_json::json!({ "order": best.order }).to_string();
    fs::write(path, text + "\n").map_err(|error| Failure::Write { path: path.to_owned(), error })
}
