//! The memory of a device: address space, handles, mappings and allocations of `malloc`.
//!
//! Owns: the memory at each address, the physical bytes held, and the driver's rules about addresses, handles and
//! mappings. `malloc.rs` has the rules about allocations, and `ranges.rs` the rules about the use of memory. Other
//! files have time, streams and costs. Each call receives a function of the device, which provides real or simulated
//! addresses and bytes. This function runs after the rules are checked and before any change is noted. So a call that
//! is refused, by a rule or by this function, has changed no state.

mod malloc;
mod pooled;
mod ranges;

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::faults::Leaks;
use super::refusal::{Answer, refuse};
use super::shared_memory::SharedMemory;
use seamalloc_driver::{Handle, MemoryInfo, Status};

/// The unit of every size and address of virtual-memory calls, in bytes, as measured on an H200.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// A piece of physical memory, at any addresses at which it is mapped. Each handle and each allocation has a number
/// that is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The number of the handle or allocation.
    pub memory: u64,
    /// The offset of the piece's first byte in the handle or allocation.
    pub offset: u64,
    /// The size in bytes.
    pub size: u64,
}

/// An address at which memory is mapped, the bytes mapped there, and whether they have access.
pub(crate) type Mapped = (u64, u64, bool);

#[derive(Debug)]
struct Physical<P> {
    size: u64,
    mappings: usize,
    /// The number of handles of the memory that were not released: one from its creation, and one from each import.
    handles: usize,
    /// Whether the memory was ever mapped. The first mapping costs more.
    was_mapped: bool,
    /// Whether the memory belongs to another device, which counts its bytes.
    foreign: bool,
    /// Whether the memory is host memory that the device uses.
    on_host: bool,
    /// The device's own value for the memory (`P` of [`Memory`]), which is dropped with the last handle and mapping.
    backing: P,
}

impl<P> Physical<P> {
    /// Makes memory of this device, with one handle.
    fn new(size: u64, backing: P) -> Self {
        Self { size, mappings: 0, handles: 1, was_mapped: false, foreign: false, on_host: false, backing }
    }
}

#[derive(Debug)]
struct Mapping {
    size: u64,
    physical: u64,
    access: bool,
}

#[derive(Debug)]
struct Malloc<P> {
    size: u64,
    physical: u64,
    number: u64,
    /// The opening, if the memory belongs to another device, which counts its bytes.
    foreign: Option<Opening>,
    /// The device's own value for the memory (`P` of [`Memory`]).
    backing: P,
}

/// Opened memory of another device, and the number of openings that were not closed.
#[derive(Debug)]
struct Opening {
    of: SharedMemory,
    times: usize,
}

/// An allocation of one of the driver's pools.
#[derive(Debug)]
struct Pooled {
    size: u64,
    /// The number of the pool's memory.
    number: u64,
    /// The offset of the allocation's first byte in the pool's memory.
    offset: u64,
}

/// The memory of a device. `P` is the value that a device keeps for each piece of physical memory: its bytes on the
/// host device, nothing on the simulated GPU.
#[derive(Debug)]
pub(crate) struct Memory<P> {
    capacity: u64,
    held: u64,
    /// The most bytes of host memory that may be created, and the bytes created so far.
    host_capacity: u64,
    host_held: u64,
    /// The reservations, from start to size. The three maps below are keyed by the start too.
    reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    mallocs: BTreeMap<u64, Malloc<P>>,
    pooled: BTreeMap<u64, Pooled>,
    /// The physical memory of each handle that was not released.
    handles: FxHashMap<Handle, u64>,
    physical: FxHashMap<u64, Physical<P>>,
    /// The next number for a handle or an allocation.
    numbers: u64,
}

impl<P> Memory<P> {
    /// Makes the memory of a device with `capacity` bytes. The device may use `host_capacity` bytes of host memory.
    pub(crate) fn new(capacity: u64, host_capacity: u64) -> Self {
        Self {
            capacity,
            held: 0,
            host_capacity,
            host_held: 0,
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            mallocs: BTreeMap::new(),
            pooled: BTreeMap::new(),
            handles: FxHashMap::default(),
            physical: FxHashMap::default(),
            numbers: 1,
        }
    }

    pub(crate) fn info(&self) -> MemoryInfo {
        MemoryInfo { free: self.capacity.saturating_sub(self.held), total: self.capacity }
    }

    /// Reserves `size` addresses at a multiple of `alignment`. `place` finds the addresses.
    pub(crate) fn reserve(
        &mut self,
        size: u64,
        alignment: u64,
        place: impl FnOnce(u64, u64) -> Answer<u64>,
    ) -> Answer<u64> {
        check_size(size)?;
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(refuse(Status::INVALID_VALUE, format!("alignment {alignment} is no power of two")));
        }
        let address = place(size, alignment.max(GRANULARITY))?;
        self.reservations.insert(address, size);
        Ok(address)
    }

    pub(crate) fn address_free(
        &mut self,
        address: u64,
        size: u64,
        give_back: impl FnOnce() -> Answer<()>,
    ) -> Answer<()> {
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
        give_back()?;
        self.reservations.remove(&address);
        Ok(())
    }

    pub(crate) fn create(&mut self, size: u64, make: impl FnOnce() -> Answer<P>) -> Answer<Handle> {
        check_size(size)?;
        self.check_free(size)?;
        let backing = make()?;
        self.held += size;
        let number = self.next_number();
        Ok(self.add(number, Physical::new(size, backing)))
    }

    /// Creates host memory.
    pub(crate) fn create_on_host(&mut self, size: u64, make: impl FnOnce() -> Answer<P>) -> Answer<Handle> {
        check_size(size)?;
        let free = self.host_capacity.saturating_sub(self.host_held);
        if size > free {
            let why = format!("{size} bytes of the machine wanted, {free} of {} free", self.host_capacity);
            return Err(refuse(Status::OUT_OF_MEMORY, why));
        }
        let backing = make()?;
        self.host_held += size;
        let number = self.next_number();
        Ok(self.add(number, Physical { on_host: true, ..Physical::new(size, backing) }))
    }

    /// Returns whether the memory mapped at an address is host memory.
    pub(crate) fn is_on_host(&self, address: u64) -> bool {
        let mapping = self.mappings.range(..=address).next_back().filter(|(at, mapping)| *at + mapping.size > address);
        mapping.and_then(|(_, mapping)| self.physical.get(&mapping.physical)).is_some_and(|physical| physical.on_host)
    }

    fn add(&mut self, number: u64, physical: Physical<P>) -> Handle {
        self.physical.insert(number, physical);
        self.handles.insert(Handle(number), number);
        Handle(number)
    }

    /// Returns the number and size of the physical memory of a live handle.
    pub(crate) fn of_handle(&self, handle: Handle) -> Answer<(u64, u64)> {
        let found = self.handles.get(&handle).and_then(|number| Some((*number, self.physical.get(number)?.size)));
        let unknown = || format!("handle {:#x} does not exist or was released", handle.0);
        found.ok_or_else(|| refuse(Status::INVALID_VALUE, unknown()))
    }

    /// Returns whether created or imported memory with this number exists, because a handle or a mapping is left.
    pub(crate) fn is_there(&self, number: u64) -> bool {
        self.physical.contains_key(&number)
    }

    /// Makes a further handle for memory that has a handle.
    pub(crate) fn import(&mut self, number: u64) -> Answer<Handle> {
        let Some(physical) = self.physical.get_mut(&number) else {
            return Err(refuse(Status::INVALID_VALUE, format!("memory {number} is gone")));
        };
        physical.handles += 1;
        let handle = Handle(self.next_number());
        self.handles.insert(handle, number);
        Ok(handle)
    }

    /// Makes a handle for memory of another device, which counts its bytes.
    pub(crate) fn import_foreign(&mut self, size: u64, backing: P) -> Answer<Handle> {
        check_size(size)?;
        let number = self.next_number();
        Ok(self.add(number, Physical { foreign: true, ..Physical::new(size, backing) }))
    }

    /// Drops the handle. Returns the size of its memory.
    pub(crate) fn release(&mut self, handle: Handle) -> Answer<u64> {
        let (number, size) = self.of_handle(handle)?;
        self.handles.remove(&handle);
        if let Some(physical) = self.physical.get_mut(&number) {
            physical.handles -= 1;
        }
        self.drop_if_unused(number);
        Ok(size)
    }

    /// Maps a handle. Returns whether this was the first mapping of the handle.
    pub(crate) fn map(
        &mut self,
        address: u64,
        size: u64,
        offset: u64,
        handle: Handle,
        place: impl FnOnce(&P) -> Answer<()>,
    ) -> Answer<bool> {
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
        let Some(physical) = self.physical.get_mut(&number) else { return Ok(false) };
        place(&physical.backing)?;
        self.mappings.insert(address, Mapping { size, physical: number, access: false });
        physical.mappings += 1;
        Ok(!std::mem::replace(&mut physical.was_mapped, true))
    }

    /// Returns the sizes of the mappings of a range, in order. Refuses a range that does not consist of whole mappings
    /// without a gap, within one reservation.
    pub(crate) fn whole_mappings(&self, address: u64, size: u64) -> Answer<impl Iterator<Item = u64> + '_> {
        let end = self.check_whole(address, size)?;
        Ok(self.mappings.range(address..end).map(|(_, mapping)| mapping.size))
    }

    /// Refuses a range as [`Self::whole_mappings`] does. Returns the end of the range. An H200's driver was seen to
    /// accept gaps, and ranges across two reservations. CUDA's documentation does not allow them.
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

    pub(crate) fn unmap(&mut self, address: u64, size: u64, remove: impl FnOnce() -> Answer<()>) -> Answer<()> {
        let end = self.check_whole(address, size)?;
        remove()?;
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

    pub(crate) fn set_access(&mut self, address: u64, size: u64, open: impl FnOnce() -> Answer<()>) -> Answer<()> {
        let end = self.check_whole(address, size)?;
        open()?;
        for (_, mapping) in self.mappings.range_mut(address..end) {
            mapping.access = true;
        }
        Ok(())
    }

    /// Returns the sizes of all mappings with access.
    pub(crate) fn accessible(&self) -> impl Iterator<Item = u64> + '_ {
        self.mappings.values().filter(|mapping| mapping.access).map(|mapping| mapping.size)
    }

    /// Returns the device's own value (`P`) for the memory with this number, which a handle or `malloc` holds. Also
    /// returns every address at which the memory is mapped, with its access.
    pub(crate) fn backing_mut(&mut self, number: u64) -> Option<(&mut P, Vec<Mapped>)> {
        if let Some(physical) = self.physical.get_mut(&number) {
            let of_it = self.mappings.iter().filter(|(_, mapping)| mapping.physical == number);
            let mapped = of_it.map(|(address, mapping)| (*address, mapping.size, mapping.access)).collect();
            return Some((&mut physical.backing, mapped));
        }
        let (address, malloc) = self.mallocs.iter_mut().find(|(_, malloc)| malloc.number == number)?;
        Some((&mut malloc.backing, vec![(*address, malloc.physical, true)]))
    }

    /// Returns the number of the created or imported memory whose `P` (the device's own value) satisfies `is_it`;
    /// `None` if there is none.
    pub(crate) fn find(&self, is_it: impl Fn(&P) -> bool) -> Option<u64> {
        let created = self.physical.iter().find(|(_, physical)| is_it(&physical.backing));
        created.map(|(number, _)| *number)
    }

    /// Returns the addresses and sizes of all reservations, and of all allocations of `malloc`, rounded up to granules.
    pub(crate) fn all_addresses(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let reserved = self.reservations.iter().map(|(address, size)| (*address, *size));
        reserved.chain(self.mallocs.iter().map(|(address, malloc)| (*address, malloc.physical)))
    }

    fn next_number(&mut self) -> u64 {
        let number = self.numbers;
        self.numbers += 1;
        number
    }

    pub(crate) fn leaks(&self) -> Leaks {
        Leaks {
            reservations: self.reservations.len(),
            handles: self.handles.len(),
            mappings: self.mappings.len(),
            mallocs: self.mallocs.len(),
            pooled: self.pooled.len(),
            pools: 0,
            streams: 0,
            events: 0,
            host_buffers: 0,
            bytes: self.held,
            host_bytes: self.host_held,
        }
    }

    fn check_free(&self, size: u64) -> Answer<()> {
        let free = self.info().free;
        if size > free {
            return Err(refuse(
                Status::OUT_OF_MEMORY,
                format!("{size} bytes wanted, {free} of {} free", self.capacity),
            ));
        }
        Ok(())
    }

    fn drop_if_unused(&mut self, number: u64) {
        if let Some(physical) = self.physical.get(&number)
            && physical.handles == 0
            && physical.mappings == 0
        {
            if physical.on_host {
                self.host_held -= physical.size;
            } else if !physical.foreign {
                self.held -= physical.size;
            }
            self.physical.remove(&number);
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
