//! The failures that end the command, and their exit codes.

use seamalloc_evict::JudgeError;
use seamalloc_evict::graph::GraphError;
use seamalloc_evict::read::ReadError;
use seamalloc_plan::{CsvError, PlanError, ProblemError};
use seamalloc_trace::TraceError;
use seamalloc_trace::replay::ReplayError;
use std::path::PathBuf;

/// The exit code for a wrong command line.
pub(crate) const USAGE: u8 = 2;

/// The failure that ends the command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Csv(#[from] CsvError),
    #[error("{input}: {error}")]
    Problem { input: String, error: ProblemError },
    #[error("{input}: {error}")]
    Plan { input: String, error: PlanError },
    #[error(transparent)]
    ReadGraph(#[from] ReadError),
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(transparent)]
    ReadOperators(#[from] seamalloc_order::ReadError),
    #[error("{input}: {error}")]
    Order { input: String, error: String },
    #[error("{input}: {error}")]
    Evict { input: String, error: JudgeError },
    #[error(
        "cannot read {path}: no such file, and no program has this name (`seamalloc evict --list` shows the names){nearest}",
        path = .path.display()
    )]
    NoSuchGraph { path: PathBuf, nearest: String },
    #[error("{} more than the capacity", if *.1 == 1 { "the plan needs".to_owned() } else { format!("{} of {} plans need", .0, .1) })]
    Capacity(usize, usize),
    #[error("{0}")]
    Usage(String),
    #[error("cannot read {path}: {error}; expected a trace file", path = .path.display())]
    Read { path: PathBuf, error: std::io::Error },
    #[error(
        "cannot read {path}: no such file, and no recorded job or generated workload has this name \
         (`seamalloc stress --list` shows the names){nearest}", path = .path.display()
    )]
    NoSuchTrace { path: PathBuf, nearest: String },
    #[error(
        "{path} is a snapshot of a GPU's memory; `seamalloc replay` compares allocators on it. `seamalloc pinned` takes a trace of \
         page-locked memory: `SEAMALLOC_PINNED=1 python -m seamalloc run --record job-{{device}}.seam train.py` writes one, \
         job-pinned.seam", path = .path.display()
    )]
    GpuSnapshot { path: PathBuf },
    #[error("cannot write {path}: {error}", path = .path.display())]
    Write { path: PathBuf, error: std::io::Error },
    #[error("cannot draw {path}: {error}", path = .path.display())]
    Draw { path: PathBuf, error: String },
    #[error("cannot read {path}: {found}; expected what `python -m seamalloc fleet --json` prints", path = .path.display())]
    NoFleet { path: PathBuf, found: String },
    #[error("cannot write to standard output: {0}")]
    Output(std::io::Error),
    #[error("cannot read {path}: {error}; expected lines of `seamalloc stress --json`", path = .path.display())]
    ReadRows { path: PathBuf, error: std::io::Error },
    #[error("{place}: {found}; expected lines of `seamalloc stress --json`")]
    NoRow { place: String, found: String },
    #[error(transparent)]
    Socket(#[from] seamalloc_broker::SocketError),
    #[error(transparent)]
    Broker(#[from] seamalloc_broker::BrokerError),
    #[error(
        "no program of this user tells of its allocators; one does with SEAMALLOC_SERVE=1 in its environment, or \
         seamalloc.enable(serve=True)"
    )]
    NobodyServes,
    #[error("{0} of {1} rows differ")]
    Differ(usize, usize),
    #[error("{} did not have enough memory", if *.1 == 1 { "the run".to_owned() } else { format!("{} of {} runs", .0, .1) })]
    OutOfMemory(usize, usize),
    #[error(
        "{} with every allocator that was tried",
        if *.1 == 1 { "the job needs more memory than it has,".to_owned() } else { format!("{} of {} jobs need more memory than they have,", .0, .1) }
    )]
    DoesNotRun(usize, usize),
    #[error("{0} of {1} inputs could not be processed{rest}", rest = if .0 < .1 { "; the others were" } else { "" })]
    Broken(usize, usize),
    #[cfg(unix)]
    #[error("cannot ask at {path}: no broker listens there; `seamalloc broker{}` starts one", option(.path), path = .path.display())]
    NoBroker { path: PathBuf },
}

impl Failure {
    /// Returns whether an input caused the failure, so that other inputs may be processed.
    pub(crate) fn is_of_input(&self) -> bool {
        match self {
            Self::Trace(_)
            | Self::Replay(ReplayError::Allocator { .. } | ReplayError::BadTrace { .. })
            | Self::Csv(_)
            | Self::Problem { .. }
            | Self::ReadGraph(_)
            | Self::Graph(_)
            | Self::ReadOperators(_)
            | Self::Order { .. }
            | Self::Evict { .. }
            | Self::NoSuchGraph { .. }
            | Self::Read { .. }
            | Self::NoSuchTrace { .. }
            | Self::GpuSnapshot { .. } => true,
            Self::Plan { error, .. } => !matches!(error, PlanError::Capacity { .. }),
            _ => false,
        }
    }

    /// Returns the exit code. 1: bad input or a failed run; 2: a wrong command line; 3: a run or a plan had too little
    /// memory; 4: some inputs could not be processed, and the others were processed.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Trace(_)
            | Self::Replay(_)
            | Self::Csv(_)
            | Self::Problem { .. }
            | Self::ReadGraph(_)
            | Self::ReadOperators(_)
            | Self::Order { .. }
            | Self::Graph(_)
            | Self::Evict { .. }
            | Self::NoSuchGraph { .. }
            | Self::Read { .. }
            | Self::NoSuchTrace { .. }
            | Self::GpuSnapshot { .. }
            | Self::Write { .. }
            | Self::Draw { .. }
            | Self::ReadRows { .. }
            | Self::NoRow { .. }
            | Self::NoFleet { .. }
            | Self::Socket(_)
            | Self::Broker(_)
            | Self::NobodyServes
            | Self::Differ(..)
            | Self::Output(_) => 1,
            Self::Usage(_) => USAGE,
            Self::Plan { error: PlanError::Capacity { .. }, .. } => 3,
            Self::Plan { .. } => 1,
            Self::OutOfMemory(..) | Self::DoesNotRun(..) | Self::Capacity(..) => 3,
            Self::Broken(broken, of) if broken < of => 4,
            Self::Broken(..) => 1,
            #[cfg(unix)]
            Self::NoBroker { .. } => 1,
        }
    }
}

/// Returns the option that names a socket; an empty text for the default socket.
#[cfg(unix)]
fn option(socket: &std::path::Path) -> String {
    if socket == seamalloc_broker::default_socket() { String::new() } else { format!(" --socket {}", socket.display()) }
}
