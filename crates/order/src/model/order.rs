//! The order as an integer program. For each task and step, a choice (a variable that is 0 or 1) says whether the task
//! runs at the step (*generate*). For each storage and step, a choice says whether the storage is kept from the
//! previous step to this step (*preserve*). The program minimizes the peak over all steps.
//!
//! Owns: the program with the windows of each task (its earliest and latest step), and the conversion of a solution to
//! an order. One task runs at each step, so the outputs of a task need no choice of their own.

use super::{Columns, SCALE, TOLERANCE, minimise};
use crate::exact::Found;
use crate::instance::{Instance, Storage, id, peak};
use crate::reach::Reach;
use highs::Col;
use std::time::Instant;

/// The most choices (variables) of the integer program. With more choices, HiGHS does not finish its first relaxation
/// within the usual time limits.
const MAX_CHOICES: usize = 400_000;

/// Tries to improve an order, and the bound, until `end`.
pub(crate) fn improve(instance: &Instance, found: Found, end: Instant) -> Found {
    let Some(reach) = Reach::of(instance).filter(|_| Instant::now() < end) else { return found };
    let windows = Windows::of(instance, &reach);
    if windows.choices() > MAX_CHOICES || Instant::now() >= end {
        return found;
    }
    let unit = (found.peak - instance.base).max(1) as f64 / SCALE;
    let (columns, tasks) = program(instance, &windows, &found, unit);
    let Columns { program, first } = columns;
    let Some(solved) = minimise(program, &first, end) else { return found };
    let mut best = found;
    if let Some(order) = solved.columns.as_deref().and_then(|values| read(instance, &windows, &tasks, values)) {
        let peak = peak(instance, &order);
        if peak < best.peak {
            best = Found { order, peak, ..best }
        }
    }
    let proven = instance.base + (solved.bound * (1.0 - TOLERANCE) * unit).max(0.0) as u64;
    // If HiGHS reports an optimal solution, the solution is optimal within the tolerance, so the bound is set to the
    // peak.
    best.bound = if solved.is_optimal { best.peak } else { best.bound.max(proven.min(best.peak)) };
    best
}

/// The steps at which each task can run, and each storage can be kept.
struct Windows {
    tasks: Vec<(usize, usize)>,
    storages: Vec<(usize, usize)>,
}

impl Windows {
    fn of(instance: &Instance, reach: &Reach) -> Self {
        let last = instance.tasks.len() - 1;
        let behind = reach.behind();
        let window = |task: usize| (reach.before(id(task)), last - behind[task]);
        let tasks: Vec<(usize, usize)> = (0..instance.tasks.len()).map(window).collect();
        let storage = |storage: &Storage| {
            let from = storage.maker.map_or(0, |maker| tasks[maker as usize].0 + 1);
            let to = storage.users.iter().map(|user| tasks[*user as usize].1).max();
            (from, if storage.is_kept { last } else { to.unwrap_or(0) })
        };
        let storages = instance.storages.iter().map(storage).collect();
        Self { tasks, storages }
    }

    fn choices(&self) -> usize {
        self.tasks.iter().chain(&self.storages).map(|(from, to)| (to + 1).saturating_sub(*from)).sum()
    }
}

/// The columns (variables) of one task or storage: one for each step at which the task can run or the storage be kept.
struct Steps {
    from: usize,
    columns: Vec<Col>,
}

impl Steps {
    fn at(&self, step: usize) -> Option<Col> {
        self.columns.get(step.checked_sub(self.from)?).copied()
    }

    fn until(&self, step: usize) -> impl Iterator<Item = Col> + '_ {
        self.columns.iter().copied().take((step + 1).saturating_sub(self.from))
    }
}

fn program(instance: &Instance, windows: &Windows, found: &Found, unit: f64) -> (Columns, Vec<Steps>) {
    let steps = instance.tasks.len();
    let mut place = vec![0; steps];
    found.order.iter().enumerate().for_each(|(step, task)| place[*task as usize] = step);
    let mut columns = Columns::default();
    let bytes = |bytes: u64| bytes as f64 / unit;
    let least = bytes(found.bound.saturating_sub(instance.base));
    let first = bytes(found.peak - instance.base);
    let highest = columns.number(1.0, least * (1.0 - TOLERANCE), first * (1.0 + TOLERANCE), first);
    let mut tasks = Vec::with_capacity(steps);
    for (task, (from, to)) in windows.tasks.iter().enumerate() {
        let window = *from..=*to;
        tasks.push(Steps { from: *from, columns: window.map(|step| columns.choice(place[task] == step)).collect() });
    }
    let mut kept = Vec::with_capacity(instance.storages.len());
    for (storage, (from, to)) in instance.storages.iter().zip(&windows.storages) {
        let made = storage.maker.map(|maker| place[maker as usize]);
        let last = storage.users.iter().map(|user| place[*user as usize]).max().unwrap_or(0);
        let last = if storage.is_kept { steps } else { last };
        let is_live = |step: usize| made.is_none_or(|made| made < step) && step <= last;
        // The column (variable) is a whole number if the tasks' choices are whole numbers, since the choices determine
        // it.
        let mut column = |step| columns.number(0.0, 0.0, 1.0, f64::from(u8::from(is_live(step))));
        kept.push(Steps { from: *from, columns: (*from..=*to).map(&mut column).collect() });
    }
    let program = &mut columns.program;
    for task in &tasks {
        program.add_row(1..=1, task.columns.iter().map(|column| (*column, 1.0)));
    }
    for step in 0..steps {
        let here = tasks.iter().filter_map(|task| task.at(step));
        program.add_row(1..=1, here.map(|column| (column, 1.0)));
        let rises = tasks.iter().zip(&instance.tasks).filter_map(|(task, of)| Some((task.at(step)?, bytes(of.rise))));
        let live = kept.iter().zip(&instance.storages);
        let live = live.filter_map(|(storage, of)| Some((storage.at(step)?, bytes(of.bytes))));
        program.add_row(..=0, rises.chain(live).chain([(highest, -1.0)]));
    }
    for (storage, (steps, (from, to))) in instance.storages.iter().zip(kept.iter().zip(&windows.storages)) {
        for step in *from..=*to {
            let Some(now) = steps.at(step) else { continue };
            let before = step.checked_sub(1);
            let was = before.and_then(|step| steps.at(step));
            let made = storage.maker.and_then(|maker| tasks[maker as usize].at(before?));
            let sources = was.into_iter().chain(made);
            if storage.maker.is_some() || was.is_some() {
                // A storage that is kept at a step was kept or generated at the step before. A result of the program
                // stays to the end, so its row is an equation.
                let row = sources.map(|column| (column, -1.0)).chain([(now, 1.0)]);
                if storage.is_kept {
                    program.add_row(0..=0, row)
                } else {
                    program.add_row(..=0, row)
                };
            }
            for user in &storage.users {
                if let Some(runs) = tasks[*user as usize].at(step) {
                    program.add_row(..=0, [(runs, 1.0), (now, -1.0)]);
                }
            }
        }
    }
    for (task, before) in instance.before.iter().enumerate() {
        for before in before {
            let own = &instance.tasks[*before as usize].makes;
            if own.iter().any(|storage| instance.tasks[task].uses.contains(storage)) {
                continue;
            }
            // The two tasks share no storage that orders them. If this task ran by a step, its predecessor must have
            // run by the step before.
            for step in windows.tasks[task].0..=windows.tasks[task].1 {
                let runs = tasks[task].until(step).map(|column| (column, 1.0));
                let ran = step.checked_sub(1).into_iter().flat_map(|step| tasks[*before as usize].until(step));
                program.add_row(..=0, runs.chain(ran.map(|column| (column, -1.0))));
            }
        }
    }
    (columns, tasks)
}

/// Returns the order of a solution, if the order is valid.
fn read(instance: &Instance, windows: &Windows, tasks: &[Steps], values: &[f64]) -> Option<Vec<u32>> {
    let mut order = vec![None; instance.tasks.len()];
    let mut place = vec![0; instance.tasks.len()];
    for (task, steps) in tasks.iter().enumerate() {
        let chosen = steps.columns.iter().position(|column| values[column.index()] > 0.5)?;
        place[task] = windows.tasks[task].0 + chosen;
        order[place[task]] = Some(id(task));
    }
    let is_behind = |task: usize| instance.before[task].iter().all(|before| place[*before as usize] < place[task]);
    (0..instance.tasks.len()).all(is_behind).then_some(())?;
    order.into_iter().collect()
}
