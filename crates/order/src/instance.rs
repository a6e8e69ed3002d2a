//! The methods' input as plain lists: tasks that must run, and the storages that the tasks need.
//!
//! Owns: the form, its conversion from a graph or from a part of another instance, and the effect of running a task.

use crate::graph::Graph;

/// Memory that one task makes and other tasks use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Storage {
    /// The size in bytes.
    pub(crate) bytes: u64,
    /// The task that makes the storage; `None` if the storage exists from the beginning.
    pub(crate) maker: Option<u32>,
    /// The tasks that use the storage, ascending, without its maker.
    pub(crate) users: Vec<u32>,
    /// Whether the storage is needed after the last task.
    pub(crate) is_kept: bool,
}

/// One or several operators that run without another operator between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Task {
    /// The largest rise of the live bytes while the task runs, above the live bytes before the task.
    pub(crate) rise: u64,
    /// The storages that the task makes and that outlive it.
    pub(crate) makes: Vec<u32>,
    /// The storages that the task uses.
    pub(crate) uses: Vec<u32>,
    /// The task's operators, by their indexes in the program, in the order in which they run.
    pub(crate) operators: Vec<u32>,
}

/// Tasks to be ordered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Instance {
    /// Bytes that are always live.
    pub(crate) base: u64,
    /// The tasks, in an order in which they can run.
    pub(crate) tasks: Vec<Task>,
    /// The storages.
    pub(crate) storages: Vec<Storage>,
    /// For each task, the tasks that must run before it, ascending.
    pub(crate) before: Vec<Vec<u32>>,
    /// For each task, the tasks that must run after it, ascending.
    pub(crate) after: Vec<Vec<u32>>,
}

/// Returns an index in a list of at most 2^20 entries.
pub(crate) fn id(place: usize) -> u32 {
    place as u32
}

impl Instance {
    /// Makes one task for each operator of a graph. An output that is neither used nor a result counts only while it is
    /// made.
    pub(crate) fn of(graph: &Graph) -> Self {
        let mut instance = Self { base: graph.persistent(), ..Self::default() };
        let mut storage_of = vec![None; graph.memories().len()];
        for (place, memory) in graph.memories().iter().enumerate() {
            let Some(maker) = memory.maker.filter(|_| memory.is_result || !memory.users.is_empty()) else { continue };
            storage_of[place] = Some(id(instance.storages.len()));
            instance.storages.push(Storage {
                bytes: memory.bytes,
                maker: Some(id(maker)),
                users: memory.users.iter().map(|user| id(*user)).collect(),
                is_kept: memory.is_result,
            });
        }
        let storages = |places: &[usize]| places.iter().filter_map(|place| storage_of[*place]).collect();
        for (at, operator) in graph.operators().iter().enumerate() {
            instance.tasks.push(Task {
                rise: operator.makes.iter().map(|place| graph.memories()[*place].bytes).sum(),
                makes: storages(&operator.makes),
                uses: storages(&operator.uses),
                operators: vec![id(at)],
            });
            instance.before.push(operator.after.iter().map(|before| id(*before)).collect());
        }
        instance.connect();
        instance
    }

    /// Fills in `after` from `before`.
    fn connect(&mut self) {
        self.after = vec![Vec::new(); self.tasks.len()];
        for (at, before) in self.before.iter().enumerate() {
            before.iter().for_each(|task| self.after[*task as usize].push(id(at)));
        }
    }

    /// Returns an instance of groups of tasks. `groups` has the tasks of each group in the order in which they run; the
    /// groups are in a valid order. `rises` has how far the live bytes rise while each group runs.
    pub(crate) fn grouped(&self, groups: &[Vec<u32>], rises: &[u64]) -> Self {
        let mut group_of = vec![0_u32; self.tasks.len()];
        for (at, group) in groups.iter().enumerate() {
            group.iter().for_each(|task| group_of[*task as usize] = id(at));
        }
        let mut made = Self { base: self.base, ..Self::default() };
        for (group, rise) in groups.iter().zip(rises) {
            let tasks = group.iter().map(|task| &self.tasks[*task as usize]);
            let operators = tasks.flat_map(|task| task.operators.iter().copied()).collect();
            made.tasks.push(Task { rise: *rise, operators, ..Task::default() });
            let before = group.iter().flat_map(|task| &self.before[*task as usize]);
            let own = group.first().map(|task| group_of[*task as usize]);
            let before = before.map(|task| group_of[*task as usize]).filter(|task| Some(*task) != own);
            made.before.push(sorted(before.collect()));
        }
        for storage in &self.storages {
            let maker = storage.maker.map(|maker| group_of[maker as usize]);
            let users = storage.users.iter().map(|user| group_of[*user as usize]);
            made.add(storage, maker, users.filter(|user| Some(*user) != maker).collect());
        }
        made.connect();
        made
    }

    /// Adds a storage if a task other than its maker needs it, or if the storage is kept.
    fn add(&mut self, storage: &Storage, maker: Option<u32>, users: Vec<u32>) {
        let users = sorted(users);
        if users.is_empty() && !storage.is_kept {
            return;
        }
        let place = id(self.storages.len());
        maker.into_iter().for_each(|maker| self.tasks[maker as usize].makes.push(place));
        users.iter().for_each(|user| self.tasks[*user as usize].uses.push(place));
        self.storages.push(Storage { bytes: storage.bytes, maker, users, is_kept: storage.is_kept });
    }

    /// Returns an instance of these tasks only, which are ascending, for a run in which the tasks of `done` have run
    /// before. Storages that are made before these tasks and needed after them count as always live.
    pub(crate) fn part(&self, tasks: &[u32], done: &[bool]) -> Self {
        let mut place_of = vec![None; self.tasks.len()];
        tasks.iter().enumerate().for_each(|(place, task)| place_of[*task as usize] = Some(id(place)));
        let mut made = Self { base: self.base, ..Self::default() };
        for task in tasks {
            let task = *task as usize;
            let Task { rise, operators, .. } = &self.tasks[task];
            made.tasks.push(Task { rise: *rise, operators: operators.clone(), ..Task::default() });
            made.before.push(self.before[task].iter().filter_map(|before| place_of[*before as usize]).collect());
        }
        for storage in &self.storages {
            let maker = storage.maker.and_then(|maker| place_of[maker as usize]);
            let was_there = storage.maker.is_none_or(|maker| done[maker as usize]);
            if !was_there && maker.is_none() {
                continue;
            }
            let users: Vec<u32> = storage.users.iter().filter_map(|user| place_of[*user as usize]).collect();
            let later = |user: &u32| !done[*user as usize] && place_of[*user as usize].is_none();
            let is_kept = storage.is_kept || storage.users.iter().any(later);
            if was_there && is_kept {
                made.base += storage.bytes;
            } else {
                made.add(&Storage { is_kept, ..storage.clone() }, maker, users);
            }
        }
        made.connect();
        made
    }

    /// Returns the operators of an order of the tasks.
    pub(crate) fn operators(&self, order: &[u32]) -> Vec<usize> {
        order.iter().flat_map(|task| &self.tasks[*task as usize].operators).map(|place| *place as usize).collect()
    }
}

fn sorted(mut list: Vec<u32>) -> Vec<u32> {
    list.sort_unstable();
    list.dedup();
    list
}

/// The state of a run: which tasks are ready, and the live bytes.
#[derive(Clone, Debug)]
pub(crate) struct State<'a> {
    pub(crate) instance: &'a Instance,
    /// Live bytes between two tasks.
    pub(crate) level: u64,
    /// The number of tasks that each task waits for.
    waits: Vec<u32>,
    /// For each storage, the number of its users that have not run; one more if the storage is kept.
    left: Vec<u32>,
    /// The tasks that can run now, unordered.
    pub(crate) ready: Vec<u32>,
    /// The index of each task in `ready`.
    places: Vec<u32>,
}

const NOWHERE: u32 = u32::MAX;

impl<'a> State<'a> {
    /// Makes the state before the first task.
    pub(crate) fn new(instance: &'a Instance) -> Self {
        let there = instance.storages.iter().filter(|storage| storage.maker.is_none());
        let mut state = Self {
            instance,
            level: instance.base + there.map(|storage| storage.bytes).sum::<u64>(),
            waits: instance.before.iter().map(|before| id(before.len())).collect(),
            left: instance.storages.iter().map(|one| id(one.users.len()) + u32::from(one.is_kept)).collect(),
            ready: Vec::new(),
            places: vec![NOWHERE; instance.tasks.len()],
        };
        (0..instance.tasks.len())
            .filter(|task| instance.before[*task].is_empty())
            .for_each(|task| state.insert(id(task)));
        state
    }

    fn insert(&mut self, task: u32) {
        self.places[task as usize] = id(self.ready.len());
        self.ready.push(task);
    }

    fn remove(&mut self, task: u32) {
        let place = self.places[task as usize] as usize;
        self.ready.swap_remove(place);
        if let Some(moved) = self.ready.get(place) {
            self.places[*moved as usize] = id(place);
        }
        self.places[task as usize] = NOWHERE;
    }

    /// Returns the live bytes while a task runs now.
    pub(crate) fn during(&self, task: u32) -> u64 {
        self.level + self.instance.tasks[task as usize].rise
    }

    /// Returns the bytes that a task adds to the live bytes, and the bytes that it frees, if the task runs now.
    fn change(&self, task: u32) -> (u64, u64) {
        let Task { makes, uses, .. } = &self.instance.tasks[task as usize];
        let bytes = |storage: &u32| self.instance.storages[*storage as usize].bytes;
        let freed = uses.iter().filter(|storage| self.left[**storage as usize] == 1).map(bytes).sum();
        (makes.iter().map(bytes).sum(), freed)
    }

    /// Returns the change of the live bytes over a task, if the task runs now.
    pub(crate) fn net(&self, task: u32) -> i64 {
        let (made, freed) = self.change(task);
        made as i64 - freed as i64
    }

    /// Runs a task that is ready.
    pub(crate) fn run(&mut self, task: u32) {
        let (made, freed) = self.change(task);
        self.level = self.level + made - freed;
        self.remove(task);
        let instance = self.instance;
        instance.tasks[task as usize].uses.iter().for_each(|storage| self.left[*storage as usize] -= 1);
        for after in &instance.after[task as usize] {
            self.waits[*after as usize] -= 1;
            if self.waits[*after as usize] == 0 {
                self.insert(*after);
            }
        }
    }

    /// Undoes the last task.
    pub(crate) fn undo(&mut self, task: u32) {
        let instance = self.instance;
        for after in &instance.after[task as usize] {
            if self.waits[*after as usize] == 0 {
                self.remove(*after);
            }
            self.waits[*after as usize] += 1;
        }
        instance.tasks[task as usize].uses.iter().for_each(|storage| self.left[*storage as usize] += 1);
        self.insert(task);
        let (made, freed) = self.change(task);
        self.level = self.level + freed - made;
    }
}

/// Returns the most live bytes when tasks run in this order, which must be valid.
pub(crate) fn peak(instance: &Instance, order: &[u32]) -> u64 {
    let mut state = State::new(instance);
    let mut peak = state.level;
    for task in order {
        peak = peak.max(state.during(*task));
        state.run(*task);
    }
    peak
}
