//! DTR with classes: the rules of `dtr`, except that the cost of a tensor's evicted neighbourhood is estimated. Evicted
//! tensors that are computed from one another form a class, and the classes next to the tensor count (`classes.rs`).
//!
//! The rules are those of `DTREqClass` in `simrd/simrd/heuristic/dtr.py` of uwsampl/dtr-prototype, the scheme of the
//! prototype in PyTorch.

use super::ask::{Ask, Scheme};
use super::classes::Classes;
use crate::graph::StorageId;
use crate::state::State;

/// The scheme `h_DTR^eq`.
#[derive(Debug, Default)]
pub(super) struct DtrEq {
    classes: Classes,
}

impl Scheme for DtrEq {
    fn choose(&mut self, ask: &Ask<'_>) -> Vec<StorageId> {
        let state = ask.state;
        let least = ask.least(|storage| {
            let cost = (state.cost(storage) + self.classes.around(state, storage)) as f64;
            cost / (state.bytes(storage) as f64 * state.staleness(storage) as f64)
        });
        least.into_iter().collect()
    }

    fn evicted(&mut self, state: &State<'_>, storage: StorageId) {
        self.classes.evicted(state, storage);
    }

    fn made(&mut self, state: &State<'_>, storage: StorageId) {
        self.classes.made(state, storage);
    }
}
