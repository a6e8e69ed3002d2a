//! The methods by name, and the run of a method.
//!
//! Owns: the names, the limits of a run, and the check of every order before it is returned.

use crate::exact::{Found, exact};
use crate::graph::Graph;
use crate::instance::{Instance, id, peak};
use crate::load::{Load, LoadError};
use crate::reach::{Reach, bound, reduced};
use crate::roam::roam;
use crate::{listing, solver};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A way to find an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// The program's own order, in which PyTorch runs the operators.
    Program,
    /// The program's order, except that operators that do not increase the live bytes run as soon as they are ready.
    Eager,
    /// The operator that raises the peak least runs next.
    Greedy,
    /// Depth first from the results backwards. Of an operator's inputs, the one whose computation needs most memory
    /// beyond the input itself comes first.
    DepthFirst,
    /// A search over the sets of operators already run. The search finds the least peak and proves it.
    Exact,
    /// Subgraphs in sequence, each searched alone (ROAM). The searches use integer programs if this build has the
    /// solver.
    Roam,
    /// One integer program for the whole graph (MODeL). Needs the feature `highs`.
    Model,
}

impl Method {
    /// Every method.
    pub const ALL: [Self; 7] =
        [Self::Program, Self::Eager, Self::Greedy, Self::DepthFirst, Self::Exact, Self::Roam, Self::Model];

    /// Returns the method's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Eager => "eager",
            Self::Greedy => "greedy",
            Self::DepthFirst => "depth-first",
            Self::Exact => "exact",
            Self::Roam => "roam",
            Self::Model => "model",
        }
    }

    /// Returns whether this build can run the method.
    #[must_use]
    pub const fn is_there(self) -> bool {
        !matches!(self, Self::Model) || solver::IS_THERE
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error of an unknown method's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no method is called `{name}`; expected {}", Method::ALL.map(Method::name).join(", "))]
pub struct UnknownMethod {
    /// The name.
    pub name: String,
}

impl FromStr for Method {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<Self, UnknownMethod> {
        let found = Self::ALL.into_iter().find(|method| method.name() == name);
        found.ok_or_else(|| UnknownMethod { name: name.to_owned() })
    }
}

/// The limits of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The time after which the run ends with its best order, approximately.
    pub time: Duration,
}

impl Default for Limits {
    /// Returns a limit of 60 seconds.
    fn default() -> Self {
        Self { time: Duration::from_secs(60) }
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The method.
    pub method: Method,
    /// The operators, by their indexes in the program.
    pub order: Vec<usize>,
    /// The live bytes of the order.
    pub load: Load,
    /// The lower bound of the peak that the method has proven, persistent memory included.
    pub bound: u64,
    /// The time of the run, its preparations included.
    pub time: Duration,
}

impl Outcome {
    /// Returns whether the order is proven to have the least peak.
    #[must_use]
    pub fn is_optimal(&self) -> bool {
        self.load.peak <= self.bound
    }
}

/// The error of a run without an order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// The time limit is 0.
    #[error("{method}: a time limit of 0 s leaves no time to order anything; give it more")]
    NoTime {
        /// The method.
        method: Method,
    },
    /// This build has no solver for integer programs.
    #[error(
        "{method}: this build has no solver for integer programs; build it with the feature `highs`: \
         cargo install --locked --path crates/cli --features highs (needs cmake, a C++ compiler and libclang). Without it there are {}",
        Method::ALL.into_iter().filter(|method| method.is_there()).map(Method::name).collect::<Vec<_>>().join(", ")
    )]
    NoSolver {
        /// The method.
        method: Method,
    },
    /// A graph with more operators than the method takes.
    #[error("{method}: {operators} operators are too many; at most {}", crate::reach::MAX_TASKS)]
    TooMany {
        /// The method.
        method: Method,
        /// The number of operators.
        operators: usize,
    },
    /// A method made an invalid order, which is a mistake in this program.
    #[error("{method} made a wrong order ({error}): a mistake in this program")]
    Wrong {
        /// The method.
        method: Method,
        /// The error of the order.
        error: LoadError,
    },
}

/// Finds an order.
///
/// # Errors
/// [`OrderError`]: no time, no solver, or a graph that is too large for the method.
pub fn order(graph: &Graph, method: Method, limits: &Limits) -> Result<Outcome, OrderError> {
    let start = Instant::now();
    if limits.time.is_zero() {
        return Err(OrderError::NoTime { method });
    }
    if !method.is_there() {
        return Err(OrderError::NoSolver { method });
    }
    // If the time limit ends beyond the clock's range, the search ends one year from now.
    let end = start.checked_add(limits.time).unwrap_or(start + Duration::from_secs(365 * 86_400));
    let whole = Instance::of(graph);
    let reach = Reach::of(&whole);
    let least = bound(&whole, reach.as_ref());
    let found = match method {
        Method::Program => listed(&whole, listing::program(&whole), least),
        Method::Eager => listed(&whole, listing::eager(&whole), least),
        Method::Greedy => listed(&whole, listing::greedy(&whole), least),
        Method::DepthFirst => listed(&whole, listing::depth_first(&whole), least),
        Method::Exact | Method::Roam | Method::Model => {
            let operators = graph.operators().len();
            let reach = reach.ok_or(OrderError::TooMany { method, operators })?;
            let small = reduced(&whole, Some(&reach));
            let (order, bound) = search(&small, method, least, end);
            // The search ordered groups of operators that were merged. The quick rules, which look one task ahead, are
            // also applied to the single operators. The resulting orders differ, and are sometimes better.
            let quick = first_guess(&whole);
            let peak_of = |order: &[usize]| peak(&whole, &order.iter().map(|place| id(*place)).collect::<Vec<_>>());
            let is_better = peak(&whole, &quick) < peak_of(&order);
            if is_better { listed(&whole, quick, bound) } else { (order, bound) }
        }
    };
    let (order, bound) = found;
    let load = Load::of(graph, &order).map_err(|error| OrderError::Wrong { method, error })?;
    Ok(Outcome { method, order, load, bound, time: start.elapsed() })
}

fn listed(instance: &Instance, order: Vec<u32>, bound: u64) -> (Vec<usize>, u64) {
    (instance.operators(&order), bound)
}

/// Returns the best of the quick orders.
fn first_guess(instance: &Instance) -> Vec<u32> {
    let all = [listing::eager(instance), listing::greedy(instance), listing::depth_first(instance)];
    all.into_iter().min_by_key(|order| peak(instance, order)).unwrap_or_default()
}

/// Searches an instance whose tasks were merged into groups.
fn search(instance: &Instance, method: Method, least: u64, end: Instant) -> (Vec<usize>, u64) {
    let Some(reach) = Reach::of(instance) else { return listed(instance, first_guess(instance), least) };
    let least = least.max(bound(instance, Some(&reach)));
    let whole = |instance: &Instance, end: Instant| {
        let reach = Reach::of(instance);
        exact(instance, bound(instance, reach.as_ref()), first_guess(instance), end)
    };
    match method {
        Method::Roam => {
            let mut solve = |part: &Instance, end: Instant| {
                // A quick search comes first, since most subgraphs need no integer program.
                let quick = if solver::IS_THERE { end.min(Instant::now() + QUICK) } else { end };
                let found = whole(part, quick);
                if found.bound < found.peak { solver::improve(part, found, end) } else { found }
            };
            let divided = roam(instance, &reach, end, &mut solve);
            listed(instance, divided.order, least)
        }
        Method::Model => {
            let order = first_guess(instance);
            let found = Found { peak: peak(instance, &order), order, bound: least };
            let found = if found.bound < found.peak { solver::improve(instance, found, end) } else { found };
            listed(instance, found.order, found.bound.max(least))
        }
        _ => {
            let found = exact(instance, least, first_guess(instance), end);
            listed(instance, found.order, found.bound)
        }
    }
}

/// The time of the search of a subgraph before its integer program is solved.
const QUICK: Duration = Duration::from_millis(100);
