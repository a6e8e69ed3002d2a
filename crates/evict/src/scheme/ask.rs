//! The question which tensors to evict for a refused request, and the trait of eviction schemes, which answer it.

use crate::graph::StorageId;
use crate::memory::Memory;
use crate::state::State;
use std::cell::Cell;

/// A refused request, as it is passed to a scheme.
pub struct Ask<'a> {
    /// The tensors.
    pub state: &'a State<'a>,
    /// The memory that refused the request.
    pub memory: &'a dyn Memory,
    /// The requested bytes, rounded as they would be placed.
    pub bytes: u64,
    pub(crate) searched: &'a Cell<u64>,
}

impl Ask<'_> {
    /// Returns the storage with the least cost; of several such storages, the first in the list of evictable storages.
    pub(super) fn least(&self, mut cost: impl FnMut(StorageId) -> f64) -> Option<StorageId> {
        let mut best: Option<(StorageId, f64)> = None;
        for &storage in self.state.evictable() {
            let cost = cost(storage);
            if best.is_none_or(|(_, least)| cost < least) {
                best = Some((storage, cost));
            }
        }
        self.count(self.state.evictable().len());
        best.map(|(storage, _)| storage)
    }

    pub(super) fn count(&self, looked_at: usize) {
        self.searched.set(self.searched.get() + looked_at as u64);
    }
}

/// Chooses the storages to evict.
pub trait Scheme {
    /// Returns at least one storage that can be evicted; an empty list if the request cannot be met.
    fn choose(&mut self, ask: &Ask<'_>) -> Vec<StorageId>;

    /// Called when a storage was evicted, or the program released it.
    fn evicted(&mut self, state: &State<'_>, storage: StorageId) {
        self.changed(state, storage);
    }

    /// Called when a storage was made, for the first time or again.
    fn made(&mut self, state: &State<'_>, storage: StorageId) {
        self.changed(state, storage);
    }

    /// Called for each storage that an operator reads, before the operator runs, if the operator makes a view. The view
    /// makes new edges between storages, so the storage has new children. The storage may be evicted at that time.
    fn linked(&mut self, state: &State<'_>, storage: StorageId) {
        self.changed(state, storage);
    }

    /// Called by default at each of the three events above, which change the neighbourhood of the storage.
    fn changed(&mut self, state: &State<'_>, storage: StorageId) {
        let _ = (state, storage);
    }

    /// Returns whether an operator that overwrites an input takes the input's memory for its output.
    fn works_in_place(&self) -> bool {
        false
    }
}
