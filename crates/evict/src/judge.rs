//! The judge: runs a program with a memory budget, an eviction scheme, and a memory (an allocator or a model of one),
//! and returns the figures.

use crate::graph::Graph;
use crate::memory::{Arena, Counted, Live, LiveError, Memory};
use crate::runtime::{Outcome, RunError, Stop, run};
use crate::scheme::SchemeKind;
use seamalloc::nearest::near;
use seamalloc::units::format_bytes;
use seamalloc::{Config, StrategyKind};
use seamalloc_trace::columns::{Cell, Column, gib, line, round_to};
use serde_json::Value;
use std::time::Instant;

type Figure = Column<EvictReport>;

/// The granularity of budgets, which is that of GPUs, in bytes.
const GRANULE: u64 = 2 << 20;

/// The memory in which a run places its tensors.
#[derive(Clone, Debug, PartialEq)]
pub enum Below {
    /// An allocator with these options.
    Allocator(Box<Config>),
    /// Coop's arena.
    Arena,
    /// Plain counting of bytes, without addresses.
    Counted,
}

/// The error of a name that is neither a strategy, a family of strategies, `arena` nor `counted`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no allocator `{name}`; there are the strategies of `seamalloc stress`, {}, {}{suggestion}",
    Below::ARENA,
    Below::COUNTED
)]
pub struct UnknownBelow {
    name: String,
    suggestion: String,
}

impl Below {
    /// The name of Coop's arena.
    pub const ARENA: &'static str = "arena";
    /// The name of plain counting.
    pub const COUNTED: &'static str = "counted";

    /// Returns the memories with that name: a strategy, a family of strategies, `arena` or `counted`.
    ///
    /// # Errors
    /// [`UnknownBelow`].
    pub fn named(name: &str, options: &Config) -> Result<Vec<Self>, UnknownBelow> {
        match name {
            Self::ARENA => Ok(vec![Self::Arena]),
            Self::COUNTED => Ok(vec![Self::Counted]),
            _ => match StrategyKind::named(name) {
                Ok(kinds) => Ok(kinds.into_iter().map(|strategy| Self::allocator(strategy, options)).collect()),
                Err(_) => {
                    let names =
                        StrategyKind::ALL.map(StrategyKind::name).into_iter().chain([Self::ARENA, Self::COUNTED]);
                    let near = near(name, names).map(|near| format!("; did you mean `{near}`?"));
                    Err(UnknownBelow { name: name.to_owned(), suggestion: near.unwrap_or_default() })
                }
            },
        }
    }

    fn allocator(strategy: StrategyKind, options: &Config) -> Self {
        Self::Allocator(Box::new(options.clone().of_strategy(strategy)))
    }

    /// Returns the memory's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Allocator(config) => config.strategy.name(),
            Self::Arena => Self::ARENA,
            Self::Counted => Self::COUNTED,
        }
    }

    /// Makes a memory of `budget` bytes.
    ///
    /// # Errors
    /// [`LiveError`].
    pub fn memory(&self, budget: u64) -> Result<Box<dyn Memory>, LiveError> {
        Ok(match self {
            Self::Allocator(config) => Box::new(Live::new((**config).clone(), budget)?),
            Self::Arena => Box::new(Arena::new(budget)),
            Self::Counted => Box::new(Counted::new(budget)),
        })
    }
}

/// The error of a part of the peak from which no budget can be computed.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum BudgetError {
    /// The budget, a part of the peak, is zero, negative, or not a number.
    #[error("a budget of {0} of the peak: nothing runs without memory; expected more than 0, such as 0.5")]
    None(f64),
    /// The budget, a part of the peak, is larger than 1,000.
    #[error("a budget of {0} times the peak is more than any device has; expected at most 1000")]
    TooLarge(f64),
}

/// The error of a run without figures.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// The budget is invalid.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The allocator in which the run places its tensors cannot be made with the budget.
    #[error(transparent)]
    Memory(#[from] LiveError),
    /// The run failed for another reason than too little memory.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Returns the most bytes of tensors that are in memory at one moment if none is evicted.
///
/// # Errors
/// [`RunError`].
pub fn peak(graph: &Graph) -> Result<u64, RunError> {
    let outcome = run(graph, &mut Counted::new(u64::MAX), SchemeKind::Lru.scheme().as_mut())?;
    Ok(outcome.peak_live)
}

/// Returns a part of a peak in bytes, rounded to a multiple of 2 MiB and at least 2 MiB.
///
/// # Errors
/// [`BudgetError`].
pub fn budget(peak: u64, part: f64) -> Result<u64, BudgetError> {
    if part.is_nan() || part <= 0.0 {
        return Err(BudgetError::None(part));
    }
    if part > 1000.0 {
        return Err(BudgetError::TooLarge(part));
    }
    let bytes = (peak as f64 * part) as u64;
    Ok((bytes / GRANULE * GRANULE).max(GRANULE))
}

/// Runs a program with a part of the program's peak as the budget, and returns the figures. `peak` is the result of
/// [`peak`].
///
/// # Errors
/// [`JudgeError`]. Running out of memory is a figure, not an error.
pub fn judge(
    graph: &Graph,
    peak: u64,
    part: f64,
    scheme: SchemeKind,
    below: &Below,
) -> Result<EvictReport, JudgeError> {
    let started = Instant::now();
    let budget = budget(peak, part)?;
    let mut memory = below.memory(budget)?;
    let outcome = run(graph, memory.as_mut(), scheme.scheme().as_mut())?;
    Ok(EvictReport {
        graph: graph.name().to_owned(),
        part,
        scheme: scheme.name(),
        below: below.name(),
        budget,
        peak,
        cost: graph.cost(),
        peak_reserved: memory.peak_reserved(),
        outcome,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// The figures of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictReport {
    /// The graph's name.
    pub graph: String,
    /// The budget as a part of the peak.
    pub part: f64,
    /// The scheme's name.
    pub scheme: &'static str,
    /// The name of the memory.
    pub below: &'static str,
    /// The budget in bytes.
    pub budget: u64,
    /// The most bytes of tensors that are in memory at one moment without a budget.
    pub peak: u64,
    /// The time of all operators, each run once.
    pub cost: u64,
    /// The most bytes of memory held.
    pub peak_reserved: u64,
    /// The result of the run.
    pub outcome: Outcome,
    /// The wall time of the run, in seconds.
    pub seconds: f64,
}

impl EvictReport {
    /// The figures of the report.
    pub const COLUMNS: &'static [Figure] = &[
        Figure::run("graph", |run| run.graph.as_str().into()).text("graph", |run| run.graph.as_str().into()),
        Figure::run("budget", |run| run.part.into()).figure("budget", |run| run.part.to_string().into()).legend(
            "budget",
            "the memory, as a part of the most bytes of tensors that are live at once without a budget",
        ),
        Figure::run("strategy", |run| run.below.into()).text("allocator", |run| run.below.into()),
        Figure::run("scheme", |run| run.scheme.into()).text("scheme", |run| run.scheme.into()),
        Figure::result("peak_live", |run| run.peak.into()),
        Figure::result("budget_bytes", |run| run.budget.into()),
        Figure::result("overhead", |run| run.overhead().map(|overhead| round_to(overhead, 6)).into())
            .figure("overhead", |run| run.overhead_in_words())
            .legend("overhead", "the time of all that was computed / that of the program without a budget"),
        Figure::result("failed", |run| run.failed().into()),
        Figure::result("rematerialisations", |run| run.outcome.rematerialisations.into())
            .figure("made\nagain", |run| run.outcome.rematerialisations.into())
            .legend("made again", "operators that ran again"),
        Figure::result("evictions", |run| run.outcome.evictions.into())
            .figure("evictions", |run| run.outcome.evictions.into())
            .legend("evictions", "tensors that were evicted to make room"),
        Figure::result("evicted_bytes", |run| run.outcome.evicted_bytes.into()),
        Figure::result("refusals", |run| run.outcome.refusals.into())
            .figure("refusals", |run| run.outcome.refusals.into())
            .spare(1)
            .legend("refusals", "requests that were refused, each time counted"),
        Figure::result("fragmented_refusals", |run| run.outcome.fragmented_refusals.into())
            .figure("though\nfree", |run| run.outcome.fragmented_refusals.into())
            .legend("though free", "of these, where enough bytes were free and could not be joined"),
        Figure::result("unusable_bytes", |run| run.unusable().into())
            .figure("unusable\nGiB", |run| gib(run.unusable()).into())
            .spare(2)
            .legend("unusable", "how many bytes were free then, on average"),
        Figure::result("peak_reserved", |run| run.peak_reserved.into())
            .figure("reserved\nGiB", |run| gib(run.peak_reserved).into())
            .spare(3),
        Figure::result("searched", |run| run.outcome.searched.into()),
        Figure::result("in_place", |run| run.outcome.in_place.into()),
        Figure::clock("seconds", |run| round_to(run.seconds, 6).into()),
    ];

    /// Returns the time of all operators run, divided by the time of the program without a budget; `None` if the run
    /// failed.
    #[must_use]
    pub fn overhead(&self) -> Option<f64> {
        let is_done = self.outcome.failure.is_none();
        is_done.then(|| if self.cost == 0 { 1.0 } else { self.outcome.time as f64 / self.cost as f64 })
    }

    /// Returns why the run failed, in words; `None` if it did not fail.
    #[must_use]
    pub fn failed(&self) -> Option<&'static str> {
        self.outcome.failure.map(|stop| match stop {
            Stop::OutOfMemory { .. } => "out of memory",
            Stop::Thrashing => "thrashing",
        })
    }

    fn overhead_in_words(&self) -> Cell {
        match (self.overhead(), self.outcome.failure) {
            (Some(overhead), _) => format!("{overhead:.4}").into(),
            (None, Some(Stop::OutOfMemory { bytes, .. })) => Cell::Failed(format!("no {}", format_bytes(bytes))),
            (None, _) => Cell::Failed("thrashing".to_owned()),
        }
    }

    /// Returns the average number of unused bytes over the refusals at which enough bytes were unused.
    fn unusable(&self) -> u64 {
        self.outcome.unusable_bytes.checked_div(self.outcome.fragmented_refusals).unwrap_or(0)
    }

    /// Returns the line that `--json` prints: the values of all columns by their keys.
    #[must_use]
    pub fn to_json(&self) -> Value {
        line(Self::COLUMNS, self).into()
    }
}
