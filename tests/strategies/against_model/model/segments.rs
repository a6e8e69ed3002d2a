//! The model's memory: segments, the blocks that tile them, and the driver calls that make a segment or let it grow.

use std::collections::BTreeMap;

use seamalloc::driver::prelude::*;
use seamalloc::driver::{Handle, StreamId};
use seamalloc::snapshot::{BlockInfo, BlockState, SegmentInfo};

use super::tally::{increase, raise};
use super::{Model, Request, Step};

/// The use of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Live,
    /// Freed; waits for this many events.
    Pending(usize),
    Free,
    /// Address space of an expandable segment, without memory.
    Unmapped,
}

#[derive(Clone, Debug)]
pub struct Block {
    pub address: u64,
    pub size: u64,
    pub state: Use,
    /// Bytes asked for at its last use; stays with a free block.
    pub requested: u64,
    /// Streams that were named for it.
    pub streams: Vec<StreamId>,
    /// How often its pool had been searched when it became free.
    pub since: u64,
}

#[derive(Clone, Debug)]
pub struct Segment {
    pub stream: StreamId,
    pub small: bool,
    /// Bytes of each of its handles; `None`: from `malloc`.
    pub unit: Option<u64>,
    pub blocks: Vec<Block>,
    pub handles: BTreeMap<u64, Handle>,
}

impl Segment {
    /// Merges the block with its neighbours of the same state, which is free or unmapped. Where it is now, and the
    /// sizes of those that went into it.
    pub(super) fn merge(&mut self, mut at: usize) -> (usize, Vec<u64>) {
        let state = self.blocks[at].state;
        let mut merged = Vec::new();
        if at > 0 && self.blocks[at - 1].state == state {
            let before = self.blocks.remove(at - 1);
            at -= 1;
            self.blocks[at].address = before.address;
            self.blocks[at].size += before.size;
            merged.push(before.size);
        }
        if self.blocks.get(at + 1).is_some_and(|after| after.state == state) {
            let after = self.blocks.remove(at + 1);
            self.blocks[at].size += after.size;
            merged.push(after.size);
        }
        (at, merged)
    }
}

pub(super) fn block(address: u64, size: u64, state: Use, since: u64) -> Block {
    Block { address, size, state, requested: 0, streams: Vec::new(), since }
}

impl Model {
    /// The segment and the place in it of the block that starts at `address`.
    pub(super) fn locate(&self, address: u64) -> (u64, usize) {
        self.find(address).expect("a block starts there")
    }

    fn find(&self, address: u64) -> Option<(u64, usize)> {
        let (&base, segment) = self.segments.range(..=address).next_back()?;
        Some((base, segment.blocks.iter().position(|block| block.address == address)?))
    }

    pub(super) fn live(&self, address: u64) -> Option<(u64, usize)> {
        self.find(address).filter(|(base, at)| self.segments[base].blocks[*at].state == Use::Live)
    }

    /// The free blocks of a pool in PyTorch's order: stream, size, address.
    pub(super) fn free_blocks(&self, small: bool) -> Vec<(StreamId, u64, u64)> {
        let mut out = Vec::new();
        for segment in self.segments.values().filter(|segment| segment.small == small) {
            for block in segment.blocks.iter().filter(|block| block.state == Use::Free) {
                out.push((segment.stream, block.size, block.address));
            }
        }
        out.sort_unstable();
        out
    }

    /// A free block of at least the request's size out of new memory.
    pub(super) fn grow(&mut self, request: Request) -> Option<u64> {
        if self.limit.is_some_and(|limit| self.held + request.segment > limit) {
            return None;
        }
        if self.expandable() { self.expand(request) } else { self.take_segment(request) }
    }

    fn take_segment(&mut self, request: Request) -> Option<u64> {
        let Request { stream, small, segment: size, .. } = request;
        let address = match self.gpu.malloc(size) {
            Ok(address) => address,
            Err(error) if error.is_out_of_memory() => return None,
            Err(error) => panic!("{error}"),
        };
        let blocks = vec![block(address, size, Use::Free, 0)];
        self.segments.insert(address, Segment { stream, small, unit: None, blocks, handles: BTreeMap::new() });
        self.held += size;
        raise(&mut self.stats.segment, small, 1);
        raise(&mut self.stats.reserved_bytes, small, size);
        if size >= self.max_split() {
            increase(&mut self.stats.oversize_segments, 1);
        }
        self.stats.num_device_alloc += 1;
        Some(address)
    }

    /// Maps, from the lowest place on where free blocks and address space make the request's size, what is missing.
    ///
    /// Where that fails, PyTorch keeps what it mapped or reserved until then. The allocator here undoes it, and so does
    /// this.
    fn expand(&mut self, request: Request) -> Option<u64> {
        let before = (self.segments.clone(), self.stats.clone(), self.held);
        let found = self.find_room(request);
        let start = found.unwrap_or_else(|| self.reserve_segment(request));
        let mut parts = Vec::new();
        let grown = self.map_from(start, request, &mut parts);
        if parts.len() > 1 {
            self.note(Step::FillHole);
        }
        if grown.is_none() {
            if !parts.is_empty() {
                self.note(Step::UndoGrowth);
            }
            for (base, start, end) in parts {
                self.segments[&base]
                    .handles
                    .range(start..end)
                    .for_each(|(_, handle)| self.gpu.release(*handle).unwrap());
                self.gpu.unmap(start, end - start).unwrap();
            }
            if found.is_none() {
                self.gpu.address_free(start, self.segments[&start].blocks[0].size).unwrap();
            }
            (self.segments, self.stats, self.held) = before;
        }
        grown
    }

    /// Maps from the block at `address` on. `parts` says what was mapped: segment, start and end.
    fn map_from(&mut self, mut address: u64, request: Request, parts: &mut Vec<(u64, u64, u64)>) -> Option<u64> {
        loop {
            let (base, at) = self.locate(address);
            let here = &self.segments[&base].blocks[at];
            let (target, missing) = match here.state {
                Use::Unmapped => (at, request.size),
                _ if here.size >= request.size => return Some(address),
                _ => (at + 1, request.size - here.size),
            };
            let held = self.held;
            let start = self.segments[&base].blocks[target].address;
            address = self.map(base, target, missing)?;
            parts.push((base, start, start + self.held - held));
        }
    }

    /// The lowest unmapped block of this stream and pool, with the free one right before it, where enough follows.
    fn find_room(&self, request: Request) -> Option<u64> {
        for segment in self.segments.values() {
            if segment.stream != request.stream || segment.small != request.small {
                continue;
            }
            for (at, block) in segment.blocks.iter().enumerate().filter(|(_, block)| block.state == Use::Unmapped) {
                let first = match at.checked_sub(1).map(|before| &segment.blocks[before]) {
                    Some(before) if before.state == Use::Free => at - 1,
                    _ => at,
                };
                let room = segment.blocks[first..].iter();
                let room = room.take_while(|block| matches!(block.state, Use::Free | Use::Unmapped));
                if room.map(|block| block.size).sum::<u64>() >= request.size {
                    return Some(segment.blocks[first].address.min(block.address));
                }
            }
        }
        None
    }

    fn reserve_segment(&mut self, request: Request) -> u64 {
        let unit = if request.small { 2 << 20 } else { self.config.large_segment_size };
        let total = self.gpu.properties().total_memory;
        let size = (total + total / 8).div_ceil(unit) * unit;
        let address = self.gpu.reserve(size, 0).unwrap();
        let Request { stream, small, .. } = request;
        let blocks = vec![block(address, size, Use::Unmapped, 0)];
        self.segments.insert(address, Segment { stream, small, unit: Some(unit), blocks, handles: BTreeMap::new() });
        address
    }

    /// Maps whole units at the start of an unmapped block: `size` bytes, or as many as it has. The free block that this
    /// makes, merged with its neighbours. On a device without enough memory nothing changes.
    fn map(&mut self, base: u64, at: usize, size: u64) -> Option<u64> {
        let segment = &self.segments[&base];
        let (unit, small) = (segment.unit.unwrap(), segment.small);
        let (start, whole) = (segment.blocks[at].address, segment.blocks[at].size);
        let size = size.min(whole).div_ceil(unit) * unit;
        let mut handles = BTreeMap::new();
        for address in (start..start + size).step_by(unit as usize) {
            match self.gpu.create(unit) {
                Ok(handle) => handles.insert(address, handle),
                Err(error) if error.is_out_of_memory() => {
                    handles.into_values().for_each(|handle| self.gpu.release(handle).unwrap());
                    return None;
                }
                Err(error) => panic!("{error}"),
            };
        }
        for (address, handle) in &handles {
            self.gpu.map(*address, unit, 0, *handle).unwrap();
        }
        self.gpu.set_access(start, size).unwrap();
        self.stats.mappings += handles.len() as u64;
        let segment = self.segments.get_mut(&base).unwrap();
        segment.handles.append(&mut handles);
        if size < whole {
            segment.blocks.insert(at + 1, block(start + size, whole - size, Use::Unmapped, 0));
        }
        segment.blocks[at].size = size;
        segment.blocks[at].state = Use::Free;
        let (at, _) = segment.merge(at);
        segment.blocks[at].since = self.searches[usize::from(small)];
        self.held += size;
        raise(&mut self.stats.reserved_bytes, small, size);
        self.stats.num_device_alloc += 1;
        Some(segment.blocks[at].address)
    }

    /// As PyTorch shows it: each contiguous mapped range is a segment. But for the bytes requested of a free block, which
    /// mean nothing: PyTorch leaves there what an earlier use asked for, after splits and merges any of several.
    pub fn snapshot(&self) -> Vec<SegmentInfo> {
        let mut out = Vec::new();
        for segment in self.segments.values() {
            for range in segment.blocks.split(|block| block.state == Use::Unmapped).filter(|range| !range.is_empty()) {
                let state = |block: &Block| match block.state {
                    Use::Live => BlockState::ActiveAllocated,
                    Use::Pending(_) => BlockState::ActivePendingFree,
                    Use::Free | Use::Unmapped => BlockState::Inactive,
                };
                out.push(SegmentInfo {
                    address: range[0].address,
                    total_size: range.iter().map(|block| block.size).sum(),
                    stream: segment.stream,
                    small: segment.small,
                    expandable: segment.unit.is_some(),
                    pool: seamalloc::PoolId::NONE,
                    blocks: range
                        .iter()
                        .map(|block| BlockInfo {
                            address: block.address,
                            size: block.size,
                            requested_size: if block.state == Use::Free { 0 } else { block.requested },
                            state: state(block),
                            ..BlockInfo::default()
                        })
                        .collect(),
                });
            }
        }
        out.sort_by_key(|segment| segment.address);
        out
    }
}
