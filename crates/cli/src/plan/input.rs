//! What is planned: a csv of buffers, or an iteration of a trace.

use crate::args::GenerateArgs;
use crate::failure::Failure;
use crate::output::bytes;
use crate::source;
use seamalloc_plan::{Problem, csv, read_csv};
use seamalloc_trace::iteration::{Iteration, Kind, Likeness};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// One problem, and where it comes from.
pub(super) struct Input {
    pub(super) problem: Problem,
    /// The iteration, without its problem.
    iteration: Option<Iteration>,
}

/// The buffers of a csv, or of an iteration of each trace of a file or a name.
pub(super) fn load(path: &Path, generate: GenerateArgs) -> Result<Vec<Input>, Failure> {
    if let Some(text) = buffers(path) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let problem = read_csv(&name, &path.display().to_string(), text)?;
        return Ok(vec![Input { problem, iteration: None }]);
    }
    let traces = source::load(path, generate)?;
    let iteration = |trace: seamalloc_trace::Trace| {
        let mut iteration =
            Iteration::of(&trace).map_err(|error| Failure::Problem { input: trace.name.clone(), error })?;
        let problem = std::mem::take(&mut iteration.problem);
        Ok(Input { problem, iteration: Some(iteration) })
    };
    traces.into_iter().map(iteration).collect()
}

/// The file, if it is a csv of buffers. What cannot be opened is the business of those who read traces.
fn buffers(path: &Path) -> Option<impl BufRead> {
    let mut text = BufReader::new(File::open(path).ok()?);
    let is_csv = csv::is_csv(text.fill_buf().ok()?);
    is_csv.then_some(text)
}

impl Input {
    /// What of the trace was planned.
    pub(super) fn in_words(&self) -> Option<String> {
        let iteration = self.iteration.as_ref()?;
        let mut text = format!("{}: {iteration}", self.problem.name());
        let requests = iteration.requests;
        if iteration.likeness != Likeness::None {
            text.push_str(". Planned is the one in which most is live");
        }
        text.push_str(&format!(
            ": {} requests, events {} to {}",
            requests.count, iteration.events.start, iteration.events.end
        ));
        let crossing = iteration.crossing;
        if crossing.count > 0 {
            text.push_str(&format!("; {} of {} cross its ends", crossing.count, bytes(crossing.bytes)));
        }
        let persistent = iteration.persistent;
        if persistent.count > 0 {
            let held = bytes(persistent.bytes);
            text.push_str(&format!(
                ". Persistent memory (weights, optimizer state) is not planned: {} blocks of {held}. With it {} are live at \
                 most, and no plan comes to less",
                persistent.count,
                bytes(iteration.live)
            ));
        }
        text.push('.');
        text.push_str(&steps_of_kinds(iteration));
        Some(text)
    }
}

/// The kinds of steps, if there is more than one, or that they are not told apart.
fn steps_of_kinds(iteration: &Iteration) -> String {
    let kind = |kind: &Kind| format!("{} of {} requests, {} live at most", kind.times, kind.requests, bytes(kind.live));
    match iteration.kinds.as_slice() {
        [] if iteration.likeness == Likeness::Part => {
            " If steps are of several kinds, such as training and evaluation, they are not told apart.".to_owned()
        }
        [] | [_] => String::new(),
        kinds => format!(" Steps are of several kinds: {}.", kinds.iter().map(kind).collect::<Vec<_>>().join("; ")),
    }
}
