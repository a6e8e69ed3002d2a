//! Treats a subgraph as a tree: each independent part is ordered by itself, and the orders of the parts are merged.
//!
//! Owns: the parts, and the merge. The order of a part is cut into pieces that end where the fewest bytes are live
//! (hill and valley: Liu, SIAM J. Algebraic Discrete Methods 8, 1987). If the parts share no storage, an order that
//! mixes the parts can run each piece as a whole without a higher peak. The merge is then a smaller instance of the
//! same problem, and is solved in the same way.

use crate::exact::Solve;
use crate::instance::{Instance, State, id, peak};
use crate::listing;
use std::time::Instant;

/// The most tasks that are always searched as a whole, without a division into parts.
pub(crate) const LEAF: usize = 24;

/// Orders a subgraph.
pub(crate) fn order(instance: &Instance, end: Instant, solve: &mut Solve<'_>) -> Vec<u32> {
    let parts = parts(instance);
    if instance.tasks.len() <= LEAF || parts.len() < 2 {
        return solve(instance, end).order;
    }
    let now = Instant::now();
    let share = end.saturating_duration_since(now) / 2 / u32::try_from(parts.len()).unwrap_or(u32::MAX);
    let (mut groups, mut rises): (Vec<Vec<u32>>, Vec<u64>) = (Vec::new(), Vec::new());
    // A group is a piece of the order of one part (tasks that are connected). These are pairs of a group and the next
    // group of the same part. The next group must run later, even if its tasks do not need the first group.
    let mut behind: Vec<(u32, u32)> = Vec::new();
    for tasks in &parts {
        let done = vec![false; instance.tasks.len()];
        let alone = instance.part(tasks, &done);
        let order = if tasks.len() == 1 { vec![0] } else { solve(&alone, Instant::now() + share).order };
        for (nth, (piece, rise)) in pieces(&alone, &order).into_iter().enumerate() {
            if nth > 0 {
                behind.push((id(groups.len() - 1), id(groups.len())));
            }
            rises.push(rise);
            groups.push(piece.iter().map(|task| tasks[*task as usize]).collect());
        }
    }
    let merged = merged(instance, &groups, &rises, &behind);
    let solved = solve(&merged, end).order;
    let order: Vec<u32> = solved.iter().flat_map(|group| groups[*group as usize].iter().copied()).collect();
    // A merge of parts that share storages may miss the best order, so the merged order is compared with an order that
    // is found quickly.
    let quick = listing::greedy(instance);
    if peak(instance, &quick) < peak(instance, &order) { quick } else { order }
}

/// Returns the sets of tasks connected by results, each set ascending.
fn parts(instance: &Instance) -> Vec<Vec<u32>> {
    let mut part_of = vec![usize::MAX; instance.tasks.len()];
    let mut parts: Vec<Vec<u32>> = Vec::new();
    for first in 0..instance.tasks.len() {
        if part_of[first] != usize::MAX {
            continue;
        }
        let (mut stack, mut part) = (vec![first], Vec::new());
        part_of[first] = parts.len();
        while let Some(task) = stack.pop() {
            part.push(id(task));
            for near in instance.before[task].iter().chain(&instance.after[task]) {
                if part_of[*near as usize] == usize::MAX {
                    part_of[*near as usize] = parts.len();
                    stack.push(*near as usize);
                }
            }
        }
        part.sort_unstable();
        parts.push(part);
    }
    parts
}

/// Tasks that run without other tasks between them, and the rise of the live bytes while they run.
type Piece = (Vec<u32>, u64);

/// Cuts an order into pieces. The first piece ends where, after the highest peak, the fewest bytes are live; the rest
/// of the order is cut in the same way.
fn pieces(instance: &Instance, order: &[u32]) -> Vec<Piece> {
    let mut state = State::new(instance);
    let mut before = state.level;
    let (mut during, mut behind) = (Vec::new(), Vec::new());
    for task in order {
        during.push(state.during(*task));
        state.run(*task);
        behind.push(state.level);
    }
    let (mut pieces, mut from) = (Vec::new(), 0);
    while from < order.len() {
        let hill = (from..order.len()).max_by_key(|step| during[*step]).unwrap_or(from);
        // The valley is the step after which the fewest bytes are live; of several steps, the last.
        let valley = (hill..order.len()).rev().min_by_key(|step| behind[*step]).unwrap_or(hill);
        pieces.push((order[from..=valley].to_vec(), during[hill].saturating_sub(before)));
        before = behind[valley];
        from = valley + 1;
    }
    pieces
}

/// Returns an instance in which each group of tasks is one task. `behind` has pairs of groups; the first group of a
/// pair must run before the second.
fn merged(instance: &Instance, groups: &[Vec<u32>], rises: &[u64], behind: &[(u32, u32)]) -> Instance {
    let mut made = instance.grouped(groups, rises);
    for (first, second) in behind {
        let before = &mut made.before[*second as usize];
        if !before.contains(first) {
            before.push(*first);
            before.sort_unstable();
            made.after[*first as usize].push(*second);
            made.after[*first as usize].sort_unstable();
        }
    }
    made
}
