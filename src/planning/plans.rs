//! The plans that are known, and where the program is in one of them.
//!
//! Owns: which plan a step follows, and how it is found again after a request that no plan has.
//!
//! ```text
//! plan        a b c d e f
//! requests    a b x c e f       x is none of the plan's; d does not come: both are departures, the others have their places
//! ```

use super::places::{PlannedPlace, PlannedPlaces};
use super::recorder::{Key, Record};
use crate::fallible::{Grown, TryPush};
use crate::span::Span;

/// The most plans that are kept. The one followed longest ago goes first.
const MAX_PLANS: usize = 64;
/// How far behind the present request the plan is searched for it.
const WINDOW: usize = 16;
/// A step follows its plan no more after so many requests that the plan does not have, and one more for each `MATCHED` that it has:
/// it is another step, which only begins alike.
const MISSED: u32 = 4;
const MATCHED: u32 = 64;
/// Once so many places of a plan that a step has followed to its end were taken, and more than one of `FOUND`, the rest of the
/// step is served without them: the memory is another than the plan's.
const DISPLACED: u32 = 16;
const FOUND: u32 = 8;

/// A plan that was followed in none of so many steps per plan keeps no memory.
const FORGOTTEN_AFTER: u64 = 4;
/// A plan does not suit if more than this part (1/n) of the bytes of all its places is taken for good.
const UNSUITED: u64 = 32;
/// Memory is tight for a plan if less than this part (1/n) of what is held is never live in its step. Then none
/// of its places may be taken.
const TIGHT: u64 = 256;
/// If less than this part (1/n) is spare, half of the spare bytes have to suffice for the requests without places, which otherwise take the
/// places of others.
const ROOMY: u64 = 64;

/// A plan of one step.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) signature: u64,
    keys: Vec<Key>,
    /// Each request's place.
    pub(super) places: PlannedPlaces,
    /// The signature of the step that came after it last.
    pub(super) successor: u64,
    /// The step at whose end it was made first.
    made: u64,
    /// The step in which it was followed last; 0: in none.
    pub(super) followed: u64,
    /// How many steps in a row departed from it.
    pub(super) departed: u32,
    /// How often it was renewed for that.
    pub(super) renewals: u32,
    /// Whether a step has followed it to the end.
    pub(super) suited: bool,
    /// The most bytes that were live in the step of which it was made, or that followed it last.
    pub(super) peak: u64,
}

/// Where a step is in a plan.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    plan: usize,
    at: usize,
    /// Requests that the plan has, and that it does not have.
    matched: u32,
    missed: u32,
    /// Requests whose places were taken.
    displaced: u32,
    /// Whether requests get their places.
    places: bool,
}

impl Cursor {
    fn new(plan: usize, at: usize) -> Self {
        Self { plan, at, matched: 0, missed: 0, displaced: 0, places: true }
    }
}

/// The plans of a program.
#[derive(Debug, Default)]
pub(super) struct Plans {
    plans: Vec<Plan>,
    cursor: Option<Cursor>,
    /// Whether the present step follows none any more.
    is_lost: bool,
}

impl Plans {
    /// Returns whether the step follows a plan, and has come to its end.
    #[inline]
    pub(super) fn is_complete(&self) -> bool {
        !self.is_lost && self.cursor.is_some_and(|cursor| cursor.at >= self.plans[cursor.plan].keys.len())
    }

    /// Returns whether the step follows a plan.
    pub(super) fn is_followed(&self) -> bool {
        self.cursor.is_some() && !self.is_lost
    }

    /// Notes that the step goes on beyond its plan. It follows another one if that has the same requests, and this one next.
    #[cold]
    pub(super) fn go_on(&mut self, key: Key, records: &[Record]) {
        self.is_lost = !self.plans.iter().any(|plan| is_at(plan, key, records));
    }

    /// Begins a step.
    pub(super) fn begin(&mut self) {
        (self.cursor, self.is_lost) = (None, false);
    }

    /// Returns the place of the next request, if the plan has it. `records` are the requests of the step before it.
    ///
    /// A plan that was not followed before, or from which the last step departed, is looked at first: `is_open` says whether a place
    /// is free, or will be.
    #[inline]
    pub(super) fn next(
        &mut self,
        key: Key,
        records: &[Record],
        (expected, held): (u64, u64),
        is_open: impl Fn(Span) -> bool,
    ) -> Option<PlannedPlace<'_>> {
        if let Some(cursor) = self.cursor.as_mut().filter(|_| !self.is_lost)
            && self.plans[cursor.plan].keys.get(cursor.at) == Some(&key)
        {
            let Cursor { plan, at, places, .. } = *cursor;
            cursor.at += 1;
            cursor.matched += 1;
            return if places { self.plans[plan].places.get(at, key.size) } else { None };
        }
        self.search(key, records, (expected, held), is_open)
    }

    #[cold]
    fn search(
        &mut self,
        key: Key,
        records: &[Record],
        (expected, held): (u64, u64),
        is_open: impl Fn(Span) -> bool,
    ) -> Option<PlannedPlace<'_>> {
        if self.is_lost {
            return None;
        }
        let before = self.cursor.map(|cursor| cursor.plan);
        let cursor = match self.cursor {
            None => self.first(key, records, expected),
            Some(cursor) => self.after_departure(cursor, key, records),
        };
        let mut cursor = cursor?;
        if before != Some(cursor.plan) {
            cursor.places = self.plans[cursor.plan].suits(held, is_open);
        }
        self.cursor = Some(Cursor { at: cursor.at + 1, matched: cursor.matched + 1, ..cursor });
        if cursor.places { self.plans[cursor.plan].places.get(cursor.at, key.size) } else { None }
    }

    /// Returns the place of a step's first request: in the plan that came next the last time, or else in the latest one.
    fn first(&mut self, key: Key, records: &[Record], expected: u64) -> Option<Cursor> {
        let at = records.len();
        let begins = |plan: &Plan| is_at(plan, key, records);
        let found = self.plans.iter().position(|plan| plan.signature == expected && begins(plan));
        let latest = || {
            let all = self.plans.iter().enumerate().filter(|(_, plan)| begins(plan));
            all.max_by_key(|(_, plan)| plan.followed).map(|(index, _)| index)
        };
        let plan = found.or_else(latest);
        self.is_lost = plan.is_none() && at > WINDOW;
        Some(Cursor::new(plan?, at))
    }

    fn after_departure(&mut self, cursor: Cursor, key: Key, records: &[Record]) -> Option<Cursor> {
        // Another plan may have begun in the same way.
        let other = self.plans.iter().position(|plan| is_at(plan, key, records));
        if let Some(plan) = other {
            return Some(Cursor { plan, at: records.len(), ..cursor });
        }
        let missed = cursor.missed + 1;
        self.is_lost = missed > MISSED + cursor.matched / MATCHED;
        self.cursor = Some(Cursor { missed, ..cursor });
        if self.is_lost {
            return None;
        }
        let ahead = self.plans[cursor.plan].keys.iter().skip(cursor.at).take(WINDOW).position(|of| *of == key);
        Some(Cursor { at: cursor.at + ahead?, missed, ..cursor })
    }

    /// Notes that the place of the last request was taken. `lost`: its view is gone.
    #[cold]
    pub(super) fn displaced(&mut self, lost: bool) {
        let Some(cursor) = &mut self.cursor else { return };
        if let Some(plan) = self.plans.get_mut(cursor.plan).filter(|_| lost) {
            plan.places.is_unbuilt = true;
        }
        cursor.displaced += 1;
        // At first, blocks of the step before still lie where they lay without the plan.
        let is_known = self.plans.get(cursor.plan).is_some_and(|plan| plan.suited);
        cursor.places &= !is_known || cursor.displaced <= DISPLACED + cursor.matched / FOUND;
    }

    /// Returns the plan with this signature.
    pub(super) fn with_signature(&mut self, signature: u64) -> Option<&mut Plan> {
        self.plans.iter_mut().find(|plan| plan.signature == signature)
    }

    /// Forgets how often plans were renewed that have places for all requests.
    pub(super) fn begin_anew(&mut self) {
        self.plans.iter_mut().filter(|plan| plan.unplaced() == 0).for_each(|plan| plan.renewals = 0);
    }

    /// Returns the plans whose views are to be built.
    pub(super) fn unbuilt(&mut self) -> impl Iterator<Item = &mut Plan> {
        self.plans.iter_mut().filter(|plan| plan.places.is_unbuilt)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Plan> {
        self.plans.iter()
    }

    /// Returns the plans that the program may follow soon: those that it has followed lately, and new ones.
    pub(super) fn in_use(&self, steps: u64) -> impl Iterator<Item = &Plan> {
        let count = self.plans.len() as u64;
        let (known, new) = (steps.saturating_sub(FORGOTTEN_AFTER * count), steps.saturating_sub(count));
        let is_used = move |plan: &Plan| if plan.followed > 0 { plan.followed >= known } else { plan.made > new };
        self.plans.iter().filter(move |plan| is_used(plan))
    }

    /// Adds a plan, or renews it.
    pub(super) fn put(
        &mut self,
        made: u64,
        peak: u64,
        signature: u64,
        keys: Vec<Key>,
        places: PlannedPlaces,
    ) -> Grown<()> {
        if let Some(plan) = self.with_signature(signature) {
            (plan.keys, plan.places, plan.peak) = (keys, places, peak);
            plan.renewals += u32::from(plan.followed > 0);
            (plan.departed, plan.suited) = (0, false);
            return Ok(());
        }
        if self.plans.len() >= MAX_PLANS {
            let oldest = self.plans.iter().enumerate().min_by_key(|(_, plan)| plan.followed).map(|(index, _)| index);
            oldest.map(|index| self.plans.swap_remove(index));
        }
        let plan = Plan {
            signature,
            keys,
            places,
            successor: 0,
            made,
            followed: 0,
            departed: 0,
            renewals: 0,
            suited: false,
            peak,
        };
        self.plans.try_push(plan)
    }

    /// Returns the bytes of host memory that the plans take.
    pub(super) fn host_bytes(&self) -> usize {
        let bytes = |plan: &Plan| plan.keys.capacity() * size_of::<Key>() + plan.places.host_bytes();
        self.plans.iter().map(bytes).sum::<usize>() + self.plans.capacity() * size_of::<Plan>()
    }
}

impl Plan {
    /// Returns whether the memory is still that of the plan, as far as is known.
    fn suits(&self, held: u64, is_open: impl Fn(Span) -> bool) -> bool {
        if self.suited && self.departed == 0 {
            return true;
        }
        let (mut open, mut all) = (0, 0);
        for span in self.spans() {
            all += span.size;
            open += if is_open(span) { span.size } else { 0 };
        }
        // With nothing to spare, what departs would need new memory, which it may not without the plan.
        let spare = held.saturating_sub(self.peak);
        let is_open = if spare >= held / TIGHT { all - open <= all / UNSUITED } else { all == open };
        is_open && (spare >= held / ROOMY || self.unplaced() <= spare / 2)
    }

    /// Returns how many requests it has.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the bytes of all requests that have no place.
    fn unplaced(&self) -> u64 {
        let without = self.keys.iter().enumerate().filter(|(number, _)| !self.places.has(*number));
        without.map(|(_, key)| key.size).sum()
    }

    /// Returns the memory of each request that has a place in one piece.
    pub(super) fn home_spans(&self) -> impl Iterator<Item = Span> + '_ {
        let keys = self.keys.iter().enumerate();
        keys.filter_map(|(number, key)| match self.places.get(number, key.size) {
            Some(PlannedPlace::Home(span)) => Some(span),
            _ => None,
        })
    }

    /// Returns the memory of each request that has a place, in one piece or several.
    pub(super) fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        self.keys.iter().enumerate().flat_map(|(number, key)| self.places.spans(number, key.size))
    }
}

/// Returns whether a plan has the same requests as a step so far, and this one next.
fn is_at(plan: &Plan, key: Key, records: &[Record]) -> bool {
    plan.keys.get(records.len()) == Some(&key)
        && plan.keys.iter().zip(records).rev().all(|(planned, record)| *planned == record.key)
}
