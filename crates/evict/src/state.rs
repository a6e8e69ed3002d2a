//! The state of a runtime's tensors, which eviction schemes may use. The state shows the past, not the program's next
//! steps.

use crate::graph::{Graph, OperatorId, StorageId, TensorId};

/// A storage at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    pub(crate) address: Option<u64>,
    /// The time of the operators that made the contents, each operator once.
    pub(crate) cost: u64,
    pub(crate) last_access: u64,
    /// The number of running operators that need the storage.
    pub(crate) locks: u32,
    /// The number of the program's references to the storage or a view of it.
    pub(crate) refs: u32,
    pub(crate) is_pinned: bool,
    /// Whether the storage was ever made.
    pub(crate) is_made: bool,
    /// How often the storage was recomputed.
    pub(crate) remade: u32,
    /// The storage's index in `evictable`; `None` if the storage cannot be evicted.
    place: Option<usize>,
}

/// The tensors of a run.
#[derive(Debug)]
pub struct State<'g> {
    graph: &'g Graph,
    pub(crate) held: Vec<Held>,
    pub(crate) defined: Vec<bool>,
    /// The index after the last operator of the program that ran at least once.
    pub(crate) ran: u32,
    /// Time of all operators that ran.
    pub(crate) clock: u64,
    evictable: Vec<StorageId>,
}

impl<'g> State<'g> {
    pub(crate) fn new(graph: &'g Graph) -> Self {
        let held = vec![Held::default(); graph.storages().len()];
        Self { graph, held, defined: vec![false; graph.tensors().len()], ran: 0, clock: 0, evictable: Vec::new() }
    }

    /// Returns the program's graph, of which eviction schemes may use only the part that ran.
    pub(crate) fn graph(&self) -> &'g Graph {
        self.graph
    }

    /// Returns the storages that can be evicted now: storages that are in memory, that no running operator needs, and
    /// that can be recomputed.
    #[must_use]
    pub fn evictable(&self) -> &[StorageId] {
        &self.evictable
    }

    /// Returns whether a storage could be evicted now.
    #[must_use]
    pub fn is_evictable(&self, storage: StorageId) -> bool {
        self.held[storage.index()].place.is_some()
    }

    /// Returns the bytes of a storage.
    #[must_use]
    pub fn bytes(&self, storage: StorageId) -> u64 {
        self.graph.storages()[storage.index()].bytes
    }

    /// Returns the time of the operators that made a storage's contents.
    #[must_use]
    pub fn cost(&self, storage: StorageId) -> u64 {
        self.held[storage.index()].cost
    }

    /// Returns the time since the storage was last read or made, at least 1.
    #[must_use]
    pub fn staleness(&self, storage: StorageId) -> u64 {
        (self.clock - self.held[storage.index()].last_access).max(1)
    }

    /// Returns the time at which the storage was last read or made.
    #[must_use]
    pub fn last_access(&self, storage: StorageId) -> u64 {
        self.held[storage.index()].last_access
    }

    /// Returns how often the storage was recomputed.
    #[must_use]
    pub fn remade(&self, storage: StorageId) -> u32 {
        self.held[storage.index()].remade
    }

    /// Returns the address of the storage; `None` if the storage is not in memory.
    #[must_use]
    pub fn address(&self, storage: StorageId) -> Option<u64> {
        self.held[storage.index()].address
    }

    /// Returns whether the program holds the storage or a view of it.
    #[must_use]
    pub fn is_held(&self, storage: StorageId) -> bool {
        self.held[storage.index()].refs > 0
    }

    /// Returns whether the storage was made and is not in memory.
    #[must_use]
    pub fn is_evicted(&self, storage: StorageId) -> bool {
        let held = &self.held[storage.index()];
        held.is_made && held.address.is_none() && self.bytes(storage) > 0
    }

    /// Returns the storages from which a storage was computed.
    pub fn parents(&self, storage: StorageId) -> impl Iterator<Item = StorageId> + '_ {
        let ran = self.ran;
        self.graph.parents(storage).iter().take_while(move |edge| edge.1.0 < ran).map(|edge| edge.0)
    }

    /// Returns the storages that were computed from a storage.
    pub fn children(&self, storage: StorageId) -> impl Iterator<Item = StorageId> + '_ {
        let ran = self.ran;
        self.graph.children(storage).iter().take_while(move |edge| edge.1.0 < ran).map(|edge| edge.0)
    }

    /// Returns the operator that made a storage.
    pub(crate) fn maker(&self, storage: StorageId) -> Option<OperatorId> {
        let first: TensorId = *self.graph.storages()[storage.index()].tensors.first()?;
        Some(self.graph.tensor(first).maker)
    }

    /// Returns the storages that the storage's own operator read, and the other storages that this operator made.
    pub fn relatives(&self, storage: StorageId) -> impl Iterator<Item = StorageId> + '_ {
        let operator = self.maker(storage).map(|maker| self.graph.operator(maker));
        let tensors = operator.into_iter().flat_map(|operator| operator.inputs.iter().chain(&operator.outputs));
        tensors.map(|tensor| self.graph.storage_of(*tensor)).filter(move |other| *other != storage)
    }

    pub(crate) fn update_evictable(&mut self, storage: StorageId) {
        let held = &self.held[storage.index()];
        let can_be = held.address.is_some() && held.locks == 0 && !held.is_pinned;
        match (held.place, can_be) {
            (None, true) => {
                self.held[storage.index()].place = Some(self.evictable.len());
                self.evictable.push(storage);
            }
            (Some(place), false) => {
                self.evictable.swap_remove(place);
                if let Some(moved) = self.evictable.get(place) {
                    self.held[moved.index()].place = Some(place);
                }
                self.held[storage.index()].place = None;
            }
            _ => {}
        }
    }
}
