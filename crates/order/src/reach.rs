//! A table with a bit for each pair of tasks: whether the first task runs before the second in every order.
//!
//! Owns: the table, and the conclusions about memory in every order: the lower bound of the peak that follows from each
//! single operator, and the tasks that may be merged.

use crate::instance::{Instance, Storage, id};
use std::cmp::Reverse;

/// The most tasks for which a table with a bit for each pair of tasks is made. The table then takes 32 MiB.
pub(crate) const MAX_TASKS: usize = 1 << 14;

/// A set of tasks for each task.
#[derive(Debug)]
struct Table {
    words: usize,
    bits: Vec<u64>,
}

impl Table {
    fn new(tasks: usize) -> Self {
        let words = tasks.div_ceil(64);
        Self { words, bits: vec![0; words * tasks] }
    }

    fn has(&self, row: u32, task: u32) -> bool {
        self.bits[row as usize * self.words + task as usize / 64] >> (task % 64) & 1 == 1
    }

    /// Adds a task and its set to the set of `row`.
    fn add(&mut self, row: usize, task: u32) {
        let (from, to) = (task as usize * self.words, row * self.words);
        for word in 0..self.words {
            self.bits[to + word] |= self.bits[from + word];
        }
        self.bits[to + task as usize / 64] |= 1 << (task % 64);
    }

    #[cfg(feature = "highs")]
    fn rows(&self) -> usize {
        self.bits.len().checked_div(self.words).unwrap_or(0)
    }

    fn count(&self, row: u32) -> usize {
        let from = row as usize * self.words;
        self.bits[from..from + self.words].iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// The tasks that must run before each task.
#[derive(Debug)]
pub(crate) struct Reach {
    before: Table,
}

impl Reach {
    /// Finds the tasks that must run before each task of an instance. Returns `None` if there are too many tasks.
    pub(crate) fn of(instance: &Instance) -> Option<Self> {
        let tasks = instance.tasks.len();
        if tasks > MAX_TASKS {
            return None;
        }
        let mut before = Table::new(tasks);
        for task in 0..tasks {
            instance.before[task].iter().for_each(|one| before.add(task, *one));
        }
        Some(Self { before })
    }

    /// Returns whether `first` runs before `second` in every order.
    pub(crate) fn is_before(&self, first: u32, second: u32) -> bool {
        self.before.has(second, first)
    }

    /// Returns how many tasks run before this task in every order.
    pub(crate) fn before(&self, task: u32) -> usize {
        self.before.count(task)
    }

    /// Returns, for each task, how many tasks run after it in every order.
    #[cfg(feature = "highs")]
    pub(crate) fn behind(&self) -> Vec<usize> {
        let tasks = id(self.before.rows());
        (0..tasks).map(|task| (0..tasks).filter(|other| self.is_before(task, *other)).count()).collect()
    }

    /// Returns whether, in every order, a storage is live when `task` begins: a task before it makes the storage, and
    /// `task` or a task after it needs the storage.
    fn holds(&self, storage: &Storage, task: u32) -> bool {
        let is_made = storage.maker.is_none_or(|maker| self.is_before(maker, task));
        let is_needed = |user: &u32| *user == task || self.is_before(task, *user);
        is_made && (storage.is_kept || storage.users.iter().any(is_needed))
    }
}

/// Returns a lower bound of the peak. For each task, the task's outputs are added to the storages that in every order
/// are live when the task runs; without `reach`, to the task's inputs. The bound is the largest of these sums.
pub(crate) fn bound(instance: &Instance, reach: Option<&Reach>) -> u64 {
    let of = |task: u32| {
        let Some(reach) = reach else {
            let uses = instance.tasks[task as usize].uses.iter();
            return uses.map(|storage| instance.storages[*storage as usize].bytes).sum();
        };
        let held = instance.storages.iter().filter(|storage| reach.holds(storage, task));
        held.map(|storage| storage.bytes).sum::<u64>()
    };
    let during = (0..instance.tasks.len()).map(|task| instance.tasks[task].rise + of(id(task)));
    // The live bytes after the last task and before the first task are lower bounds of the peak too.
    let kept = instance.storages.iter().filter(|storage| storage.is_kept).map(|storage| storage.bytes).sum();
    let there = instance.storages.iter().filter(|storage| storage.maker.is_none()).map(|storage| storage.bytes).sum();
    instance.base + during.chain([kept, there]).max().unwrap_or(0)
}

/// Merges tasks that may run without another task between them. The least peak does not change.
///
/// A task joins the group before it under three conditions: all that the task needs is done once the group has run, the
/// task's peak is not above the group's, and the task never leaves more bytes live than were live before it, whatever
/// other tasks ran. In any order the task can then be moved to the end of the group. There the task frees all bytes
/// that it is sure to free, and every later task has at least as much memory as before.
pub(crate) fn reduced(instance: &Instance, reach: Option<&Reach>) -> Instance {
    let Some(reach) = reach else { return instance.clone() };
    let mut groups: Vec<Group> = Vec::new();
    let mut group_of = vec![0_usize; instance.tasks.len()];
    for task in 0..instance.tasks.len() {
        let mut near: Vec<usize> = instance.before[task].iter().map(|before| group_of[*before as usize]).collect();
        near.sort_unstable_by_key(|group| Reverse(*group));
        near.dedup();
        let joined = near.into_iter().find(|group| groups[*group].take(instance, reach, id(task)));
        group_of[task] = joined.unwrap_or_else(|| {
            groups.push(Group::new(instance, reach, id(task)));
            groups.len() - 1
        });
    }
    let rises: Vec<u64> = groups.iter().map(|group| group.rise).collect();
    let tasks: Vec<Vec<u32>> = groups.into_iter().map(|group| group.tasks).collect();
    instance.grouped(&tasks, &rises)
}

/// Tasks that run one after the other, without another task between them.
struct Group {
    tasks: Vec<u32>,
    /// The highest rise of the live bytes while the group (tasks that run as one) runs, above the live bytes before it.
    rise: u64,
    /// The most that the group adds to the live bytes from its begin to its end, in any order of all tasks.
    net: i64,
}

impl Group {
    fn new(instance: &Instance, reach: &Reach, first: u32) -> Self {
        let mut group = Self { tasks: Vec::new(), rise: instance.tasks[first as usize].rise, net: 0 };
        group.tasks.push(first);
        group.net = group.net_of(instance, reach, first);
        group
    }

    /// Adds a task to the group (tasks that run as one) if this cannot raise the least peak of all orders. Returns
    /// whether the task was added.
    fn take(&mut self, instance: &Instance, reach: &Reach, task: u32) -> bool {
        let is_ready = |before: &u32| self.tasks.contains(before) || reach.is_before(*before, self.tasks[0]);
        if !instance.before[task as usize].iter().all(is_ready) {
            return false;
        }
        self.tasks.push(task);
        let net = self.net_of(instance, reach, task);
        let during = self.net + instance.tasks[task as usize].rise as i64;
        if net <= 0 && during <= self.rise as i64 {
            self.net += net;
            return true;
        }
        self.tasks.pop();
        false
    }

    /// Returns the most that the task adds to the live bytes from its begin to its end, in any order in which it runs
    /// after the group (tasks that run as one).
    fn net_of(&self, instance: &Instance, reach: &Reach, task: u32) -> i64 {
        let is_over = |user: &u32| self.tasks.contains(user) || reach.is_before(*user, self.tasks[0]);
        let bytes = |storage: &&u32| {
            let storage = &instance.storages[**storage as usize];
            (storage.bytes as i64, !storage.is_kept && storage.users.iter().all(is_over))
        };
        let task = &instance.tasks[task as usize];
        let made: i64 = task.makes.iter().map(|storage| bytes(&storage).0).sum();
        let freed = task.uses.iter().map(|storage| bytes(&storage)).filter(|(_, is_over)| *is_over);
        made - freed.map(|(bytes, _)| bytes).sum::<i64>()
    }
}
