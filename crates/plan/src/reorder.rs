//! A search for many buffers. The search tries first fit in several orders, then repeatedly in an order in which
//! buffers with high offsets come earlier.
//!
//! Owns: the moves. As in squeaky wheel optimization (D. E. Joslin and D. P. Clements, JAIR 10, 1999), buffers that a
//! plan places badly come earlier in the next order. An index (`taken.rs`) makes a pass quick enough to place all
//! buffers again.

use crate::check::Plan;
use crate::fit::{Fit, place_all};
use crate::neighbours::Instance;
use crate::orders::Starts;
use crate::random::Random;
use crate::search::Search;

/// The passes without a better plan after which the search returns to the order of the best plan.
const PATIENCE: u32 = 10;
/// Buffers in the highest part of the plan are moved. This part is at most an eighth of the plan, and at least a
/// 32,768th. The values are the numbers of bits by which the peak is shifted right.
const WIDEST: u32 = 3;
const NARROWEST: u32 = 15;
/// A new order is sorted by each buffer's old index times this number, so that moved buffers fit between others.
const FINE: usize = 1000;

/// An order, and the result of first fit in it.
struct Tried {
    order: Vec<u32>,
    plan: Plan,
}

impl Tried {
    /// Places the buffers in an order. Returns `None` if the search is over.
    fn new(instance: &Instance, order: Vec<u32>, search: &Search) -> Option<Self> {
        let plan = place_all(instance, order.iter().copied(), Fit::First, search)?;
        if plan.peak < search.peak() {
            search.offer(plan.clone());
        }
        Some(Self { order, plan })
    }
}

/// Searches until the search is over. This thread has number `index` of `threads` threads, and each thread begins with
/// different orders.
pub(crate) fn reorder(instance: &Instance, search: &Search, seed: u64, (index, threads): (usize, usize)) {
    let mut best: Option<Tried> = None;
    for order in Starts::new(instance, search, index, threads) {
        let Some(tried) = Tried::new(instance, order, search) else { return };
        if best.as_ref().is_none_or(|best| tried.plan.peak < best.plan.peak) {
            best = Some(tried);
        }
    }
    let Some(mut best) = best else { return };
    let mut random = Random::new(seed);
    let (mut now, mut since) = (None, 0);
    while !search.is_over() {
        let last: &Tried = now.as_ref().unwrap_or(&best);
        let Some(tried) = Tried::new(instance, moved(instance, last, &mut random), search) else { return };
        since += 1;
        let (peak, least) = (tried.plan.peak, best.plan.peak);
        if peak < least {
            (best, now, since) = (tried, None, 0);
        } else if since % PATIENCE == 0 || peak - least > least.saturating_sub(instance.bound) {
            now = None;
        } else {
            now = Some(tried);
        }
    }
}

/// Returns the order with high buffers moved: to the front, to any earlier place, or to a slightly earlier place.
fn moved(instance: &Instance, last: &Tried, random: &mut Random) -> Vec<u32> {
    let peak = last.plan.peak;
    let part = peak >> (WIDEST + random.below((NARROWEST - WIDEST) as usize) as u32);
    let line = peak - 1 - (random.below(part as usize) as u64).min(peak - 1);
    let kind = random.below(3);
    let place = |(index, buffer): (usize, &u32)| {
        let end = last.plan.offsets[*buffer as usize] + instance.sizes[*buffer as usize];
        let to = match kind {
            _ if end <= line => index * FINE,
            0 => 0,
            1 => index * random.below(FINE),
            _ => index * (FINE * 9 / 10 + random.below(FINE / 10)),
        };
        (to, *buffer)
    };
    let mut order: Vec<(usize, u32)> = last.order.iter().enumerate().map(place).collect();
    order.sort_by_key(|(to, _)| *to);
    order.into_iter().map(|(_, buffer)| buffer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orders::by_size;
    use crate::problem::{Buffer, Problem};
    use std::time::{Duration, Instant};

    fn random_problem(count: usize) -> Problem {
        let mut random = Random::new(5);
        let buffers = (0..count).map(|id| {
            let lower = random.below(300) as i64;
            Buffer::new(id.to_string(), lower, lower + 1 + random.below(40) as i64, 1 + random.below(900) as u64)
        });
        Problem::new("random", buffers.collect()).unwrap()
    }

    #[test]
    fn what_lies_high_comes_earlier_and_the_rest_keeps_its_order() {
        let problem = random_problem(100);
        let instance = Instance::new(&problem);
        let last = Tried::new(&instance, by_size(&instance), &Search::new(0, None, None)).unwrap();
        let mut random = Random::new(1);
        for _ in 0..50 {
            let order = moved(&instance, &last, &mut random);
            let part = (last.plan.peak >> WIDEST) + 1;
            let is_low = |buffer: &u32| {
                last.plan.offsets[*buffer as usize] + instance.sizes[*buffer as usize] + part < last.plan.peak
            };
            let low = |order: &[u32]| order.iter().copied().filter(is_low).collect::<Vec<_>>();
            assert_eq!(low(&order), low(&last.order));
            let mut all = order;
            all.sort_unstable();
            assert!(all.into_iter().eq(instance.all()));
        }
    }

    /// The test's capacity is below the peaks that all orders at the beginning of the search give.
    #[test]
    fn other_orders_are_better() {
        let problem = random_problem(600);
        let instance = Instance::new(&problem);
        let start = Search::new(instance.bound, None, None);
        for order in Starts::new(&instance, &start, 0, 1) {
            Tried::new(&instance, order, &start).unwrap();
        }
        assert!(start.peak() > instance.bound);
        // The deadline is so late that the search never reaches it.
        let end = Instant::now() + Duration::from_secs(120);
        let search = Search::new(instance.bound, Some(start.peak() - 1), Some(end));
        reorder(&instance, &search, 3, (0, 1));
        let best = search.best().unwrap();
        assert!(best.peak < start.peak());
        best.check(&problem).unwrap();
    }
}
