//! Segments, the blocks that tile them, and the pools whose free blocks serve requests: all that the hot path touches.
//!
//! Owns: split, merge, address lookup, pools, and the statistics of them. It never calls the driver: strategies do, and
//! tell the heap what they got.

use crate::blocks::{Block, BlockId, BlockTable, State};
use crate::driver::{Call, DriverError, DriverResult, Handle, Status, StreamId};
use crate::error::{Error, Result};
use crate::free_index::FreeIndex;
use crate::observer::{Action, Event, Observer};
use crate::rounding::{MIN_BLOCK, SMALL_LIMIT};
use crate::snapshot::{BlockInfo, BlockState, SegmentInfo};
use crate::stats::{Class, Counters};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The free blocks that requests of one stream and one class may take.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) stream: StreamId,
    pub(crate) class: Class,
    pub(crate) free: FreeIndex,
    /// Unmapped blocks by address.
    pub(crate) unmapped: BTreeSet<(u64, BlockId)>,
}

/// What stands behind a segment's addresses.
#[derive(Debug)]
pub(crate) enum Backing {
    /// One `malloc`.
    Malloc,
    /// A reservation in which each unit is mapped or not. The list ends at the last unit ever mapped.
    Expandable { unit: u64, units: Vec<Option<Handle>> },
}

/// A contiguous range of addresses. Its blocks tile it.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) pool: u32,
    pub(crate) backing: Backing,
    /// The block at its first byte. Splits and merges keep the id of the lower block, so it never changes.
    pub(crate) head: BlockId,
}

/// How a request finds its block, and what becomes of the rest: a strategy's rules as plain data, so that the hot path
/// calls nobody.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FitRules {
    /// A block at the growing edge of an expandable segment counts with the address space behind it.
    pub(crate) growing_edge: bool,
    /// Requests below it may not take a block of at least this size; larger ones are not split.
    pub(crate) max_split_size: u64,
    /// By how much a block may exceed a request of at least `max_split_size`.
    pub(crate) max_non_split_rounding: u64,
    /// The smallest rest that becomes a block of its own, by [`Class`].
    pub(crate) min_rest: [u64; 2],
    /// Requests of at least this size are not split from a larger block.
    pub(crate) no_split_from: u64,
    /// Whether the ages of free blocks matter.
    pub(crate) count_ages: bool,
}

/// A request on its way to a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Rounded bytes.
    pub(crate) size: u64,
    /// Bytes as asked for.
    pub(crate) requested: u64,
    pub(crate) pool: u32,
    pub(crate) class: Class,
}

/// All memory that an allocator holds.
pub(crate) struct Heap {
    pub(crate) blocks: BlockTable,
    pub(crate) pools: Vec<Pool>,
    pub(crate) segments: Vec<Option<Segment>>,
    pub(crate) counters: Counters,
    pub(crate) observer: Option<Box<dyn Observer>>,
    /// How often the pools of a class were searched, whatever the stream: the clock for the age of free blocks.
    pub(crate) searches: [u64; 2],
    /// Live allocations by address.
    addresses: FxHashMap<u64, BlockId>,
    /// The large pool of each stream; the small one is the next.
    pool_of: FxHashMap<StreamId, u32>,
    /// The stream asked for last and its large pool: most programs use one.
    last_pool: (StreamId, u32),
    /// Blocks of at least this size count as oversize.
    oversize_from: u64,
    /// Bytes held that are part of no block: a failed growth could not be undone yet. By [`Class`].
    unsettled: [u64; 2],
}

impl Heap {
    pub(crate) fn new(oversize_from: u64) -> Self {
        let mut heap = Self {
            blocks: BlockTable::new(),
            pools: Vec::new(),
            segments: Vec::new(),
            counters: Counters::default(),
            observer: None,
            searches: [0; 2],
            addresses: FxHashMap::default(),
            pool_of: FxHashMap::default(),
            last_pool: (StreamId::DEFAULT, 0),
            oversize_from,
            unsettled: [0; 2],
        };
        heap.add_pools(StreamId::DEFAULT);
        heap
    }

    /// Bytes held of the driver.
    pub(crate) fn reserved(&self) -> u64 {
        self.counters.reserved_bytes.current()
    }

    /// Bytes of host memory in the tables, about.
    pub(crate) fn host_bytes(&self) -> usize {
        const ADDRESS_ENTRY: usize = size_of::<(u64, BlockId)>() + 1;
        self.blocks.host_bytes()
            + self.addresses.capacity() * ADDRESS_ENTRY
            + self.pools.len() * (size_of::<Pool>() + size_of::<FreeIndex>() + 4 * 38 * 32)
            + self.segments.capacity() * size_of::<Option<Segment>>()
    }

    /// The pool that serves rounded `size` bytes on `stream`.
    pub(crate) fn pool_for(&mut self, stream: StreamId, size: u64) -> (u32, Class) {
        let class = Class::of(size <= SMALL_LIMIT);
        if self.last_pool.0 != stream {
            let pool = match self.pool_of.get(&stream) {
                Some(pool) => *pool,
                None => self.add_pools(stream),
            };
            self.last_pool = (stream, pool);
        }
        (self.last_pool.1 + class as u32, class)
    }

    fn add_pools(&mut self, stream: StreamId) -> u32 {
        let first = self.pools.len() as u32;
        for class in [Class::Large, Class::Small] {
            self.pools.push(Pool { stream, class, free: FreeIndex::new(), unmapped: BTreeSet::new() });
        }
        self.pool_of.insert(stream, first);
        first
    }

    /// Takes the block out of the free index that serves the request best, or answers [`BlockId::NONE`].
    pub(crate) fn fit(&mut self, request: &Request, rules: &FitRules) -> BlockId {
        if rules.count_ages {
            self.searches[request.class as usize] += 1;
        }
        let pool = &mut self.pools[request.pool as usize];
        let mut found = pool.free.best_fit(&self.blocks, request.size);
        if found.is_none() {
            return found;
        }
        if rules.growing_edge {
            // Only a block at an edge counts for more than its size, so only there can the next one be better.
            while room(&self.blocks, found) > self.blocks[found].size {
                let next = pool.free.successor(&self.blocks, found);
                if next.is_none() || room(&self.blocks, next) >= room(&self.blocks, found) {
                    break;
                }
                found = next;
            }
        }
        let size = self.blocks[found].size;
        let refused = if request.size < rules.max_split_size {
            size >= rules.max_split_size
        } else {
            size >= request.size.saturating_add(rules.max_non_split_rounding)
        };
        if refused {
            return BlockId::NONE;
        }
        pool.free.remove(&mut self.blocks, found);
        found
    }

    /// Hands out a block that is not in the free index any more; a large enough rest goes back as a free block.
    pub(crate) fn hand_out(&mut self, id: BlockId, request: &Request, rules: &FitRules) -> Result<u64> {
        let Block { address, size, segment, .. } = self.blocks[id];
        let was_split = self.blocks[id].is_split();
        let counted = self.counts_splits(segment);
        let class = request.class;
        let rest = size - request.size;
        let mut taken = size;
        if rest >= rules.min_rest[class as usize] && request.size < rules.no_split_from {
            let rest_block = Block::new(address + request.size, rest, request.pool, segment, State::Free);
            let Some(rest_id) = self.blocks.insert(rest_block) else {
                self.put_back(id);
                return Err(Error::Internal("the block table is full"));
            };
            taken = request.size;
            self.blocks[id].size = taken;
            self.blocks.link_after(id, rest_id);
            self.put_back(rest_id);
            if counted && was_split {
                self.counters.inactive_split_bytes.sub(class, taken);
            } else if counted {
                self.counters.inactive_split_bytes.add(class, rest);
                self.counters.inactive_split.add(class, 1);
            }
        } else if was_split && counted {
            self.counters.inactive_split_bytes.sub(class, size);
            self.counters.inactive_split.sub(class, 1);
        }
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.requested = request.requested;
        self.addresses.insert(address, id);
        self.counters.allocation.add(class, 1);
        self.counters.allocated_bytes.add(class, taken);
        self.counters.active.add(class, 1);
        self.counters.active_bytes.add(class, taken);
        self.counters.requested_bytes.add(class, request.requested);
        if taken >= self.oversize_from {
            self.counters.oversize_allocations.add(Class::Large, 1);
        }
        if self.observer.is_some() {
            self.emit(Action::Alloc, address, request.requested, request.pool);
        }
        Ok(address)
    }

    /// The live allocation that starts at `address`.
    pub(crate) fn live(&self, address: u64) -> Result<BlockId> {
        self.addresses.get(&address).copied().ok_or(Error::InvalidAddress { address })
    }

    /// The program frees the allocation at `address`: it is no longer allocated, but still active.
    pub(crate) fn free_requested(&mut self, address: u64) -> Result<BlockId> {
        let id = self.addresses.remove(&address).ok_or(Error::InvalidAddress { address })?;
        let Block { size, requested, pool, .. } = self.blocks[id];
        let class = self.pools[pool as usize].class;
        self.counters.allocation.sub(class, 1);
        self.counters.allocated_bytes.sub(class, size);
        if size >= self.oversize_from {
            self.counters.oversize_allocations.sub(Class::Large, 1);
        }
        if self.observer.is_some() {
            self.emit(Action::FreeRequested, address, requested, pool);
        }
        Ok(id)
    }

    /// Every stream has finished with a freed block: it merges with its free neighbours and can be handed out again.
    pub(crate) fn free_completed(&mut self, id: BlockId) {
        let Block { address, size, requested, pool, segment, .. } = self.blocks[id];
        let class = self.pools[pool as usize].class;
        if self.observer.is_some() {
            self.emit(Action::FreeCompleted, address, requested, pool);
        }
        self.blocks[id].state = State::Free;
        let (id, merged, merged_bytes) = self.merge_free(id);
        self.put_back(id);
        self.counters.active.sub(class, 1);
        self.counters.active_bytes.sub(class, size);
        self.counters.requested_bytes.sub(class, requested);
        if self.counts_splits(segment) {
            // The net change, as PyTorch counts it: one event, not one for each neighbour.
            let (added, added_bytes) = if self.blocks[id].is_split() { (1, self.blocks[id].size) } else { (0, 0) };
            net(&mut self.counters.inactive_split, class, added, merged);
            net(&mut self.counters.inactive_split_bytes, class, added_bytes, merged_bytes);
        }
    }

    /// Puts a free block into the index of its pool.
    pub(crate) fn put_back(&mut self, id: BlockId) {
        let pool = &mut self.pools[self.blocks[id].pool as usize];
        let block = &mut self.blocks[id];
        block.state = State::Free;
        block.freed_at = self.searches[pool.class as usize];
        pool.free.insert(&mut self.blocks, id);
    }

    /// Joins a block with neighbours that are free; they leave the index. The block that is left, how many were joined
    /// to it, and their bytes.
    fn merge_free(&mut self, mut id: BlockId) -> (BlockId, u64, u64) {
        let (mut merged, mut bytes) = (0, 0);
        let prev = self.blocks[id].prev;
        if self.blocks[prev].state == State::Free {
            self.take_free(prev);
            (merged, bytes) = (1, self.blocks[prev].size);
            self.absorb_next(prev);
            id = prev;
        }
        let next = self.blocks[id].next;
        if self.blocks[next].state == State::Free {
            self.take_free(next);
            merged += 1;
            bytes += self.blocks[next].size;
            self.absorb_next(id);
        }
        (id, merged, bytes)
    }

    /// Takes a free block out of the index of its pool.
    pub(crate) fn take_free(&mut self, id: BlockId) {
        let pool = self.blocks[id].pool as usize;
        self.pools[pool].free.remove(&mut self.blocks, id);
    }

    /// Makes a block as large as itself and the next together.
    fn absorb_next(&mut self, id: BlockId) {
        let next = self.blocks[id].next;
        self.blocks[id].size += self.blocks[next].size;
        self.blocks.unlink(next);
        self.blocks.remove(next);
    }

    /// Whether a segment's free parts count as `inactive_split`: PyTorch leaves expandable segments out.
    fn counts_splits(&self, segment: u32) -> bool {
        matches!(self.segments.get(segment as usize), Some(Some(Segment { backing: Backing::Malloc, .. })))
    }

    /// A segment that the driver gave by `malloc`: one block, not yet in the free index.
    pub(crate) fn add_malloc_segment(&mut self, pool: u32, address: u64, size: u64) -> Result<BlockId> {
        let id = self.add_segment(pool, address, size, Backing::Malloc, State::Free)?;
        let class = self.pools[pool as usize].class;
        self.counters.segment.add(class, 1);
        self.counters.reserved_bytes.add(class, size);
        self.counters.num_device_alloc += 1;
        if size >= self.oversize_from {
            self.counters.oversize_segments.add(Class::Large, 1);
        }
        self.emit(Action::SegmentAlloc, address, size, pool);
        Ok(id)
    }

    /// A reservation in which nothing is mapped yet: one unmapped block.
    pub(crate) fn add_expandable_segment(&mut self, pool: u32, address: u64, size: u64, unit: u64) -> Result<BlockId> {
        let backing = Backing::Expandable { unit, units: Vec::new() };
        let id = self.add_segment(pool, address, size, backing, State::Unmapped)?;
        self.pools[pool as usize].unmapped.insert((address, id));
        Ok(id)
    }

    /// Refuses addresses that no driver gives out, or that belong to a segment already. They are not given back either:
    /// they may be someone's.
    pub(crate) fn check_answer(&self, call: Call, address: u64, size: u64, alignment: u64) -> DriverResult<()> {
        let end = address.checked_add(size).filter(|_| address != 0 && address.is_multiple_of(alignment));
        let meets = |end: u64| {
            self.segments.iter().flatten().any(|other| address < other.address + other.size && other.address < end)
        };
        if end.is_some_and(|end| !meets(end)) {
            return Ok(());
        }
        let detail = format!("it gave {size} bytes at {address:#x}, which cannot be, or is part of a segment already");
        Err(DriverError::new(call, Status::UNKNOWN, detail))
    }

    fn add_segment(&mut self, pool: u32, address: u64, size: u64, backing: Backing, state: State) -> Result<BlockId> {
        let slot = self.segments.iter().position(Option::is_none).unwrap_or(self.segments.len());
        let block = Block::new(address, size, pool, slot as u32, state);
        let head = self.blocks.insert(block).ok_or(Error::Internal("the block table is full"))?;
        let segment = Some(Segment { address, size, pool, backing, head });
        match self.segments.get_mut(slot) {
            Some(vacant) => *vacant = segment,
            None => self.segments.push(segment),
        }
        Ok(head)
    }

    /// Forgets a `malloc` segment whose only block is free: the driver has it back.
    pub(crate) fn remove_malloc_segment(&mut self, id: BlockId) {
        let Block { address, size, pool, segment, .. } = self.blocks[id];
        let class = self.pools[pool as usize].class;
        self.take_free(id);
        self.blocks.remove(id);
        if let Some(slot) = self.segments.get_mut(segment as usize) {
            *slot = None;
        }
        self.counters.segment.sub(class, 1);
        self.counters.reserved_bytes.sub(class, size);
        self.counters.num_device_free += 1;
        if size >= self.oversize_from {
            self.counters.oversize_segments.sub(Class::Large, 1);
        }
        self.emit(Action::SegmentFree, address, size, pool);
    }

    /// Forgets an expandable segment of which nothing is mapped: its addresses are given back.
    pub(crate) fn remove_expandable_segment(&mut self, id: BlockId) {
        let Block { address, pool, segment, .. } = self.blocks[id];
        self.pools[pool as usize].unmapped.remove(&(address, id));
        self.blocks.remove(id);
        if let Some(slot) = self.segments.get_mut(segment as usize) {
            *slot = None;
        }
    }

    /// The first `size` bytes of an unmapped block have memory now. It merges with its free neighbours; the block that
    /// is left is in the free index. Making the rest a block of its own needs a slot, which `reserve_slot` ensured.
    pub(crate) fn mapped(&mut self, id: BlockId, size: u64) -> Result<BlockId> {
        let Block { address, size: whole, pool, segment, .. } = self.blocks[id];
        self.pools[pool as usize].unmapped.remove(&(address, id));
        if size < whole {
            let rest = Block::new(address + size, whole - size, pool, segment, State::Unmapped);
            let rest_id = self.blocks.insert(rest).ok_or(Error::Internal("the block table is full"))?;
            self.blocks[id].size = size;
            self.blocks.link_after(id, rest_id);
            self.pools[pool as usize].unmapped.insert((address + size, rest_id));
        }
        self.blocks[id].state = State::Free;
        let (id, ..) = self.merge_free(id);
        self.put_back(id);
        let class = self.pools[pool as usize].class;
        self.counters.reserved_bytes.add(class, size);
        self.counters.num_device_alloc += 1;
        self.emit(Action::SegmentMap, address, size, pool);
        Ok(id)
    }

    /// A part of a free block has no memory any more: `[from, from + size)`. What is left before and behind it stays
    /// free. The unmapped block that it is part of now.
    pub(crate) fn unmapped(&mut self, id: BlockId, from: u64, size: u64) -> Result<BlockId> {
        let Block { address, size: whole, pool, segment, .. } = self.blocks[id];
        self.take_free(id);
        let before = from - address;
        let behind = whole - before - size;
        let mut gone = id;
        if before > 0 {
            let block = Block::new(from, whole - before, pool, segment, State::Unmapped);
            gone = self.blocks.insert(block).ok_or(Error::Internal("the block table is full"))?;
            self.blocks[id].size = before;
            self.blocks.link_after(id, gone);
            self.put_back(id);
        }
        if behind > 0 {
            let block = Block::new(from + size, behind, pool, segment, State::Free);
            let rest = self.blocks.insert(block).ok_or(Error::Internal("the block table is full"))?;
            self.blocks.link_after(gone, rest);
            self.put_back(rest);
        }
        self.blocks[gone].size = size;
        self.blocks[gone].state = State::Unmapped;
        let gone = self.merge_unmapped(gone);
        let class = self.pools[pool as usize].class;
        self.counters.reserved_bytes.sub(class, size);
        self.counters.num_device_free += 1;
        self.emit(Action::SegmentUnmap, from, size, pool);
        Ok(gone)
    }

    fn merge_unmapped(&mut self, mut id: BlockId) -> BlockId {
        let Block { prev, next, pool, .. } = self.blocks[id];
        let unmapped = &mut self.pools[pool as usize].unmapped;
        if self.blocks[next].state == State::Unmapped {
            unmapped.remove(&(self.blocks[next].address, next));
            self.absorb_next(id);
        }
        if self.blocks[prev].state == State::Unmapped {
            self.absorb_next(prev);
            id = prev;
        }
        self.pools[pool as usize].unmapped.insert((self.blocks[id].address, id));
        id
    }

    /// A failed growth holds `now` bytes that are part of no block, and held `before`.
    pub(crate) fn unsettled(&mut self, class: Class, now: u64, before: u64) {
        self.unsettled[class as usize] += now;
        self.unsettled[class as usize] -= before;
        self.counters.reserved_bytes.add(class, now.saturating_sub(before));
        self.counters.reserved_bytes.sub(class, before.saturating_sub(now));
    }

    pub(crate) fn emit(&mut self, action: Action, address: u64, size: u64, pool: u32) {
        let stream = self.pools[pool as usize].stream;
        let Some(observer) = &mut self.observer else { return };
        let event = Event { action, address, size, stream };
        // It is the program's code, called halfway through a change: a panic must not end the change there.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| observer.event(&event))) {
            tracing::error!(action = action.name(), "the observer panicked; it is told nothing more");
            let observer = self.observer.take();
            drop(catch_unwind(AssertUnwindSafe(|| drop((panic, observer)))));
        }
    }

    /// The segments with their blocks, by address. Of an expandable segment, each contiguous mapped range.
    pub(crate) fn segment_infos(&self) -> Vec<SegmentInfo> {
        let mut out = Vec::new();
        for segment in self.segments.iter().flatten() {
            let pool = &self.pools[segment.pool as usize];
            let expandable = !matches!(segment.backing, Backing::Malloc);
            let mut open: Option<SegmentInfo> = None;
            let mut id = segment.head;
            while id.is_some() {
                let block = &self.blocks[id];
                let state = match block.state {
                    State::Allocated => Some(BlockState::ActiveAllocated),
                    State::Pending => Some(BlockState::ActivePendingFree),
                    State::Free => Some(BlockState::Inactive),
                    State::Unmapped | State::Vacant => None,
                };
                if let Some(state) = state {
                    let info = open.get_or_insert_with(|| SegmentInfo {
                        address: block.address,
                        total_size: 0,
                        stream: pool.stream,
                        small: pool.class == Class::Small,
                        expandable,
                        blocks: Vec::new(),
                    });
                    info.total_size += block.size;
                    let Block { address, size, requested, .. } = *block;
                    info.blocks.push(BlockInfo { address, size, requested_size: requested, state });
                } else {
                    out.extend(open.take());
                }
                id = block.next;
            }
            out.extend(open);
        }
        out.sort_by_key(|segment| segment.address);
        out
    }

    /// Walks everything and checks every rule that always holds. For tests and the `paranoid` feature: O(blocks).
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        let mut sums = [[0u64; 4]; 2];
        let mut seen = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            let Some(segment) = segment else { continue };
            let mut at = segment.address;
            let mut previous = BlockId::NONE;
            let mut id = segment.head;
            while id.is_some() {
                let block = &self.blocks[id];
                let say = |what: &str| Err(format!("{what}: segment {index}, block {id:?} {block:?}"));
                if block.address != at || block.size == 0 || !block.size.is_multiple_of(MIN_BLOCK) {
                    return say("a block does not begin where the last one ends, or has an odd size");
                }
                if block.prev != previous || block.segment as usize != index || block.pool != segment.pool {
                    return say("a block is linked or assigned wrongly");
                }
                let before = self.blocks[previous].state;
                if block.state == before && matches!(before, State::Free | State::Unmapped) {
                    return say("two neighbours of the same kind are not merged");
                }
                let pool = &self.pools[block.pool as usize];
                let sum = &mut sums[pool.class as usize];
                match block.state {
                    State::Vacant => return say("a vacant slot is linked"),
                    State::Free => {
                        let mut found = pool.free.best_fit(&self.blocks, block.size);
                        while found != id && found.is_some() {
                            found = pool.free.successor(&self.blocks, found);
                            if self.blocks[found].size > block.size {
                                return say("a free block is not in the index");
                            }
                        }
                        if found.is_none() {
                            return say("a free block is not in the index");
                        }
                    }
                    State::Allocated => {
                        if self.addresses.get(&block.address) != Some(&id) {
                            return say("a live block is not in the address table");
                        }
                        sum[0] += 1;
                        sum[1] += block.size;
                    }
                    State::Pending => sum[2] += block.size,
                    State::Unmapped => {
                        if !pool.unmapped.contains(&(block.address, id)) {
                            return say("an unmapped block is not in its set");
                        }
                    }
                }
                if block.state != State::Unmapped {
                    sum[3] += block.size;
                }
                at = block.end();
                seen += 1;
                previous = id;
                id = block.next;
            }
            if at != segment.address + segment.size {
                return Err(format!("the blocks of segment {index} do not fill it: {at:#x}"));
            }
        }
        let free: usize = self.pools.iter().map(|pool| pool.free.len()).sum();
        let free_blocks = self.blocks.iter().filter(|(_, block)| block.state == State::Free).count();
        if seen != self.blocks.len() || free != free_blocks {
            return Err(format!("{seen} blocks seen of {}, {free} indexed of {free_blocks} free", self.blocks.len()));
        }
        let [live, live_bytes, pending, reserved] = [0, 1, 2, 3].map(|i| sums[0][i] + sums[1][i]);
        let counted = &self.counters;
        let figures = [
            ("allocations", live, counted.allocation.current()),
            ("addresses", live, self.addresses.len() as u64),
            ("allocated bytes", live_bytes, counted.allocated_bytes.current()),
            ("active bytes", live_bytes + pending, counted.active_bytes.current()),
            ("reserved bytes", reserved + self.unsettled[0] + self.unsettled[1], counted.reserved_bytes.current()),
        ];
        match figures.into_iter().find(|(_, is, counted)| is != counted) {
            Some((name, is, counted)) => Err(format!("{name}: {is} found, {counted} counted")),
            None => Ok(()),
        }
    }
}

/// Bytes that a free block could serve if the unmapped space behind it were mapped.
fn room(blocks: &BlockTable, id: BlockId) -> u64 {
    let block = &blocks[id];
    let next = &blocks[block.next];
    block.size + if next.state == State::Unmapped { next.size } else { 0 }
}

fn net(counter: &mut crate::stats::Counter, class: Class, added: u64, removed: u64) {
    if added >= removed {
        counter.add(class, added - removed);
    } else {
        counter.sub(class, removed - added);
    }
}
