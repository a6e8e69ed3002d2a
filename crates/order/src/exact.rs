//! Finds the least peak by a search over the sets of tasks already run.
//!
//! Owns: the question whether an order keeps within a number of bytes. The question is asked for rising limits from the
//! lower bound on, then for limits halfway between the lower bound and the best order's peak. The live bytes between
//! two tasks depend only on the set of tasks already run. If no order from a set ends within the limit, the set is
//! skipped the next time (dynamic programming over sets, as in SERENITY by Ahn and others, MLSys 2020). A task that
//! keeps within the limit and does not increase the live bytes runs immediately: if an order keeps within the limit, it
//! still does so after the task is moved to this earlier place.

use crate::instance::{Instance, State, peak};
use rustc_hash::FxHashSet;
use std::time::Instant;

/// The most sets of tasks that are remembered as failed. A set takes 16 bytes, and the hash table of the sets takes up
/// to twice the bytes of its sets.
const MAX_SETS: usize = 1 << 23;
/// The number of steps between two checks of the clock.
const BETWEEN_LOOKS: u64 = 256;
/// The steps for each task of the instance in the first search for an order whose peak is within one limit. Each later
/// round of searches has twice as many steps.
const FIRST_TRY: u64 = 64;

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The best order.
    pub(crate) order: Vec<u32>,
    /// The peak of this order.
    pub(crate) peak: u64,
    /// A lower bound of the peak: no order has a lower peak.
    pub(crate) bound: u64,
}

/// Finds an order of a small instance, until the given moment.
pub(crate) type Solve<'a> = dyn FnMut(&Instance, Instant) -> Found + 'a;

/// Searches until the best order is proven to be the best, or until `end`. `bound` is a lower bound of the peak,
/// `order` the first guess.
pub(crate) fn exact(instance: &Instance, bound: u64, order: Vec<u32>, end: Instant) -> Found {
    let mut found = Found { peak: peak(instance, &order), order, bound };
    let mut effort = FIRST_TRY * (instance.tasks.len() as u64 + 1);
    while found.bound < found.peak && Instant::now() < end {
        // The search first raises the limit from below, which proves lower bounds of the peak. Later it halves the
        // range between the lower bound and the best peak, which finds orders.
        let mut low = found.bound;
        let mut is_from_below = true;
        while low < found.peak {
            match Search::new(instance, low, effort, end).run() {
                Answer::Order(order) => {
                    found.peak = peak(instance, &order);
                    found.order = order;
                    // The next limit is the middle of the remaining range, unless the range is empty.
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
    /// No order is within the limit, or within any limit below `next`.
    None { next: u64 },
    /// The search ended without an answer: the time, the memory or the steps were used up.
    Unknown,
}

/// The search for an order within `limit`.
struct Search<'a> {
    state: State<'a>,
    limit: u64,
    /// The least peak that would have been reached by a task that did not run because of the limit.
    next: u64,
    order: Vec<u32>,
    /// The tasks already run, as the sum of a random word for each task. Two different sets have the same sum with a
    /// chance of 2^-128.
    hash: u128,
    failed: FxHashSet<u128>,
    steps: u64,
    effort: u64,
    end: Instant,
}

/// A state on the search path.
struct Frame {
    /// The number of tasks run before this state.
    ran: usize,
    hash: u128,
    /// The tasks that may run next, the most promising task last.
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

    /// Runs tasks that do not increase the live bytes, then pushes the resulting state, unless the search has failed
    /// from that state already.
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

/// Returns a pseudorandom word of 128 bits for a task: each half is one `splitmix64` (Stafford's mix 13).
fn word(task: u32) -> u128 {
    let mix = |seed: u64| {
        let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    };
    u128::from(mix(2 * u64::from(task) + 1)) << 64 | u128::from(mix(2 * u64::from(task) + 2))
}
