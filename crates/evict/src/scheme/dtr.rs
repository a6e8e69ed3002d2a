//! DTR with exact neighbourhoods: evicts the tensor whose cost, divided by size and staleness, is least. The cost
//! includes the evicted neighbourhood: evicted tensors that this tensor is computed from, or that are computed from it.
//! MSPS counts only the evicted ancestors, without staleness.
//!
//! The rules are those of `DTR` in `simrd/simrd/heuristic/dtr.py` and `MSPS` in `simrd/simrd/heuristic/etc.py` of
//! uwsampl/dtr-prototype (Kirisame and others, Dynamic Tensor Rematerialization, ICLR 2021; MSPS: Peng and others,
//! Capuchin, ASPLOS 2020).

use super::ask::{Ask, Scheme};
use super::regions::Regions;
use crate::graph::StorageId;
use crate::state::State;

/// The scheme `h_DTR`.
#[derive(Debug, Default)]
pub(super) struct Dtr {
    regions: Regions,
}

impl Scheme for Dtr {
    fn choose(&mut self, ask: &Ask<'_>) -> Vec<StorageId> {
        let state = ask.state;
        let least = ask.least(|storage| {
            let around = self.regions.ancestors(state, storage) + self.regions.descendants(state, storage);
            let cost = (state.cost(storage) + around) as f64;
            cost / (state.bytes(storage) as f64 * state.staleness(storage) as f64)
        });
        least.into_iter().collect()
    }

    fn changed(&mut self, state: &State<'_>, storage: StorageId) {
        self.regions.changed(state, storage);
    }
}

/// The scheme `h_MSPS`.
#[derive(Debug, Default)]
pub(super) struct Msps {
    regions: Regions,
}

impl Scheme for Msps {
    fn choose(&mut self, ask: &Ask<'_>) -> Vec<StorageId> {
        let state = ask.state;
        let least = ask.least(|storage| {
            let cost = state.cost(storage) + self.regions.ancestors(state, storage);
            cost as f64 / state.bytes(storage) as f64
        });
        least.into_iter().collect()
    }

    fn changed(&mut self, state: &State<'_>, storage: StorageId) {
        self.regions.changed(state, storage);
    }
}
