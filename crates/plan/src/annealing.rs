//! Simulated annealing over the order in which buffers are placed by first fit.
//!
//! Owns: the moves and the temperature. The cost of an order is the peak of first fit in this order. Every plan in
//! which no buffer can move to a lower offset is the first fit of some order. Therefore first fit has the least peak in
//! some order.

use crate::check::Plan;
use crate::fit::{Fit, Placed};
use crate::neighbours::Instance;
use crate::orders::by_size;
use crate::random::Random;
use crate::search::Search;

/// The temperature at the beginning of a round and at its end, as parts of the peak.
const HOT: f64 = 0.02;
const COLD: f64 = 0.0002;
/// Moves of the first round, for each buffer. Each later round has twice as many moves.
const MOVES: u64 = 20;
/// The number of buffers placed between two checks of the clock.
const BETWEEN_LOOKS: usize = 64;

/// An order, and the result of first fit in it.
struct Walk<'a> {
    placed: Placed<'a>,
    order: Vec<u32>,
    /// The peak before each buffer of the order, and at the end.
    peaks: Vec<u64>,
}

impl<'a> Walk<'a> {
    fn new(instance: &'a Instance, order: Vec<u32>) -> Self {
        Self { placed: Placed::new(instance), peaks: vec![0; order.len() + 1], order }
    }

    /// Places the buffers again, from index `from` of the order on. Returns the peak, or `None` if the search is over.
    fn place_from(&mut self, from: usize, search: &Search) -> Option<u64> {
        self.order[from..].iter().for_each(|buffer| self.placed.remove(*buffer));
        let mut peak = self.peaks[from];
        for index in from..self.order.len() {
            if index % BETWEEN_LOOKS == 0 && search.is_over() {
                return None;
            }
            peak = peak.max(self.placed.place(self.order[index], Fit::First));
            self.peaks[index + 1] = peak;
        }
        Some(peak)
    }

    fn plan(&self, peak: u64) -> Plan {
        Plan { offsets: self.placed.offsets.clone(), peak }
    }
}

/// Searches until the search is over. The same seed gives the same moves; the clock limits their number.
pub(crate) fn annealing(instance: &Instance, search: &Search, seed: u64) {
    instance.list(search);
    let mut random = Random::new(seed);
    let mut walk = Walk::new(instance, by_size(instance));
    let Some(mut cost) = walk.place_from(0, search) else { return };
    search.offer(walk.plan(cost));
    if instance.len() < 2 {
        return;
    }
    let mut best = cost;
    let mut moves = MOVES.saturating_mul(instance.len() as u64);
    while !search.is_over() {
        let cooling = (COLD / HOT).powf(1.0 / moves as f64);
        let mut temperature = HOT * cost as f64;
        for _ in 0..moves {
            temperature *= cooling;
            // Another thread has a better plan: the walk continues from its order.
            if search.peak() < best
                && let Some(plan) = search.best()
            {
                walk.order.sort_by_key(|buffer| plan.offsets[*buffer as usize]);
                let Some(peak) = walk.place_from(0, search) else { return };
                (cost, best) = (peak, plan.peak.min(peak));
                search.offer(walk.plan(peak));
            }
            let (from, to) = step(&walk, &mut random, cost);
            rotate(&mut walk.order, from, to);
            let Some(peak) = walk.place_from(from.min(to), search) else { return };
            let worse = peak as f64 - cost as f64;
            if worse <= 0.0 || random.part() < (-worse / temperature).exp() {
                cost = peak;
                if cost < best {
                    best = cost;
                    search.offer(walk.plan(cost));
                }
            } else {
                rotate(&mut walk.order, to, from);
                if walk.place_from(from.min(to), search).is_none() {
                    return;
                }
            }
        }
        moves = moves.saturating_mul(2);
    }
}

/// Returns a move: the index of a buffer and its new index. In half of the moves, a buffer at the peak moves to an
/// earlier place.
fn step(walk: &Walk<'_>, random: &mut Random, cost: u64) -> (usize, usize) {
    let count = walk.order.len();
    if random.below(2) == 0 {
        // The buffer at this index is the first that reaches the peak.
        let at = walk.peaks.partition_point(|peak| *peak < cost).saturating_sub(1);
        if at > 0 {
            return (at, random.below(at));
        }
    }
    (random.below(count), random.below(count))
}

/// Moves the buffer at one index to another; the buffers between these indexes move by one place.
fn rotate(order: &mut [u32], from: usize, to: usize) {
    if from < to {
        order[from..=to].rotate_left(1);
    } else {
        order[to..=from].rotate_right(1);
    }
}
