//! A pool of stream-ordered memory: the bytes that a request gets, and the growth of the pool.
//!
//! Owns: the blocks of a pool, and the rules of reuse. Callers handle captures and costs.
//!
//! CUDA documents when freed memory may serve a stream ("CUDA Programming Guide", Stream-Ordered Memory Allocator), but
//! not how the driver divides a pool. These rules are the simplest ones that hold as much memory as an H200's driver
//! did on recorded jobs (docs/decisions/0051-stream-ordered-pools.md):
//! - a pool is one range of addresses. The pool grows in steps of 32 MiB, directly after the first block that is
//!   followed by enough addresses without memory. If this block is free, the pool grows by the bytes that the block
//!   lacks;
//! - free pages of 32 MiB whose frees are complete move to the addresses at which the pool grows, before the pool takes
//!   more memory from the device;
//! - the smallest free block that fits serves a request, the lowest of several such blocks; the rest of the block stays
//!   free;
//! - free neighbours merge if the same stream freed them, or if both frees are complete.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rustc_hash::FxHashMap;

use super::completion::Completion;
use super::streams::Timeline;
use crate::bookkeeping::{Answer, Piece, Refusal};
use seamalloc_driver::{PoolAttribute, StreamId};

/// The unit in bytes in which a pool's memory comes, moves and goes. On an H200 every figure of a pool is a multiple of
/// this unit.
pub(super) const STEP: u64 = 32 << 20;
/// The unit of sizes and addresses of allocations, in bytes.
const UNIT: u64 = 512;

/// The record of a free: the stream, and the operation (point) in this stream after which the block may be used.
#[derive(Clone, Debug)]
struct Freed {
    /// The stream; `None` if the free is complete, so that every stream may use the block.
    on: Option<StreamId>,
    /// The number of the free (its point) among the stream's operations.
    point: u64,
    done: Completion,
    /// For each other stream, its last operation (point) for which the freeing stream had waited at the free.
    before: Vec<(StreamId, u64)>,
}

impl Freed {
    /// Returns the record for free memory that no work uses.
    fn idle() -> Self {
        Self { on: None, point: 0, done: Completion::default(), before: Vec::new() }
    }
}

#[derive(Debug)]
struct Block {
    size: u64,
    /// The record of how the block was freed; `None` if the block is allocated.
    free: Option<Freed>,
}

/// The memory that a request gets, and the change of the pool.
pub(super) struct Taken {
    pub(super) address: u64,
    /// The size in bytes, rounded up.
    pub(super) size: u64,
    /// The bytes by which the pool has grown for the request.
    pub(super) grown: u64,
    /// The bytes of the pool's free pages that were moved together for the request.
    pub(super) moved: u64,
    /// Whether the pool has grown for the first time.
    pub(super) first: bool,
}

#[derive(Debug)]
pub(super) struct Pool {
    base: u64,
    /// The number of the pool's addresses.
    addresses: u64,
    /// The number of the pool's physical memory.
    memory: u64,
    pub(super) release_threshold: u64,
    /// The blocks by address. Addresses without memory belong to no block.
    blocks: BTreeMap<u64, Block>,
    /// The free blocks of each stream and, under `None`, the idle blocks, which every stream may use. Each set is
    /// ordered by size and address.
    free: FxHashMap<Option<StreamId>, BTreeSet<(u64, u64)>>,
    /// The last byte of each freed block whose free may be incomplete, by stream, in the order of the frees.
    pending: FxHashMap<StreamId, VecDeque<(Completion, u64)>>,
    reserved: [u64; 2],
    used: [u64; 2],
    has_grown: bool,
    /// Whether the pool ends with its last allocation.
    pub(super) destroyed: bool,
}

impl Pool {
    /// Makes a pool without memory.
    pub(super) fn new(base: u64, addresses: u64, memory: u64, release_threshold: u64) -> Self {
        Self {
            base,
            addresses,
            memory,
            release_threshold,
            blocks: BTreeMap::new(),
            free: FxHashMap::default(),
            pending: FxHashMap::default(),
            reserved: [0; 2],
            used: [0; 2],
            has_grown: false,
            destroyed: false,
        }
    }

    /// Returns the pool's first address, and the number of its addresses.
    pub(super) fn addresses(&self) -> (u64, u64) {
        (self.base, self.addresses)
    }

    /// Returns the physical memory of the pool at an address.
    pub(super) fn piece(&self, address: u64, size: u64) -> Piece {
        Piece { memory: self.memory, offset: address - self.base, size }
    }

    pub(super) fn attribute(&self, attribute: PoolAttribute) -> u64 {
        let ([reserved, reserved_high], [used, used_high]) = (self.reserved, self.used);
        match attribute {
            PoolAttribute::Reserved => reserved,
            PoolAttribute::ReservedHigh => reserved_high,
            PoolAttribute::Used => used,
            PoolAttribute::UsedHigh => used_high,
        }
    }

    /// Allocates `size` bytes for a stream. `take` takes physical memory for the pool.
    pub(super) fn malloc(
        &mut self,
        size: u64,
        stream: StreamId,
        timeline: &mut Timeline,
        take: impl FnOnce(u64) -> Answer<()>,
        too_large: impl Fn() -> Refusal,
    ) -> Answer<Taken> {
        let size = size.checked_next_multiple_of(UNIT).ok_or_else(&too_large)?;
        self.gather(timeline.now());
        if let Some(address) = self.fit(size, stream, timeline) {
            return Ok(self.hand_out(address, size));
        }
        let (start, bytes) = self.growth(size, stream).ok_or_else(&too_large)?;
        let pages = self.movable(start, bytes / STEP);
        let moved = pages.len() as u64 * STEP;
        if moved < bytes
            && let Err(refusal) = take(bytes - moved)
        {
            // The last of CUDA's three policies of reuse (internal dependencies) takes a block that any stream freed,
            // and makes the requesting stream wait.
            let (address, of, freed) = self.of_any_stream(size).ok_or(refusal)?;
            timeline.wait_for_free(stream, (of, freed.point), &freed.before, &freed.done);
            return Ok(self.hand_out(address, size));
        }
        pages.into_iter().for_each(|page| self.cut(page, page + STEP));
        let first = !std::mem::replace(&mut self.has_grown, true);
        raise(&mut self.reserved, bytes - moved);
        let before = self.blocks.range(..start).next_back();
        let joins = before.filter(|(at, block)| *at + block.size == start).and_then(|(_, block)| block.free.clone());
        let own = joins.filter(|freed| freed.on == Some(stream));
        // The new memory joins the free block before it if the requesting stream freed that block. Otherwise it becomes
        // idle.
        self.insert(start, bytes, own.unwrap_or_else(Freed::idle));
        let address = self.fit(size, stream, timeline).ok_or_else(too_large)?;
        Ok(Taken { first, grown: bytes - moved, moved, ..self.hand_out(address, size) })
    }

    /// Frees an allocation on a stream, at the current point of the stream.
    pub(super) fn free(&mut self, address: u64, stream: StreamId, timeline: &mut Timeline) {
        let Some(size) = self.blocks.remove(&address).map(|block| block.size) else { return };
        self.used[0] -= size;
        let (point, done, before) = timeline.mark_free(stream);
        self.insert(address, size, Freed { on: Some(stream), point, done, before });
        self.gather(timeline.now());
    }

    /// Gives back free memory that no work uses, the highest addresses first, in steps of 32 MiB, as long as at least
    /// `keep` bytes are left. Returns the bytes given back.
    pub(super) fn trim(&mut self, keep: u64, now: u64) -> u64 {
        self.gather(now);
        let mut most = self.reserved[0].saturating_sub(keep) / STEP * STEP;
        let mut idle: Vec<(u64, u64)> = self.free.get(&None).into_iter().flatten().copied().collect();
        idle.sort_unstable_by_key(|(_, address)| std::cmp::Reverse(*address));
        let mut given = 0;
        for (size, address) in idle {
            let (start, end) = (address.next_multiple_of(STEP), (address + size) / STEP * STEP);
            let bytes = end.saturating_sub(start).min(most);
            if bytes == 0 {
                continue;
            }
            self.cut(end - bytes, end);
            most -= bytes;
            given += bytes;
        }
        self.reserved[0] -= given;
        given
    }

    /// Returns whether the pool has no allocation.
    pub(super) fn is_unused(&self) -> bool {
        self.used[0] == 0
    }

    /// Makes memory idle once its frees are complete.
    fn gather(&mut self, now: u64) {
        let mut passed = Vec::new();
        for (stream, freed) in &mut self.pending {
            while freed.front_mut().is_some_and(|(done, _)| done.is_done(now)) {
                passed.extend(freed.pop_front().map(|(_, last)| (*stream, last)));
            }
        }
        self.pending.retain(|_, freed| !freed.is_empty());
        for (stream, last) in passed {
            let Some((&address, block)) = self.blocks.range_mut(..=last).next_back() else { continue };
            let of_stream = block.free.as_mut().filter(|freed| freed.on == Some(stream));
            // The block at `last` may meanwhile contain memory that was freed later. That free must be complete too.
            if of_stream.is_some_and(|freed| freed.done.is_done(now)) && address + block.size > last {
                let size = block.size;
                self.remove(address);
                self.insert(address, size, Freed::idle());
            }
        }
    }

    /// Returns the smallest free block that the stream may use without a new wait (CUDA's policies of event
    /// dependencies and opportunistic reuse), the lowest of several such blocks; `None` if there is none.
    fn fit(&self, size: u64, stream: StreamId, timeline: &Timeline) -> Option<u64> {
        let mut best: Option<(u64, u64)> = None;
        for (of, blocks) in &self.free {
            let known = match of {
                None => u64::MAX,
                Some(of) if *of == stream => u64::MAX,
                Some(of) => timeline.comes_after(stream, *of),
            };
            if known == 0 {
                continue;
            }
            let ordered =
                |address: &u64| known == u64::MAX || self.freed(*address).is_some_and(|freed| freed.point <= known);
            let found = blocks.range((size, 0)..).find(|(_, address)| ordered(address)).copied();
            best = best.into_iter().chain(found).min();
        }
        best.map(|(_, address)| address)
    }

    /// Returns the smallest free block of any stream: its address, its stream and the record of its free.
    fn of_any_stream(&self, size: u64) -> Option<(u64, StreamId, Freed)> {
        let fits = self.free.iter().filter_map(|(of, blocks)| Some(((*of)?, *blocks.range((size, 0)..).next()?)));
        let (of, (_, address)) = fits.min_by_key(|(_, block)| *block)?;
        Some((address, of, self.freed(address)?.clone()))
    }

    fn freed(&self, address: u64) -> Option<&Freed> {
        self.blocks.get(&address)?.free.as_ref()
    }

    /// Returns the address and the bytes of the growth that makes a block of `size` bytes for a stream. The growth lies
    /// directly after the first block that has enough addresses after it. If this block is free for the stream, the
    /// growth is smaller by the block's bytes.
    fn growth(&self, size: u64, stream: StreamId) -> Option<(u64, u64)> {
        let (mut at, mut free) = (self.base, 0);
        let blocks = self.blocks.iter().map(|(start, block)| (*start, Some(block)));
        for (start, block) in blocks.chain([(self.base + self.addresses, None)]) {
            let bytes = (size - size.min(free)).checked_next_multiple_of(STEP)?;
            if bytes > 0 && bytes <= start - at {
                return Some((at, bytes));
            }
            let Some(Block { size, free: freed }) = block else { break };
            let helps = freed.as_ref().is_some_and(|freed| freed.on.is_none_or(|of| of == stream));
            free = if helps { *size } else { 0 };
            at = start + size;
        }
        None
    }

    /// Returns at most `most` of the highest free pages that no work uses, without pages of a block that ends at
    /// `start`.
    fn movable(&self, start: u64, most: u64) -> Vec<u64> {
        let idle = self.free.get(&None).into_iter().flatten();
        let mut idle: Vec<(u64, u64)> = idle.map(|(size, address)| (*address, address + size)).collect();
        idle.retain(|(_, end)| *end != start);
        idle.sort_unstable();
        let pages = idle.into_iter().rev().flat_map(|(from, end)| {
            let pages = from.div_ceil(STEP)..end / STEP;
            pages.rev().map(|page| page * STEP)
        });
        pages.take(usize::try_from(most).unwrap_or(usize::MAX)).collect()
    }

    /// Removes the memory from `start` to `end`, a part of an idle block.
    fn cut(&mut self, start: u64, end: u64) {
        let Some((&address, block)) = self.blocks.range(..=start).next_back() else { return };
        let size = block.size;
        self.remove(address);
        self.insert(address, start - address, Freed::idle());
        self.insert(end, address + size - end, Freed::idle());
    }

    /// Hands out the front of a free block.
    fn hand_out(&mut self, address: u64, size: u64) -> Taken {
        if let Some((whole, freed)) = self.remove(address)
            && whole > size
        {
            if let Some(of) = freed.on {
                // The block's entry in `pending` stays valid, since it names the block's last byte, which is still
                // free.
                debug_assert!(self.pending.contains_key(&of) || freed.done.clone().known_time().is_some());
            }
            self.index(address + size, whole - size, freed);
        }
        self.blocks.insert(address, Block { size, free: None });
        raise(&mut self.used, size);
        Taken { address, size, grown: 0, moved: 0, first: false }
    }

    /// Removes a free block from the tables. Returns the block's size, and the record of how it was freed.
    fn remove(&mut self, address: u64) -> Option<(u64, Freed)> {
        let Block { size, free } = self.blocks.remove(&address)?;
        let freed = free?;
        if let Some(blocks) = self.free.get_mut(&freed.on) {
            blocks.remove(&(size, address));
            if blocks.is_empty() {
                self.free.remove(&freed.on);
            }
        }
        Some((size, freed))
    }

    /// Adds free memory and merges it with its neighbours.
    fn insert(&mut self, mut address: u64, mut size: u64, mut freed: Freed) {
        if size == 0 {
            return;
        }
        let same = |other: &Block, on| other.free.as_ref().is_some_and(|other| other.on == on);
        let before = self.blocks.range(..address).next_back();
        let before =
            before.filter(|(at, block)| *at + block.size == address && same(block, freed.on)).map(|(at, _)| *at);
        let behind = self.blocks.get(&(address + size)).filter(|block| same(block, freed.on)).map(|_| address + size);
        for at in before.into_iter().chain(behind) {
            if let Some((more, other)) = self.remove(at) {
                address = address.min(at);
                size += more;
                if other.point > freed.point {
                    freed = other;
                }
            }
        }
        if let Some(stream) = freed.on {
            // The entry names the block by its last byte, which stays free the longest, since requests get the front of
            // a block.
            self.pending.entry(stream).or_default().push_back((freed.done.clone(), address + size - 1));
        }
        self.index(address, size, freed);
    }

    fn index(&mut self, address: u64, size: u64, freed: Freed) {
        self.free.entry(freed.on).or_default().insert((size, address));
        self.blocks.insert(address, Block { size, free: Some(freed) });
    }
}

/// Adds to a figure, and updates its peak.
fn raise([now, high]: &mut [u64; 2], by: u64) {
    *now += by;
    *high = (*high).max(*now);
}
