//! The `seamalloc` command: allocation traces and stress patterns on a simulated GPU, strategy beside strategy.

mod args;
mod command_line;
mod compare;
mod convert;
mod explain;
mod failure;
mod fit;
mod output;
mod progress;
mod replay;
mod side_by_side;
mod source;
mod stress;
mod study;
mod svg;
mod table;
mod values;
mod whatif;

use clap::{CommandFactory, Parser};
use command_line::{Cli, Command};
use failure::Failure;
use std::process::ExitCode;

/// Without SEAMALLOC_LOG: failures, and options that have no effect.
const LOGGED: &str = "error,seamalloc::config=warn";

fn main() -> ExitCode {
    let level = tracing_subscriber::EnvFilter::try_from_env("SEAMALLOC_LOG").unwrap_or_else(|_| LOGGED.into());
    let log = tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr);
    // Plain, since --color is not known before the command line is read.
    log.with_ansi(false).without_time().init();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap's own text; `--help` and `--version` come this way too, and are no failure. If it cannot be written,
            // nobody is listening.
            let _ = error.print();
            return if error.use_stderr() { failure::USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let result = match &cli.command {
        Command::Stress(args) => stress::run(args, cli.color),
        Command::Replay(args) => replay::run(args, cli.color),
        Command::Fit(args) => fit::run(args, cli.color),
        Command::Whatif(args) => whatif::run(args, cli.color),
        Command::Study(study) => study::run(study, cli.color),
        Command::Compare(args) => compare::run(args, cli.color),
        Command::Convert(args) => convert::run(args),
        Command::Completions { shell } => {
            // clap panics where it cannot write.
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "seamalloc", &mut script);
            output::print(String::from_utf8_lossy(&script).trim_end())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has enough of it (`| head`).
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(&failure);
            failure.code().into()
        }
    }
}
