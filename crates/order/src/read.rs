//! Graphs in files: one JSON object, plain or compressed with gzip.
//!
//! ```json
//! {"about": "where it comes from, in words",
//!  "tensors": [
//!    {"name": "weight", "bytes": 4096, "persistent": true},
//!    {"name": "x", "bytes": 1024},
//!    {"name": "row", "view_of": "x"}],
//!  "operators": [
//!    {"name": "embed", "inputs": ["weight"], "outputs": ["x"]},
//!    {"name": "select", "inputs": ["x"], "outputs": ["row"]},
//!    {"name": "sgd", "inputs": ["weight", "row"], "outputs": [], "overwrites": ["weight"]}],
//!  "outputs": ["x"]}
//! ```
//! Operators are in the program's order. Unknown keys are errors, so that a misspelled key is noticed.

use crate::graph::{Graph, GraphError, GraphSpec, OperatorSpec, Source, TensorSpec};
use seamalloc_trace::unpacked_text;
use serde_json::{Map, Value};
use std::fs::File;
use std::path::{Path, PathBuf};

/// The error of a file that contains no valid graph.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}; expected a graph of operators as JSON", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The text is not JSON.
    #[error("{input}, line {line}: {found}; expected a graph of operators as JSON")]
    Json {
        /// The input's name.
        input: String,
        /// The line, from 1 on.
        line: usize,
        /// The error in the line.
        found: String,
    },
    /// A value is missing, or of the wrong kind.
    #[error("{input}: {place}: {found}")]
    Value {
        /// The input's name.
        input: String,
        /// The place of the value: the key, or the index in its list.
        place: String,
        /// The error of the value.
        found: String,
    },
    /// The graph in the file is invalid as a whole.
    #[error("{input}: {error}")]
    Graph {
        /// The input's name.
        input: String,
        /// The error of the graph.
        error: GraphError,
    },
}

/// The place of a value, and its error.
type Wrong = (String, String);

/// Reads a graph, named after the file, without `.json` and `.gz`.
///
/// # Errors
/// [`ReadError`].
pub fn read_path(path: &Path) -> Result<Graph, ReadError> {
    let io = |source| ReadError::Io { path: path.to_owned(), source };
    let text = File::open(path).and_then(unpacked_text).map_err(io)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    read_text(name.trim_end_matches(".gz").trim_end_matches(".json"), &path.display().to_string(), &text)
}

/// Reads a graph. Errors name the graph's file `input`.
///
/// # Errors
/// [`ReadError`].
pub fn read_text(name: &str, input: &str, text: &str) -> Result<Graph, ReadError> {
    let value: Value = serde_json::from_str(text).map_err(|error| ReadError::Json {
        input: input.to_owned(),
        line: error.line().max(1),
        found: error.to_string(),
    })?;
    let spec = spec(name, &value);
    let spec = spec.map_err(|(place, found)| ReadError::Value { input: input.to_owned(), place, found })?;
    Graph::new(&spec).map_err(|error| ReadError::Graph { input: input.to_owned(), error })
}

fn spec(name: &str, value: &Value) -> Result<GraphSpec, Wrong> {
    let whole = object(value, "the file", &["about", "tensors", "operators", "outputs"])?;
    let about = match whole.get("about") {
        None => String::new(),
        Some(about) => text(about, "about")?,
    };
    let tensors = list(whole, "tensors")?.iter().enumerate().map(|(at, value)| tensor(at, value));
    let operators = list(whole, "operators")?.iter().enumerate().map(|(at, value)| operator(at, value));
    Ok(GraphSpec {
        name: name.to_owned(),
        about,
        tensors: tensors.collect::<Result<_, _>>()?,
        operators: operators.collect::<Result<_, _>>()?,
        outputs: if whole.contains_key("outputs") { names(whole, "outputs", "outputs")? } else { Vec::new() },
    })
}

fn object<'a>(value: &'a Value, place: &str, known: &[&str]) -> Result<&'a Map<String, Value>, Wrong> {
    let wrong = |found: String| (place.to_owned(), found);
    let object = value.as_object().ok_or_else(|| wrong(format!("expected an object with {}", known.join(", "))))?;
    match object.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(wrong(format!("unknown key `{key}`; expected {}", known.join(", ")))),
        None => Ok(object),
    }
}

fn list<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a Vec<Value>, Wrong> {
    object.get(key).and_then(Value::as_array).ok_or_else(|| (key.to_owned(), "expected a list".to_owned()))
}

fn text(value: &Value, place: &str) -> Result<String, Wrong> {
    value.as_str().map(str::to_owned).ok_or_else(|| (place.to_owned(), format!("found {value}; expected a text")))
}

fn names(object: &Map<String, Value>, key: &str, place: &str) -> Result<Vec<String>, Wrong> {
    let wrong = || (place.to_owned(), format!("`{key}`: expected a list of names of tensors"));
    let list = object.get(key).and_then(Value::as_array).ok_or_else(wrong)?;
    list.iter().map(|name| name.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
}

fn tensor(at: usize, value: &Value) -> Result<TensorSpec, Wrong> {
    let place = format!("tensor {}", at + 1);
    let object = object(value, &place, &["name", "bytes", "persistent", "view_of"])?;
    let name = object.get("name").ok_or_else(|| (place.clone(), "expected a `name`".to_owned()))?;
    let name = text(name, &format!("{place}, `name`"))?;
    let place = format!("{place} `{name}`");
    let wrong = |found: String| (place.clone(), found);
    if let Some(source) = object.get("view_of") {
        if object.contains_key("bytes") || object.contains_key("persistent") {
            return Err(wrong(
                "a view lies in the memory of another tensor; it has no `bytes` or `persistent`".to_owned(),
            ));
        }
        return Ok(TensorSpec { name, source: Source::ViewOf(text(source, &format!("{place}, `view_of`"))?) });
    }
    let bytes = object.get("bytes").ok_or_else(|| wrong("expected `bytes` or `view_of`".to_owned()))?;
    let whole = || wrong(format!("`bytes` is {bytes}; expected a whole number, 0 or more"));
    let bytes = bytes.as_u64().ok_or_else(whole)?;
    let is_persistent = match object.get("persistent") {
        None => false,
        Some(Value::Bool(is_persistent)) => *is_persistent,
        Some(other) => return Err(wrong(format!("`persistent` is {other}; expected true or false"))),
    };
    Ok(TensorSpec { name, source: if is_persistent { Source::Persistent(bytes) } else { Source::Made(bytes) } })
}

fn operator(at: usize, value: &Value) -> Result<OperatorSpec, Wrong> {
    let place = format!("operator {}", at + 1);
    let object = object(value, &place, &["name", "inputs", "outputs", "overwrites"])?;
    let name = object.get("name").ok_or_else(|| (place.clone(), "expected a `name`".to_owned()))?;
    let name = text(name, &format!("{place}, `name`"))?;
    let place = format!("{place} `{name}`");
    let inputs = names(object, "inputs", &place)?;
    let outputs = names(object, "outputs", &place)?;
    let overwrites = if object.contains_key("overwrites") { names(object, "overwrites", &place)? } else { Vec::new() };
    Ok(OperatorSpec { name, inputs, outputs, overwrites })
}
