//! The printed report of a run.

use seamalloc::units::format_bytes;
use seamalloc_plan::Outcome;
use seamalloc_trace::columns::{Column, line, round_to};
use serde_json::Value;

type Figure = Column<PlanReport>;

/// The result of a method on an input.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlanReport {
    /// The input's name.
    pub(crate) input: String,
    /// The method's name.
    pub(crate) method: &'static str,
    /// Bytes that the plan needs.
    pub(crate) peak: u64,
    /// The peak load in bytes. No plan needs fewer bytes.
    pub(crate) bound: u64,
    /// Whether the peak is proven to be the least.
    pub(crate) is_optimal: bool,
    /// The time of the run, in seconds.
    pub(crate) seconds: f64,
}

impl PlanReport {
    /// Makes the report of a run.
    pub(crate) fn new(input: &str, outcome: &Outcome) -> Self {
        Self {
            input: input.to_owned(),
            method: outcome.method.name(),
            peak: outcome.plan.peak,
            bound: outcome.bound,
            is_optimal: outcome.is_optimal,
            seconds: outcome.time.as_secs_f64(),
        }
    }

    /// The figures of the report.
    pub(crate) const COLUMNS: &'static [Figure] = &[
        Figure::run("input", |plan| plan.input.as_str().into()).text("input", |plan| plan.input.as_str().into()),
        Figure::run("method", |plan| plan.method.into()).text("method", |plan| plan.method.into()),
        Figure::result("peak", |plan| plan.peak.into())
            .figure("peak", |plan| format_bytes(plan.peak).into())
            .legend("peak", "the bytes that the plan needs"),
        Figure::result("bound", |plan| plan.bound.into())
            .figure("bound", |plan| format_bytes(plan.bound).into())
            .legend("bound", "the peak load, what is live at most at one moment: no plan needs fewer bytes"),
        Figure::result("optimal", |plan| plan.is_optimal.into())
            .figure("optimal", |plan| plan.in_words().into())
            .legend("optimal", "whether the peak is proven to be the least; else how far above the bound it is"),
        Figure::clock("seconds", |plan| round_to(plan.seconds, 6).into())
            .figure("seconds", |plan| format!("{:.3}", plan.seconds).into())
            .legend("seconds", "how long the method took, its preparations included"),
    ];

    fn in_words(&self) -> String {
        match self.bound {
            _ if self.is_optimal => "yes".to_owned(),
            0 => "?".to_owned(),
            bound => format!("+{:.2}%", (self.peak as f64 / bound as f64 - 1.0) * 100.0),
        }
    }

    /// Returns the line that `--json` prints: the values of all columns by their keys.
    pub(crate) fn to_json(&self) -> Value {
        line(Self::COLUMNS, self).into()
    }
}
