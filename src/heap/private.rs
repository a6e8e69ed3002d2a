//! The memory of private pools: kept apart from all other, and pinned until the pool is released.
//!
//! Owns: the pools of each private pool, one pair for each stream, and how their memory comes back to all.
//!
//! ```text
//! private pool (0, 7)   stream A: large, small    stream B: large, small    an older pair of A
//! ```
//! A captured request may be replayed on any stream, so it takes nothing that is free in stream order only. Where its
//! pair holds such memory, the pair is put aside and a new one begun; [`Heap::join_pairs`] brings them together once the
//! stream has passed.

use super::Heap;
use crate::blocks::{BlockId, Kind, State};
use crate::error::Result;
use crate::ids::PoolId;
use crate::ids::StreamId;
use crate::pools::PoolStats;
use crate::rounding::SMALL_LIMIT;
use crate::stats::Class;
use crate::views::ViewId;

impl Heap {
    /// Whether a pool is part of a private pool, or of nothing.
    pub(crate) fn is_private(&self, pool: u32) -> bool {
        self.pools[pool as usize].private
    }

    /// The private pool that a pool is part of; [`PoolId::NONE`] if it serves everyone.
    pub(crate) fn owner_of(&self, pool: u32) -> PoolId {
        if !self.is_private(pool) {
            return PoolId::NONE;
        }
        let found = self.private_pairs.iter().find(|(.., large)| *large == pool & !1);
        found.map_or(PoolId::NONE, |(owner, ..)| *owner)
    }

    /// The pools of a class whose memory serves everyone.
    pub(crate) fn shared_pools(&self, class: Class) -> Vec<usize> {
        let shared = |pool: &usize| self.pools[*pool].class == class && !self.is_private(*pool as u32);
        (0..self.pools.len()).filter(shared).collect()
    }

    /// The pool of a private pool that serves rounded `size` bytes on `stream`.
    pub(crate) fn private_pool(&mut self, owner: PoolId, stream: StreamId, size: u64, captured: bool) -> (u32, Class) {
        let class = Class::of(size <= SMALL_LIMIT);
        let found = self.private_pairs.iter().rev().find(|(of, on, _)| *of == owner && *on == stream);
        let usable = found.filter(|(.., large)| !(captured && self.pools[*large as usize].in_stream_order));
        let large = match usable {
            Some((.., large)) => {
                let large = *large;
                self.pools[large as usize].ended = false;
                large
            }
            None => {
                let large = self.add_pair(stream, true);
                self.private_pairs.push((owner, stream, large));
                large
            }
        };
        (large + class as u32, class)
    }

    /// Notes a block that a private pool has just handed out, in a capture or not.
    pub(crate) fn handed_out_privately(&mut self, id: BlockId, owner: PoolId, captured: bool) {
        let capture = self.private.get(owner).map_or(0, |pool| pool.capture);
        let block = &mut self.blocks[id];
        block.capture = if captured { capture } else { 0 };
        // Freeing it takes more than merging.
        block.has_uses = true;
        if block.kind == Kind::View {
            self.views.pin(ViewId(block.segment), owner);
        }
        if captured {
            self.private.is_captured(owner);
        }
    }

    /// A block is being freed. If it is of a private pool, and was handed out or is freed outside of captures, work of its
    /// stream may still use it, and no graph may take it. What one capture has handed out and another frees may be taken, as
    /// in PyTorch: graphs that share a pool are launched in the order of their captures, one after the other.
    pub(crate) fn freed_privately(&mut self, id: BlockId) {
        let block = self.blocks[id];
        let capture = self.private.get(self.owner_of(block.pool)).map_or(0, |pool| pool.capture);
        let pool = &mut self.pools[(block.pool & !1) as usize];
        // A stream that has ended gives its memory no order.
        if pool.private && !pool.ended && (block.capture == 0 || capture == 0) {
            pool.in_stream_order = true;
        }
    }

    /// The streams on which memory of a private pool lies free in stream order only.
    pub(crate) fn streams_to_pass(&self, owner: PoolId) -> Vec<StreamId> {
        let open = |large: u32| self.pools[large as usize].in_stream_order;
        let pairs = self.private_pairs.iter().filter(|(of, _, large)| *of == owner && open(*large));
        let mut streams: Vec<_> = pairs.map(|(_, stream, _)| *stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// The GPU has passed all that a stream was given: of a private pool, what lies free on it serves captures too.
    pub(crate) fn join_pairs(&mut self, owner: PoolId, stream: StreamId) {
        let of_stream = |(of, on, _): &&(PoolId, StreamId, u32)| *of == owner && *on == stream;
        let pairs: Vec<u32> = self.private_pairs.iter().filter(of_stream).map(|(.., large)| *large).collect();
        let Some((&newest, older)) = pairs.split_last() else { return };
        for &large in older {
            self.move_pair(large, newest, false);
            self.private_pairs.retain(|(.., of)| *of != large);
        }
        self.pools[newest as usize].in_stream_order = false;
    }

    /// The memory of a private pool that was released becomes that of its streams, where others may take it as they take
    /// any other: at once if the device has `passed`. Live blocks go on as any other.
    pub(crate) fn dissolve_private(&mut self, owner: PoolId, passed: bool) {
        for (_, stream, large) in self.private_pairs.extract_if(.., |(of, ..)| *of == owner).collect::<Vec<_>>() {
            let ended = self.pools[large as usize].ended;
            let known = self.pool_of.contains_key(&stream);
            let to = self.stream_pool(stream);
            let pool = &mut self.pools[to as usize];
            // What is left of an ended stream does not bring it back.
            pool.ended = ended && (pool.ended || !known);
            self.move_pair(large, to, passed || ended);
        }
        self.views.unpin(owner);
        self.private.remove(owner);
    }

    /// Everything in two pools, large and small, becomes part of two others.
    fn move_pair(&mut self, from: u32, to: u32, passed: bool) {
        let of_pair = |(id, block): (BlockId, &crate::blocks::Block)| (block.pool & !1 == from).then_some(id);
        let blocks: Vec<BlockId> = self.blocks.iter().filter_map(of_pair).collect();
        for segment in self.segments.iter_mut().flatten().filter(|segment| segment.pool & !1 == from) {
            segment.pool = to + (segment.pool & 1);
        }
        // What is not free first: free blocks merge with their neighbours.
        let (free, other): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|id| self.blocks[*id].state == State::Free);
        for id in other {
            let class = self.blocks[id].pool & 1;
            if self.blocks[id].state == State::Unmapped {
                let key = (self.blocks[id].address, id);
                self.pools[(from + class) as usize].unmapped.remove(&key);
                self.pools[(to + class) as usize].unmapped.insert(key);
            }
            self.blocks[id].pool = to + class;
        }
        let epoch = self.pools[to as usize].epoch;
        for id in free {
            let block = self.blocks[id];
            // A neighbour may have absorbed it.
            if block.state != State::Free || block.pool & !1 != from {
                continue;
            }
            if block.kind == Kind::Home {
                self.blocks[id].freed_at = if passed { 0 } else { epoch };
            }
            let id = self.hand_over(id, to + (block.pool & 1));
            if block.pool & 1 == 1 && block.kind == Kind::Home {
                // Its other parts may have been in the pair that it came to.
                self.return_slab(id);
            }
        }
        if passed {
            self.views.move_uses(from, None);
        } else {
            self.views.move_uses(from, Some((to, epoch)));
            self.pools[to as usize].freed_in_epoch = true;
        }
        let order = self.pools[from as usize].in_stream_order;
        self.pools[to as usize].in_stream_order |= order;
        self.vacant_pools.push(from);
    }

    /// What a private pool holds.
    pub(crate) fn private_stats(&self, owner: PoolId) -> Result<PoolStats> {
        let mut stats = self.private.stats(owner)?;
        let of_pool = |large: u32| self.private_pairs.iter().any(|(of, _, pair)| *of == owner && *pair == large);
        for (_, block) in self.blocks.iter().filter(|(_, block)| of_pool(block.pool & !1)) {
            let stitched = block.kind == Kind::View;
            // The bytes of a stitched block are those of its pieces.
            match block.state {
                State::Allocated | State::Pending => {
                    stats.active_bytes += block.size;
                    if !stitched {
                        stats.reserved_bytes += block.size;
                    }
                    if block.state == State::Allocated {
                        stats.allocations += 1;
                        stats.allocated_bytes += block.size;
                    }
                }
                State::Free | State::Piece => stats.reserved_bytes += block.size,
                State::Vacant | State::Unmapped => {}
            }
        }
        Ok(stats)
    }

    /// The rules of private pools that always hold.
    pub(super) fn check_private(&self) -> std::result::Result<(), String> {
        for (owner, stream, large) in &self.private_pairs {
            let pool = &self.pools[*large as usize];
            if !pool.private
                || pool.stream != *stream
                || self.owner_of(*large) != *owner
                || self.private.get(*owner).is_none()
            {
                return Err(format!("a pair of private pool {owner} is not its own: {large}"));
            }
        }
        for large in &self.vacant_pools {
            if self.blocks.iter().any(|(_, block)| block.pool & !1 == *large) {
                return Err(format!("a block is part of vacant pool {large}"));
            }
        }
        for (id, block) in self.blocks.iter().filter(|(_, block)| self.is_private(block.pool)) {
            let owner = self.owner_of(block.pool);
            let live = matches!(block.state, State::Allocated | State::Pending);
            let pinned = |view: u32| self.views.get(ViewId(view)).is_some_and(|view| view.pins.contains(&owner));
            if live && block.kind == Kind::View && !pinned(block.segment) {
                return Err(format!("the view of {id:?} {block:?} is not pinned"));
            }
            if self.private.segments(owner).is_some() && block.kind != Kind::Malloc {
                return Err(format!("{id:?} {block:?} of private pool {owner} is in no segment of its own"));
            }
            if block.state == State::Allocated && !block.has_uses {
                return Err(format!("{id:?} {block:?} would be freed as any other"));
            }
        }
        let stray = self.views.iter().flat_map(|(_, view)| &view.pins).find(|pin| self.private.get(**pin).is_none());
        stray.map_or(Ok(()), |pin| Err(format!("a view is pinned by private pool {pin}, which is no more")))
    }
}
