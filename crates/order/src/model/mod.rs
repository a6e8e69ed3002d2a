//! MODeL's integer programs (Steiner and others, Model Memory Optimizations for Deep Learning, ICML 2023, arXiv
//! 2210.12924), solved by HiGHS.
//!
//! ```text
//! order.rs       the tensors that are generated and preserved at each step
//! location.rs    the address of each buffer, after an order gives its lifetime
//! ```
//! As in the authors' code (`olla/scheduler.py` and `olla/defragmenter.py` of facebookresearch/MODel_opt), the order is
//! found first, then the locations.

mod location;
mod order;

pub(crate) use location::locate;
pub(crate) use order::improve;

use highs::{Col, HighsModelStatus, HighsSolutionStatus, RowProblem, Sense};
use std::time::Instant;

/// The tolerance with which HiGHS fulfils constraints. The numbers in the constraints are at most about [`SCALE`].
const TOLERANCE: f64 = 1e-6;
/// The number to which the bytes of the first solution's peak are scaled.
const SCALE: f64 = 1e3;

/// The result of a run of HiGHS.
struct Solved {
    /// The value of each column (variable), if there is a solution.
    columns: Option<Vec<f64>>,
    /// The proven lower bound of all solutions.
    bound: f64,
    /// Whether the solution is the best, within the tolerance.
    is_optimal: bool,
}

/// Minimizes an integer program until `end`, starting from a first solution. Returns `None` if HiGHS refused the
/// program, which is unexpected.
fn minimise(program: RowProblem, first: &[f64], end: Instant) -> Option<Solved> {
    let mut model = program.try_optimise(Sense::Minimise).ok()?;
    model.make_quiet();
    let left = end.saturating_duration_since(Instant::now()).as_secs_f64();
    model.try_set_option("time_limit", left).ok()?;
    model.try_set_option("mip_rel_gap", 0.0).ok()?;
    model.try_set_option("mip_feasibility_tolerance", TOLERANCE).ok()?;
    model.try_set_solution(Some(first), None, None, None).ok()?;
    let solved = model.try_solve().ok()?;
    let is_optimal = solved.status() == HighsModelStatus::Optimal;
    let has_solution = solved.primal_solution_status() == HighsSolutionStatus::Feasible;
    Some(Solved {
        columns: has_solution.then(|| solved.get_solution().columns().to_vec()),
        bound: solved.double_info_value(c"mip_dual_bound").ok().filter(|bound| bound.is_finite()).unwrap_or(0.0),
        is_optimal,
    })
}

/// The columns (variables) of an integer program, and the value of each column in the first solution.
#[derive(Default)]
struct Columns {
    program: RowProblem,
    first: Vec<f64>,
}

impl Columns {
    /// Adds a column (variable): a number from `low` to `high`.
    fn number(&mut self, cost: f64, low: f64, high: f64, first: f64) -> Col {
        self.first.push(first);
        self.program.add_column(cost, low..=high)
    }

    /// Adds a column for 0 or 1.
    fn choice(&mut self, first: bool) -> Col {
        self.first.push(f64::from(u8::from(first)));
        self.program.add_integer_column(0.0, 0..=1)
    }
}
