//! The memory of private pools. Such memory is kept apart from all other memory until the pool is released.
//!
//! Owns: the pools of each private pool, one pair for each stream, and how their memory becomes public again.
//!
//! ```text
//! private pool (0, 7)   stream A: large, small    stream B: large, small    an older pair of A
//! ```
//! A captured request may be replayed on any stream. So the request takes no memory that is free in stream order only,
//! which means that only later work of one stream may reuse it. If the private pool's pair holds such memory, the pair
//! is set aside and a new pair is begun. [`Heap::join_pairs`] joins the pairs once the GPU has done the stream's work.

use super::table::PrivatePair;
use crate::error::Result;
use crate::fallible::TryCollect;
use crate::heap::blocks::block::{Block, Freeing, Kind, State};
use crate::heap::blocks::layout::Layout;
use crate::heap::tables::Heap;
use crate::ids::{BlockId, Class, PoolId, PoolIndex, StreamId};
use crate::report::pool::PoolStats;

/// The blocks of a pair of pools that are to move to another pair.
struct ToMove {
    free: Vec<BlockId>,
    other: Vec<BlockId>,
}

impl Heap {
    /// Returns the pool (of free blocks) from which the private pool `owner` serves a rounded size of `size` bytes on
    /// `stream`. `last` is the result of [`Self::private_pair`].
    pub(crate) fn private_pool(
        &mut self,
        owner: PoolId,
        stream: StreamId,
        last: Option<PoolIndex>,
        size: u64,
        captured: bool,
    ) -> Result<(PoolIndex, Class)> {
        let class = if self.pools.private.segments(owner).is_some() { Layout::PYTORCH } else { self.rules.layout }
            .class_of(size);
        let large = match last.filter(|large| !(captured && self.pools[*large].in_stream_order)) {
            Some(large) => {
                self.pools[large].ended = false;
                large
            }
            None => {
                let number = last.and_then(|large| self.pools[large].number);
                self.pools.pairs.try_reserve(1)?;
                let large = self.add_private_pair(owner, stream)?;
                self.pools[large].number = number;
                self.pools.pairs.push(PrivatePair { owner, stream, large });
                large
            }
        };
        Ok((large.of(class), class))
    }

    /// Makes room to note that a private pool hands out a block.
    pub(crate) fn reserve_private(&mut self, id: BlockId) -> Result<()> {
        let block = &self.blocks[id];
        Ok(if block.kind == Kind::View { self.home.views_mut().reserve_pin(block.view()) } else { Ok(()) }?)
    }

    /// Notes that a private pool has just handed out a block. `captured` says whether the request was captured.
    pub(crate) fn handed_out_privately(&mut self, id: BlockId, owner: PoolId, captured: bool) {
        let capture = self.pools.private.get(owner).map_or(0, |pool| pool.capture);
        // The block may be part of a checkpoint, which is restored even after its stream has ended.
        let ended = self.pools[self.blocks[id].pool.large()].ended;
        let block = &mut self.blocks[id];
        block.capture = if captured { capture } else { 0 };
        block.freeing = if ended { Freeing::OfNoStream } else { Freeing::BySteps };
        if block.kind == Kind::View {
            self.home.views_mut().pin(block.view(), owner);
        }
        if captured {
            self.pools.private.set_captured(owner);
        }
    }

    /// Notes that a block is being freed. If a block of a private pool was handed out or is freed outside of captures,
    /// the block's stream may still use it, so no graph may take it. A graph may take a block that one capture has
    /// handed out and another capture frees, as in PyTorch: graphs that share a pool are launched in the order of their
    /// captures.
    pub(crate) fn freed_privately(&mut self, id: BlockId) {
        let block = self.blocks[id];
        let large = block.pool.large();
        let capture = self.pools.private.get(self.owner_of(large)).map_or(0, |pool| pool.capture);
        let pool = &self.pools[large];
        // All work of an ended stream is done, so graphs may take its memory.
        if !pool.private || self.has_no_stream(id) || (block.capture != 0 && capture != 0) {
            return;
        }
        // Within a capture, a block at home or of a view (only such memory may change its pool) is moved to a second
        // pair of pools, so that the first pair's free memory still serves the capture.
        let is_alone = capture != 0 && !pool.in_stream_order && matches!(block.kind, Kind::Home | Kind::View);
        let aside = if is_alone { self.pair_beside(large) } else { None };
        // A view notes the pools that have freed its blocks, and needs room to note a pool of the second pair.
        let has_room = |aside: &PoolIndex| {
            block.kind != Kind::View || self.home.views_mut().reserve_use(block.view(), *aside).is_ok()
        };
        match aside.filter(has_room) {
            Some(aside) => self.set_aside(id, aside.of(block.pool.class())),
            None => self.pools[large].in_stream_order = true,
        }
    }

    /// Adds a pair of pools for a private pool.
    fn add_private_pair(&mut self, owner: PoolId, stream: StreamId) -> Result<PoolIndex> {
        let large = self.add_pair(stream, true)?;
        let apart = self.pools.private.is_apart(owner);
        [large, large.small()].into_iter().for_each(|pool| self.pools[pool].apart = apart);
        Ok(large)
    }

    /// Returns a second pair of pools for the stream of `large`. The second pair's free memory may be reused only by
    /// later work of that stream, and by no capture. Adds a pair if there is no such pair. Returns `None` if the host
    /// has no memory for a new pair.
    fn pair_beside(&mut self, large: PoolIndex) -> Option<PoolIndex> {
        let at = self.pools.pairs.iter().position(|pair| pair.large == large)?;
        let PrivatePair { owner, stream, .. } = self.pools.pairs[at];
        let is_beside = |pair: &&PrivatePair| {
            pair.owner == owner && pair.stream == stream && self.pools[pair.large].in_stream_order
        };
        if let Some(pair) = self.pools.pairs[..at].iter().find(is_beside) {
            return Some(pair.large);
        }
        self.pools.pairs.try_reserve(1).ok()?;
        let aside = self.add_private_pair(owner, stream).ok()?;
        self.pools[aside].number = self.pools[large].number;
        self.pools[aside].in_stream_order = true;
        // Of a stream's several pairs of pools, the last in the list serves its requests, so the new pair is inserted
        // before the present one.
        self.pools.pairs.insert(at, PrivatePair { owner, stream, large: aside });
        Some(aside)
    }

    /// Moves a block that is being freed to another pool of the block's stream.
    fn set_aside(&mut self, id: BlockId, pool: PoolIndex) {
        self.assign(id, pool);
        let is_view = self.blocks[id].kind == Kind::View;
        let mut piece = if is_view { self.blocks[id].left } else { BlockId::NONE };
        while piece.is_some() {
            self.assign(piece, pool);
            piece = self.blocks[piece].right;
        }
    }

    /// Returns the streams for which a private pool has free memory that only later work of the same stream may reuse.
    pub(crate) fn streams_to_pass(&self, owner: PoolId) -> Result<Vec<StreamId>> {
        let open = |pair: &&PrivatePair| pair.owner == owner && self.pools[pair.large].in_stream_order;
        let mut streams = self.pools.pairs.iter().filter(open).map(|pair| pair.stream).try_to_vec()?;
        streams.sort_unstable();
        streams.dedup();
        Ok(streams)
    }

    /// Joins the pairs of pools that a private pool has for one stream. The GPU has passed all work of the stream, so
    /// the stream's free memory serves captures too.
    ///
    /// # Errors
    /// The host has no memory for a list of the pool's blocks. Pairs that were joined before the error stay joined.
    pub(crate) fn join_pairs(&mut self, owner: PoolId, stream: StreamId) -> Result<()> {
        let of_stream = |pair: &&PrivatePair| pair.owner == owner && pair.stream == stream;
        while let Some(newest) = self.pools.pairs.iter().rfind(of_stream).map(|pair| pair.large) {
            let oldest = self.pools.pairs.iter().find(of_stream).map_or(newest, |pair| pair.large);
            if oldest == newest {
                self.pools[newest].in_stream_order = false;
                break;
            }
            let blocks = self.blocks_to_move(oldest, newest)?;
            self.move_pair(oldest, newest, blocks, false);
            self.pools.pairs.retain(|pair| pair.large != oldest);
        }
        Ok(())
    }

    /// Joins each pair of pools of an ended stream to the pair that now serves the stream's handle. All work of an
    /// ended stream is done.
    ///
    /// # Errors
    /// The errors of [`Self::join_pairs`].
    pub(crate) fn join_ended_pairs(&mut self, owner: PoolId) -> Result<()> {
        let serves = |heap: &Self, pair: &PrivatePair| heap.private_pair(owner, pair.stream) == Some(pair.large);
        let is_over = |heap: &Self, pair: &PrivatePair| {
            pair.owner == owner && heap.pools[pair.large].ended && !serves(heap, pair)
        };
        while let Some(pair) = self.pools.pairs.iter().copied().find(|pair| is_over(self, pair)) {
            let Some(to) = self.private_pair(owner, pair.stream) else { return Ok(()) };
            let blocks = self.blocks_to_move(pair.large, to)?;
            self.move_pair(pair.large, to, blocks, true);
            self.pools.pairs.retain(|other| other.large != pair.large);
        }
        Ok(())
    }

    /// Moves the memory of a released private pool to the public pools of its streams. Other streams may take this
    /// memory like other public memory, or at once if `passed` says that the device has passed all work. Live blocks
    /// are freed as usual. The memory of a sleeping pool is not moved while any block of the pool is live.
    ///
    /// # Errors
    /// The host has no memory for a list. The pool stays a released pool, with the memory that was not moved yet.
    pub(crate) fn merge_private_pool(&mut self, owner: PoolId, passed: bool) -> Result<()> {
        if !self.forget_asleep(owner)? {
            return Ok(());
        }
        while let Some(at) = self.pools.pairs.iter().position(|pair| pair.owner == owner) {
            let PrivatePair { stream, large, .. } = self.pools.pairs[at];
            let ended = self.pools[large].ended;
            let known = self.pools.of_stream.get(&stream).copied();
            let to = self.stream_pool(stream)?;
            // A stream that has ended stays ended when its public pools get this memory.
            let had_ended = known.is_none_or(|known| self.pools[known].ended);
            self.pools[to].ended = ended && had_ended;
            if had_ended {
                // The stream itself has made no public request yet, so only the private pool has its number.
                self.pools[to].number = self.pools[large].number;
            }
            let blocks = self.blocks_to_move(large, to)?;
            // The pair of pools is removed before its blocks move, so that observers are not told of the moves.
            self.pools.pairs.remove(at);
            self.move_pair(large, to, blocks, passed || ended);
        }
        self.home.views_mut().unpin(owner);
        self.pools.private.remove(owner);
        Ok(())
    }

    /// Returns every block that is to move from two pools, large and small, to two other pools. Makes room in the other
    /// pools.
    fn blocks_to_move(&mut self, from: PoolIndex, to: PoolIndex) -> Result<ToMove> {
        let of_pair = |id: BlockId, block: &Block| block.pool.large() == from && id.is_some();
        let is_free = |block: &Block| block.state == State::Free;
        let ids = |free: bool| {
            let of_pair = self.blocks.iter().filter(move |(id, block)| of_pair(*id, block) && is_free(block) == free);
            of_pair.map(|(id, _)| id).try_to_vec()
        };
        let blocks = ToMove { free: ids(true)?, other: ids(false)? };
        for class in Class::ALL {
            let unmapped = self.pools[from.of(class)].unmapped.len();
            self.pools[to.of(class)].unmapped.reserve(unmapped)?;
        }
        Ok(blocks)
    }

    /// Moves every block of two pools, large and small, to two other pools.
    fn move_pair(&mut self, from: PoolIndex, to: PoolIndex, blocks: ToMove, passed: bool) {
        let ToMove { free, other } = blocks;
        self.home.move_segments(from, to);
        // Blocks that are not free are moved first, since free blocks merge with their neighbours.
        for id in other {
            let Block { address, pool, state, .. } = self.blocks[id];
            let new = to.of(pool.class());
            if state == State::Unmapped {
                self.pools[pool].unmapped.remove(&(address, id));
                self.pools[new].unmapped.insert((address, id));
            }
            self.blocks[id].pool = new;
        }
        let epoch = self.pools[to].epoch;
        for id in free {
            let block = self.blocks[id];
            // A neighbour may have absorbed the block.
            if block.state != State::Free || block.pool.large() != from {
                continue;
            }
            if block.kind == Kind::Home {
                self.blocks[id].freed_at = if passed { 0 } else { epoch };
            }
            let id = self.hand_over(id, to.of(block.pool.class()));
            if block.pool.is_small() && block.kind == Kind::Home {
                // The block may have merged into a whole slab, if the slab's other parts were in the new pools.
                self.return_slab(id);
            }
        }
        if passed {
            self.home.views_mut().move_uses(from, None);
        } else {
            self.home.views_mut().move_uses(from, Some((to, epoch)));
            self.pools[to].freed_in_epoch = true;
            self.pools[to].used_by_others |= self.pools[from].used_by_others;
        }
        self.pools[to].in_stream_order |= self.pools[from].in_stream_order;
        self.pools.vacant.push(from);
    }

    /// Returns the statistics of a private pool. The method walks all blocks.
    pub(crate) fn private_stats(&self, owner: PoolId) -> Result<PoolStats> {
        let mut stats = self.pools.private.stats(owner)?;
        for (_, block) in self.blocks.iter().filter(|(_, block)| self.is_owned_by(block.pool, owner)) {
            let stitched = block.kind == Kind::View;
            // The memory of a stitched block is counted with its pieces, which are blocks too.
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
                State::Free | State::Piece | State::Slack | State::Retired => stats.reserved_bytes += block.size,
                State::Vacant | State::Unmapped => {}
            }
        }
        stats.asleep_bytes = self.bytes_asleep(owner);
        stats.reserved_bytes = stats.reserved_bytes.saturating_sub(stats.asleep_bytes);
        Ok(stats)
    }
}
