//! Coop: evicts the run of tensors side by side in memory that is large enough and costs least. Free pieces cost 0. A
//! piece that cannot be evicted ends a run.
//!
//! The rules are those of `EvictAndFindPieceOnce` in OneFlow's `oneflow/core/vm/remat/allocator.cpp`, with the cost of
//! `RematableTensorStorage::cost` in `oneflow/core/eager/tensor_storage.cpp`: the neighbourhood's cost divided by
//! staleness, without the size (Zhang and others, Coop: Memory is not a Commodity, NeurIPS 2023). `memory/arena.rs`
//! places expensive and cheap tensors at the two ends of a free piece. Operators that overwrite an input take the
//! input's memory (Coop's recomputable in-place operators). If the allocator's segments hold no such run, or the memory
//! only counts bytes, the tensor with the least cost per byte is evicted.

use super::ask::{Ask, Scheme};
use super::classes::{Classes, Touching};
use crate::graph::StorageId;
use crate::memory::Piece;
use crate::state::State;
use rustc_hash::FxHashMap;

/// Coop.
#[derive(Debug)]
pub(super) struct Coop {
    classes: Classes,
}

impl Default for Coop {
    fn default() -> Self {
        Self { classes: Classes::new(Touching::Relatives) }
    }
}

impl Scheme for Coop {
    fn choose(&mut self, ask: &Ask<'_>) -> Vec<StorageId> {
        let state = ask.state;
        let mut cost = |storage| {
            (state.cost(storage) + self.classes.around_each(state, storage)) as f64 / state.staleness(storage) as f64
        };
        let at: FxHashMap<u64, StorageId> =
            state.evictable().iter().filter_map(|storage| Some((state.address(*storage)?, *storage))).collect();
        let pieces = ask.memory.pieces();
        ask.count(pieces.len());
        let costs: Vec<Option<f64>> = pieces
            .iter()
            .map(|piece| match at.get(&piece.address) {
                _ if piece.is_free => Some(0.0),
                Some(storage) => Some(cost(*storage)),
                None => None,
            })
            .collect();
        let found = cheapest_window(&pieces, &costs, ask.bytes);
        let window: Vec<_> =
            found.into_iter().flatten().filter_map(|place| at.get(&pieces[place].address).copied()).collect();
        if !window.is_empty() {
            return window;
        }
        // No run of neighbouring pieces is large enough. If the memory is one arena, no eviction helps. With several
        // segments an eviction may help, since the allocator can give a free segment back or join free memory.
        if ask.memory.is_one_range() {
            return Vec::new();
        }
        ask.least(|storage| cost(storage) / state.bytes(storage) as f64).into_iter().collect()
    }

    fn evicted(&mut self, state: &State<'_>, storage: StorageId) {
        self.classes.evicted(state, storage);
    }

    fn made(&mut self, state: &State<'_>, storage: StorageId) {
        self.classes.made(state, storage);
    }

    fn works_in_place(&self) -> bool {
        true
    }
}

/// Returns the run of neighbouring pieces of one segment that has `bytes` bytes and costs least; of equally cheap runs,
/// the first. The start and the end of a window move over the pieces. A piece without a cost ends a run.
fn cheapest_window(pieces: &[Piece], costs: &[Option<f64>], bytes: u64) -> Option<std::ops::Range<usize>> {
    let mut best: Option<(f64, std::ops::Range<usize>)> = None;
    let (mut start, mut held) = (0, 0);
    for end in 0..pieces.len() {
        if end > start && pieces[end].segment != pieces[start].segment {
            (start, held) = (end, 0);
        }
        if costs[end].is_none() {
            (start, held) = (end + 1, 0);
            continue;
        }
        held += pieces[end].bytes;
        while held - pieces[start].bytes >= bytes {
            held -= pieces[start].bytes;
            start += 1;
        }
        if held < bytes {
            continue;
        }
        // The sum is computed anew, so that rounding errors do not add up over a long run of pieces.
        let cost = costs[start..=end].iter().flatten().sum();
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, start..end + 1));
        }
    }
    best.map(|(_, window)| window)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the least cost of all runs that are large enough, tried one by one.
    fn tried(pieces: &[Piece], costs: &[Option<f64>], bytes: u64) -> Option<f64> {
        let runs = (0..pieces.len()).flat_map(|start| (start + 1..=pieces.len()).map(move |end| start..end));
        let costs = runs.filter_map(|run| {
            let one = pieces[run.clone()].iter().all(|piece| piece.segment == pieces[run.start].segment);
            let held: u64 = pieces[run.clone()].iter().map(|piece| piece.bytes).sum();
            let cost = costs[run].iter().copied().sum::<Option<f64>>();
            cost.filter(|_| one && held >= bytes)
        });
        costs.min_by(f64::total_cmp)
    }

    proptest! {
        #[test]
        fn the_window_is_the_cheapest_of_all_runs(
            drawn in prop::collection::vec((1u64..9, 0usize..3, prop::option::weighted(0.8, 0u32..6)), 0..14),
            bytes in 1u64..30,
        ) {
            let (mut address, mut segment) = (0, 0);
            let mut pieces = Vec::new();
            for (bytes, gap, _) in &drawn {
                segment += usize::from(*gap == 0);
                pieces.push(Piece { address, bytes: *bytes, segment, is_free: false });
                address += bytes;
            }
            let costs: Vec<_> = drawn.iter().map(|(.., cost)| cost.map(f64::from)).collect();
            let found = cheapest_window(&pieces, &costs, bytes);
            let cost = found.map(|run| costs[run].iter().flatten().sum::<f64>());
            prop_assert_eq!(cost, tried(&pieces, &costs, bytes));
        }
    }
}
