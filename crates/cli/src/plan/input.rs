//! The input of a plan: a csv of buffers, or an iteration of a trace.

use crate::args::GenerateArgs;
use crate::failure::Failure;
use crate::output::{bytes, grouped};
use crate::source;
use seamalloc_plan::{Problem, csv, read_csv};
use seamalloc_trace::iteration::{ALIGNMENT, Iteration, Kind, Likeness};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Requests outside of steps are mentioned if they are more than this part (1/n) of all requests.
const MANY_PART: u64 = 4;
/// Freed memory that streams still use is mentioned if it is more than this part (1/n) of live memory.
const FEW_PART: u64 = 1000;

/// A planning problem and its source.
pub(super) struct Input {
    pub(super) problem: Problem,
    /// The iteration of the trace; its problem was moved to the field `problem`.
    iteration: Option<Iteration>,
    /// The most bytes of the trace that were requested and not freed at one moment.
    requested: u64,
    /// The number of requests of the trace.
    requests: u64,
}

/// Returns the buffers of a csv, or of an iteration of each trace in a file or with a name.
pub(super) fn load(path: &Path, generate: GenerateArgs) -> Result<Vec<Input>, Failure> {
    if let Some(text) = buffers(path) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let problem = read_csv(&name, &path.display().to_string(), text)?;
        return Ok(vec![Input { problem, iteration: None, requested: 0, requests: 0 }]);
    }
    let traces = source::load(path, generate)?;
    let iteration = |trace: seamalloc_trace::Trace| {
        let mut iteration =
            Iteration::of(&trace).map_err(|error| Failure::Problem { input: trace.name.clone(), error })?;
        let problem = std::mem::take(&mut iteration.problem);
        let summary = trace.summary();
        Ok(Input { problem, iteration: Some(iteration), requested: summary.peak_live, requests: summary.allocations })
    };
    traces.into_iter().map(iteration).collect()
}

/// Returns the file if it is a csv of buffers. A file that cannot be opened gives `None`, and the reader of traces
/// reports it.
fn buffers(path: &Path) -> Option<impl BufRead> {
    let mut text = BufReader::new(File::open(path).ok()?);
    let is_csv = csv::is_csv(text.fill_buf().ok()?);
    is_csv.then_some(text)
}

impl Input {
    /// Returns a description of the planned part of the trace; `None` for a csv.
    pub(super) fn in_words(&self) -> Option<String> {
        let iteration = self.iteration.as_ref()?;
        let mut text = format!("{}: {iteration}", self.problem.name());
        let requests = iteration.requests;
        text.push_str(match (iteration.likeness, iteration.planned) {
            (Likeness::None, _) => "",
            (_, 1) => ". Planned is the one in which most is live",
            _ => ". Planned are two in a row, of which one is that in which most is live",
        });
        text.push_str(&format!(
            ": {} requests, events {} to {}",
            grouped(requests.count as u64),
            grouped(iteration.events.start as u64),
            grouped(iteration.events.end as u64)
        ));
        let Iteration { crossing, by_turns, persistent, live, .. } = *iteration;
        if crossing.count > 0 {
            text.push_str(&format!("; {} of {} cross the ends", crossing.count, bytes(crossing.bytes)));
        }
        if iteration.planned > 1 {
            text.push_str(&format!(
                ". Two, because {} requests of {} replace those of the step before while these are still live, as an optimizer does that makes its state anew: \
                 the new and the old have two places by turns",
                by_turns.count,
                bytes(by_turns.bytes)
            ));
        }
        if persistent.count > 0 {
            text.push_str(&format!(
                ". What lives longer (weights, optimizer state, inputs that are prepared ahead) is not planned: {} blocks of {}. With it {} are live at most, \
                 and no plan comes to less",
                persistent.count,
                bytes(persistent.bytes),
                bytes(live)
            ));
        }
        // Live memory counts each block rounded up.
        let rounding = ALIGNMENT.saturating_mul((persistent.count + requests.count) as u64);
        if live - live / FEW_PART > self.requested.saturating_add(rounding) {
            text.push_str(&format!(
                ". A block is live until all streams that use it have passed (record_stream): of the {}, {} are freed and still in use; seamalloc can \
                 serve requests from them behind a wait on the GPU, and a plan does not",
                bytes(live),
                bytes(live - self.requested)
            ));
        }
        text.push('.');
        text.push_str(&steps_of_kinds(iteration, self.requests));
        Some(text)
    }
}

/// Returns a sentence about the kinds of steps: that there are several kinds, that there are requests outside of the
/// only kind, or that kinds are not distinguished. Returns an empty text otherwise.
fn steps_of_kinds(iteration: &Iteration, all: u64) -> String {
    let kind = |kind: &Kind| format!("{} of {} requests, {} live at most", kind.times, kind.requests, bytes(kind.live));
    match iteration.kinds.as_slice() {
        [] if iteration.likeness == Likeness::Part => {
            " If steps are of several kinds, such as training and evaluation, they are not told apart.".to_owned()
        }
        [] => String::new(),
        [one] => match all.saturating_sub((one.times * one.requests) as u64) {
            rest if rest > all / MANY_PART => format!(
                " {} of the recording's {} requests are in no step of this kind: they may be other steps, such as those of an evaluation, \
                 that are not told apart.",
                grouped(rest),
                grouped(all)
            ),
            _ => String::new(),
        },
        kinds => format!(" Steps are of several kinds: {}.", kinds.iter().map(kind).collect::<Vec<_>>().join("; ")),
    }
}
