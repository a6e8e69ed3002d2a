//! The methods by name, and the run of a method.
//!
//! Owns: the names, the limits of a run, its threads, and the check of every plan before it is returned.

use crate::check::{CheckError, Plan};
use crate::exact::{Order, STACK, exact, is_searched};
use crate::neighbours::Instance;
use crate::problem::Problem;
use crate::reorder::reorder;
use crate::search::Search;
use crate::{annealing, chainer, fit, orders};
use std::fmt;
use std::str::FromStr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// The time between two reports of progress.
const TOLD: Duration = Duration::from_millis(100);
/// The most threads of the portfolio. Further threads would only search from further seeds.
const MOST_THREADS: usize = 16;

/// A way to find a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Each buffer gets the lowest free place, in the order of the program, as in an allocator without knowledge of
    /// later requests.
    FirstFit,
    /// Each buffer gets the smallest hole that fits, the largest buffers first: XLA's
    /// `GlobalDecreasingSizeBestFitHeap`.
    DecreasingSize,
    /// The range of time with the lowest free offset gets the longest-lived buffer that fits in this range: Chainer's
    /// best fit (Sekiyama and others, arXiv 1804.10001).
    Chainer,
    /// Simulated annealing over the order for first fit.
    Annealing,
    /// Branch and bound with MiniMalloc's inferences (Moffitt, ASPLOS 2023). The method finds the least peak and proves
    /// it.
    Exact,
    /// All methods at the same time, on threads. For many buffers, annealing is replaced by repeated reordering.
    Portfolio,
}

impl Method {
    /// Every method.
    pub const ALL: [Self; 6] =
        [Self::FirstFit, Self::DecreasingSize, Self::Chainer, Self::Annealing, Self::Exact, Self::Portfolio];

    /// Returns the method's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FirstFit => "first-fit",
            Self::DecreasingSize => "decreasing-size",
            Self::Chainer => "chainer",
            Self::Annealing => "annealing",
            Self::Exact => "exact",
            Self::Portfolio => "portfolio",
        }
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
        Self::ALL
            .into_iter()
            .find(|method| method.name() == name)
            .ok_or_else(|| UnknownMethod { name: name.to_owned() })
    }
}

/// The limits of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The time after which the run ends with its best plan.
    pub time: Duration,
    /// The capacity in bytes. The run ends with the first plan whose peak is at most the capacity.
    pub capacity: Option<u64>,
    /// The seed of annealing, and of the portfolio's search for many buffers.
    pub seed: u64,
}

impl Default for Limits {
    /// Returns limits of 10 seconds, without a capacity, and seed 0.
    fn default() -> Self {
        Self { time: Duration::from_secs(10), capacity: None, seed: 0 }
    }
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The time since the run began.
    pub elapsed: Duration,
    /// The peak of the best plan in bytes; `None` before the first plan.
    pub peak: Option<u64>,
    /// A lower bound of the peak. No plan has a lower peak.
    pub lower: u64,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The method.
    pub method: Method,
    /// The best plan found, checked.
    pub plan: Plan,
    /// The peak load in bytes. No plan needs fewer bytes.
    pub bound: u64,
    /// Whether the plan's peak is proven to be the least.
    pub is_optimal: bool,
    /// The time of the run, its preparations included.
    pub time: Duration,
}

/// The error of a run without a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The time ended before the first plan was found.
    #[error("{method} found no plan within {} s; give it more time", .limit.as_secs_f64())]
    NoTime {
        /// The method.
        method: Method,
        /// The time limit.
        limit: Duration,
    },
    /// No plan has a peak within the capacity.
    #[error("a capacity of {capacity} bytes is less than the peak load, {bound} bytes: no plan is so small")]
    Capacity {
        /// The requested capacity.
        capacity: u64,
        /// The peak load, or a higher proven bound.
        bound: u64,
    },
    /// Two buffers with fixed offsets share memory.
    #[error("the offsets that the input gives cannot be: {0}")]
    Fixed(CheckError),
    /// A method made an invalid plan, which is a mistake in this program.
    #[error("{method} made a wrong plan ({error}): a mistake in this program")]
    Wrong {
        /// The method.
        method: Method,
        /// The error of the plan.
        error: CheckError,
    },
    /// The system refused to start a thread.
    #[error("no thread to plan on: {0}")]
    Thread(std::io::Error),
}

/// The task of one thread.
#[derive(Clone, Copy, Debug)]
enum Task {
    /// Several methods of one pass, one after the other.
    Quick(&'static [Method]),
    /// Methods of one pass, then the exact search in one order.
    Exact(&'static [Method], Order),
    Annealing(u64),
    /// First fit in several orders, and then annealing.
    Orders(u64),
    /// Methods of one pass, then a search for many buffers: the seed, the thread's index, and the number of threads.
    Reorder(&'static [Method], u64, (usize, usize)),
}

/// The methods that take one pass, cheapest first.
const QUICK: &[Method] = &[Method::Chainer, Method::FirstFit, Method::DecreasingSize];

/// Finds a plan. `progress` is called about every tenth of a second.
///
/// # Errors
/// [`PlanError`]: no time for a plan, no plan within the capacity, or contradicting fixed offsets.
pub fn plan(
    problem: &Problem,
    method: Method,
    limits: &Limits,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, PlanError> {
    let start = Instant::now();
    check_fixed(problem)?;
    let instance = Instance::new(problem);
    let bound = instance.bound;
    if let Some(capacity) = limits.capacity.filter(|capacity| *capacity < bound) {
        return Err(PlanError::Capacity { capacity, bound });
    }
    // A moment beyond the clock's range sets no limit.
    let search = Search::new(bound, limits.capacity, start.checked_add(limits.time));
    run(&instance, &search, &tasks(method, &instance, limits.seed), &mut || {
        let peak = Some(search.peak()).filter(|peak| *peak < u64::MAX);
        progress(Progress { elapsed: start.elapsed(), peak, lower: search.lower() });
    })?;
    let found = if problem.buffers().is_empty() { Some((Plan::default(), true)) } else { search.finish() };
    let (plan, is_optimal) = found.ok_or(PlanError::NoTime { method, limit: limits.time })?;
    plan.check(problem).map_err(|error| PlanError::Wrong { method, error })?;
    Ok(Outcome { method, plan, bound, is_optimal, time: start.elapsed() })
}

/// Returns an error if two buffers with fixed offsets share memory.
fn check_fixed(problem: &Problem) -> Result<(), PlanError> {
    let fixed: Vec<_> = problem.buffers().iter().filter(|buffer| buffer.fixed.is_some()).cloned().collect();
    let offsets: Vec<u64> = fixed.iter().filter_map(|buffer| buffer.fixed).collect();
    let peak = fixed.iter().zip(&offsets).map(|(buffer, offset)| offset + buffer.size).max().unwrap_or(0);
    match Problem::new("", fixed) {
        Ok(fixed) => Plan { offsets, peak }.check(&fixed).map_err(PlanError::Fixed),
        // The whole problem was valid, so a part of its buffers is valid too.
        Err(_) => Ok(()),
    }
}

fn tasks(method: Method, instance: &Instance, seed: u64) -> Vec<Task> {
    match method {
        Method::FirstFit => vec![Task::Quick(&[Method::FirstFit])],
        Method::DecreasingSize => vec![Task::Quick(&[Method::DecreasingSize])],
        Method::Chainer => vec![Task::Quick(&[Method::Chainer])],
        Method::Annealing => vec![Task::Annealing(seed)],
        Method::Exact => exact_tasks(&[Method::DecreasingSize]).collect(),
        Method::Portfolio => {
            let cores = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
            let (mut tasks, mut others, mut first) = (Vec::new(), cores, QUICK);
            if is_searched(instance) {
                tasks = exact_tasks(QUICK).collect();
                others = cores.saturating_sub(Order::ALL.len()).max(1);
                first = &[];
            }
            let is_large = instance.len() >= fit::INDEXED;
            tasks.extend((0..others).map(|index| match (is_large, seed.wrapping_add(index as u64)) {
                (true, seed) => Task::Reorder(if index == 0 { first } else { &[] }, seed, (index, others)),
                (false, seed) if index == 0 => Task::Orders(seed),
                (false, seed) => Task::Annealing(seed),
            }));
            tasks
        }
    }
}

/// Returns the tasks of the exact search, one thread for each order. The quickest order is not known in advance. If
/// threads share cores, no work is lost, since no thread repeats the work of another. `first` runs before one of the
/// searches.
fn exact_tasks(first: &'static [Method]) -> impl Iterator<Item = Task> {
    let of_order = move |(index, order)| Task::Exact(if index == 0 { first } else { &[] }, order);
    Order::ALL.into_iter().enumerate().map(of_order)
}

fn run(instance: &Instance, search: &Search, tasks: &[Task], tell: &mut dyn FnMut()) -> Result<(), PlanError> {
    thread::scope(|scope| {
        let (ended, all_ended) = mpsc::channel::<()>();
        for task in tasks {
            let ended = ended.clone();
            let work = move || {
                task.run(instance, search);
                // The thread owns `ended`, which is dropped at the end of the thread, also after a panic.
                drop(ended);
            };
            let spawned = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
            if let Err(error) = spawned {
                // The threads that already run end soon.
                search.end();
                return Err(PlanError::Thread(error));
            }
        }
        drop(ended);
        while all_ended.recv_timeout(TOLD) == Err(RecvTimeoutError::Timeout) {
            tell();
        }
        Ok(())
    })
}

impl Task {
    fn run(self, instance: &Instance, search: &Search) {
        let quick = |methods: &[Method]| {
            for method in methods {
                let plan = match method {
                    Method::FirstFit => orders::first_fit(instance, search),
                    Method::DecreasingSize => orders::decreasing_size(instance, search),
                    Method::Chainer => chainer::chainer(instance, search),
                    Method::Annealing | Method::Exact | Method::Portfolio => None,
                };
                if let Some(plan) = plan {
                    search.offer(plan);
                }
            }
        };
        match self {
            Self::Quick(methods) => quick(methods),
            Self::Exact(methods, order) => {
                quick(methods);
                exact(instance, search, order);
            }
            Self::Annealing(seed) => annealing::annealing(instance, search, seed),
            Self::Reorder(methods, seed, thread) => {
                quick(methods);
                reorder(instance, search, seed, thread);
            }
            Self::Orders(seed) => {
                orders::in_orders(instance, search);
                annealing::annealing(instance, search, seed);
            }
        }
    }
}
