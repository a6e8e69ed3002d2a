//! The rules of physical memory. The simulated GPU says which memory lies behind an address, so that the rules hold for memory that is
//! mapped twice, exchanged under live addresses, spilled and brought back.
//!
//! Owns: the uses of memory by kernels that have not ended, and the comparison of who lies where. The simulated GPU itself tells of
//! memory that is unmapped under a kernel, and of kernels without memory.

use seamalloc::PoolId;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::Piece;
use std::collections::HashMap;
use std::fmt;

/// A kernel's use of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) stream: StreamId,
    /// The time at which the kernel ends, by the device's clock.
    pub(super) ends: u64,
    /// The block's own stream, if nobody told the allocator of this use: that stream gets the memory at once, and whoever uses it
    /// there without a wait is wrong.
    pub(super) untold: Option<StreamId>,
    /// The private pool whose requests may get the memory at once: a graph of the pool uses it, and the program orders its graphs.
    pub(super) graph_of: Option<PoolId>,
}

struct Part {
    from: u64,
    to: u64,
    by: Use,
}

impl Part {
    fn meets(&self, piece: &Piece) -> bool {
        self.from < piece.offset + piece.size && self.to > piece.offset
    }
}

/// The uses that have not ended, by memory.
#[derive(Default)]
pub(super) struct Uses(HashMap<u64, Vec<Part>>);

impl Uses {
    pub(super) fn add(&mut self, pieces: &[Piece], by: Use) {
        for piece in pieces {
            let part = Part { from: piece.offset, to: piece.offset + piece.size, by };
            self.0.entry(piece.memory).or_default().push(part);
        }
    }

    /// Forgets the uses that have ended.
    pub(super) fn prune(&mut self, now: u64) {
        self.0.retain(|_, parts| {
            parts.retain(|part| part.by.ends > now);
            !parts.is_empty()
        });
    }

    /// Returns a use of these pieces for which `early` holds.
    pub(super) fn find(&self, pieces: &[Piece], early: impl Fn(&Use) -> bool) -> Option<Use> {
        let met = |piece: &Piece| {
            let parts = self.0.get(&piece.memory)?;
            parts.iter().find(|part| part.meets(piece) && early(&part.by)).map(|part| part.by)
        };
        pieces.iter().find_map(met)
    }

    /// Leaves the uses of these pieces to the graphs of a pool: a capture frees what a capture was handed out, and the program orders
    /// its graphs.
    pub(super) fn leave_to_graphs_of(&mut self, pieces: &[Piece], pool: PoolId) {
        for piece in pieces {
            let parts = self.0.get_mut(&piece.memory).into_iter().flatten();
            parts.filter(|part| part.meets(piece)).for_each(|part| part.by.graph_of = Some(pool));
        }
    }
}

/// A stretch of physical memory and the address of the block that has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stretch {
    memory: u64,
    from: u64,
    to: u64,
    address: u64,
}

impl fmt::Display for Stretch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} at bytes {} to {} of memory {}", self.address, self.from, self.to, self.memory)
    }
}

impl Stretch {
    pub(super) fn of(address: u64, piece: &Piece) -> Self {
        Self { memory: piece.memory, from: piece.offset, to: piece.offset + piece.size, address }
    }
}

/// Sorts the stretches of live blocks. Returns two that share a byte, if there are any.
pub(super) fn overlap(live: &mut [Stretch]) -> Option<(Stretch, Stretch)> {
    live.sort_unstable();
    let pairs = live.windows(2).find(|pair| pair[0].memory == pair[1].memory && pair[0].to > pair[1].from);
    pairs.map(|pair| (pair[0], pair[1]))
}

/// Returns the first block of the sorted stretches that has a byte of `piece` and is none of `own`.
pub(super) fn intruder(live: &[Stretch], piece: &Piece, own: impl Fn(u64) -> bool) -> Option<Stretch> {
    let end = piece.offset + piece.size;
    let from = live.partition_point(|other| (other.memory, other.to) <= (piece.memory, piece.offset));
    let meeting = live[from..].iter().take_while(|other| other.memory == piece.memory && other.from < end);
    meeting.copied().find(|other| !own(other.address))
}

/// Returns the bytes of pieces together.
pub(super) fn bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.size).sum()
}
