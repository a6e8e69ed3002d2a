//! The demand of a process that is short of memory: the questions to the other members on its device, and their
//! answers.
//!
//! Owns: the steps of one demand. First all members are asked for their free bytes. Then members with memory to spare
//! are asked to give it, in up to three rounds if some gave less than their share. Each step has a time limit, so that
//! a silent process cannot block the demand.

use super::event::{Event, GivenBy};
use crate::division::{Holder, divide};
use crate::protocol::{Ask, Has, LentSaid};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time limit for a member to report its bytes. The report takes the allocator's lock, which a request may hold
/// while it waits for the GPU.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// The time limit for a member to give. An H200's driver takes 27 ms to release 2 GiB in chunks of 2 MiB, so 80 GiB
/// take about a second.
pub(super) const GIVE: Duration = Duration::from_secs(2);
/// The time limit that is sent to a member, after which the member reports the bytes released so far.
pub(super) const GIVE_WITHIN_MS: u64 = 1000;
/// The largest chunk that the option `chunk_size_mb` allows, in bytes.
const LARGEST_PIECE: u64 = 1 << 30;
/// The number of rounds in which the other members are asked for missing bytes.
const ROUNDS: u32 = 3;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// The demand waits for another demand of the same device.
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
    /// How often a later demand was served before this one.
    pub(super) overtaken: u32,
    since: Instant,
    pub(super) until: Instant,
    /// The number that identifies this step's questions.
    pub(super) number: u64,
    /// Members that have not answered yet, with the bytes that each was asked to give.
    pub(super) waiting: BTreeMap<u64, u64>,
    /// For each other member that answered, its guarantee in bytes and its memory.
    has: BTreeMap<u64, (u64, Has)>,
    silent: u32,
    processes: u32,
    given: u64,
    by: BTreeMap<u64, GivenBy>,
    rounds: u32,
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

    /// Begins the demand by asking the members `asked` for their bytes. `silent` is the number of members that are not
    /// asked, because they left earlier questions unanswered.
    pub(super) fn look(&mut self, number: u64, asked: &[u64], silent: u32, now: Instant) {
        (self.step, self.number, self.until) = (Step::Looking, number, now + LOOK);
        self.waiting = asked.iter().map(|member| (*member, 0)).collect();
        self.silent = silent;
        self.processes = silent + u32::try_from(asked.len()).unwrap_or(u32::MAX);
    }

    /// Notes an answer to the question of the present step.
    pub(super) fn answered(&mut self, member: u64, guarantee: u64, has: Has) {
        let Some(asked_for) = self.waiting.remove(&member) else { return };
        // The reported value is limited. A member that only reports its bytes releases none; a member that gives
        // releases at most one chunk more than it was asked for.
        let given = if self.step == Step::Giving { has.given.min(asked_for.saturating_add(LARGEST_PIECE)) } else { 0 };
        self.given = self.given.saturating_add(given);
        // A member that gives less than its share cannot release more, so its free bytes count as used.
        let free = if self.step == Step::Giving && has.given < asked_for { 0 } else { has.free };
        self.has.insert(member, (guarantee, Has { free, ..has }));
        if self.step == Step::Giving {
            let by = self.by.entry(member).or_insert(GivenBy { member, asked_for: 0, given: 0 });
            by.asked_for = by.asked_for.saturating_add(asked_for);
            by.given = by.given.saturating_add(given);
        }
    }

    /// Removes a member that has ended, whose memory the driver reclaims.
    pub(super) fn forget(&mut self, member: u64) {
        self.waiting.remove(&member);
        self.has.remove(&member);
    }

    /// Returns whether the step is over.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.step != Step::Queued && (self.waiting.is_empty() || now >= self.until)
    }

    /// Begins the next round of questions, once the present step is over. Members that have not answered count as
    /// silent. Returns the members that must give, with the bytes to give; none if the demand is finished.
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

    /// Returns the answer for the asker.
    pub(super) fn lent(&self, departed: bool) -> LentSaid {
        let sum = |of: fn(&(u64, Has)) -> u64| self.has.values().map(of).fold(0, u64::saturating_add);
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

fn holder((guarantee, has): &(u64, Has)) -> Holder {
    Holder { held: has.held, free: has.free.min(has.held), guarantee: *guarantee }
}
