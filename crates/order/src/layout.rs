//! Addresses for the memory of an order: a plan by the method `portfolio` of `seamalloc-plan`, or by MODeL's integer
//! program.
//!
//! Owns: the buffers of an order, and the check of every layout before it is returned. Persistent memory is not
//! planned; its bytes are added to the bytes of the plan.

use crate::graph::Graph;
use crate::load::Load;
use seamalloc_plan::{Buffer, Limits, Method, Outcome, PlanError, Problem, ProblemError, plan};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A planner of layouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planner {
    /// The method `portfolio` of `seamalloc plan`, which runs its methods at the same time.
    #[default]
    Portfolio,
    /// MODeL's integer program, which starts from the plan of `chainer`. Needs the feature `highs`.
    Model,
}

impl Planner {
    /// Every planner.
    pub const ALL: [Self; 2] = [Self::Portfolio, Self::Model];

    /// Returns the planner's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portfolio => "portfolio",
            Self::Model => "model",
        }
    }
}

impl fmt::Display for Planner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error of an unknown planner's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no layout is called `{name}`; expected {}", Planner::ALL.map(Planner::name).join(", "))]
pub struct UnknownPlanner {
    /// The name.
    pub name: String,
}

impl FromStr for Planner {
    type Err = UnknownPlanner;

    fn from_str(name: &str) -> Result<Self, UnknownPlanner> {
        let found = Self::ALL.into_iter().find(|planner| planner.name() == name);
        found.ok_or_else(|| UnknownPlanner { name: name.to_owned() })
    }
}

/// The layout of an order.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The buffers in the form of [`seamalloc_plan`]. Times are steps of the order.
    pub problem: Problem,
    /// The offset of each buffer in bytes.
    pub offsets: Vec<u64>,
    /// The bytes that the plan needs, including persistent memory.
    pub peak: u64,
    /// Whether no layout of this order needs fewer bytes.
    pub is_optimal: bool,
    /// The time that the planner took.
    pub time: Duration,
}

/// The error of an order without a layout.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The graph is too large to be planned.
    #[error("no layout: {0}")]
    Problem(#[from] ProblemError),
    /// The planner found no plan.
    #[error("no layout: {0}")]
    Plan(#[from] PlanError),
    /// This build has no solver for integer programs.
    #[error(
        "layout model: this build has no solver for integer programs; build it with the feature `highs`, or take portfolio"
    )]
    NoSolver,
}

/// Plans an order's memory for at most `time`.
///
/// # Errors
/// [`LayoutError`]: the time ended before the first plan, the graph is too large, or there is no solver.
pub fn layout(graph: &Graph, load: &Load, planner: Planner, time: Duration) -> Result<Layout, LayoutError> {
    let memories = graph.memories().iter().zip(&load.lives);
    let planned = memories.filter(|(memory, _)| memory.maker.is_some() && memory.bytes > 0);
    let buffers = planned.map(|(memory, (from, to))| {
        let step = |step: usize| i64::try_from(step).unwrap_or(i64::MAX);
        Buffer::new(memory.name.clone(), step(*from), step(*to), memory.bytes)
    });
    let problem = Problem::new(graph.name(), buffers.collect())?;
    let outcome = planned_by(planner, &problem, time)?;
    Ok(Layout {
        peak: graph.persistent() + outcome.plan.peak,
        offsets: outcome.plan.offsets,
        problem,
        is_optimal: outcome.is_optimal,
        time: outcome.time,
    })
}

fn planned_by(planner: Planner, problem: &Problem, time: Duration) -> Result<Outcome, LayoutError> {
    let limits = Limits { time, ..Limits::default() };
    let plan = |method| plan(problem, method, &limits, &mut |_| {});
    match planner {
        Planner::Portfolio => Ok(plan(Method::Portfolio)?),
        Planner::Model if crate::solver::IS_THERE => {
            let outcome = plan(Method::Chainer)?;
            Ok(if outcome.is_optimal { outcome } else { crate::solver::locate(problem, outcome, time)? })
        }
        Planner::Model => Err(LayoutError::NoSolver),
    }
}
