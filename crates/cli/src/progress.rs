//! Progress bars, which are drawn on standard error if it is a terminal.

use crate::outside::printable;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar for one long task.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new(what: String) -> Self {
        // The target draws no bar if standard error is no terminal. The length is not known yet, and a length of 0
        // would show as done.
        let bar = ProgressBar::with_draw_target(Some(u64::MAX), ProgressDrawTarget::stderr_with_hz(10));
        if let Ok(style) = ProgressStyle::with_template("{msg:30!} {bar:30} {percent:>3}% {eta:>4}") {
            bar.set_style(style);
        }
        bar.set_message(printable(&what).into_owned());
        Self(bar)
    }

    /// Shows another text beside the bar.
    pub(crate) fn say(&self, what: String) {
        self.0.set_message(printable(&what).into_owned());
    }

    pub(crate) fn set(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
