//! Orders by rules that look one task ahead. These orders are found quickly, and serve as the first guess of the
//! searches.
//!
//! Owns: the program's order, the program's order with tasks that do not increase the live bytes moved forward, the
//! order that takes the smallest increase first, and the order depth first.

use crate::instance::{Instance, State, id};
use std::cmp::Reverse;

/// Returns the program's order.
pub(crate) fn program(instance: &Instance) -> Vec<u32> {
    (0..id(instance.tasks.len())).collect()
}

/// Returns the program's order, except that a task which does not increase the live bytes runs as soon as it is ready,
/// if it keeps within the peak so far.
pub(crate) fn eager(instance: &Instance) -> Vec<u32> {
    listed(instance, |state, _| state.ready.iter().copied().min())
}

/// Returns an order that runs, of the ready tasks, the task that keeps within the peak so far and leaves the fewest
/// live bytes; if no task keeps within the peak, the task that raises the peak least.
pub(crate) fn greedy(instance: &Instance) -> Vec<u32> {
    listed(instance, |state, peak| {
        let cost = |task: &u32| (state.during(*task).max(peak), state.net(*task), *task);
        state.ready.iter().copied().min_by_key(cost)
    })
}

/// Runs tasks that do not increase the live bytes as soon as they are ready, and otherwise the task that `choose`
/// returns for the peak so far.
fn listed(instance: &Instance, choose: impl Fn(&State<'_>, u64) -> Option<u32>) -> Vec<u32> {
    let mut state = State::new(instance);
    let mut peak = state.level;
    let mut order = Vec::with_capacity(instance.tasks.len());
    loop {
        let free = |task: &&u32| state.during(**task) <= peak && state.net(**task) <= 0;
        let best = state.ready.iter().filter(free).min_by_key(|task| (state.net(**task), **task)).copied();
        let Some(task) = best.or_else(|| choose(&state, peak)) else { break order };
        peak = peak.max(state.during(task));
        state.run(task);
        order.push(task);
    }
}

/// Returns an order that is depth first, backwards from the last tasks. Of the tasks that a task waits for, the one
/// whose need of memory (with all tasks before it) exceeds its result most comes first, as in Sethi and Ullman's rule
/// for trees (JACM 17, 1970). Tasks that do not increase the live bytes run as soon as they are ready.
pub(crate) fn depth_first(instance: &Instance) -> Vec<u32> {
    let tasks = instance.tasks.len();
    // `needs` has, for each task, the memory that the task and all tasks before it need, computed as if these tasks
    // formed a tree. `leaves` has the bytes that each task leaves live.
    let mut needs = vec![0_u64; tasks];
    let leaves: Vec<u64> = instance.tasks.iter().map(|task| bytes(instance, &task.makes)).collect();
    let mut sources: Vec<Vec<u32>> = instance.before.clone();
    for task in 0..tasks {
        let gain = |before: &u32| needs[*before as usize].saturating_sub(leaves[*before as usize]);
        sources[task].sort_by_key(|before| (Reverse(gain(before)), *before));
        let mut held = 0;
        for before in &sources[task] {
            needs[task] = needs[task].max(held + needs[*before as usize]);
            held += leaves[*before as usize];
        }
        needs[task] = needs[task].max(held + instance.tasks[task].rise);
    }
    let mut rank = vec![u32::MAX; tasks];
    let mut next = 0;
    let ends = (0..id(tasks)).filter(|task| instance.after[*task as usize].is_empty());
    for end in ends {
        let mut stack = vec![(end, 0)];
        while let Some((task, place)) = stack.pop() {
            let Some(before) = sources[task as usize].get(place) else {
                if rank[task as usize] == u32::MAX {
                    rank[task as usize] = next;
                    next += 1;
                }
                continue;
            };
            stack.push((task, place + 1));
            if rank[*before as usize] == u32::MAX {
                stack.push((*before, 0));
            }
        }
    }
    listed(instance, |state, _| state.ready.iter().copied().min_by_key(|task| rank[*task as usize]))
}

fn bytes(instance: &Instance, storages: &[u32]) -> u64 {
    storages.iter().map(|storage| instance.storages[*storage as usize].bytes).sum()
}
