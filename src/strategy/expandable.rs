//! Strategy `expandable`: PyTorch's expandable segments. Each pool has a reservation larger than the device; a miss
//! maps memory where the reservation's mapped part ends, or in a hole of it, in units of 2 MiB or 20 MiB.
//!
//! Owns: which units of a segment are mapped, in calls and costs as PyTorch makes them
//! (`ExpandableSegment` of c10/cuda/CUDACachingAllocator.cpp, 2.11), but for errors: a failed growth is undone here.

use super::ladder::{Grow, climb};
use super::mapping::{Mapping, Unsettled};
use super::{Ground, Miss, Strategy};
use crate::blocks::{Block, BlockId, State};
use crate::config::Config;
use crate::driver::{Call, Driver, DriverResult};
use crate::error::Error;
use crate::heap::{Backing, FitRules, Request};
use crate::rounding::{MIN_BLOCK, SMALL_SEGMENT};
use crate::stats::Class;

#[derive(Default)]
pub(super) struct Expandable {
    unsettled: Unsettled,
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
            count_ages: false,
            takes_idle: false,
        }
    }

    fn miss(&mut self, ground: &mut Ground<'_>, request: &Request) -> Result<BlockId, Miss> {
        climb(self, ground, request)
    }

    fn release_cached(&mut self, ground: &mut Ground<'_>) -> DriverResult<()> {
        self.unsettled.settle(ground)?;
        for class in [Class::Large, Class::Small] {
            for pool in 0..ground.heap.pools.len() {
                if ground.heap.pools[pool].class == class {
                    release_pool(ground, pool)?;
                }
            }
        }
        Ok(())
    }
}

/// Unmaps what lies free in a pool, and gives segments back of which nothing is mapped any more.
fn release_pool(ground: &mut Ground<'_>, pool: usize) -> DriverResult<()> {
    for id in ground.heap.pools[pool].free.in_order(&ground.heap.blocks) {
        unmap_whole_units(ground, id)?;
    }
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
        if let Err(error) = map_all(ground.driver, &mut parts, unit) {
            parts.into_iter().for_each(|part| self.unsettled.undo(ground, part.mapping));
            if found.is_none() && self.unsettled.is_empty() {
                let Block { address, size, .. } = ground.heap.blocks[start];
                ground.driver.address_free(address, size)?;
                ground.heap.remove_expandable_segment(start);
            }
            return Err(error.into());
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

/// Unmaps and releases every unit that lies wholly inside a free block, after its stream has passed.
fn unmap_whole_units(ground: &mut Ground<'_>, id: BlockId) -> DriverResult<()> {
    let Block { address, size, pool, segment: index, .. } = ground.heap.blocks[id];
    let stream = ground.heap.pools[pool as usize].stream;
    let Some(Some(segment)) = ground.heap.segments.get_mut(index as usize) else { return Ok(()) };
    let base = segment.address;
    let Backing::Expandable { unit, units } = &mut segment.backing else { return Ok(()) };
    let unit = *unit;
    let first = (address - base).div_ceil(unit);
    let end = (address + size - base) / unit;
    if first >= end {
        return Ok(());
    }
    // Neither call waits for the GPU, and work on the stream may still use the memory.
    ground.driver.stream_synchronize(stream)?;
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
