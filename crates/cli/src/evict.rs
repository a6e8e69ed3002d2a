//! `seamalloc evict`: compares eviction schemes on programs under a memory budget, over each allocator.

use crate::args::Color;
use crate::explain::{KEYS, legend};
use crate::failure::Failure;
use crate::inputs::Inputs;
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::table::Table;
use crate::values::{options, picture, whole};
use clap::{Args, ValueHint};
use seamalloc::Config;
use seamalloc_evict::generate::{self, PROGRAMS};
use seamalloc_evict::graph::Graph;
use seamalloc_evict::{Below, EvictReport, SchemeKind, budget, judge, peak, read};
use std::path::{Path, PathBuf};

/// The default of `--strategy`: PyTorch's two allocators, `stitch`, Coop's arena, and plain counting.
const STRATEGIES: [&str; 5] = ["caching", "expandable", "stitch", Below::ARENA, Below::COUNTED];

#[derive(Debug, Args)]
pub(crate) struct EvictArgs {
    /// Graphs with costs: DTR's logs or lists of operators (JSON, also .gz), or names of generated programs (--list).
    #[arg(value_name = "GRAPH|NAME", value_hint = ValueHint::FilePath, required_unless_present = "list")]
    graphs: Vec<PathBuf>,
    /// List the programs that can be generated.
    #[arg(long)]
    list: bool,
    /// Schemes, separated by commas: dtr, dtr-eq, dtr-local, lru, size, msps, dte, coop, stitched, or all.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "all", value_parser = schemes)]
    scheme: Vec<Schemes>,
    /// The allocators that place the tensors, separated by commas: strategies or families of `seamalloc stress`, arena
    /// (Coop's), counted (bytes alone) [default: caching,expandable,stitch,arena,counted].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    strategy: Vec<String>,
    /// Budgets, as parts of the most bytes that are live at once, separated by commas.
    #[arg(long, value_name = "PART", value_delimiter = ',', default_values_t = [0.3, 0.5, 0.7, 0.9], value_parser = part,
          allow_negative_numbers = true)]
    budget: Vec<f64>,
    /// Allocator options in PyTorch's syntax: chunk_size_mb:2.
    #[arg(long, value_name = "OPTIONS", default_value = "", value_parser = options, hide_default_value = true)]
    conf: Config,
    /// Seed of generated programs with a random shape.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = |text: &str| whole(text, 0..=u64::MAX),
          allow_negative_numbers = true)]
    seed: u64,
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,
    /// Also save the printed output as a picture.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, value_parser = picture,
          conflicts_with = "json")]
    svg: Option<PathBuf>,
}

/// One scheme, or all.
#[derive(Clone, Debug)]
struct Schemes(Vec<SchemeKind>);

fn schemes(name: &str) -> Result<Schemes, seamalloc_evict::UnknownScheme> {
    if name == "all" { Ok(Schemes(SchemeKind::ALL.to_vec())) } else { Ok(Schemes(vec![name.parse()?])) }
}

/// Parses a budget, as a part of the most bytes that are live at once, and checks its range.
fn part(text: &str) -> Result<f64, String> {
    let part = text.parse().map_err(|_| "expected a number, such as 0.5".to_owned())?;
    budget(u64::MAX >> 20, part).map(|_| part).map_err(|error| error.to_string())
}

pub(crate) fn help() -> String {
    format!("{}\n\n{EXIT} {KEYS}", legend(EvictReport::COLUMNS))
}

const EXIT: &str = "Exit code 3 where a run did not end: nothing left to evict, or 10 times the time.";

pub(crate) fn run(args: &EvictArgs, color: Color) -> Result<(), Failure> {
    if args.list {
        let longest = PROGRAMS.iter().map(|program| program.name.len()).max().unwrap_or(0);
        return PROGRAMS
            .iter()
            .try_for_each(|program| output::print(&format!("{:longest$}  {}", program.name, program.summary)));
    }
    let (graphs, mut inputs) = Inputs::read(&args.graphs, |path| Ok(vec![load(path, args.seed)?]))?;
    let memories = memories(args)?;
    let mut schemes: Vec<SchemeKind> = Vec::new();
    for kind in args.scheme.iter().flat_map(|named| &named.0) {
        if !schemes.contains(kind) {
            schemes.push(*kind);
        }
    }
    let mut output = Output::new(color, args.svg.as_deref())?;
    let mut table = Table::new(EvictReport::COLUMNS);
    let (mut runs, mut failed) = (0, 0);
    inputs.each(&graphs, |graph| {
        let peak =
            peak(graph).map_err(|error| Failure::Evict { input: graph.name().to_owned(), error: error.into() })?;
        let progress = Progress::new(graph.name().to_owned());
        let total = args.budget.len() * memories.len() * schemes.len();
        let mut done = 0;
        for (nth, part) in args.budget.iter().enumerate() {
            for (index, below) in memories.iter().enumerate() {
                for (place, scheme) in schemes.iter().enumerate() {
                    progress.say(format!("{} / {part} / {} / {scheme}", graph.name(), below.name()));
                    let report = judge(graph, peak, *part, *scheme, below);
                    let report = report.map_err(|error| Failure::Evict { input: graph.name().to_owned(), error })?;
                    done += 1;
                    progress.set(done, total as u64);
                    runs += 1;
                    failed += usize::from(report.failed().is_some());
                    if args.json {
                        output::print(&report.to_json().to_string())?;
                    } else {
                        let repeated = [place, index, nth].into_iter().position(|at| at > 0).map_or(0, |at| 3 - at);
                        table.add(&report, repeated);
                    }
                }
            }
        }
        Ok(())
    })?;
    if !args.json {
        output.table(&table)?;
    }
    output.finish()?;
    inputs.finish(if failed > 0 { Err(Failure::OutOfMemory(failed, runs)) } else { Ok(()) })
}

/// Returns the allocators over which the eviction schemes run, as the arguments name them: strategies, Coop's arena, or
/// plain counts. Each is returned once.
fn memories(args: &EvictArgs) -> Result<Vec<Below>, Failure> {
    let defaults = STRATEGIES.map(str::to_owned);
    let names = if args.strategy.is_empty() { &defaults[..] } else { &args.strategy };
    let mut found: Vec<Below> = Vec::new();
    for name in names {
        for below in Below::named(name, &args.conf).map_err(|error| Failure::Usage(error.to_string()))? {
            if !found.contains(&below) {
                found.push(below);
            }
        }
    }
    Ok(found)
}

/// Returns the graph of a file, or the generated program of that name. A file takes precedence.
fn load(path: &Path, seed: u64) -> Result<Graph, Failure> {
    let name = path.to_string_lossy();
    match read::read_path(path) {
        Err(read::ReadError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            let program = generate::named(&name).map_err(|near| {
                let nearest = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
                Failure::NoSuchGraph { path: path.to_owned(), nearest }
            })?;
            Ok(program.generate(seed)?)
        }
        graph => Ok(graph?),
    }
}
