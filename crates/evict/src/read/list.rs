//! A list of operators as one JSON object, in any order.
//!
//! ```json
//! {"operators": [
//!    {"name": "input", "outputs": [{"name": "x", "bytes": 1024}]},
//!    {"name": "matmul", "cost": 900, "inputs": ["x"], "outputs": [{"name": "y", "bytes": 4096}]}],
//!  "results": ["y"]}
//! ```
//! An operator without inputs and cost makes a constant. The operators run in the order of the list as far as the
//! inputs allow. A tensor is released after the last operator that reads it; results stay to the end.

use super::error::ReadError;
use crate::graph::{Graph, GraphBuilder, GraphError, Output, TensorId};
use rustc_hash::FxHashMap;
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

struct Entry {
    name: String,
    cost: u64,
    inputs: Vec<String>,
    outputs: Vec<(String, u64)>,
}

/// Reads a list.
///
/// # Errors
/// [`ReadError`]. For a cycle, the error names the tensors of the cycle.
pub fn read_list(name: &str, input: &str, text: &str) -> Result<Graph, ReadError> {
    let value: Value = serde_json::from_str(text).map_err(|error| ReadError::Line {
        input: input.to_owned(),
        line: error.line().max(1),
        found: format!("expected a graph, a log of DTR's or {{\"operators\": [...]}}: {error}"),
    })?;
    let entries = entries(&value).map_err(|found| ReadError::whole(input, found))?;
    let results = match value.get("results") {
        None => Vec::new(),
        Some(names) => texts(names, "results").map_err(|found| ReadError::whole(input, found))?,
    };
    build(name, &entries, &results).map_err(|found| ReadError::whole(input, found))
}

fn entries(value: &Value) -> Result<Vec<Entry>, String> {
    let list = value.get("operators").and_then(Value::as_array);
    let list = list.ok_or("expected a list `operators`, or the lines of a log of DTR's")?;
    list.iter()
        .enumerate()
        .map(|(at, value)| entry(value).map_err(|found| format!("operator {}: {found}", at + 1)))
        .collect()
}

fn entry(value: &Value) -> Result<Entry, String> {
    let name = value.get("name").and_then(Value::as_str).ok_or("expected a `name`")?;
    let cost = value.get("cost").map_or(Ok(0), |cost| cost.as_u64().ok_or("`cost`: expected a whole number"))?;
    let inputs = value.get("inputs").map_or(Ok(Vec::new()), |names| texts(names, "inputs"))?;
    let outputs = value.get("outputs").and_then(Value::as_array).ok_or("expected a list `outputs`")?;
    let output = |output: &Value| {
        let name = output.get("name").and_then(Value::as_str).ok_or("an output: expected a `name`")?;
        let bytes = output.get("bytes").and_then(Value::as_u64);
        Ok((name.to_owned(), bytes.ok_or_else(|| format!("`{name}`: expected whole `bytes`"))?))
    };
    let outputs = outputs.iter().map(output).collect::<Result<_, String>>()?;
    Ok(Entry { name: name.to_owned(), cost, inputs, outputs })
}

fn texts(value: &Value, key: &str) -> Result<Vec<String>, String> {
    let fail = || format!("`{key}`: expected a list of names");
    let list = value.as_array().ok_or_else(fail)?;
    list.iter().map(|name| name.as_str().map(str::to_owned).ok_or_else(fail)).collect()
}

fn build(name: &str, entries: &[Entry], results: &[String]) -> Result<Graph, String> {
    let mut makers: FxHashMap<&str, usize> = FxHashMap::default();
    for (at, entry) in entries.iter().enumerate() {
        for (output, _) in &entry.outputs {
            if makers.insert(output, at).is_some() {
                return Err(format!("`{output}` is made twice"));
            }
        }
    }
    let unknown = entries.iter().flat_map(|entry| &entry.inputs).chain(results);
    if let Some(unknown) = unknown.into_iter().find(|input| !makers.contains_key(input.as_str())) {
        return Err(format!("nothing makes `{unknown}`"));
    }
    let order = ordered(entries, &makers)?;
    let mut last_read: FxHashMap<&str, usize> = FxHashMap::default();
    for (place, at) in order.iter().enumerate() {
        let names = entries[*at].outputs.iter().map(|(name, _)| name).chain(&entries[*at].inputs);
        last_read.extend(names.map(|name| (name.as_str(), place)));
    }
    let told = |error: GraphError| error.to_string();
    let mut builder = GraphBuilder::new(name);
    let mut made: FxHashMap<&str, TensorId> = FxHashMap::default();
    for (place, at) in order.iter().enumerate() {
        let entry = &entries[*at];
        if entry.inputs.is_empty() && entry.cost == 0 {
            for (output, bytes) in &entry.outputs {
                made.insert(output, builder.constant(output, *bytes).map_err(told)?);
            }
        } else {
            let inputs: Vec<_> = entry.inputs.iter().filter_map(|input| made.get(input.as_str()).copied()).collect();
            let outputs: Vec<_> = entry.outputs.iter().map(|(name, bytes)| Output::New(name.clone(), *bytes)).collect();
            let tensors = builder.operator(&entry.name, entry.cost, &inputs, &outputs).map_err(told)?;
            made.extend(entry.outputs.iter().map(|(name, _)| name.as_str()).zip(tensors));
        }
        let mut names: Vec<&str> =
            entry.outputs.iter().map(|(name, _)| name).chain(&entry.inputs).map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| last_read.get(name) == Some(&place) && !results.iter().any(|result| result == name));
        for tensor in names.iter().filter_map(|name| made.get(name)) {
            builder.release(*tensor).map_err(told)?;
        }
    }
    for tensor in results.iter().filter_map(|name| made.get(name.as_str())) {
        builder.pin(*tensor).map_err(told)?;
    }
    builder.finish().map_err(told)
}

/// Returns the operators in an order in which each operator reads only tensors made before (Kahn, 1962). Of several
/// operators that can run, the earliest in the list comes first.
fn ordered(entries: &[Entry], makers: &FxHashMap<&str, usize>) -> Result<Vec<usize>, String> {
    let needs = |entry: &Entry| {
        let mut makers: Vec<_> = entry.inputs.iter().filter_map(|input| makers.get(input.as_str()).copied()).collect();
        makers.sort_unstable();
        makers.dedup();
        makers
    };
    let mut waits: Vec<usize> = vec![0; entries.len()];
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); entries.len()];
    for (at, entry) in entries.iter().enumerate() {
        for maker in needs(entry) {
            waits[at] += 1;
            readers[maker].push(at);
        }
    }
    let mut ready: BinaryHeap<_> = (0..entries.len()).filter(|at| waits[*at] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(entries.len());
    while let Some(Reverse(at)) = ready.pop() {
        order.push(at);
        for reader in &readers[at] {
            waits[*reader] -= 1;
            if waits[*reader] == 0 {
                ready.push(Reverse(*reader));
            }
        }
    }
    if order.len() == entries.len() { Ok(order) } else { Err(cycle(entries, makers, &waits)) }
}

/// Returns a message that names a cycle. The cycle exists because each waiting operator has an input whose maker waits
/// too.
fn cycle(entries: &[Entry], makers: &FxHashMap<&str, usize>, waits: &[usize]) -> String {
    let mut seen: Vec<(usize, &str)> = Vec::new();
    let mut at = waits.iter().position(|waits| *waits > 0).unwrap_or(0);
    loop {
        let waiting = |input: &&String| makers.get(input.as_str()).is_some_and(|maker| waits[*maker] > 0);
        let Some(input) = entries[at].inputs.iter().find(waiting) else { break };
        if let Some(from) = seen.iter().position(|(entry, _)| *entry == at) {
            let names: Vec<_> = seen[from..].iter().map(|(_, name)| format!("`{name}`")).collect();
            let first = names.first().cloned().unwrap_or_default();
            return format!("the graph has a cycle: {} needs itself, through {}", first, names.join(" <- "));
        }
        seen.push((at, input));
        at = makers.get(input.as_str()).copied().unwrap_or(0);
    }
    "the graph has a cycle".to_owned()
}
