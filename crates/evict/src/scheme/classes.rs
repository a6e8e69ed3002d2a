//! Estimates the cost of evicted neighbourhoods by union and find. Evicted tensors that touch, as [`Touching`] defines,
//! belong to one class, and each class has a cost. A recomputed tensor takes its own cost out of the class. The class
//! is not split, so the class's cost is an estimate.
//!
//! The rules are those of `EqClassNode` in `simrd/simrd/optimization/eqclass.py` and `RuntimeV2Optimized` in
//! `simrd/simrd/runtime/v2.py` of uwsampl/dtr-prototype, and of `remat::DisjointSet` in OneFlow's
//! `oneflow/core/vm/remat/disjoint_set.cpp`, which joins a tensor only with the inputs and outputs of its own operator.

use crate::graph::StorageId;
use crate::state::State;

/// The evicted tensors that touch a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Touching {
    /// The tensors from which the tensor was computed, and the tensors computed from it (DTR).
    #[default]
    All,
    /// The inputs and other outputs of the tensor's own operator (MegEngine, OneFlow).
    Relatives,
}

/// Classes of evicted storages.
#[derive(Clone, Debug, Default)]
pub(super) struct Classes {
    touching: Touching,
    /// Each storage's node in the forest of union and find, while the storage is evicted.
    node_of: Vec<Option<u32>>,
    /// Each storage's cost when it was evicted.
    cost_of: Vec<u64>,
    /// Each node's parent; a root is its own parent.
    parent: Vec<u32>,
    /// The cost of each root's class.
    cost: Vec<u64>,
    roots: Vec<u32>,
}

impl Classes {
    pub(super) fn new(touching: Touching) -> Self {
        Self { touching, ..Self::default() }
    }

    /// Makes one class of an evicted storage and the classes of its evicted neighbours.
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

    /// Removes a storage that was made again.
    pub(super) fn made(&mut self, state: &State<'_>, storage: StorageId) {
        self.fit(state);
        if let Some(node) = self.node_of[storage.index()].take() {
            let root = self.root(node) as usize;
            self.cost[root] = self.cost[root].saturating_sub(self.cost_of[storage.index()]);
        }
    }

    /// Returns the cost of the classes of a storage's evicted neighbours, each class once.
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

    /// Returns a sum over the storage's evicted relatives (the inputs and other outputs of its operator): the cost of
    /// the relative's class, or the relative's own cost if it is higher. A class counts once for each relative
    /// (`approx_neighbor_cost` in OneFlow's `oneflow/core/eager/tensor_storage.cpp`, `estimate_neighbor_cost` in
    /// MegEngine's `imperative/src/impl/interpreter/interpreter_impl.cpp`).
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
