//! seamalloc's own scheme, for memory in which free bytes can be joined wherever they are. The scheme evicts the tensor
//! with the least cost per byte that becomes usable, and searches for no window of neighbouring tensors.
//!
//! - **Cost**: the tensor's own cost and the cost of its evicted ancestors, which must be recomputed first. DTR
//!   also adds evicted descendants. Evicted descendants need the tensor only if they are needed themselves, so they do
//!   not count here.
//! - **Bytes**: joined memory is mapped in granules of 2 MiB, so a byte is usable once its granule is free. A tensor
//!   therefore counts the granules that become free with it, free neighbours included. A small request is served inside
//!   a granule, so for such a request the range that becomes free counts. A tensor that frees no granule brings a
//!   granule closer to being free, so at least half of its bytes count.
//! - **Staleness** counts by its square root. Without staleness, a tensor that is read next is evicted as easily as a
//!   tensor that is read last. At full weight, as in DTR, staleness outweighs the cost.
//! - **Tensors that the program released** cost half, since they are needed only to recompute other tensors.
//! - Operators that overwrite an input take its memory, as in Coop.
//!
//! Each of these rules was measured against its alternatives (docs/eviction.md).

use super::ask::{Ask, Scheme};
use super::regions::Regions;
use crate::graph::StorageId;
use crate::memory::Piece;
use crate::state::State;
use rustc_hash::FxHashMap;

/// The largest request that is served inside granules, in bytes (`kSmallSize` of PyTorch's allocator).
const SMALL: u64 = 1 << 20;
/// The factor for the cost of a tensor that the program released.
const LET_GO: f64 = 0.5;
/// The least part of a tensor's bytes that counts as usable, even if its eviction frees no granule.
const PROMISED: f64 = 0.5;

/// The scheme by cost per usable byte.
#[derive(Debug, Default)]
pub(super) struct Stitched {
    regions: Regions,
}

impl Scheme for Stitched {
    fn choose(&mut self, ask: &Ask<'_>) -> Vec<StorageId> {
        let state = ask.state;
        let usable = ask.memory.granule().map(|granule| usable(&ask.memory.pieces(), granule, ask.bytes));
        let usable = usable.unwrap_or_default();
        let least = ask.least(|storage| {
            let cost = (state.cost(storage) + self.regions.ancestors(state, storage)) as f64;
            let cost = if state.is_held(storage) { cost } else { cost * LET_GO };
            let bytes = state.bytes(storage) as f64;
            let gained = state.address(storage).and_then(|address| usable.get(&address)).map(|bytes| *bytes as f64);
            let bytes = gained.map_or(bytes, |gained| gained.max(bytes * PROMISED));
            cost / (bytes * (state.staleness(storage) as f64).sqrt())
        });
        least.into_iter().collect()
    }

    fn changed(&mut self, state: &State<'_>, storage: StorageId) {
        self.regions.changed(state, storage);
    }

    fn works_in_place(&self) -> bool {
        true
    }
}

/// Returns the bytes that each block's eviction makes usable for a request of `bytes`, by the block's address.
fn usable(pieces: &[Piece], granule: u64, bytes: u64) -> FxHashMap<u64, u64> {
    let whole = |from: u64, to: u64| (to / granule * granule).saturating_sub(from.next_multiple_of(granule));
    let mut found = FxHashMap::default();
    for (at, block) in pieces.iter().enumerate().filter(|(_, piece)| !piece.is_free) {
        let touches = |other: &&Piece| other.is_free && other.segment == block.segment;
        let before = at.checked_sub(1).and_then(|before| pieces.get(before)).filter(touches);
        let behind = pieces.get(at + 1).filter(touches);
        let end = |piece: &Piece| piece.address + piece.bytes;
        let (from, to) = (before.map_or(block.address, |free| free.address), end(behind.unwrap_or(block)));
        let gained = if bytes > SMALL {
            let had = [before, behind].into_iter().flatten().map(|free| whole(free.address, end(free))).sum();
            whole(from, to).saturating_sub(had)
        } else {
            (to - from).min(bytes)
        };
        found.insert(block.address, gained);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two granules of ten bytes each. Bytes 0 to 4 are free, a block ends at 12, free bytes end at 14, and a block
    /// ends at 20. A free granule of another segment comes next.
    const PIECES: [Piece; 5] = [
        Piece { address: 0, bytes: 4, segment: 0, is_free: true },
        Piece { address: 4, bytes: 8, segment: 0, is_free: false },
        Piece { address: 12, bytes: 2, segment: 0, is_free: true },
        Piece { address: 14, bytes: 6, segment: 0, is_free: false },
        Piece { address: 20, bytes: 10, segment: 1, is_free: true },
    ];

    #[test]
    fn whole_granules_count_for_large_requests_and_ranges_for_small_ones() {
        let large = usable(&PIECES, 10, SMALL + 1);
        assert_eq!((large[&4], large[&14], large.len()), (10, 0, 2));
        let small = usable(&PIECES, 10, 7);
        assert_eq!((small[&4], small[&14]), (7, 7));
        assert_eq!(usable(&PIECES, 10, 100)[&14], 8);
    }
}
