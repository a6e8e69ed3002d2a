//! What is held beyond the plans, or lacks for them.
//!
//! Owns: when memory that no plan uses goes back, how much of it is kept, and when memory grows so that a plan has places for all.
//!
//! ```text
//! held   |WWW|a|b|..c|d..|...|        after a step: dots are free
//! plan   |WWW|a|b|c|d|                what it does not use goes back when it is put in place, or once steps have followed it
//! ```

use super::memory::joined;
use super::plans::{Plan, Plans};
use crate::error::Result;
use crate::fallible::TryPush;
use crate::heap::GRANULE;
use crate::span::Span;

/// Once as many steps in a row as there are plans in use were expected and have followed them, memory that no plan uses goes back, after each of
/// so many steps.
const GIVING_BACK: u64 = 4;
/// Each time that more than this part (1/n) of what is held was made again after it had gone back, so many times as many steps have to settle
/// before any goes back again: steps of a program may repeat themselves for a while, as its layers do, between others that need more.
const REGRETTED: u64 = 32;
const LATER: u64 = 4;
const MAX_REGRETS: u32 = 16;
/// It goes back at once, as soon as a plan is put in place, if there is no other plan of more than this part (1/n) of its requests, and its
/// step needs all that is held but for this part (1/n) and leaves little to the next one: where this is wrong, little is made again.
const ALIKE: usize = 4;
const NEARLY_ALL: u64 = 16;
const LITTLE: u64 = 32;
/// Where such a plan has no place for some requests, memory grows by this part (1/n), and the step is planned again, as long as no more than
/// this part (1/n) is held beyond its peak. Without places they would take those of others, and memory would grow by their size.
const ENLARGED_BY: u64 = 8192;
const ENLARGED_TO: u64 = 2048;

/// A plan that was just put in place.
pub(super) struct Answered {
    pub(super) signature: u64,
    pub(super) requests: usize,
    /// Requests without a place.
    pub(super) unplaced: usize,
    /// The most bytes that are live in its step, and those of requests that live on into the next one.
    pub(super) peak: u64,
    pub(super) living_on: u64,
}

/// What is held beyond the plans, or lacks for them, in bytes.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    /// Steps in a row that were expected and followed their plans.
    settled: u64,
    /// What was held after memory went back; 0: it has not, since the last step ended.
    gave_back: u64,
    /// What was held when memory had gone back last, until it was made again; 0: none has gone. How often it was made again.
    low: u64,
    regrets: u32,
    /// Whether memory has gone back since steps follow their plans, and whether all has.
    has_given: bool,
    given_all: bool,
    /// Whether the plan that was just put in place is the only one, and of a step that needs nearly all that is held.
    pub(super) is_alone: bool,
    /// What is to be added before a plan has places for all requests.
    pub(super) lacking: u64,
    /// What is kept beside the plans: so much was held again within a step after memory had gone back.
    pub(super) kept: u64,
}

impl Surplus {
    /// Notes that a step ends.
    pub(super) fn step_ends(&mut self) {
        (self.is_alone, self.lacking) = (false, 0);
    }

    /// Notes what is held at the end of a step. `settles`: it was expected, and followed its plan.
    pub(super) fn step_ended(&mut self, settles: bool, held: u64) {
        // Slabs of small requests, which nobody plans, come and go within a step.
        let gave_back = std::mem::take(&mut self.gave_back);
        if gave_back > 0 {
            self.kept += held.saturating_sub(gave_back);
        }
        if self.low > 0 && held > self.low + held / REGRETTED {
            (self.low, self.regrets) = (0, (self.regrets + 1).min(MAX_REGRETS));
        }
        self.settled = if settles { self.settled + 1 } else { 0 };
        if self.settled == 0 {
            (self.has_given, self.given_all) = (false, false);
        }
    }

    /// Notes that the program begins anew: what was held before says nothing of what it needs.
    pub(super) fn begin_anew(&mut self) {
        (self.low, self.regrets) = (0, 0);
    }

    /// Decides what a new plan means for the memory held. `may_grow`: its step has just ended, so that it can be planned again.
    pub(super) fn judge(&mut self, of: &Answered, (plans, steps): (&Plans, u64), held: u64, may_grow: bool) {
        // What this plan does not use is not known to be of no use before it was followed, if there are others, or if there was a
        // larger step before.
        *self = Self { low: self.low, regrets: self.regrets, ..Self::default() };
        let is_other = |plan: &Plan| plan.signature != of.signature && plan.len() * ALIKE > of.requests;
        let is_alone = self.regrets == 0
            && !plans.in_use(steps).any(is_other)
            && of.living_on <= held / LITTLE
            && of.peak.saturating_add(held / NEARLY_ALL) >= held;
        self.is_alone = is_alone && of.unplaced == 0;
        let more = (held / ENLARGED_BY).next_multiple_of(GRANULE);
        let is_allowed =
            is_alone && may_grow && held.saturating_add(more) <= of.peak.saturating_add(of.peak / ENLARGED_TO);
        self.lacking = if is_allowed && of.unplaced > 0 { more } else { 0 };
    }

    /// Returns the memory that plans use, if the rest is to go back to the driver now.
    ///
    /// # Errors
    /// The host has no memory for the list.
    pub(super) fn given_back_outside(&self, plans: &Plans, steps: u64) -> Result<Option<Vec<Span>>> {
        let all = plans.in_use(steps).count().max(1) as u64;
        let from = all.saturating_mul(LATER.saturating_pow(self.regrets));
        let have_settled = !self.given_all && (from..from.saturating_add(GIVING_BACK)).contains(&self.settled);
        if !self.is_alone && !have_settled {
            return Ok(None);
        }
        let mut used = Vec::new();
        plans.in_use(steps).flat_map(Plan::spans).try_for_each(|span| used.try_push(span))?;
        Ok(Some(joined(used)?))
    }

    /// Notes that memory went back, and how much was held before and is now.
    pub(super) fn gave_back(&mut self, before: u64, held: u64) {
        // Nothing went back, and all streams have passed what went back before: nothing will.
        self.given_all = self.has_given && before == held;
        self.has_given |= before != held;
        if before != held {
            self.low = held;
        }
        self.gave_back = held;
    }
}
