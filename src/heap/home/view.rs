//! A view, which maps chunks at contiguous addresses: the record that the heap keeps of it.
//!
//! Owns: the values of a view, and how much a view takes of each bounded quantity (views, mappings, addresses).
//! `views.rs` has the table of views.

use crate::config::Config;
use crate::ids::{ChunkId, PoolId, PoolIndex, ViewId};
use crate::span::Span;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

/// A hash of a choice of ranges: the spans of home that a request would get without views. A program that repeats its
/// requests finds home in the same state each time, and gets the same spans. So the view that served these spans before
/// serves them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PlanHash(pub(in crate::heap) u64);

impl PlanHash {
    /// Returns the hash of these spans, in their order.
    pub(crate) fn of(spans: &[Span]) -> Self {
        let mut hasher = FxHasher::default();
        spans.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// A range of addresses in which chunks are mapped at contiguous addresses.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) address: u64,
    /// The bytes from `address` on in which chunks are mapped, or were mapped before.
    pub(crate) size: u64,
    /// The bytes of address space that are reserved from `address` on. A view that was made to grow has more addresses
    /// than mapped bytes.
    pub(crate) addresses: u64,
    /// How much of the view is handed out; `None` if the view does not grow.
    pub(crate) growing: Option<Extent>,
    /// The chunks, in the order of their addresses in the view; [`ChunkId::NONE`] in a hole.
    pub(crate) chunks: Vec<ChunkId>,
    /// The parts of the view whose chunk went back to the driver while another part was in use: offsets from the view's
    /// start, in order.
    pub(crate) holes: Vec<Span>,
    /// The number of live and pending blocks that use the view.
    pub(crate) users: u32,
    /// For each stream (its large pool) that has used the view, the epoch in which the stream last freed a block of the
    /// view. The view is unmapped only when the GPU has passed all of these epochs. The list has room for the entries
    /// that the present users may add.
    pub(crate) last_uses: Vec<(PoolIndex, u64)>,
    /// The private pools that have handed out blocks through the view. The view stays until these pools are released,
    /// since graphs may use it.
    pub(crate) pins: Vec<PoolId>,
    /// The number of uses of all views when this view was last used.
    pub(crate) tick: u64,
    /// A number that no other view ever has; 0 once the view serves no more requests. A remembered choice of free
    /// ranges names the view that served it by id and by this number, so the choice never matches a later view with the
    /// same id.
    pub(super) serial: u64,
    /// The previous view in the list of unused views.
    pub(in crate::heap) before: ViewId,
    pub(in crate::heap) after: ViewId,
}

impl View {
    /// Returns the number of mapped chunks.
    pub(crate) fn mappings(&self) -> usize {
        self.chunks.len() - self.holes.len()
    }

    /// Returns how many bytes of the view lie before its chunk number `index`. `bytes` returns the size of a chunk.
    pub(crate) fn offset_of(&self, index: usize, bytes: impl Fn(ChunkId) -> Option<u64>) -> u64 {
        // Holes are in the order of addresses, as chunks are.
        let mut holes = self.holes.iter();
        let of = |chunk: &ChunkId| match *chunk {
            ChunkId::NONE => holes.next().map_or(0, |hole| hole.size),
            chunk => bytes(chunk).unwrap_or(0),
        };
        self.chunks.iter().take(index).map(of).sum()
    }

    /// Returns the bytes of the hole at an offset; 0 if there is no hole.
    pub(crate) fn hole_at(&self, offset: u64) -> u64 {
        hole_at(&self.holes, offset)
    }

    /// Returns the addresses of the view at which chunks are mapped.
    pub(crate) fn span(&self) -> Span {
        Span::new(self.address, self.size)
    }

    /// Returns all addresses that were reserved for the view.
    pub(crate) fn reservation(&self) -> Span {
        Span::new(self.address, self.addresses)
    }
}

/// How much of a view that grows is handed out. The parts lie at contiguous addresses, from the view's first byte on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The bytes of all parts together.
    pub(crate) bytes: u64,
    /// The number of live parts. The view's other users (blocks in it) are freed parts that wait for streams.
    pub(crate) parts: u32,
}

/// Returns the bytes of the hole that begins at an offset; 0 if there is no such hole.
pub(crate) fn hole_at(holes: &[Span], offset: u64) -> u64 {
    holes.binary_search_by_key(&offset, |hole| hole.start).map_or(0, |at| holes[at].size)
}

/// A view to be built. The tables have room for the view.
#[derive(Debug)]
pub(crate) struct NewView {
    pub(in crate::heap) chunks: Vec<ChunkId>,
    pub(in crate::heap) last_uses: Vec<(PoolIndex, u64)>,
}

/// The number of views, and the mappings and addresses that they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ViewUsage {
    pub(crate) views: usize,
    pub(crate) mappings: usize,
    /// The bytes of address space.
    pub(crate) addresses: u64,
}

impl ViewUsage {
    /// Returns the sum of both usages.
    pub(crate) fn with(self, more: Self) -> Self {
        Self {
            views: self.views + more.views,
            mappings: self.mappings + more.mappings,
            addresses: self.addresses.saturating_add(more.addresses),
        }
    }

    pub(crate) fn is_within(&self, config: &Config) -> bool {
        self.views <= config.max_views
            && self.mappings <= config.max_view_mappings
            && self.addresses <= config.max_view_address_space
    }
}
