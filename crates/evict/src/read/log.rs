//! DTR's logs: the calls of a program to DTR's prototype, one JSON object a line.
//!
//! The format and its meaning are those of simrd (`parse` and `parse_file` in `simrd/simrd/parse/parse.py` of
//! uwsampl/dtr-prototype). Figures are strings. A call is followed by a size and an alias for each result. A mutation
//! makes new tensors with the sizes of the old ones, and releases the old ones. Tensors that the program holds at the
//! end must be in memory at the end. If there is a line `START`, the lines before it are skipped. A release of an
//! unknown name is ignored.

use super::error::ReadError;
use crate::graph::{Graph, GraphBuilder, GraphError, Output, TensorId};
use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

/// Reads a log.
///
/// # Errors
/// [`ReadError`], with the line.
pub fn read_log(name: &str, input: &str, text: &str) -> Result<Graph, ReadError> {
    let lines: Vec<(usize, &str)> = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).collect();
    let mut parsed = Vec::with_capacity(lines.len());
    for (at, line) in lines {
        let fail = |found| ReadError::Line { input: input.to_owned(), line: at + 1, found };
        parsed.push(Line { at: at + 1, fields: fields(line).map_err(fail)? });
    }
    let is_start = |line: &Line| line.text("INSTRUCTION") == Ok("ANNOTATE") && line.text("ANNOTATION") == Ok("START");
    let start = parsed.iter().position(is_start).map_or(0, |at| at + 1);
    let mut reader = Reader { builder: GraphBuilder::new(name), names: FxHashMap::default(), order: Vec::new() };
    let mut rest = parsed[start..].iter();
    while let Some(line) = rest.next() {
        let fail = |found| ReadError::Line { input: input.to_owned(), line: line.at, found };
        reader.read(line, &mut rest).map_err(fail)?;
    }
    reader.finish().map_err(|error| ReadError::graph(input, &error))
}

fn fields(line: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(line) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err("expected a JSON object".to_owned()),
        Err(error) => Err(format!("expected a JSON object: {error}")),
    }
}

struct Line {
    at: usize,
    fields: Map<String, Value>,
}

impl Line {
    fn field(&self, key: &str) -> Result<&Value, String> {
        self.fields.get(key).ok_or_else(|| format!("`{key}` is missing"))
    }

    fn text(&self, key: &str) -> Result<&str, String> {
        self.field(key)?.as_str().ok_or_else(|| format!("`{key}`: expected text"))
    }

    /// Returns a whole number, which is a plain number or, as DTR's prototype writes it, a string.
    fn number(&self, key: &str) -> Result<i64, String> {
        let value = self.field(key)?;
        let number = value.as_i64().or_else(|| value.as_str()?.parse().ok());
        number.ok_or_else(|| format!("`{key}`: expected a whole number, found {value}"))
    }

    fn whole(&self, key: &str) -> Result<u64, String> {
        let number = self.number(key)?;
        u64::try_from(number).map_err(|_| format!("`{key}`: {number} is negative"))
    }

    fn list(&self, key: &str) -> Result<&Vec<Value>, String> {
        self.field(key)?.as_array().ok_or_else(|| format!("`{key}`: expected a list"))
    }

    fn texts(&self, key: &str) -> Result<Vec<&str>, String> {
        let text = |value: &'_ Value| value.as_str().map(str::len).is_some();
        let list = self.list(key)?;
        if !list.iter().all(text) {
            return Err(format!("`{key}`: expected a list of names"));
        }
        Ok(list.iter().filter_map(Value::as_str).collect())
    }
}

struct Reader {
    builder: GraphBuilder,
    names: FxHashMap<String, TensorId>,
    /// The names of the tensors, in the order of their first use. Tensors that the program still holds at the end are
    /// pinned in this order.
    order: Vec<String>,
}

impl Reader {
    fn read<'a>(&mut self, line: &Line, rest: &mut impl Iterator<Item = &'a Line>) -> Result<(), String> {
        match line.text("INSTRUCTION")? {
            "CONSTANT" => {
                let name = line.text("NAME")?;
                let bytes = follows(rest, "MEMORY", name)?.whole("MEMORY")?;
                let tensor = self.builder.constant(name, bytes).map_err(told)?;
                self.name(name, tensor)
            }
            "CALL" => self.call(line, rest),
            "MUTATE" => self.mutate(line),
            "COPY" => {
                let tensor = self.known(line.text("SRC")?)?;
                self.builder.keep(tensor).map_err(told)?;
                self.name(line.text("DST")?, tensor)
            }
            "COPY_FROM" => {
                let (from, to) = (self.known(line.text("SRC")?)?, line.text("DST")?);
                let old = self.known(to)?;
                self.builder.keep(from).map_err(told)?;
                self.builder.release(old).map_err(told)?;
                self.names.insert(to.to_owned(), from);
                Ok(())
            }
            "RELEASE" => match self.names.get(line.text("NAME")?) {
                Some(tensor) => self.builder.release(*tensor).map_err(told),
                None => Ok(()),
            },
            "ANNOTATE" => Ok(()),
            other => Err(format!(
                "`{other}` is no instruction; expected CONSTANT, CALL, MUTATE, COPY, COPY_FROM, RELEASE or ANNOTATE"
            )),
        }
    }

    fn call<'a>(&mut self, line: &Line, rest: &mut impl Iterator<Item = &'a Line>) -> Result<(), String> {
        let inputs = self.all_known(&line.texts("ARGS")?)?;
        let results = line.texts("RESULT")?;
        let mut outputs = Vec::with_capacity(results.len());
        for result in &results {
            let bytes = follows(rest, "MEMORY", result)?.whole("MEMORY")?;
            outputs.push(match follows(rest, "ALIAS", result)?.number("ALIAS")? {
                -1 => Output::New((*result).to_owned(), bytes),
                input => {
                    let input = usize::try_from(input).map_err(|_| format!("`ALIAS`: {input} is no input"))?;
                    Output::View((*result).to_owned(), input)
                }
            });
        }
        let made = self.builder.operator(line.text("NAME")?, line.whole("TIME")?, &inputs, &outputs).map_err(told)?;
        results.iter().zip(made).try_for_each(|(name, tensor)| self.name(name, tensor))
    }

    fn mutate(&mut self, line: &Line) -> Result<(), String> {
        let names = line.texts("ARGS")?;
        let inputs = self.all_known(&names)?;
        let mut places = Vec::new();
        for value in line.list("MUTATE")? {
            let place = value.as_u64().and_then(|place| usize::try_from(place).ok());
            let place = place.filter(|place| *place < inputs.len());
            places.push(place.ok_or_else(|| format!("`MUTATE`: {value} is no place in `ARGS`"))?);
        }
        let outputs: Vec<_> = places.iter().map(|place| Output::Overwritten(*place)).collect();
        let made = self.builder.operator(line.text("NAME")?, line.whole("TIME")?, &inputs, &outputs).map_err(told)?;
        for (place, tensor) in places.into_iter().zip(made) {
            let old = self.names.insert(names[place].to_owned(), tensor);
            if let Some(old) = old {
                self.builder.release(old).map_err(told)?;
            }
        }
        Ok(())
    }

    fn known(&self, name: &str) -> Result<TensorId, String> {
        let found = self.names.get(name).copied();
        found.ok_or_else(|| format!("`{name}` is read before anything made it: a tensor that is unknown, or a cycle"))
    }

    fn all_known(&self, names: &[&str]) -> Result<Vec<TensorId>, String> {
        names.iter().map(|name| self.known(name)).collect()
    }

    fn name(&mut self, name: &str, tensor: TensorId) -> Result<(), String> {
        if self.names.insert(name.to_owned(), tensor).is_some() {
            return Err(format!("`{name}` is made twice"));
        }
        self.order.push(name.to_owned());
        Ok(())
    }

    fn finish(mut self) -> Result<Graph, GraphError> {
        for name in &self.order {
            let Some(tensor) = self.names.get(name).copied() else { continue };
            if self.builder.is_held(tensor) {
                self.builder.pin(tensor)?;
            }
        }
        self.builder.finish()
    }
}

/// Returns the next line, or an error if there is none, or if it is not the instruction `what` about the tensor `name`.
fn follows<'a>(rest: &mut impl Iterator<Item = &'a Line>, what: &str, name: &str) -> Result<&'a Line, String> {
    let line = rest.next().ok_or_else(|| format!("the file ends before the {what} of `{name}`"))?;
    if line.text("INSTRUCTION")? == what && line.text("NAME")? == name {
        return Ok(line);
    }
    Err(format!("expected the {what} of `{name}` to follow, in line {}", line.at))
}

fn told(error: GraphError) -> String {
    error.to_string()
}
