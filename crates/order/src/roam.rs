//! Subgraphs in sequence, each ordered by itself: ROAM (Shu and others, arXiv 2310.19295).
//!
//! Owns: where a graph is cut, and the subgraph in which a task runs that could run in several. The paper's code is not
//! public, so the rules here follow its text. The spine has the task with the most tasks before it, and these tasks. A
//! task cuts the spine in two if every other task of the spine must run before or after this task (the paper's
//! memory-insensitive operators). Tasks outside of the spine, such as updates of weights, run in the subgraph in which
//! they become ready, or in a later subgraph if this lowers the peak. A subgraph without a cut is divided further: each
//! independent part is ordered by itself, and the orders of the parts are then merged ([`branches`]).

use crate::branches;
use crate::exact::Solve;
use crate::instance::{Instance, id, peak};
use crate::reach::Reach;
use std::time::Instant;

/// The result of an order by subgraphs.
#[derive(Clone, Debug)]
pub(crate) struct Divided {
    pub(crate) order: Vec<u32>,
    pub(crate) peak: u64,
}

/// Orders an instance by subgraphs. `reach` says which of its tasks must run before which.
pub(crate) fn roam(instance: &Instance, reach: &Reach, end: Instant, solve: &mut Solve<'_>) -> Divided {
    let mut segments = Segments::of(instance, reach);
    let mut parts = segments.solve_all(end, solve);
    let mut best = segments.divided(&parts);
    // A task outside of the spine (the last task and all that it needs) may move from the subgraph with the peak to a
    // later one.
    while Instant::now() < end {
        let Some(worst) = (0..parts.len()).max_by_key(|part| parts[*part].peak) else { break };
        let was = segments.of.clone();
        if !segments.delay(worst) {
            break;
        }
        let changed = segments.solve_changed(&parts, &was, end, solve);
        let next = segments.divided(&changed);
        if next.peak >= best.peak {
            break;
        }
        (parts, best) = (changed, next);
    }
    best
}

/// The subgraph of each task.
struct Segments<'a> {
    instance: &'a Instance,
    of: Vec<usize>,
    is_spine: Vec<bool>,
    count: usize,
}

/// An ordered subgraph.
#[derive(Clone, Debug)]
struct Part {
    tasks: Vec<u32>,
    order: Vec<u32>,
    peak: u64,
}

impl<'a> Segments<'a> {
    fn of(instance: &'a Instance, reach: &Reach) -> Self {
        let tasks = id(instance.tasks.len());
        let ends = (0..tasks).filter(|task| instance.after[*task as usize].is_empty());
        let last = ends.max_by_key(|task| (reach.before(*task), *task)).unwrap_or(0);
        let is_spine: Vec<bool> = (0..tasks).map(|task| task == last || reach.is_before(task, last)).collect();
        let spine: Vec<u32> = (0..tasks).filter(|task| is_spine[*task as usize]).collect();
        let is_cut = |task: u32| {
            spine.iter().all(|other| *other == task || reach.is_before(*other, task) || reach.is_before(task, *other))
        };
        // For a task of the spine (the last task and all that it needs), the number of the subgraph is the number of
        // cuts before the task. A cut is the last task of its subgraph.
        let cuts: Vec<u32> = spine.iter().copied().filter(|task| is_cut(*task)).collect();
        let mut of = vec![0; instance.tasks.len()];
        for task in &spine {
            of[*task as usize] = cuts.iter().filter(|cut| reach.is_before(**cut, *task)).count();
        }
        let cut: Vec<bool> = (0..tasks).map(|task| cuts.contains(&task)).collect();
        for task in 0..instance.tasks.len() {
            if !is_spine[task] {
                let ready = |before: &u32| of[*before as usize] + usize::from(cut[*before as usize]);
                of[task] = instance.before[task].iter().map(ready).max().unwrap_or(0);
            }
        }
        let count = of.iter().max().map_or(0, |most| most + 1);
        Self { instance, of, is_spine, count }
    }

    fn solve_all(&self, end: Instant, solve: &mut Solve<'_>) -> Vec<Part> {
        let mut done = vec![false; self.of.len()];
        let tasks = |segment: usize| (0..self.of.len()).filter(|task| self.of[*task] == segment).map(id).collect();
        (0..self.count).map(|segment| self.solve(tasks(segment), self.count - segment, &mut done, end, solve)).collect()
    }

    /// Orders the changed subgraphs again. Unchanged subgraphs keep their order.
    fn solve_changed(&self, parts: &[Part], was: &[usize], end: Instant, solve: &mut Solve<'_>) -> Vec<Part> {
        let changed = (0..self.of.len()).filter(|task| self.of[*task] != was[*task]);
        let changed: Vec<usize> = changed.flat_map(|task| was[task]..=self.of[task]).collect();
        let mut done = vec![false; self.of.len()];
        let mut made = Vec::with_capacity(self.count);
        for segment in 0..self.count {
            let part = parts.get(segment).filter(|_| !changed.contains(&segment));
            if let Some(part) = part {
                part.tasks.iter().for_each(|task| done[*task as usize] = true);
                made.push(part.clone());
            } else {
                let tasks = (0..self.of.len()).filter(|task| self.of[*task] == segment).map(id).collect();
                made.push(self.solve(tasks, 2, &mut done, end, solve));
            }
        }
        made
    }

    /// Orders a subgraph; `left` is the number of subgraphs that share the remaining time.
    fn solve(&self, tasks: Vec<u32>, left: usize, done: &mut [bool], end: Instant, solve: &mut Solve<'_>) -> Part {
        let part = self.instance.part(&tasks, done);
        let now = Instant::now();
        let share = end.saturating_duration_since(now) / u32::try_from(left.div_ceil(4)).unwrap_or(u32::MAX);
        let order = branches::order(&part, now + share, solve);
        let peak = peak(&part, &order);
        tasks.iter().for_each(|task| done[*task as usize] = true);
        let order = order.iter().map(|task| tasks[*task as usize]).collect();
        Part { tasks, order, peak }
    }

    fn divided(&self, parts: &[Part]) -> Divided {
        let order: Vec<u32> = parts.iter().flat_map(|part| part.order.iter().copied()).collect();
        Divided { peak: peak(self.instance, &order), order }
    }

    /// Moves the tasks outside of the spine (the last task and all that it needs) from a subgraph to the next one, and
    /// moves the tasks that need them as far as necessary. Returns whether any task moved.
    fn delay(&mut self, segment: usize) -> bool {
        let loose = (0..self.of.len()).filter(|task| self.of[*task] == segment && !self.is_spine[*task]);
        let moved: Vec<usize> = loose.collect();
        moved.iter().for_each(|task| self.of[*task] += 1);
        for task in 0..self.of.len() {
            if !self.is_spine[task] {
                let ready =
                    self.instance.before[task].iter().map(|before| self.of[*before as usize]).max().unwrap_or(0);
                self.of[task] = self.of[task].max(ready);
            }
        }
        self.count = self.of.iter().max().map_or(0, |most| most + 1);
        !moved.is_empty()
    }
}
