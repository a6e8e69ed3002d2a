//! The verdict on a job, as `whatif` and `report` print it before all figures.

use crate::failure::Failure;
use crate::output::{Output, without_breaks};
use seamalloc_trace::verdict::{EXPANDABLE_SETTING, Judgement, SEAMALLOC_COMMAND};

/// Prints the verdict on a job: a line each for the verdict and the next step, and the reasons between them.
pub(crate) fn show(output: &mut Output, job: &str, verdict: &Judgement) -> Result<(), Failure> {
    // A command in a sentence is copied: a line ends before it or behind it.
    let next = [SEAMALLOC_COMMAND, EXPANDABLE_SETTING]
        .into_iter()
        .fold(verdict.next_step(), |text, command| text.replace(command, &without_breaks(command)));
    output.text(&format!("{job}: {}", verdict.headline()))?;
    output.text(&format!("  {}", verdict.reasons()))?;
    output.text(&format!("  Next: {next}"))
}
