//! Prints the verdict on a job before all figures, for `whatif` and `report`.

use crate::failure::Failure;
use crate::output::{Output, without_breaks};
use seamalloc_trace::verdict::{Judgement, SEAMALLOC_COMMAND};

/// Prints the verdict on a job: a line for the verdict, the reasons, and a line for the next step.
pub(crate) fn show(output: &mut Output, job: &str, verdict: &Judgement) -> Result<(), Failure> {
    output.text(&format!("{job}: {}", unbroken(&verdict.headline())))?;
    output.text(&unbroken(&verdict.reasons()))?;
    output.text(&format!("Next: {}", unbroken(&verdict.next_step())))
}

/// Returns text in which no line ends before a unit, within a command (which users copy), or within the environment
/// variables before a command.
fn unbroken(text: &str) -> String {
    let command = format!(" {SEAMALLOC_COMMAND}");
    let whole = [" KiB", " MiB", " GiB", " TiB", &command];
    whole.iter().fold(text.to_owned(), |text, part| text.replace(part, &without_breaks(part)))
}
