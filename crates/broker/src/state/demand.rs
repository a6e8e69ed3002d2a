//! A process is short: what the others on its device are asked, and what they answer.
//!
//! Owns: the steps of one demand. First all are asked what they have, then those with something to spare are asked to give it, twice
//! more if some gave less than their share. Each step has an end, whoever does not answer.

use super::event::{Event, GivenBy};
use crate::division::{Holder, divide};
use crate::protocol::{Ask, Has, LentSaid};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long one may take to say what it has: reading it takes the allocator's lock, which a request may hold while it waits for the
/// GPU.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// How long one may take to give. An H200's driver takes 27 ms to release 2 GiB in chunks of 2 MiB: 80 GiB take about a second.
pub(super) const GIVE: Duration = Duration::from_secs(2);
/// What a member is told: after that it answers with what it has given by then.
pub(super) const GIVE_WITHIN_MS: u64 = 1000;
/// In bytes: the largest chunk that the option `chunk_size_mb` allows.
const LARGEST_PIECE: u64 = 1 << 30;
/// How often what some did not give is asked of the others.
const ROUNDS: u32 = 3;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Behind another demand of the same device.
    Queued,
    Looking,
    Giving,
}

#[derive(Clone, Debug)]
pub(super) struct Demand {
    /// The connection that waits for the answer.
    pub(super) asker: u64,
    pub(super) pid: i32,
    pub(super) ask: Ask,
    pub(super) step: Step,
    /// How often one that asked later was served first.
    pub(super) overtaken: u32,
    since: Instant,
    pub(super) until: Instant,
    /// Of the questions of this step.
    pub(super) number: u64,
    /// Members that have not answered yet, with what each was asked to give.
    pub(super) waiting: BTreeMap<u64, u64>,
    /// What the others have.
    has: BTreeMap<u64, (Terms, Has)>,
    silent: u32,
    processes: u32,
    given: u64,
    by: BTreeMap<u64, GivenBy>,
    rounds: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) guarantee: u64,
    pub(super) weight: u32,
}

impl Demand {
    pub(super) fn new(asker: u64, pid: i32, ask: Ask, now: Instant) -> Self {
        Self {
            asker,
            pid,
            ask,
            step: Step::Queued,
            overtaken: 0,
            since: now,
            until: now,
            number: 0,
            waiting: BTreeMap::new(),
            has: BTreeMap::new(),
            silent: 0,
            processes: 0,
            given: 0,
            by: BTreeMap::new(),
            rounds: 0,
        }
    }

    /// Begins: these members are asked what they have, and so many more did not answer before.
    pub(super) fn look(&mut self, number: u64, asked: &[u64], silent: u32, now: Instant) {
        (self.step, self.number, self.until) = (Step::Looking, number, now + LOOK);
        self.waiting = asked.iter().map(|member| (*member, 0)).collect();
        self.silent = silent;
        self.processes = silent + u32::try_from(asked.len()).unwrap_or(u32::MAX);
    }

    /// Notes an answer to the question of this step.
    pub(super) fn answered(&mut self, member: u64, terms: Terms, has: Has) {
        let Some(asked_for) = self.waiting.remove(&member) else { return };
        // Whatever it says: nothing went for a look, and hardly more than a piece beyond what it was asked for.
        let given = if self.step == Step::Giving { has.given.min(asked_for.saturating_add(LARGEST_PIECE)) } else { 0 };
        self.given = self.given.saturating_add(given);
        // Who gives less than its share has no more that can go: as much is in use as if it were.
        let free = if self.step == Step::Giving && has.given < asked_for { 0 } else { has.free };
        self.has.insert(member, (terms, Has { free, ..has }));
        if self.step == Step::Giving {
            let by = self.by.entry(member).or_insert(GivenBy { member, asked_for: 0, given: 0 });
            by.asked_for = by.asked_for.saturating_add(asked_for);
            by.given = by.given.saturating_add(given);
        }
    }

    /// Forgets one that has ended. Its memory goes to the driver by itself.
    pub(super) fn forget(&mut self, member: u64) {
        self.waiting.remove(&member);
        self.has.remove(&member);
    }

    /// Returns whether the step is over.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.step != Step::Queued && (self.waiting.is_empty() || now >= self.until)
    }

    /// Goes on after a step. Returns who is to give how much; nothing at the end.
    pub(super) fn next(&mut self, number: u64, now: Instant) -> Vec<(u64, u64)> {
        self.silent += u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        for member in std::mem::take(&mut self.waiting).into_keys() {
            self.has.remove(&member);
        }
        let left = self.ask.missing.saturating_sub(self.given);
        if left == 0 || self.rounds == ROUNDS {
            return Vec::new();
        }
        self.rounds += 1;
        let holders: Vec<Holder> = self.has.values().map(holder).collect();
        let shares = divide(left, &holders);
        let gives = self.has.keys().copied().zip(shares).filter(|(_, share)| *share > 0);
        self.waiting = gives.collect();
        (self.step, self.number, self.until) = (Step::Giving, number, now + GIVE);
        self.waiting.iter().map(|(member, share)| (*member, *share)).collect()
    }

    /// Returns what the asker is told.
    pub(super) fn lent(&self, departed: bool) -> LentSaid {
        let sum = |of: fn(&(Terms, Has)) -> u64| self.has.values().map(of).fold(0, u64::saturating_add);
        LentSaid {
            processes: self.processes,
            silent: self.silent,
            given: self.given,
            held: sum(|(_, has)| has.held),
            live: sum(|(_, has)| has.live),
            guaranteed: sum(|known| holder(known).guaranteed()),
            departed,
        }
    }

    pub(super) fn event(&self, now: Instant) -> Event {
        let us = u64::try_from(now.duration_since(self.since).as_micros()).unwrap_or(u64::MAX);
        let by = self.by.values().copied().collect();
        let device = self.ask.device.clone();
        Event::Lent { device, pid: self.pid, missing: self.ask.missing, given: self.given, by, us }
    }
}

fn holder((terms, has): &(Terms, Has)) -> Holder {
    Holder { held: has.held, free: has.free.min(has.held), guarantee: terms.guarantee, weight: terms.weight }
}
