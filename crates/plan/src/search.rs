//! What the methods of a search share: the best plan so far, what is proven, and when to stop.

use crate::check::Plan;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// A search for one problem, by one thread or several.
#[derive(Debug)]
pub(crate) struct Search {
    best: Mutex<Option<Plan>>,
    /// The peak of the best plan; `u64::MAX` where there is none.
    peak: AtomicU64,
    /// No plan has a lower peak.
    lower: AtomicU64,
    /// A plan with this peak is good enough.
    capacity: Option<u64>,
    deadline: Option<Instant>,
    is_over: AtomicBool,
}

impl Search {
    /// A search that ends at a moment, or where a peak is reached.
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

    /// The peak of the best plan so far; `u64::MAX`: there is none.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// The best plan so far.
    pub(crate) fn best(&self) -> Option<Plan> {
        self.best.lock().clone()
    }

    /// The least peak that is not proven to be impossible.
    pub(crate) fn lower(&self) -> u64 {
        self.lower.load(Ordering::Relaxed)
    }

    /// The peak that is good enough, if one was named.
    pub(crate) fn capacity(&self) -> Option<u64> {
        self.capacity
    }

    /// Whether there is nothing left to do, or no time left.
    pub(crate) fn is_over(&self) -> bool {
        if !self.is_over.load(Ordering::Relaxed) && self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            self.end();
        }
        self.is_over.load(Ordering::Relaxed)
    }

    /// Whether the search was ended; the clock is not asked.
    pub(crate) fn was_ended(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Ends the search.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// A plan was found.
    pub(crate) fn offer(&self, plan: Plan) {
        let mut best = self.best.lock();
        if best.as_ref().is_none_or(|best| plan.peak < best.peak) {
            self.peak.store(plan.peak, Ordering::Relaxed);
            *best = Some(plan);
        }
        drop(best);
        self.end_if_answered();
    }

    /// It was proven that no plan has a lower peak than this.
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

    /// The best plan, and whether it is proven that none is better.
    pub(crate) fn finish(self) -> Option<(Plan, bool)> {
        let lower = self.lower();
        self.best.into_inner().map(|plan| {
            let is_optimal = plan.peak <= lower;
            (plan, is_optimal)
        })
    }
}
