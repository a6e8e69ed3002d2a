//! The least peak, by a search over the sets of tasks that ran.
//!
//! Owns: the question whether an order keeps within a number of bytes, which is asked for more and more bytes from the bound on, and
//! for fewer and fewer from the best order down. What is live between two tasks depends on the set of tasks that ran alone, so a set
//! from which no order ends within the limit is left the next time (dynamic programming over sets, as Ahn and others have it in
//! SERENITY, MLSys 2020). A task that keeps within the limit and leaves no more live than it found runs at once: whatever order ends
//! within the limit does so with the task moved to that place.

use crate::instance::{Instance, State, peak};
use rustc_hash::FxHashSet;
use std::time::Instant;

/// The most sets that are remembered: 16 bytes each, and as much again for the table.
const MAX_SETS: usize = 1 << 23;
/// Steps between two looks at the clock.
const BETWEEN_LOOKS: u64 = 256;
/// The steps of a first try for one limit, in tasks of the instance; each round of tries has twice as many.
const FIRST_TRY: u64 = 64;

/// What a search came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The best order.
    pub(crate) order: Vec<u32>,
    /// Its peak.
    pub(crate) peak: u64,
    /// No order has a lower peak.
    pub(crate) bound: u64,
}

/// Searches until the best order is known to be the best, or until `end`. `bound` is what no order undercuts, `order` the first guess.
pub(crate) fn exact(instance: &Instance, bound: u64, order: Vec<u32>, end: Instant) -> Found {
    let mut found = Found { peak: peak(instance, &order), order, bound };
    let mut effort = FIRST_TRY * (instance.tasks.len() as u64 + 1);
    while found.bound < found.peak && Instant::now() < end {
        // From below, which proves; then between, which finds.
        let mut low = found.bound;
        let mut is_from_below = true;
        while low < found.peak {
            match Search::new(instance, low, effort, end).run() {
                Answer::Order(order) => {
                    found.peak = peak(instance, &order);
                    found.order = order;
                    // The half of what is left, unless nothing is.
                    is_from_below = false;
                    low = found.bound;
                    if low + 1 >= found.peak {
                        break;
                    }
                    low += (found.peak - low) / 2;
                }
                Answer::None { next } => {
                    found.bound = found.bound.max(next.min(found.peak));
                    low = low.max(next);
                    if !is_from_below {
                        low = low.max(found.bound + (found.peak - found.bound) / 2);
                    }
                }
                Answer::Unknown => {
                    is_from_below = false;
                    let middle = low + (found.peak - low).div_ceil(2);
                    if middle >= found.peak {
                        break;
                    }
                    low = middle;
                }
            }
            if Instant::now() >= end {
                return found;
            }
        }
        effort = effort.saturating_mul(2);
    }
    found
}

enum Answer {
    /// An order within the limit.
    Order(Vec<u32>),
    /// There is none, nor for any limit below `next`.
    None { next: u64 },
    /// Time, memory or steps came to an end.
    Unknown,
}

/// A question: is there an order within `limit`?
struct Search<'a> {
    state: State<'a>,
    limit: u64,
    /// The least peak above the limit that was refused.
    next: u64,
    order: Vec<u32>,
    /// The tasks that ran, as a sum of random words: two sets have the same one with a chance of 2^-128.
    hash: u128,
    failed: FxHashSet<u128>,
    steps: u64,
    effort: u64,
    end: Instant,
}

/// A state in which something was tried.
struct Frame {
    /// Tasks that ran before it.
    ran: usize,
    hash: u128,
    /// What may run next, the best last.
    moves: Vec<u32>,
}

impl<'a> Search<'a> {
    fn new(instance: &'a Instance, limit: u64, effort: u64, end: Instant) -> Self {
        Self {
            state: State::new(instance),
            limit,
            next: u64::MAX,
            order: Vec::new(),
            hash: 0,
            failed: FxHashSet::default(),
            steps: 0,
            effort,
            end,
        }
    }

    fn run(mut self) -> Answer {
        let tasks = self.state.instance.tasks.len();
        let mut stack: Vec<Frame> = Vec::new();
        if self.state.level > self.limit {
            return Answer::None { next: self.state.level };
        }
        self.enter(&mut stack);
        while let Some(frame) = stack.last_mut() {
            if self.order.len() == tasks {
                return Answer::Order(self.order);
            }
            let (ran, hash) = (frame.ran, frame.hash);
            let Some(task) = frame.moves.pop() else {
                self.failed.insert(hash);
                stack.pop();
                if self.failed.len() >= MAX_SETS {
                    return Answer::Unknown;
                }
                continue;
            };
            self.back_to(ran);
            self.step(task);
            self.enter(&mut stack);
            if self.steps > self.effort || (self.steps.is_multiple_of(BETWEEN_LOOKS) && Instant::now() >= self.end) {
                return Answer::Unknown;
            }
        }
        Answer::None { next: self.next }
    }

    fn step(&mut self, task: u32) {
        self.state.run(task);
        self.order.push(task);
        self.hash = self.hash.wrapping_add(word(task));
        self.steps += 1;
    }

    fn back_to(&mut self, ran: usize) {
        while self.order.len() > ran {
            if let Some(task) = self.order.pop() {
                self.state.undo(task);
                self.hash = self.hash.wrapping_sub(word(task));
            }
        }
    }

    /// Runs what costs nothing, and puts the state on the stack, unless it failed before.
    fn enter(&mut self, stack: &mut Vec<Frame>) {
        loop {
            let mut free = None;
            for task in &self.state.ready {
                let during = self.state.during(*task);
                if during > self.limit {
                    self.next = self.next.min(during);
                } else if self.state.net(*task) <= 0 {
                    free = Some(*task);
                }
            }
            let Some(task) = free else { break };
            self.step(task);
        }
        if self.failed.contains(&self.hash) {
            return;
        }
        let fits = self.state.ready.iter().copied().filter(|task| self.state.during(*task) <= self.limit);
        let mut moves: Vec<(i64, u32)> = fits.map(|task| (self.state.net(task), task)).collect();
        moves.sort_unstable_by(|one, other| other.cmp(one));
        let moves = moves.into_iter().map(|(_, task)| task).collect();
        stack.push(Frame { ran: self.order.len(), hash: self.hash, moves });
    }
}

/// A random word of 128 bits for each task: two rounds of Stafford's mix 13 (`splitmix64`).
fn word(task: u32) -> u128 {
    let mix = |seed: u64| {
        let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    };
    u128::from(mix(2 * u64::from(task) + 1)) << 64 | u128::from(mix(2 * u64::from(task) + 2))
}
