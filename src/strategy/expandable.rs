//! Strategy `expandable`: PyTorch's expandable segments. Each pool has a reservation larger than the device; a miss
//! maps memory where the reservation's mapped part ends, or in a hole of it, in units of 2 MiB or 20 MiB.
//!
//! Owns: which units of a segment are mapped, in calls and costs as PyTorch makes them
//! (`ExpandableSegment` of c10/cuda/CUDACachingAllocator.cpp, 2.11), but for errors: a failed growth is undone here.

use super::enough::just_enough;
use super::ladder::{Grow, climb, climb_to_the_end};
use super::mapping::{Mapping, Unsettled};
use super::{Ground, Miss, Premise, Strategy};
use crate::blocks::{Block, BlockId, State};
use crate::config::Config;
use crate::driver::{Call, Driver, DriverResult, EventId};
use crate::error::Error;
use crate::heap::{Backing, FitRules, Heap, Request};
use crate::ids::StreamId;
use crate::rounding::{MIN_BLOCK, SMALL_SEGMENT};
use crate::stats::Class;
use std::cmp::Reverse;

#[derive(Default)]
pub(super) struct Expandable {
    unsettled: Unsettled,
    /// Asks whether the GPU has done all that a stream was given.
    probe: Option<EventId>,
}

/// Units of a segment that lie wholly inside a free block.
struct Units {
    block: BlockId,
    /// Whether the GPU has passed all that used them.
    passed: bool,
    /// Bytes of one.
    unit: u64,
    first: u64,
    end: u64,
}

/// A part of a segment that is to be mapped.
struct Part {
    block: BlockId,
    size: u64,
    mapping: Mapping,
}

impl Strategy for Expandable {
    fn rules(&self, config: &Config) -> FitRules {
        FitRules {
            growing_edge: true,
            max_split_size: config.max_split_size.unwrap_or(u64::MAX),
            max_non_split_rounding: config.max_non_split_rounding,
            min_rest: [MIN_BLOCK; 2],
            no_split_from: u64::MAX,
            count_ages: true,
            takes_idle: false,
            asks_first: true,
        }
    }

    fn miss(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        climb(self, ground, request)
    }

    fn last_resort(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        climb_to_the_end(self, ground, request)
    }

    fn release_cached(&mut self, ground: &mut Ground<'_>) -> DriverResult<()> {
        self.unsettled.settle(ground)?;
        for class in [Class::Large, Class::Small] {
            for pool in ground.heap.shared_pools(class) {
                release_pool(ground, pool)?;
            }
        }
        Ok(())
    }

    /// Units, from the end of each free block.
    fn trim(&mut self, ground: &mut Ground<'_>, down_to: u64, may_wait: bool) -> DriverResult<bool> {
        self.unsettled.settle(ground)?;
        let mut found = self.free_units(ground)?;
        found.retain(|units| units.passed || may_wait);
        let heap = &*ground.heap;
        found.sort_by_key(|units| {
            let Block { freed_at, pool, address, .. } = heap.blocks[units.block];
            let age = heap.searches[heap.pools[pool as usize].class as usize].saturating_sub(freed_at);
            (!units.passed, Reverse(age), Reverse(address))
        });
        let each = found.iter().enumerate().flat_map(|(of, units)| (units.first..units.end).map(move |_| of));
        let of: Vec<usize> = each.collect();
        let sizes: Vec<u64> = of.iter().map(|of| found[*of].unit).collect();
        let missing = heap.reserved().saturating_sub(down_to);
        if !may_wait && sizes.iter().sum::<u64>() < missing {
            return Ok(false);
        }
        let mut counts = vec![0; found.len()];
        for index in just_enough(&sizes, missing) {
            counts[of[index]] += 1;
        }
        for (Units { block, passed, end, .. }, count) in found.into_iter().zip(counts) {
            if count > 0 {
                let pool = ground.heap.blocks[block].pool as usize;
                if !passed {
                    ground.wait_for_stream(pool as u32)?;
                }
                unmap_units(ground, block, end - count, end)?;
                release_empty_segments(ground, pool)?;
            }
        }
        Ok(true)
    }

    fn growth(&self, _heap: &Heap, config: &Config, request: &Request, _premise: Premise) -> u64 {
        let unit = unit_of(config, request.class);
        request.size.checked_next_multiple_of(unit).unwrap_or(u64::MAX)
    }

    fn close(&mut self, ground: &mut Ground<'_>) {
        if let Some(event) = self.probe.take()
            && let Err(error) = ground.driver.event_destroy(event)
        {
            tracing::warn!(%error, "an event could not be destroyed");
        }
    }
}

impl Expandable {
    /// What could be given back, of every pool.
    fn free_units(&mut self, ground: &mut Ground<'_>) -> DriverResult<Vec<Units>> {
        let mut found = Vec::new();
        let mut asked: Vec<(StreamId, bool)> = Vec::new();
        let [large, small] = [Class::Large, Class::Small].map(|class| ground.heap.shared_pools(class));
        for pool in large.into_iter().chain(small) {
            let stream = ground.heap.pools[pool].stream;
            for block in ground.heap.pools[pool].free.in_order(&ground.heap.blocks) {
                let Some((unit, first, end)) = whole_units(ground, block) else { continue };
                let known = asked.iter().find(|(of, _)| *of == stream).map(|(_, passed)| *passed);
                let passed = match known {
                    Some(passed) => passed,
                    None => {
                        let passed = self.has_passed(ground, pool as u32 & !1)?;
                        asked.push((stream, passed));
                        passed
                    }
                };
                found.push(Units { block, passed, unit, first, end });
            }
        }
        Ok(found)
    }

    /// Whether the GPU has done all that the stream was given so far.
    fn has_passed(&mut self, ground: &mut Ground<'_>, large: u32) -> DriverResult<bool> {
        let pool = &ground.heap.pools[large as usize];
        let (stream, ended) = (pool.stream, pool.ended);
        if ended || ground.was_replaced(large)? {
            return Ok(true);
        }
        let driver = ground.driver;
        let event = match self.probe {
            Some(event) => event,
            None => *self.probe.insert(driver.event_create()?),
        };
        driver.event_record(event, stream)?;
        driver.event_query(event)
    }
}

/// Unmaps what lies free in a pool, and gives segments back of which nothing is mapped any more.
fn release_pool(ground: &mut Ground<'_>, pool: usize) -> DriverResult<()> {
    for id in ground.heap.pools[pool].free.in_order(&ground.heap.blocks) {
        if let Some((_, first, end)) = whole_units(ground, id) {
            // Neither unmap nor release waits for the GPU, and work on the stream may still use the memory.
            ground.wait_for_stream(pool as u32)?;
            unmap_units(ground, id, first, end)?;
        }
    }
    release_empty_segments(ground, pool)
}

/// Gives segments back of which nothing is mapped any more.
fn release_empty_segments(ground: &mut Ground<'_>, pool: usize) -> DriverResult<()> {
    let unmapped = ground.heap.pools[pool].unmapped.iter().map(|(_, id)| *id);
    let empty: Vec<_> = unmapped.filter(|id| !ground.heap.blocks[*id].is_split()).collect();
    for id in empty {
        let Block { address, size, .. } = ground.heap.blocks[id];
        ground.driver.address_free(address, size)?;
        ground.heap.remove_expandable_segment(id);
    }
    Ok(())
}

impl Grow for Expandable {
    fn grow(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        self.unsettled.settle(ground)?;
        let found = find_room(ground, request);
        let start = match found {
            Some(id) => id,
            None => reserve(ground, request)?,
        };
        let unit = unit_of(ground.config, request.class);
        let mut parts = plan(ground, start, request, unit);
        let mapped = match ground.keeps_memory_limit(parts.iter().map(|part| part.size).sum()) {
            true => map_all(ground.driver, &mut parts, unit).map_err(Miss::from),
            false => Err(Miss::OutOfMemory),
        };
        if let Err(miss) = mapped {
            parts.into_iter().for_each(|part| self.unsettled.undo(ground, part.mapping));
            if found.is_none() && self.unsettled.is_empty() {
                let Block { address, size, .. } = ground.heap.blocks[start];
                ground.driver.address_free(address, size)?;
                ground.heap.remove_expandable_segment(start);
            }
            return Err(miss);
        }
        let mut grown = start;
        for Part { block, size, mapping } in parts {
            ground.heap.counters.mappings += mapping.pieces.len() as u64;
            note_units(ground, block, &mapping, unit)?;
            grown = ground.heap.mapped(block, mapping.address, size, request.pool)?;
        }
        ground.heap.take_free(grown);
        Ok(grown)
    }
}

fn unit_of(config: &Config, class: Class) -> u64 {
    match class {
        Class::Small => SMALL_SEGMENT,
        Class::Large => config.large_segment_size,
    }
}

/// The lowest run of free and unmapped blocks that has room for the request and something to map.
fn find_room(ground: &Ground<'_>, request: &Request) -> Option<BlockId> {
    let blocks = &ground.heap.blocks;
    let open = |id: BlockId| matches!(blocks[id].state, State::Free | State::Unmapped);
    ground.heap.pools[request.pool as usize].unmapped.iter().find_map(|&(_, unmapped)| {
        let before = blocks[unmapped].prev;
        let start = if open(before) { before } else { unmapped };
        let (mut room, mut at) = (0, start);
        while room < request.size && open(at) {
            room += blocks[at].size;
            at = blocks[at].next;
        }
        (room >= request.size).then_some(start)
    })
}

/// Addresses for a new segment: room for the whole device and an eighth more, as PyTorch reserves.
fn reserve(ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
    let unit = unit_of(ground.config, request.class);
    let total = ground.driver.properties().total_memory;
    let plenty = total.saturating_add(total / 8).max(request.size).checked_next_multiple_of(unit);
    let size = plenty.unwrap_or_else(|| request.size.next_multiple_of(unit));
    let address = ground.driver.reserve(size, 0)?;
    ground.heap.check_answer(Call::Reserve, address, size, SMALL_SEGMENT)?;
    match ground.heap.add_expandable_segment(request.pool, address, size, unit) {
        Ok(id) => Ok(id),
        Err(error) => {
            ground.driver.address_free(address, size)?;
            Err(error.into())
        }
    }
}

/// What is to be mapped so that the request has memory from the start of `id`.
fn plan(ground: &Ground<'_>, mut id: BlockId, request: &Request, unit: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut missing = request.size;
    while missing > 0 && id.is_some() {
        let Block { address, size, state, next, .. } = ground.heap.blocks[id];
        let covered = match state {
            State::Unmapped => {
                let size = missing.next_multiple_of(unit).min(size);
                let mapping = Mapping::of_new_memory(address, request.class);
                parts.push(Part { block: id, size, mapping });
                size
            }
            _ => size,
        };
        missing = missing.saturating_sub(covered);
        id = next;
    }
    parts
}

/// Creates, maps and opens every part. After an error the parts say how far it came.
fn map_all(driver: &dyn Driver, parts: &mut [Part], unit: u64) -> DriverResult<()> {
    parts.iter_mut().try_for_each(|part| {
        part.mapping.create(driver, part.size, unit)?;
        part.mapping.map(driver)
    })
}

fn note_units(ground: &mut Ground<'_>, block: BlockId, mapping: &Mapping, unit: u64) -> Result<(), Error> {
    let segment = ground.heap.blocks[block].segment as usize;
    let Some(Some(segment)) = ground.heap.segments.get_mut(segment) else {
        return Err(Error::Internal("a block without a segment"));
    };
    let first = ((mapping.address - segment.address) / unit) as usize;
    let Backing::Expandable { units, .. } = &mut segment.backing else {
        return Err(Error::Internal("a segment that cannot grow"));
    };
    let end = first + mapping.pieces.len();
    if units.len() < end {
        units.resize(end, None);
    }
    for (slot, piece) in units[first..end].iter_mut().zip(&mapping.pieces) {
        *slot = piece.handle;
    }
    Ok(())
}

/// The units that lie wholly inside a free block: their size in bytes, the first, and the one behind the last.
fn whole_units(ground: &Ground<'_>, id: BlockId) -> Option<(u64, u64, u64)> {
    let Block { address, size, segment, .. } = ground.heap.blocks[id];
    let segment = ground.heap.segments.get(segment as usize)?.as_ref()?;
    let Backing::Expandable { unit, .. } = segment.backing else { return None };
    let first = (address - segment.address).div_ceil(unit);
    let end = (address + size - segment.address) / unit;
    (first < end).then_some((unit, first, end))
}

/// Unmaps and releases these units of a free block. Its stream has passed.
fn unmap_units(ground: &mut Ground<'_>, id: BlockId, first: u64, end: u64) -> DriverResult<()> {
    let index = ground.heap.blocks[id].segment as usize;
    let Some(Some(segment)) = ground.heap.segments.get_mut(index) else { return Ok(()) };
    let base = segment.address;
    let Backing::Expandable { unit, units } = &mut segment.backing else { return Ok(()) };
    let unit = *unit;
    // PyTorch unmaps first. Released first, a unit stays whole whichever of the two calls fails: the memory of a
    // released handle goes back with its last mapping.
    let mut gone = 0;
    let result = (first..end).try_for_each(|slot| {
        if let Some(handle) = units.get_mut(slot as usize) {
            handle.map_or(Ok(()), |handle| ground.driver.release(handle))?;
            *handle = None;
        }
        ground.driver.unmap(base + slot * unit, unit)?;
        gone += 1;
        Ok(())
    });
    if gone > 0 {
        ground.heap.counters.mappings -= gone;
        if let Err(error) = ground.heap.unmapped(id, base + first * unit, gone * unit) {
            tracing::error!(%error, "an unmapped range could not be noted");
        }
    }
    result
}
