//! Segments, the blocks that tile them, and the pools whose free blocks serve requests: all that the hot path touches.
//!
//! Owns: split, merge, address lookup, pools, and the statistics of them. It never calls the driver: strategies do, and
//! tell the heap what they got.

mod behind;
mod check;
mod measure;
mod picture;
mod private;
mod restored;
mod segmented;
mod segments;
mod stitched;
mod streams;
mod told;

pub(crate) use behind::{Behind, Memory};
pub(crate) use stitched::Window;
pub(crate) use streams::Pool;

use crate::blocks::{Block, BlockId, BlockTable, Kind, State};
use crate::driver::{Call, DriverError, DriverResult, Handle, Status};
use crate::error::{Error, Result};
use crate::free_index::FreeIndex;
use crate::home::{GRANULE, Home};
use crate::ids::PoolId;
use crate::ids::StreamId;
use crate::observer::{Action, Observer};
use crate::pools::PrivatePools;
use crate::stats::{Class, Counters};
use crate::views::Views;
use rustc_hash::FxHashMap;
use std::collections::HashMap;
use streams::{FEW_STREAMS, IDLE};

/// What stands behind a segment's addresses.
#[derive(Debug)]
pub(crate) enum Backing {
    /// One `malloc`.
    Malloc,
    /// A reservation in which each unit is mapped or not. The list ends at the last unit ever mapped.
    Expandable { unit: u64, units: Vec<Option<Handle>> },
    /// The reservation that is home; its chunks stand in [`Home`].
    Home,
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
    /// Whether a large request that its own pool cannot serve may take what is idle.
    pub(crate) takes_idle: bool,
    /// Whether every request first asks what other streams have passed, as in PyTorch. Otherwise a miss does, and a
    /// request now and then, so that not every hit calls the driver while anything waits.
    pub(crate) asks_first: bool,
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
    /// Where chunks have their places, for a strategy that stitches.
    pub(crate) home: Option<Home>,
    /// The views over them.
    pub(crate) views: Views,
    /// The large pool of ranges that every stream has passed; it belongs to all.
    pub(crate) idle: u32,
    /// Whether idle ranges join the pool of a block freed beside them. They are not idle any more then: only where other
    /// streams can wait for them.
    pub(crate) adopts_idle: bool,
    /// Whether memory at home goes from stream to stream, so that it is no stream's own.
    pub(crate) home_is_shared: bool,
    /// Who uses private pools, and what is routed to them.
    pub(crate) private: PrivatePools,
    /// The large pools of private pools, the one that serves a stream last.
    private_pairs: Vec<(PoolId, StreamId, u32)>,
    /// Large pools, the small one is the next, that are part of nothing any more.
    vacant_pools: Vec<u32>,
    /// With how many pools it is time to look which streams have nothing any more.
    most_pools: usize,
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
            home: None,
            views: Views::default(),
            idle: 0,
            adopts_idle: true,
            home_is_shared: true,
            private: PrivatePools::default(),
            private_pairs: Vec::new(),
            vacant_pools: Vec::new(),
            most_pools: 2 * FEW_STREAMS,
            unsettled: [0; 2],
        };
        heap.add_pools(StreamId::DEFAULT);
        heap.idle = heap.add_pools(IDLE);
        // No stream's requests go there, whatever its handle.
        heap.pool_of.remove(&IDLE);
        heap
    }

    /// Bytes held of the driver.
    pub(crate) fn reserved(&self) -> u64 {
        self.counters.reserved_bytes.current()
    }

    /// Bytes of host memory in the tables, about. Tables count whole, though what was never touched takes no memory.
    pub(crate) fn host_bytes(&self) -> usize {
        self.blocks.host_bytes()
            + map_bytes(&self.addresses)
            + self.pools.len() * (size_of::<Pool>() + FreeIndex::HOST_BYTES)
            + self.segments.capacity() * size_of::<Option<Segment>>()
            + self.home.as_ref().map_or(0, Home::host_bytes)
            + self.views.host_bytes()
    }

    /// Takes the block out of the free index that serves the request best, or answers [`BlockId::NONE`].
    pub(crate) fn fit(&mut self, request: &Request, rules: &FitRules) -> BlockId {
        if rules.count_ages {
            self.searches[request.class as usize] += 1;
        }
        let found = self.fit_in(request.pool, request, rules);
        if found.is_none() && rules.takes_idle && request.class == Class::Large {
            return self.fit_in(self.idle, request, rules);
        }
        found
    }

    fn fit_in(&mut self, pool: u32, request: &Request, rules: &FitRules) -> BlockId {
        let pool = &mut self.pools[pool as usize];
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
        let block = self.blocks[id];
        let Block { address, size, .. } = block;
        let was_split = block.is_split();
        // As in PyTorch, only what lies free in a `malloc` segment counts as inactive split.
        let counted = block.kind == Kind::Malloc;
        let class = request.class;
        let rest = size - request.size;
        let mut taken = size;
        if rest >= rules.min_rest[class as usize] && request.size < rules.no_split_from {
            taken = request.size;
            self.blocks[id].size = taken;
            let Some(rest_id) = self.insert_after(id, block.part(address + taken, rest, State::Free)) else {
                self.blocks[id].size = size;
                self.index(id);
                return Err(Error::Internal("the block table is full"));
            };
            if block.kind == Kind::Home {
                self.index(rest_id)
            } else {
                self.put_back(rest_id)
            }
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
        let before = block.pool;
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.pool = request.pool;
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
            self.moved(id, before);
            self.emit(Action::Alloc, address, request.requested, request.pool);
        }
        Ok(address)
    }

    /// The live allocation that starts at `address`.
    pub(crate) fn live(&self, address: u64) -> Result<BlockId> {
        self.addresses.get(&address).copied().ok_or_else(|| not_live(address))
    }

    /// Takes a live allocation out of the address table, on the way to freeing it.
    pub(crate) fn take_live(&mut self, address: u64) -> Result<BlockId> {
        self.addresses.remove(&address).ok_or_else(|| not_live(address))
    }

    /// Undoes [`Self::take_live`]: the allocation stays live.
    pub(crate) fn keep_live(&mut self, id: BlockId) {
        self.addresses.insert(self.blocks[id].address, id);
    }

    /// The program frees an allocation that was taken out of the address table: it is no longer allocated, but still
    /// active.
    pub(crate) fn free_requested(&mut self, id: BlockId) {
        let Block { address, size, requested, pool, .. } = self.blocks[id];
        let class = self.pools[pool as usize].class;
        self.counters.allocation.sub(class, 1);
        self.counters.allocated_bytes.sub(class, size);
        if size >= self.oversize_from {
            self.counters.oversize_allocations.sub(Class::Large, 1);
        }
        if self.observer.is_some() {
            self.emit(Action::FreeRequested, address, requested, pool);
        }
    }

    /// Every stream has finished with a freed block: it merges with its free neighbours and can be handed out again.
    pub(crate) fn free_completed(&mut self, id: BlockId) {
        let Block { address, size, requested, pool, kind, .. } = self.blocks[id];
        let class = self.pools[pool as usize].class;
        if self.observer.is_some() {
            self.emit(Action::FreeCompleted, address, requested, pool);
        }
        self.counters.active.sub(class, 1);
        self.counters.active_bytes.sub(class, size);
        self.counters.requested_bytes.sub(class, requested);
        match kind {
            Kind::Malloc => {
                let (id, merged, merged_bytes) = self.release(id);
                // The net change, as PyTorch counts it: one event, not one for each neighbour.
                let (added, added_bytes) = if self.blocks[id].is_split() { (1, self.blocks[id].size) } else { (0, 0) };
                net(&mut self.counters.inactive_split, class, added, merged);
                net(&mut self.counters.inactive_split_bytes, class, added_bytes, merged_bytes);
            }
            Kind::Expandable => {
                self.release(id);
            }
            Kind::Home => {
                let (id, ..) = self.release(id);
                if class == Class::Small {
                    self.return_slab(id);
                }
            }
            Kind::View => self.dissolve(id),
        }
    }

    /// A block becomes free: it merges with its neighbours and enters the index.
    fn release(&mut self, id: BlockId) -> (BlockId, u64, u64) {
        if self.adopts_idle && self.blocks[id].kind == Kind::Home {
            self.adopt_idle(id);
        }
        self.blocks[id].state = State::Free;
        let merged = self.merge_free(id);
        self.put_back(merged.0);
        merged
    }

    /// Puts a block that becomes free now into the index of its pool.
    pub(crate) fn put_back(&mut self, id: BlockId) {
        let Block { pool, kind, .. } = self.blocks[id];
        self.blocks[id].freed_at = if kind == Kind::Home {
            // Both pools of a stream share the epochs of the large one.
            let stream = &mut self.pools[(pool & !1) as usize];
            stream.freed_in_epoch = true;
            stream.epoch
        } else {
            self.searches[self.pools[pool as usize].class as usize]
        };
        self.index(id);
    }

    /// Puts a block that was free before into the index of its pool.
    pub(crate) fn index(&mut self, id: BlockId) {
        self.blocks[id].state = State::Free;
        let pool = self.blocks[id].pool as usize;
        self.pools[pool].free.insert(&mut self.blocks, id);
    }

    /// Joins a block with neighbours that are free; they leave the index. The block that is left, how many were joined
    /// to it, and their bytes.
    fn merge_free(&mut self, mut id: BlockId) -> (BlockId, u64, u64) {
        let (mut merged, mut bytes) = (0, 0);
        let prev = self.blocks[id].prev;
        if self.joins(prev, id) {
            self.take_free(prev);
            (merged, bytes) = (1, self.blocks[prev].size);
            self.absorb_next(prev);
            id = prev;
        }
        let next = self.blocks[id].next;
        if self.joins(id, next) {
            self.take_free(next);
            merged += 1;
            bytes += self.blocks[next].size;
            self.absorb_next(id);
        }
        (id, merged, bytes)
    }

    /// Whether two neighbours become one: both free, of one pool, and of small blocks at home not across slabs.
    pub(super) fn joins(&self, before: BlockId, id: BlockId) -> bool {
        let (before, block) = (&self.blocks[before], &self.blocks[id]);
        before.state == State::Free
            && block.state == State::Free
            && before.pool == block.pool
            && !(block.kind == Kind::Home
                && block.address.is_multiple_of(GRANULE)
                && self.pools[block.pool as usize].class == Class::Small)
    }

    /// Takes a free block out of the index of its pool.
    pub(crate) fn take_free(&mut self, id: BlockId) {
        let pool = self.blocks[id].pool as usize;
        self.pools[pool].free.remove(&mut self.blocks, id);
    }

    /// Makes a block as large as itself and the next together.
    fn absorb_next(&mut self, id: BlockId) {
        let next = self.blocks[id].next;
        if let (Kind::Home, Some(home)) = (self.blocks[id].kind, &mut self.home) {
            let after = self.blocks[next].next;
            home.ends(next, self.blocks[next].address, after, self.blocks[after].address);
        }
        self.blocks[id].freed_at = self.blocks[id].freed_at.max(self.blocks[next].freed_at);
        self.blocks[id].size += self.blocks[next].size;
        self.blocks.unlink(next);
        self.blocks.remove(next);
    }

    /// A new block right behind `id`; `None` when the table is full.
    fn insert_after(&mut self, id: BlockId, block: Block) -> Option<BlockId> {
        let new = self.blocks.insert(block)?;
        self.blocks.link_after(id, new);
        if let (Kind::Home, Some(home)) = (block.kind, &mut self.home) {
            home.begins(new, block.address, id, self.blocks[id].address);
        }
        Some(new)
    }

    /// Refuses addresses that no driver gives out, or that belong to a segment already. They are not given back either:
    /// they may be someone's.
    pub(crate) fn check_answer(&self, call: Call, address: u64, size: u64, alignment: u64) -> DriverResult<()> {
        if self.may_begin_at(address, size, alignment) {
            return Ok(());
        }
        let detail = format!("it gave {size} bytes at {address:#x}, which cannot be, or is part of a segment already");
        Err(DriverError::new(call, Status::UNKNOWN, detail))
    }

    /// Whether these can be addresses, and none of them is part of a segment.
    pub(crate) fn may_begin_at(&self, address: u64, size: u64, alignment: u64) -> bool {
        let end = address.checked_add(size).filter(|_| address != 0 && address.is_multiple_of(alignment));
        let meets = |end: u64| {
            self.segments.iter().flatten().any(|other| address < other.address + other.size && other.address < end)
        };
        end.is_some_and(|end| !meets(end))
    }
}

/// Bytes of host memory in a hash map, about: an eighth of it is kept vacant, and each entry has a byte beside it.
pub(crate) fn map_bytes<K, V, S>(map: &HashMap<K, V, S>) -> usize {
    map.capacity() / 7 * 8 * (size_of::<(K, V)>() + 1)
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

/// Out of the way of every free that succeeds.
#[cold]
fn not_live(address: u64) -> Error {
    Error::InvalidAddress { address }
}
