//! DTE: the rules of DTR with classes (`dtr_eq.rs`), with two changes. Free memory that touches a tensor counts as the
//! tensor's own, so eviction prefers tensors whose eviction makes a large hole. Tensors that were recomputed often are
//! kept a little longer.
//!
//! The rules are those of `find_best_tensor` and `update_dsu_after_evict` in MegEngine's
//! `imperative/src/impl/interpreter/interpreter_impl.cpp`, and of `eval_func` in MegEngine's `tensor_info.h` (Hu and
//! others, MegTaiChi, ICS 2022). MegEngine's estimate leaves out the tensor's own cost. OneFlow's form of DTE
//! (`EvictAndFindPieceLoop` in `oneflow/core/vm/remat/allocator.cpp`), with which Coop is compared, adds the tensor's
//! own cost. This scheme also adds the tensor's own cost.

use super::ask::{Ask, Scheme};
use super::classes::{Classes, Touching};
use crate::graph::StorageId;
use crate::state::State;
use rustc_hash::FxHashMap;

/// The factor by which each recomputation raises a tensor's cost (`param_recompute_times` of `eval_func`).
const REMADE: f64 = 1.0001;

/// DTE.
#[derive(Debug)]
pub(super) struct Dte {
    classes: Classes,
}

impl Default for Dte {
    fn default() -> Self {
        Self { classes: Classes::new(Touching::Relatives) }
    }
}

impl Scheme for Dte {
    fn choose(&mut self, ask: &Ask<'_>) -> Vec<StorageId> {
        let state = ask.state;
        let beside = free_beside(ask);
        let least = ask.least(|storage| {
            let cost = (state.cost(storage) + self.classes.around_each(state, storage)) as f64;
            let free = state.address(storage).and_then(|address| beside.get(&address)).copied().unwrap_or(0);
            let bytes = (state.bytes(storage) + free) as f64;
            cost * REMADE.powf(f64::from(state.remade(storage))) / (bytes * state.staleness(storage) as f64)
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

/// Returns the free bytes that touch each block, by the block's address.
fn free_beside(ask: &Ask<'_>) -> FxHashMap<u64, u64> {
    let pieces = ask.memory.pieces();
    let mut beside = FxHashMap::default();
    for pair in pieces.windows(2) {
        let [left, right] = pair else { continue };
        if left.segment != right.segment || left.is_free == right.is_free {
            continue;
        }
        let (block, free) = if left.is_free { (right, left) } else { (left, right) };
        *beside.entry(block.address).or_insert(0) += free.bytes;
    }
    beside
}
