//! The book that a program keeps of physical memory, beside the allocator's own: by the device's word, not by addresses, so
//! that it holds for memory that is mapped at several.
//!
//! Owns: which bytes are whose, and which kernels may still use them.

use seamalloc::PoolId;
use seamalloc::driver::StreamId;
use seamalloc::driver::sim::Piece;
use std::collections::{BTreeMap, HashMap};

/// A block that is live.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) size: u64,
    /// `None` for a block of no stream: its stream has ended, or it was restored.
    pub(super) stream: Option<StreamId>,
    /// The handle of the stream that it was allocated for, which a new stream may have by now; `None` once restored.
    pub(super) handle: Option<StreamId>,
    pub(super) pieces: Vec<Piece>,
    pub(super) pool: Option<PoolId>,
    /// Handed out in a capture: a graph uses it.
    pub(super) captured: bool,
    /// Until when kernels use it, by the device's clock, and whether one of another stream than its own does.
    pub(super) used_until: u64,
    pub(super) used_by_other: bool,
}

/// Which physical bytes are part of a live block: memory and offset, to the end there.
#[derive(Default)]
pub(super) struct Taken(BTreeMap<(u64, u64), u64>);

impl Taken {
    pub(super) fn take(&mut self, address: u64, pieces: &[Piece]) {
        for piece in pieces {
            let end = piece.offset + piece.size;
            let before = self.0.range((piece.memory, 0)..(piece.memory, end)).next_back();
            let clash = before.is_some_and(|(_, other_end)| *other_end > piece.offset);
            assert!(!clash, "{piece:?} of {address:#x} is part of a live block already: {before:?}");
            self.0.insert((piece.memory, piece.offset), end);
        }
    }

    pub(super) fn release(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            let end = self.0.remove(&(piece.memory, piece.offset));
            assert_eq!(end, Some(piece.offset + piece.size), "{piece:?} was taken");
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// A kernel's use of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) stream: StreamId,
    /// By the device's clock.
    pub(super) ends: u64,
    /// The block's own stream, if nobody told the allocator of this use: that stream gets the memory at once, and whoever
    /// uses it there without a wait is wrong.
    pub(super) untold: Option<StreamId>,
    /// Requests of this private pool may get the memory at once: it is a graph of the pool that uses it, and the program
    /// orders its graphs.
    pub(super) graph_of: Option<PoolId>,
    /// The stream is the block's own, and the block of no private pool.
    pub(super) plain: bool,
}

struct Part {
    from: u64,
    to: u64,
    by: Use,
    /// Handles of streams that were behind it when the program gave them up: the new streams get memory in their place.
    behind: Vec<StreamId>,
}

impl Part {
    fn meets(&self, piece: &Piece) -> bool {
        self.from < piece.offset + piece.size && self.to > piece.offset
    }
}

/// The memory that kernels that have not ended use, by piece of memory.
#[derive(Default)]
pub(super) struct Uses(HashMap<u64, Vec<Part>>);

impl Uses {
    pub(super) fn add(&mut self, pieces: &[Piece], by: Use) {
        for piece in pieces {
            let (from, to) = (piece.offset, piece.offset + piece.size);
            self.0.entry(piece.memory).or_default().push(Part { from, to, by, behind: Vec::new() });
        }
    }

    /// The use of some of these pieces that is not over at `starts`, when `stream` first uses them for `pool`.
    pub(super) fn conflict(
        &mut self,
        pieces: &[Piece],
        (stream, pool): (StreamId, Option<PoolId>),
        (now, starts): (u64, u64),
    ) -> Option<Use> {
        for piece in pieces {
            let Some(parts) = self.0.get_mut(&piece.memory) else { continue };
            parts.retain(|part| part.by.ends > now);
            let early = |part: &&Part| {
                part.by.ends > starts
                    && part.by.stream != stream
                    && part.by.untold != Some(stream)
                    && !part.behind.contains(&stream)
                    && (part.by.graph_of.is_none() || part.by.graph_of != pool)
            };
            if let Some(part) = parts.iter().filter(|part| part.meets(piece)).find(early) {
                return Some(part.by);
            }
        }
        None
    }

    /// The use of some of these pieces that is not over at `now`, when a capture of `stream` gets them for `pool`: its graph
    /// may be launched on any stream at once.
    pub(super) fn in_capture(&self, pieces: &[Piece], (stream, pool): (StreamId, PoolId), now: u64) -> Option<Use> {
        let early = |by: &Use| by.ends > now && by.untold != Some(stream) && by.graph_of != Some(pool);
        let uses = pieces.iter().filter_map(|piece| Some((piece, self.0.get(&piece.memory)?)));
        let meeting = uses.flat_map(|(piece, parts)| parts.iter().filter(move |part| part.meets(piece)));
        meeting.map(|part| part.by).find(early)
    }

    /// A capture frees what another one was handed out. Programs launch graphs that share a pool in order, and read the
    /// results of one before they launch the next, so that what kernels do with the block is the program's to order.
    pub(super) fn leave_to_graphs_of(&mut self, pieces: &[Piece], pool: PoolId) {
        for piece in pieces {
            let parts = self.0.get_mut(&piece.memory).into_iter().flatten();
            parts.filter(|part| part.meets(piece)).for_each(|part| part.by.graph_of = Some(pool));
        }
    }

    /// A stream is given up without a word, whose work is done at `done`: it may have waited for all that ends earlier, and
    /// what it was given behind such a wait serves the new stream with its handle.
    pub(super) fn give_up(&mut self, stream: StreamId, done: u64) {
        let waited_for = |part: &&mut Part| part.by.ends <= done && part.by.stream != stream;
        self.0.values_mut().flatten().filter(waited_for).for_each(|part| part.behind.push(stream));
    }

    /// Whether a stream uses memory of other streams or of private pools at `now`.
    pub(super) fn has_elsewhere(&self, stream: StreamId, now: u64) -> bool {
        let elsewhere = |by: &Use| by.stream == stream && by.ends > now && !by.plain;
        self.0.values().flatten().any(|part| elsewhere(&part.by))
    }
}
