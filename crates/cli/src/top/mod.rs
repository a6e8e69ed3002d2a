//! `seamalloc top`: shows the statistics of running programs' allocators.

mod row;
mod screen;

use crate::args::Color;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Table;
use crate::values::seconds;
use clap::{Args, ValueHint};
use row::Row;
use screen::{Key, Screen};
use seamalloc_live::{Process, ask, listed, prometheus};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The text of `--help` below the options.
pub(crate) const HELP: &str = "\
A program opts in: SEAMALLOC_SERVE=1 in its environment, seamalloc.enable(serve=True) in Python, seam_serve in C, \
seamalloc_live::Server in Rust. Only its own user may ask.";

/// Returns the legend of the columns.
pub(crate) fn legend() -> String {
    crate::explain::legend(Row::COLUMNS)
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Processes to show [default: all of this user that opted in].
    #[arg(value_name = "PID")]
    pids: Vec<u32>,
    /// Ask at this socket, for a program that was given a name for its socket.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "pids")]
    socket: Option<PathBuf>,
    /// Seconds between two samples.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Take two samples, an interval apart, and print the result once.
    #[arg(long)]
    once: bool,
    /// Print one JSON object a line for each sample and allocator.
    #[arg(long)]
    json: bool,
    /// Print the metrics once, as Prometheus reads them.
    #[arg(long, conflicts_with_all = ["json", "once"])]
    prometheus: bool,
    /// Write the last operations of a process's allocator, which its flight recorder has kept: a pickle for PyTorch's viewer and
    /// for `replay`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["json", "once", "prometheus"])]
    dump: Option<PathBuf>,
    /// Which of several allocators to dump, by the number that --json shows.
    #[arg(long, value_name = "N", requires = "dump")]
    allocator: Option<u32>,
}

pub(crate) fn run(args: &TopArgs, color: Color) -> Result<(), Failure> {
    if args.prometheus {
        return output::write(prometheus(&look(args)?).trim_end());
    }
    if let Some(path) = &args.dump {
        return dump(args, path);
    }
    if !args.once && !args.json && io::stdout().is_terminal() && io::stdin().is_terminal() {
        return watch(args).map_err(|error| error.unwrap_or_else(Failure::Output));
    }
    let mut output = Output::new(color, None)?;
    let mut rows = Row::of(some(look(args)?)?, &[]);
    loop {
        thread::sleep(args.interval);
        rows = Row::of(some(look(args)?)?, &rows);
        if args.json {
            rows.iter().try_for_each(|row| output::print(&row.to_json().to_string()))?;
        } else {
            output.table(&table(&rows))?;
        }
        if args.once {
            return Ok(());
        }
    }
}

fn table(rows: &[Row]) -> Table<Row> {
    let mut table = Table::new(Row::COLUMNS);
    rows.iter().for_each(|row| table.add(row, 0));
    table
}

/// The result of showing the screen. The error is an error of the command, or of the terminal.
type Shown<T> = Result<T, Result<Failure, io::Error>>;

/// Shows the processes, including new ones, until a key ends the display.
fn watch(args: &TopArgs) -> Shown<()> {
    let mut rows = Row::of(some(look(args).map_err(Ok)?).map_err(Ok)?, &[]);
    let screen = Screen::open().map_err(Err)?;
    let mut paused = false;
    loop {
        let table = table(&rows).for_terminal(Some(screen.width()), false);
        let state = if paused { "paused" } else { "p pauses" };
        let head = format!("seamalloc top   every {:?}   {state}, q quits", args.interval);
        let none = if rows.is_empty() { "no program tells of its allocators any more" } else { "" };
        screen.show(&format!("{head}\n\n{table}\n{none}")).map_err(Err)?;
        match screen.key(args.interval).map_err(Err)? {
            Some(Key::Quit) => return Ok(()),
            Some(Key::Pause) => paused = !paused,
            None => {}
        }
        if !paused {
            // If a named program ends, its error ends the display.
            rows = Row::of(look(args).map_err(Ok)?, &rows);
        }
    }
}

/// Asks the named processes, or all processes. Of all processes, those that do not answer are left out.
fn look(args: &TopArgs) -> Result<Vec<Process>, Failure> {
    Ok(answers(args)?.into_iter().map(|(_, process)| process).collect())
}

/// Returns the answer of each process, with the process's socket.
fn answers(args: &TopArgs) -> Result<Vec<(PathBuf, Process)>, Failure> {
    let ask = |socket: PathBuf| Ok(ask::samples(&socket).map(|process| (socket, process))?);
    if let Some(socket) = &args.socket {
        return Ok(vec![ask(socket.clone())?]);
    }
    let there = listed()?;
    if !args.pids.is_empty() {
        return args.pids.iter().flat_map(|pid| named(*pid, &there)).map(ask).collect();
    }
    let answers = there.into_iter().map(|(_, socket)| ask(socket));
    Ok(answers
        .filter_map(|answer| answer.inspect_err(|error: &Failure| tracing::debug!(%error, "left out")).ok())
        .collect())
}

/// Returns the socket of the process with this number in this namespace, or the sockets of processes in other
/// namespaces with this number.
fn named(pid: u32, there: &[(u32, PathBuf)]) -> Vec<PathBuf> {
    let own = ask::socket(pid);
    let found: Vec<_> = there.iter().filter(|(number, _)| *number == pid).map(|(_, socket)| socket.clone()).collect();
    if found.is_empty() || found.contains(&own) { vec![own] } else { found }
}

fn some(processes: Vec<Process>) -> Result<Vec<Process>, Failure> {
    if processes.is_empty() { Err(Failure::NobodyServes) } else { Ok(processes) }
}

fn dump(args: &TopArgs, path: &Path) -> Result<(), Failure> {
    let answers = answers(args)?;
    if answers.is_empty() {
        return Err(Failure::NobodyServes);
    }
    let found: Vec<_> = answers
        .iter()
        .flat_map(|(socket, process)| process.allocators.iter().map(move |sample| (socket, process.pid, sample)))
        .filter(|(_, _, sample)| args.allocator.is_none_or(|wanted| wanted == sample.allocator))
        .collect();
    let [(socket, pid, sample)] = found[..] else {
        let names = found.iter().map(|(_, pid, sample)| format!("{pid}/{} ({})", sample.allocator, sample.device));
        let names = names.collect::<Vec<_>>().join(", ");
        return Err(Failure::Usage(format!(
            "{} allocators fit ({names}): name one process, or its socket with --socket, and one of its allocators with \
             --allocator",
            found.len()
        )));
    };
    let bytes = ask::flight(socket, sample.allocator)?;
    std::fs::write(path, &bytes).map_err(|error| Failure::Write { path: path.to_owned(), error })?;
    output::print(&format!("{} of process {pid}: {} bytes in {}", sample.device, bytes.len(), path.display()))
}
