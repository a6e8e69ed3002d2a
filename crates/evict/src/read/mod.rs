//! Graphs in files: DTR's logs, and lists of operators as JSON; either may be compressed with gzip.
//!
//! ```text
//! error.rs   the error of a file that contains no valid graph
//! log.rs     DTR's logs: one JSON object a line
//! list.rs    one JSON object with all operators, in any order
//! ```

mod error;
mod list;
mod log;

pub use error::ReadError;
pub use list::read_list;
pub use log::read_log;

use crate::graph::Graph;
use seamalloc_trace::unpacked_text;
use std::fs::File;
use std::path::Path;

/// Reads a graph of either format. The graph is named after the file.
///
/// # Errors
/// [`ReadError`].
pub fn read_path(path: &Path) -> Result<Graph, ReadError> {
    let io = |source| ReadError::Io { path: path.to_owned(), source };
    let text = File::open(path).and_then(unpacked_text).map_err(io)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.trim_end_matches(".gz").trim_end_matches(".json").trim_end_matches(".log");
    read_text(name, &path.display().to_string(), &text)
}

/// Reads a graph of either format. Errors name the graph's file `input`.
///
/// # Errors
/// [`ReadError`].
pub fn read_text(name: &str, input: &str, text: &str) -> Result<Graph, ReadError> {
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    if first.contains("\"INSTRUCTION\"") { read_log(name, input, text) } else { read_list(name, input, text) }
}
