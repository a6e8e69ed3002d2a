//! The solver for integer programs: HiGHS with the feature `highs`, otherwise none.

use crate::exact::Found;
use crate::instance::Instance;
use seamalloc_plan::{Outcome, PlanError, Problem};
use std::time::{Duration, Instant};

/// Whether this build has a solver.
pub(crate) const IS_THERE: bool = cfg!(feature = "highs");

/// Tries to improve an order, or to prove that it is the best, until `end`. Returns the better result.
#[cfg(feature = "highs")]
pub(crate) fn improve(instance: &Instance, found: Found, end: Instant) -> Found {
    crate::model::improve(instance, found, end)
}

/// Without a solver, returns the order unchanged.
#[cfg(not(feature = "highs"))]
pub(crate) fn improve(_: &Instance, found: Found, _: Instant) -> Found {
    found
}

/// Tries to improve a layout within `time`, which includes the time that `outcome` took.
///
/// # Errors
/// An error if the solver made a plan in which buffers overlap, which is a mistake in this program.
#[cfg(feature = "highs")]
pub(crate) fn locate(problem: &Problem, outcome: Outcome, time: Duration) -> Result<Outcome, PlanError> {
    let start = Instant::now();
    let end = start + time.saturating_sub(outcome.time);
    let Some((plan, is_optimal)) = crate::model::locate(problem, &outcome.plan, outcome.bound, end) else {
        return Ok(outcome);
    };
    plan.check(problem).map_err(|error| PlanError::Wrong { method: outcome.method, error })?;
    Ok(Outcome { plan, is_optimal, time: outcome.time + start.elapsed(), ..outcome })
}

/// Without a solver, returns the layout unchanged.
#[cfg(not(feature = "highs"))]
pub(crate) fn locate(_: &Problem, outcome: Outcome, _: Duration) -> Result<Outcome, PlanError> {
    Ok(outcome)
}
