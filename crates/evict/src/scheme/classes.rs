//! Evicted neighbourhoods by union and find: evicted tensors that touch are of one class, whose cost is known at once. A tensor
//! that is made again takes its cost with it; the class does not fall apart, so its cost is an estimate.
//!
//! After `EqClassNode` in `simrd/simrd/optimization/eqclass.py` and `RuntimeV2Optimized` in `simrd/simrd/runtime/v2.py` of
//! uwsampl/dtr-prototype, and `remat::DisjointSet` in OneFlow's `oneflow/core/vm/remat/disjoint_set.cpp`, which joins a tensor
//! with what its own operator read and made alone.

use crate::graph::StorageId;
use crate::state::State;

/// Which evicted tensors touch a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Touching {
    /// What it was computed from, and what was computed from it (DTR).
    #[default]
    All,
    /// What its own operator read, and made beside it (MegEngine, OneFlow).
    Relatives,
}

/// Classes of evicted storages.
#[derive(Clone, Debug, Default)]
pub(super) struct Classes {
    touching: Touching,
    /// By storage: its node while it is evicted.
    node_of: Vec<Option<u32>>,
    /// By storage: its cost when it was evicted.
    cost_of: Vec<u64>,
    /// By node: its parent, itself for a root.
    parent: Vec<u32>,
    /// By node: a root's cost.
    cost: Vec<u64>,
    roots: Vec<u32>,
}

impl Classes {
    pub(super) fn new(touching: Touching) -> Self {
        Self { touching, ..Self::default() }
    }

    /// A storage was evicted: it and the classes that it touches are one.
    pub(super) fn evicted(&mut self, state: &State<'_>, storage: StorageId) {
        if state.bytes(storage) == 0 {
            return;
        }
        self.fit(state);
        let node = self.parent.len() as u32;
        self.parent.push(node);
        self.cost.push(state.cost(storage));
        self.cost_of[storage.index()] = state.cost(storage);
        self.node_of[storage.index()] = Some(node);
        for other in self.touching(state, storage) {
            if let Some(other) = self.node_of[other.index()] {
                self.join(other, node);
            }
        }
    }

    /// A storage was made.
    pub(super) fn made(&mut self, state: &State<'_>, storage: StorageId) {
        self.fit(state);
        if let Some(node) = self.node_of[storage.index()].take() {
            let root = self.root(node) as usize;
            self.cost[root] = self.cost[root].saturating_sub(self.cost_of[storage.index()]);
        }
    }

    /// The cost of the classes that a storage touches, each once.
    pub(super) fn around(&mut self, state: &State<'_>, storage: StorageId) -> u64 {
        self.fit(state);
        self.roots.clear();
        let mut sum = 0;
        for other in self.touching(state, storage) {
            let Some(node) = self.node_of[other.index()] else { continue };
            let root = self.root(node);
            if !self.roots.contains(&root) {
                self.roots.push(root);
                sum += self.cost[root as usize];
            }
        }
        sum
    }

    /// The cost of the class of each evicted relative, at least its own: classes count as often as relatives are of them
    /// (`approx_neighbor_cost` in OneFlow's `oneflow/core/eager/tensor_storage.cpp`, `estimate_neighbor_cost` in MegEngine's
    /// `imperative/src/impl/interpreter/interpreter_impl.cpp`).
    pub(super) fn around_each(&mut self, state: &State<'_>, storage: StorageId) -> u64 {
        self.fit(state);
        let mut sum = 0;
        for other in state.relatives(storage) {
            let Some(node) = self.node_of[other.index()] else { continue };
            let root = self.root(node) as usize;
            sum += self.cost[root].max(self.cost_of[other.index()]);
        }
        sum
    }

    fn touching<'s>(&self, state: &'s State<'_>, storage: StorageId) -> Box<dyn Iterator<Item = StorageId> + 's> {
        match self.touching {
            Touching::All => Box::new(state.parents(storage).chain(state.children(storage))),
            Touching::Relatives => Box::new(state.relatives(storage)),
        }
    }

    fn join(&mut self, from: u32, to: u32) {
        let (from, to) = (self.root(from), self.root(to));
        if from != to {
            self.parent[from as usize] = to;
            self.cost[to as usize] += self.cost[from as usize];
        }
    }

    fn root(&mut self, mut node: u32) -> u32 {
        while self.parent[node as usize] != node {
            let above = self.parent[self.parent[node as usize] as usize];
            self.parent[node as usize] = above;
            node = above;
        }
        node
    }

    fn fit(&mut self, state: &State<'_>) {
        let storages = state.graph().storages().len();
        if self.node_of.len() < storages {
            self.node_of.resize(storages, None);
            self.cost_of.resize(storages, 0);
        }
    }
}
