//! Branch and bound: finds a plan with the least peak, and proves that no plan has a lower one.
//!
//! Owns: the choice of the capacities, their order, and the effort for each. The search at one capacity is MiniMalloc's
//! (M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023;
//! google/minimalloc, Apache-2.0).
//!
//! ```text
//! state.rs    the bounds that a partial plan sets for the other buffers
//! search.rs   the choice of the next buffer, and of the buffers that need not be tried
//! ```

mod search;
mod state;

pub(crate) use search::Order;

use crate::check::Plan;
use crate::neighbours::Instance;
use crate::search::Search;
use search::{Answer, Solver};

/// The most buffers in a search, since each buffer may take a level of the recursion.
const MOST: usize = 20_000;
/// Bytes of the stack of a thread that searches: 4 KiB for each level of the recursion, and 4 MiB for the rest. Unused
/// pages take no memory.
pub(crate) const STACK: usize = MOST * 4096 + (4 << 20);
/// Each round explores this many times as many partial plans as the round before, as MiniMalloc's `RoundRobin` does.
const MORE: u64 = 2;

/// Returns whether the problem is small enough for a search.
pub(crate) fn is_searched(instance: &Instance) -> bool {
    instance.can_be_listed() && (1..=MOST).contains(&instance.len())
}

/// Searches in one order until the answer is known or the search is over. The thread needs a stack of [`STACK`] bytes.
pub(crate) fn exact(instance: &Instance, search: &Search, order: Order) {
    if !is_searched(instance) || !instance.list(search) {
        return;
    }
    let mut solver = Solver::new(instance, search);
    let mut nodes = instance.len() as u64;
    while !search.is_over() {
        nodes = nodes.saturating_mul(MORE);
        let targets = targets(instance, search);
        if targets.is_empty() {
            return;
        }
        // Restarting a search repeats its work, so the search is limited only if there is another target to try.
        let limit = if targets.len() > 1 { nodes } else { u64::MAX };
        for target in targets {
            match solver.solve(target, order, limit) {
                Answer::Found => search.offer(plan(instance, &solver.solution)),
                // A buffer may use a part of its bytes (a window) during a gap. Two such buffers may interlock in ways
                // that the search does not cover, so `Answer::None` is no proof then.
                Answer::None if !instance.has_windows => {
                    search.raise(target.saturating_add(1).next_multiple_of(instance.step()));
                }
                Answer::None if search.capacity().is_some() || target + 1 >= search.peak() => return,
                Answer::None | Answer::TooLong => {}
            }
        }
    }
}

/// Returns the capacities to try. A requested capacity is the only one. Without a request, these are the least possible
/// capacity, the largest capacity below the best peak, and three capacities between.
fn targets(instance: &Instance, search: &Search) -> Vec<u64> {
    let (lower, peak) = (search.lower(), search.peak());
    if let Some(capacity) = search.capacity().filter(|capacity| *capacity >= lower) {
        return vec![capacity];
    }
    // Offsets are sums of sizes, so every peak is a multiple of their common divisor.
    let step = instance.step();
    let lower = lower.next_multiple_of(step);
    let upper = if peak == u64::MAX { instance.sizes.iter().sum() } else { peak - 1 } / step * step;
    let part = |eighths: u64| (lower + upper.saturating_sub(lower) * eighths / 8) / step * step;
    let mut targets = vec![lower, part(4).max(lower), part(6).max(lower), part(7).max(lower), upper];
    targets.dedup();
    targets.retain(|target| *target < peak);
    targets
}

fn plan(instance: &Instance, offsets: &[u64]) -> Plan {
    let ends = offsets.iter().zip(&instance.sizes).map(|(offset, size)| offset + size);
    Plan { peak: ends.max().unwrap_or(0), offsets: offsets.to_vec() }
}
