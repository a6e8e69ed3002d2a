//! The printed report of a run.

use crate::graph::Graph;
use crate::layout::Layout;
use crate::method::Outcome;
use seamalloc::units::format_bytes;
use seamalloc_trace::columns::{Column, line, round_to};
use serde_json::Value;

type Figure = Column<OrderReport>;

/// The result of a method on a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct OrderReport {
    /// The graph's name.
    pub graph: String,
    /// The method's name.
    pub method: &'static str,
    /// Operators of the graph.
    pub operators: usize,
    /// Bytes of persistent memory. All other figures in bytes include them.
    pub persistent: u64,
    /// The most live bytes in the program's order.
    pub program: u64,
    /// The most live bytes in this order.
    pub peak: u64,
    /// The lower bound of the peak that the method has proven.
    pub bound: u64,
    /// The bytes that a layout of this order needs, if one was planned.
    pub layout: Option<u64>,
    /// How long the order took, in seconds.
    pub seconds: f64,
    /// How long the layout took, in seconds.
    pub layout_seconds: Option<f64>,
}

impl OrderReport {
    /// Makes the report of a run; `program` is the peak of the program's order.
    #[must_use]
    pub fn new(graph: &Graph, program: u64, outcome: &Outcome, layout: Option<&Layout>) -> Self {
        Self {
            graph: graph.name().to_owned(),
            method: outcome.method.name(),
            operators: graph.operators().len(),
            persistent: graph.persistent(),
            program,
            peak: outcome.load.peak,
            bound: outcome.bound,
            layout: layout.map(|layout| layout.peak),
            seconds: outcome.time.as_secs_f64(),
            layout_seconds: layout.map(|layout| layout.time.as_secs_f64()),
        }
    }

    /// The figures of the report.
    pub const COLUMNS: &'static [Figure] = &[
        Figure::run("graph", |run| run.graph.as_str().into()).text("graph", |run| run.graph.as_str().into()),
        Figure::run("method", |run| run.method.into()).text("method", |run| run.method.into()),
        Figure::result("operators", |run| run.operators.into()),
        Figure::result("persistent", |run| run.persistent.into())
            .figure("persistent", |run| format_bytes(run.persistent).into())
            .legend("persistent", "bytes of weights and of all that is live throughout; part of the other figures"),
        Figure::result("program", |run| run.program.into()),
        Figure::result("peak", |run| run.peak.into())
            .figure("peak", |run| format_bytes(run.peak).into())
            .legend("peak", "the most bytes that are live at once in this order"),
        Figure::result("saved", |run| round_to(run.saved(), 4).into())
            .figure("saved", |run| format!("{:.2}%", run.saved() * 100.0).into())
            .legend("saved", "how much lower that is than in the program's order"),
        Figure::result("layout", |run| run.layout.into())
            .figure("layout", |run| run.layout.map_or_else(String::new, format_bytes).into())
            .legend("layout", "the bytes that a plan of addresses for this order needs"),
        Figure::result("bound", |run| run.bound.into())
            .figure("bound", |run| format_bytes(run.bound).into())
            .legend("bound", "no order has a lower peak, as far as the method could prove"),
        Figure::result("gap", |run| round_to(run.gap(), 6).into()),
        Figure::result("optimal", |run| run.is_optimal().into())
            .figure("optimal", |run| run.in_words().into())
            .legend("optimal", "whether the peak is proven to be the least; else how far above the bound it is"),
        Figure::clock("seconds", |run| round_to(run.seconds, 6).into())
            .figure("seconds", |run| format!("{:.3}", run.seconds).into())
            .legend("seconds", "how long the order took"),
        Figure::clock("layout_seconds", |run| run.layout_seconds.map(|seconds| round_to(seconds, 6)).into()),
    ];

    /// Returns how much lower the peak is than the program's, as a part of the program's peak; negative if the peak is
    /// higher.
    #[must_use]
    pub fn saved(&self) -> f64 {
        if self.program == 0 { 0.0 } else { 1.0 - self.peak as f64 / self.program as f64 }
    }

    /// Returns how far the peak is above the bound, as a part of the bound.
    #[must_use]
    pub fn gap(&self) -> f64 {
        if self.bound == 0 { 0.0 } else { self.peak as f64 / self.bound as f64 - 1.0 }
    }

    /// Returns whether the order is proven to have the least peak.
    #[must_use]
    pub fn is_optimal(&self) -> bool {
        self.peak <= self.bound
    }

    fn in_words(&self) -> String {
        if self.is_optimal() { "yes".to_owned() } else { format!("+{:.2}%", self.gap() * 100.0) }
    }

    /// Returns the line that `--json` prints: the values of all columns by their keys.
    #[must_use]
    pub fn to_json(&self) -> Value {
        line(Self::COLUMNS, self).into()
    }
}
