//! The `seamalloc` command: compares strategies on allocation traces and stress patterns on a simulated GPU.

mod args;
#[cfg(unix)]
mod broker;
mod cliff;
mod command_line;
mod compare;
mod comparison;
mod convert;
mod elsewhere;
mod evict;
mod explain;
mod failure;
mod fit;
mod inputs;
mod layout;
mod log;
mod order;
mod output;
mod outside;
mod pinned;
mod plan;
mod progress;
mod replay;
mod report;
mod side_by_side;
mod source;
mod stress;
mod study;
mod svg;
mod table;
mod timeline;
#[cfg(unix)]
mod top;
mod values;
mod verdict;
mod whatif;

use clap::FromArgMatches;
use command_line::{Cli, Command, command};
use failure::Failure;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    log::start();
    let cli = match command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            if let Some(text) = elsewhere::explain(&error) {
                let failure = Failure::Usage(text);
                output::complain(&failure);
                return failure.code().into();
            }
            // clap prints its own text. `--help` and `--version` arrive here too, and are no failure.
            output::complain_of_arguments(&error);
            return if error.use_stderr() { failure::USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let result = match &cli.command {
        Command::Stress(args) => stress::run(args, cli.color),
        Command::Replay(args) => replay::run(args, cli.color),
        Command::Report(args) => report::run(args, cli.color),
        Command::Fit(args) => fit::run(args, cli.color),
        Command::Whatif(args) => whatif::run(args, cli.color),
        Command::Study(study) => study::run(study, cli.color),
        Command::Evict(args) => evict::run(args, cli.color),
        Command::Plan(args) => plan::run(args, cli.color),
        Command::Order(args) => order::run(args, cli.color),
        Command::Pinned(args) => pinned::run(args, cli.color),
        #[cfg(unix)]
        Command::Broker(args) => broker::run(args, cli.color),
        #[cfg(unix)]
        Command::Top(args) => top::run(args, cli.color),
        Command::Compare(args) => compare::run(args, cli.color),
        Command::Convert(args) => convert::run(args),
        Command::Man { folder } => write_man_pages(folder),
        Command::Completions { shell } => {
            // clap panics on a failed write, so the script is collected first.
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut command(), "seamalloc", &mut script);
            output::write(String::from_utf8_lossy(&script).trim_end())
        }
    };
    log::finish();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the output (`| head`).
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(&failure);
            failure.code().into()
        }
    }
}

/// Writes man pages of the command and of each subcommand, from the text of `--help`.
fn write_man_pages(folder: &Path) -> Result<(), Failure> {
    let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command(), folder));
    written.map_err(|error| Failure::Write { path: folder.to_owned(), error })
}
