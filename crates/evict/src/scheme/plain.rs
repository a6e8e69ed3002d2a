//! Schemes that consider each tensor alone.
//!
//! The rules are those of `DTRLocal` in `simrd/simrd/heuristic/dtr.py`, and of `LRU` and `LargestStorage` in
//! `simrd/simrd/heuristic/etc.py` of uwsampl/dtr-prototype.

use super::ask::{Ask, Scheme};
use crate::graph::StorageId;

/// `h_DTR^local`: evicts the tensor whose own cost, divided by size and staleness, is least.
#[derive(Clone, Copy, Debug)]
pub(super) struct DtrLocal;

impl Scheme for DtrLocal {
    fn choose(&mut self, ask: &Ask<'_>) -> Vec<StorageId> {
        let state = ask.state;
        let least = ask.least(|storage| {
            state.cost(storage) as f64 / (state.bytes(storage) as f64 * state.staleness(storage) as f64)
        });
        least.into_iter().collect()
    }
}

/// Evicts the least recently used tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lru;

impl Scheme for Lru {
    fn choose(&mut self, ask: &Ask<'_>) -> Vec<StorageId> {
        ask.least(|storage| ask.state.last_access(storage) as f64).into_iter().collect()
    }
}

/// Evicts the largest tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size;

impl Scheme for Size {
    fn choose(&mut self, ask: &Ask<'_>) -> Vec<StorageId> {
        ask.least(|storage| 1.0 / ask.state.bytes(storage) as f64).into_iter().collect()
    }
}
