//! The memory of the simulated GPU: address space, handles, mappings and allocations of `malloc`.
//!
//! Owns: which memory lies where, how many physical bytes are held, and every rule of the driver about them. It does
//! not know time, streams or costs. A refused call has changed nothing.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::addresses::{Addresses, MallocAddresses};
use super::config::GRANULARITY;
use super::contents::{Contents, Piece, Writer};
use super::faults::{Fault, Leaks, Range};
use super::refusal::{Answer, refuse};
use super::shared_memory::SharedMemory;
use crate::driver::{Handle, MemoryInfo, Status, StreamId};

/// The address space of reservations, in bytes: on an H200 a reservation of 64 TiB succeeds and one of 100 TiB does
/// not. (Smaller ones reach 126 TiB in all; no allocator should need that.)
pub(super) const ADDRESS_SPACE: u64 = 64 << 40;
/// Where reservations begin. It is a round number, so that addresses in a report are readable.
const RESERVE_BASE: u64 = ADDRESS_SPACE;
/// Where the memory of `malloc` begins: separate from reservations and below them, as on a real GPU.
const MALLOC_BASE: u64 = 16 << 40;

#[derive(Debug)]
struct Physical {
    size: u64,
    mappings: usize,
    /// How many handles of it were not released: one from its creation, and one for each import.
    handles: usize,
    /// Whether it was ever mapped: the first time costs more.
    was_mapped: bool,
    /// Whether it belongs to another simulated GPU, which counts its bytes.
    foreign: bool,
}

#[derive(Debug)]
struct Mapping {
    size: u64,
    physical: u64,
    access: bool,
}

#[derive(Debug)]
struct Malloc {
    size: u64,
    physical: u64,
    number: u64,
    /// Set if it belongs to another simulated GPU, which counts its bytes.
    foreign: Option<Opening>,
}

/// Opened memory of another GPU, and how many more times it was opened than closed.
#[derive(Debug)]
struct Opening {
    of: SharedMemory,
    times: usize,
}

#[derive(Debug)]
pub(super) struct Memory {
    capacity: u64,
    held: u64,
    reserve_space: Addresses,
    malloc_space: MallocAddresses,
    /// Start to size, also in the two maps below.
    reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    mallocs: BTreeMap<u64, Malloc>,
    /// The physical memory of each handle that was not released.
    handles: FxHashMap<Handle, u64>,
    physical: FxHashMap<u64, Physical>,
    contents: Contents,
    /// The next number for a handle or an allocation.
    numbers: u64,
}

impl Memory {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            held: 0,
            reserve_space: Addresses::new(RESERVE_BASE, ADDRESS_SPACE),
            malloc_space: MallocAddresses::new(MALLOC_BASE, RESERVE_BASE),
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            mallocs: BTreeMap::new(),
            handles: FxHashMap::default(),
            physical: FxHashMap::default(),
            contents: Contents::default(),
            numbers: 1,
        }
    }

    pub(super) fn info(&self) -> MemoryInfo {
        MemoryInfo { free: self.capacity.saturating_sub(self.held), total: self.capacity }
    }

    pub(super) fn reserve(&mut self, size: u64, alignment: u64) -> Answer<u64> {
        check_size(size)?;
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(refuse(Status::INVALID_VALUE, format!("alignment {alignment} is no power of two")));
        }
        let address = self.reserve_space.allocate(size, alignment.max(GRANULARITY)).ok_or_else(|| {
            refuse(Status::OUT_OF_MEMORY, format!("no {size} bytes of address space aligned to {alignment} are left"))
        })?;
        self.reservations.insert(address, size);
        Ok(address)
    }

    pub(super) fn address_free(&mut self, address: u64, size: u64) -> Answer<()> {
        match self.reservations.get(&address) {
            Some(&reserved) if reserved == size => {}
            Some(reserved) => {
                return Err(refuse(
                    Status::INVALID_VALUE,
                    format!("the reservation at {address:#x} has {reserved} bytes, not {size}"),
                ));
            }
            None => return Err(refuse(Status::INVALID_VALUE, format!("no reservation begins at {address:#x}"))),
        }
        if let Some((mapped, _)) = self.mappings.range(address..address + size).next() {
            return Err(refuse(
                Status::INVALID_VALUE,
                format!("the reservation at {address:#x} of {size} bytes still has a mapping at {mapped:#x}"),
            ));
        }
        self.reservations.remove(&address);
        self.reserve_space.release(address, size);
        Ok(())
    }

    pub(super) fn create(&mut self, size: u64) -> Answer<Handle> {
        check_size(size)?;
        self.take(size)?;
        let number = self.next_number();
        Ok(self.add(number, Physical { size, mappings: 0, handles: 1, was_mapped: false, foreign: false }))
    }

    fn add(&mut self, number: u64, physical: Physical) -> Handle {
        self.physical.insert(number, physical);
        self.handles.insert(Handle(number), number);
        Handle(number)
    }

    /// Returns the number and size of the physical memory of a live handle.
    pub(super) fn of_handle(&self, handle: Handle) -> Answer<(u64, u64)> {
        let found = self.handles.get(&handle).and_then(|number| Some((*number, self.physical.get(number)?.size)));
        let unknown = || format!("handle {:#x} does not exist or was released", handle.0);
        found.ok_or_else(|| refuse(Status::INVALID_VALUE, unknown()))
    }

    /// Makes one more handle for memory that has one.
    pub(super) fn import(&mut self, number: u64) -> Answer<Handle> {
        let Some(physical) = self.physical.get_mut(&number) else {
            return Err(refuse(Status::INVALID_VALUE, format!("memory {number} is gone")));
        };
        physical.handles += 1;
        let handle = Handle(self.next_number());
        self.handles.insert(handle, number);
        Ok(handle)
    }

    /// Makes a handle for memory of another GPU, which does not count here.
    pub(super) fn import_foreign(&mut self, size: u64) -> Answer<Handle> {
        check_size(size)?;
        let number = self.next_number();
        Ok(self.add(number, Physical { size, mappings: 0, handles: 1, was_mapped: false, foreign: true }))
    }

    /// Drops the handle. Returns its size.
    pub(super) fn release(&mut self, handle: Handle) -> Answer<u64> {
        let (number, size) = self.of_handle(handle)?;
        self.handles.remove(&handle);
        if let Some(physical) = self.physical.get_mut(&number) {
            physical.handles -= 1;
        }
        self.drop_if_unused(number);
        Ok(size)
    }

    /// Maps a handle. Returns whether it was the first mapping of the handle.
    pub(super) fn map(&mut self, address: u64, size: u64, offset: u64, handle: Handle) -> Answer<bool> {
        let (number, whole) = self.of_handle(handle)?;
        check_address(address)?;
        if size == 0 {
            check_size(size)?;
        }
        if offset != 0 || size != whole {
            return Err(refuse(
                Status::NOT_SUPPORTED,
                format!("a handle of {whole} bytes is mapped whole, not {size} bytes at offset {offset}"),
            ));
        }
        let end = self.check_reserved(address, size)?;
        if let Some((mapped, _)) =
            self.mappings.range(..end).next_back().filter(|(at, other)| *at + other.size > address)
        {
            return Err(refuse(
                Status::INVALID_VALUE,
                format!("{size} bytes at {address:#x} meet the mapping at {mapped:#x}"),
            ));
        }
        self.mappings.insert(address, Mapping { size, physical: number, access: false });
        let Some(physical) = self.physical.get_mut(&number) else { return Ok(false) };
        physical.mappings += 1;
        Ok(!std::mem::replace(&mut physical.was_mapped, true))
    }

    /// Returns the sizes of the mappings of a range, in order. Refuses a range that is not whole mappings without a
    /// gap, within one reservation.
    pub(super) fn whole_mappings(&self, address: u64, size: u64) -> Answer<impl Iterator<Item = u64> + '_> {
        let end = self.check_whole(address, size)?;
        Ok(self.mappings.range(address..end).map(|(_, mapping)| mapping.size))
    }

    /// Refuses a range as [`Self::whole_mappings`] does. Returns the end of the range. An H200's driver was seen to
    /// accept gaps, and ranges across two reservations; CUDA's documentation allows neither.
    fn check_whole(&self, address: u64, size: u64) -> Answer<u64> {
        check_address(address)?;
        check_size(size)?;
        let end = self.check_reserved(address, size)?;
        let mut reached = address;
        for (&at, mapping) in self.mappings.range(address..end) {
            if at != reached {
                break;
            }
            reached = at + mapping.size;
        }
        if reached != end {
            return Err(refuse(
                Status::INVALID_VALUE,
                format!("{size} bytes at {address:#x} are whole mappings without a gap only up to {reached:#x}"),
            ));
        }
        Ok(end)
    }

    pub(super) fn unmap(&mut self, address: u64, size: u64) -> Answer<()> {
        let end = self.check_whole(address, size)?;
        let mut at = address;
        while at < end {
            let Some(mapping) = self.mappings.remove(&at) else { break };
            at += mapping.size;
            if let Some(physical) = self.physical.get_mut(&mapping.physical) {
                physical.mappings -= 1;
            }
            self.drop_if_unused(mapping.physical);
        }
        Ok(())
    }

    pub(super) fn set_access(&mut self, address: u64, size: u64) -> Answer<()> {
        let end = self.check_whole(address, size)?;
        for (_, mapping) in self.mappings.range_mut(address..end) {
            mapping.access = true;
        }
        Ok(())
    }

    /// Returns the sizes of all mappings with access.
    pub(super) fn accessible(&self) -> impl Iterator<Item = u64> + '_ {
        self.mappings.values().filter(|mapping| mapping.access).map(|mapping| mapping.size)
    }

    /// Returns whether some of `range` is mapped, and whether some of it is of `malloc`.
    pub(super) fn kinds_in(&self, range: Range) -> (bool, bool) {
        let end = range.address.saturating_add(range.size);
        let mapped = self.mappings.range(..end).next_back().is_some_and(|(at, found)| at + found.size > range.address);
        let plain = self.mallocs.range(..end).next_back().is_some_and(|(at, found)| at + found.size > range.address);
        (mapped, plain)
    }

    pub(super) fn malloc(&mut self, size: u64) -> Answer<u64> {
        if size == 0 {
            return Err(refuse(Status::INVALID_VALUE, "a size of 0".to_owned()));
        }
        let too_large = || refuse(Status::OUT_OF_MEMORY, format!("{size} bytes are more than any device has"));
        let physical = size.checked_next_multiple_of(GRANULARITY).ok_or_else(too_large)?;
        self.take(physical)?;
        let Some(address) = self.malloc_space.allocate(physical, GRANULARITY) else {
            self.held -= physical;
            return Err(too_large());
        };
        let number = self.next_number();
        self.mallocs.insert(address, Malloc { size, physical, number, foreign: None });
        Ok(address)
    }

    /// Returns the number and size of this GPU's allocation of `malloc` at `address`.
    pub(super) fn of_malloc(&self, address: u64) -> Answer<(u64, u64)> {
        let own = self.mallocs.get(&address).filter(|malloc| malloc.foreign.is_none());
        let unknown = || refuse(Status::INVALID_VALUE, format!("nothing was allocated at {address:#x}"));
        own.map(|malloc| (malloc.number, malloc.size)).ok_or_else(unknown)
    }

    /// Opens an allocation of another GPU. Returns its address, which is the same at each opening.
    pub(super) fn open(&mut self, of: SharedMemory) -> Answer<u64> {
        for (address, malloc) in &mut self.mallocs {
            if let Some(opening) = malloc.foreign.as_mut().filter(|opening| opening.of == of) {
                opening.times += 1;
                return Ok(*address);
            }
        }
        let size = of.size;
        let physical = size.next_multiple_of(GRANULARITY);
        let address = self.malloc_space.allocate(physical, GRANULARITY);
        let address = address.ok_or_else(|| refuse(Status::OUT_OF_MEMORY, format!("no addresses for {size} bytes")))?;
        let number = self.next_number();
        self.mallocs.insert(address, Malloc { size, physical, number, foreign: Some(Opening { of, times: 1 }) });
        Ok(address)
    }

    /// Ends one opening of `open`. The address is given back with the last one.
    pub(super) fn close(&mut self, address: u64) -> Answer<()> {
        let Some(opening) = self.mallocs.get_mut(&address).and_then(|malloc| malloc.foreign.as_mut()) else {
            return Err(refuse(Status::INVALID_VALUE, format!("nothing was opened at {address:#x}")));
        };
        opening.times -= 1;
        if opening.times == 0
            && let Some(malloc) = self.mallocs.remove(&address)
        {
            self.malloc_space.release(address, malloc.physical);
        }
        Ok(())
    }

    /// Returns the requested size of the allocation of `malloc` at `address`. It is 0 for address 0, which may be
    /// freed.
    pub(super) fn malloc_size(&self, address: u64) -> Answer<u64> {
        if address == 0 {
            return Ok(0);
        }
        let unknown = || refuse(Status::INVALID_VALUE, format!("nothing was allocated at {address:#x}"));
        self.mallocs.get(&address).map(|malloc| malloc.size).ok_or_else(unknown)
    }

    pub(super) fn free(&mut self, address: u64) -> Answer<()> {
        if address != 0 {
            self.of_malloc(address)?;
        }
        if let Some(malloc) = self.mallocs.remove(&address) {
            self.held -= malloc.physical;
            self.contents.forget(malloc.number);
            self.malloc_space.release(address, malloc.physical);
        }
        Ok(())
    }

    /// Checks a kernel's use of `range`. The fault names the first part that may not be used.
    pub(super) fn check_use(&self, range: Range, stream: StreamId) -> Result<(), Fault> {
        let end = range.address.saturating_add(range.size);
        let stretch = |from: u64, to: u64| Range { address: from, size: to.min(end) - from };
        let mut at = range.address;
        while at < end {
            let mapping =
                self.mappings.range(..=at).next_back().map(|(start, found)| (start + found.size, found.access));
            let malloc = self.mallocs.range(..=at).next_back().map(|(start, found)| (start + found.size, true));
            at = match [mapping, malloc].into_iter().flatten().find(|(to, _)| *to > at) {
                Some((to, true)) => to,
                Some((to, false)) => return Err(Fault::NoAccess { range: stretch(at, to), stream }),
                None => {
                    let mapped = self.mappings.range(at..).next().map_or(end, |(start, _)| *start);
                    let to = self.mallocs.range(at..).next().map_or(mapped, |(start, _)| mapped.min(*start));
                    return Err(Fault::UnmappedUse { range: stretch(at, to), stream });
                }
            };
        }
        Ok(())
    }

    /// Returns the first part of `range` that the allocator filled last, if every byte of `range` may be used.
    pub(super) fn marked_in(&self, range: Range) -> Option<Range> {
        let mut address = range.address;
        for piece in self.physical_at(range) {
            if let Some((offset, size)) = self.contents.of_allocator(piece) {
                return Some(Range { address: address + (offset - piece.offset), size });
            }
            address += piece.size;
        }
        None
    }

    /// Sets every byte of `range`, which may be used.
    pub(super) fn fill(&mut self, range: Range, value: u8, writer: Writer) {
        for piece in self.physical_at(range) {
            self.contents.fill(piece, value, writer);
        }
    }

    /// Copies the bytes of a range, which may be used.
    pub(super) fn read(&self, address: u64, bytes: &mut [u8]) {
        let mut left = bytes;
        for piece in self.physical_at(Range { address, size: left.len() as u64 }) {
            let Some((part, rest)) = left.split_at_mut_checked(piece.size as usize) else { return };
            self.contents.read(piece, part);
            left = rest;
        }
    }

    /// Refuses a range that is empty, or that the device may not use.
    pub(super) fn check_usable(&self, range: Range, stream: StreamId) -> Answer<()> {
        if range.size == 0 {
            return Err(refuse(Status::INVALID_VALUE, "a size of 0".to_owned()));
        }
        self.check_use(range, stream).map_err(|fault| refuse(Status::INVALID_VALUE, fault.to_string()))
    }

    /// Returns the physical memory of `range`, in the order of addresses, without parts that have none.
    pub(super) fn physical_at(&self, range: Range) -> Vec<Piece> {
        let end = range.address.saturating_add(range.size);
        let first = self.mappings.range(..=range.address).next_back().map_or(range.address, |(start, _)| *start);
        let mapped = self.mappings.range(first..end.max(first)).map(|(at, found)| (*at, found.size, found.physical));
        let first = self.mallocs.range(..=range.address).next_back().map_or(range.address, |(start, _)| *start);
        let malloced = self.mallocs.range(first..end.max(first)).map(|(at, found)| (*at, found.size, found.number));
        let mut found: Vec<_> = mapped.chain(malloced).collect();
        found.sort_unstable();
        let piece = |(at, size, memory)| {
            let part = range.overlap(Range { address: at, size })?;
            Some(Piece { memory, offset: part.address - at, size: part.size })
        };
        found.into_iter().filter_map(piece).collect()
    }

    fn next_number(&mut self) -> u64 {
        let number = self.numbers;
        self.numbers += 1;
        number
    }

    pub(super) fn leaks(&self) -> Leaks {
        Leaks {
            reservations: self.reservations.len(),
            handles: self.handles.len(),
            mappings: self.mappings.len(),
            mallocs: self.mallocs.len(),
            events: 0,
            bytes: self.held,
        }
    }

    fn take(&mut self, size: u64) -> Answer<()> {
        let free = self.info().free;
        if size > free {
            return Err(refuse(
                Status::OUT_OF_MEMORY,
                format!("{size} bytes wanted, {free} of {} free", self.capacity),
            ));
        }
        self.held += size;
        Ok(())
    }

    fn drop_if_unused(&mut self, number: u64) {
        if let Some(physical) = self.physical.get(&number)
            && physical.handles == 0
            && physical.mappings == 0
        {
            if !physical.foreign {
                self.held -= physical.size;
            }
            self.physical.remove(&number);
            self.contents.forget(number);
        }
    }

    /// Returns the end of a range, which must lie in one reservation.
    fn check_reserved(&self, address: u64, size: u64) -> Answer<u64> {
        let end = address.checked_add(size);
        let reserved = self.reservations.range(..=address).next_back().map(|(start, size)| start + size);
        match (end, reserved) {
            (Some(end), Some(reserved)) if end <= reserved => Ok(end),
            _ => Err(refuse(Status::INVALID_VALUE, format!("{size} bytes at {address:#x} are not in one reservation"))),
        }
    }
}

fn check_size(size: u64) -> Answer<()> {
    if size == 0 || !size.is_multiple_of(GRANULARITY) {
        return Err(refuse(
            Status::INVALID_VALUE,
            format!("a size of {size} bytes is not a multiple of the granularity {GRANULARITY}, or is 0"),
        ));
    }
    Ok(())
}

fn check_address(address: u64) -> Answer<()> {
    if !address.is_multiple_of(GRANULARITY) {
        return Err(refuse(
            Status::INVALID_VALUE,
            format!("the address {address:#x} is not a multiple of the granularity {GRANULARITY}"),
        ));
    }
    Ok(())
}
