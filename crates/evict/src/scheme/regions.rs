//! Exact evicted neighbourhoods and their costs. The evicted ancestors of a tensor are the tensors that are not in
//! memory and must be recomputed before that tensor. The evicted descendants of a tensor are the tensors that are not
//! in memory and need that tensor to be recomputed.
//!
//! The rules are those of `Region` in `simrd/simrd/optimization/region.py` of uwsampl/dtr-prototype. In simrd, every
//! change of a tensor rebuilds the neighbourhoods (regions) that touch it. Here a change drops the costs of these
//! neighbourhoods, which are computed again when needed.

use crate::graph::StorageId;
use crate::state::State;

/// The direction of a walk from a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// The costs of evicted neighbourhoods.
#[derive(Clone, Debug, Default)]
pub(super) struct Regions {
    /// For each storage, the cost of the evicted ancestors and of the evicted descendants; `None` if the cost is not
    /// known.
    known: Vec<[Option<u64>; 2]>,
    /// For each storage, the last walk that met the storage.
    met: Vec<u64>,
    walk: u64,
    stack: Vec<StorageId>,
    /// The storages in memory at the border of the last walk.
    border: Vec<StorageId>,
}

impl Regions {
    /// Returns the cost of a storage's evicted ancestors.
    pub(super) fn ancestors(&mut self, state: &State<'_>, storage: StorageId) -> u64 {
        self.cost(state, storage, Way::Up)
    }

    /// Returns the cost of a storage's evicted descendants.
    pub(super) fn descendants(&mut self, state: &State<'_>, storage: StorageId) -> u64 {
        self.cost(state, storage, Way::Down)
    }

    /// Drops the known costs of a storage, and of the storages in memory at the border of the storage's evicted
    /// neighbourhood. Called after the storage was evicted or computed.
    pub(super) fn changed(&mut self, state: &State<'_>, storage: StorageId) {
        self.fit(state);
        self.known[storage.index()] = [None; 2];
        for (way, other) in [(Way::Up, Way::Down), (Way::Down, Way::Up)] {
            self.walk(state, storage, way);
            for at in std::mem::take(&mut self.border) {
                self.known[at.index()][other as usize] = None;
            }
        }
    }

    fn cost(&mut self, state: &State<'_>, storage: StorageId, way: Way) -> u64 {
        self.fit(state);
        if let Some(cost) = self.known[storage.index()][way as usize] {
            return cost;
        }
        let cost = self.walk(state, storage, way);
        self.known[storage.index()][way as usize] = Some(cost);
        cost
    }

    /// Walks from a storage through all evicted storages in a direction. Returns the cost of these storages.
    fn walk(&mut self, state: &State<'_>, storage: StorageId, way: Way) -> u64 {
        self.walk += 1;
        self.border.clear();
        self.met[storage.index()] = self.walk;
        self.stack.push(storage);
        let mut cost = 0;
        while let Some(at) = self.stack.pop() {
            let mut meet = |next: StorageId| {
                if std::mem::replace(&mut self.met[next.index()], self.walk) == self.walk {
                    return;
                }
                if state.is_evicted(next) {
                    cost += state.cost(next);
                    self.stack.push(next);
                } else {
                    self.border.push(next);
                }
            };
            match way {
                Way::Up => state.parents(at).for_each(&mut meet),
                Way::Down => state.children(at).for_each(&mut meet),
            }
        }
        cost
    }

    fn fit(&mut self, state: &State<'_>) {
        let storages = state.graph().storages().len();
        if self.known.len() < storages {
            self.known.resize(storages, [None; 2]);
            self.met.resize(storages, 0);
        }
    }
}
