//! The state that the methods of a search share: the best plan so far, the proven bound, and the end of the search.

use crate::check::Plan;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// A search for one problem, by one thread or several.
#[derive(Debug)]
pub(crate) struct Search {
    best: Mutex<Option<Plan>>,
    /// The peak of the best plan; `u64::MAX` before the first plan.
    peak: AtomicU64,
    /// The proven lower bound of the peak.
    lower: AtomicU64,
    /// The peak at which the search ends.
    capacity: Option<u64>,
    deadline: Option<Instant>,
    is_over: AtomicBool,
}

impl Search {
    /// Makes a search that ends at the deadline, or as soon as a plan's peak is at most the capacity.
    pub(crate) fn new(bound: u64, capacity: Option<u64>, deadline: Option<Instant>) -> Self {
        Self {
            best: Mutex::new(None),
            peak: AtomicU64::new(u64::MAX),
            lower: AtomicU64::new(bound),
            capacity,
            deadline,
            is_over: AtomicBool::new(false),
        }
    }

    /// Returns the peak of the best plan so far; `u64::MAX` before the first plan.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Returns the best plan so far.
    pub(crate) fn best(&self) -> Option<Plan> {
        self.best.lock().clone()
    }

    /// Returns the least peak that is not proven to be impossible.
    pub(crate) fn lower(&self) -> u64 {
        self.lower.load(Ordering::Relaxed)
    }

    /// Returns the peak that ends the search, if any.
    pub(crate) fn capacity(&self) -> Option<u64> {
        self.capacity
    }

    /// Returns whether the search is finished, or its time is over.
    pub(crate) fn is_over(&self) -> bool {
        if !self.is_over.load(Ordering::Relaxed) && self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            self.end();
        }
        self.is_over.load(Ordering::Relaxed)
    }

    /// Returns whether the search was ended, without checking the clock.
    pub(crate) fn was_ended(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Ends the search.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Offers a plan. The plan is kept if it is better than the best one.
    pub(crate) fn offer(&self, plan: Plan) {
        let mut best = self.best.lock();
        if best.as_ref().is_none_or(|best| plan.peak < best.peak) {
            self.peak.store(plan.peak, Ordering::Relaxed);
            *best = Some(plan);
        }
        drop(best);
        self.end_if_answered();
    }

    /// Raises the proven lower bound of the peak.
    pub(crate) fn raise(&self, lower: u64) {
        self.lower.fetch_max(lower, Ordering::Relaxed);
        self.end_if_answered();
    }

    fn end_if_answered(&self) {
        let (peak, lower) = (self.peak(), self.lower());
        if peak <= lower
            || self.capacity.is_some_and(|capacity| peak <= capacity || lower > capacity && peak < u64::MAX)
        {
            self.end();
        }
    }

    /// Returns the best plan, and whether it is proven to be the best.
    pub(crate) fn finish(self) -> Option<(Plan, bool)> {
        let lower = self.lower();
        self.best.into_inner().map(|plan| {
            let is_optimal = plan.peak <= lower;
            (plan, is_optimal)
        })
    }
}
