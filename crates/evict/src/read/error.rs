//! The error of a file that contains no valid graph.

use crate::graph::GraphError;
use std::path::PathBuf;

/// The error of a file that contains no valid graph.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}; expected a graph: a log of DTR's or a list of operators as JSON", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A line is not a valid step of a program.
    #[error("{input}, line {line}: {found}")]
    Line {
        /// The input's name.
        input: String,
        /// The line, from 1 on.
        line: usize,
        /// The error in the line.
        found: String,
    },
    /// The graph in the file is invalid as a whole.
    #[error("{input}: {found}")]
    Whole {
        /// The input's name.
        input: String,
        /// The error.
        found: String,
    },
}

impl ReadError {
    pub(super) fn whole(input: &str, found: impl ToString) -> Self {
        Self::Whole { input: input.to_owned(), found: found.to_string() }
    }

    pub(super) fn graph(input: &str, error: &GraphError) -> Self {
        Self::whole(input, error)
    }
}
