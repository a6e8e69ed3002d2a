//! The verdict on a job, as `whatif` and `report` print it before all figures.

use crate::failure::Failure;
use crate::output::{Output, without_breaks};
use seamalloc_trace::verdict::{Judgement, SEAMALLOC_COMMAND};

/// Prints the verdict on a job: a line each for the verdict and the next step, and the reasons between them.
pub(crate) fn show(output: &mut Output, job: &str, verdict: &Judgement) -> Result<(), Failure> {
    // A command in a sentence is copied: no line ends within it, nor within what stands before it in the environment.
    let command = format!(" {SEAMALLOC_COMMAND}");
    let next = verdict.next_step().replace(&command, &without_breaks(&command));
    output.text(&format!("{job}: {}", verdict.headline()))?;
    output.text(&verdict.reasons())?;
    output.text(&format!("Next: {next}"))
}
