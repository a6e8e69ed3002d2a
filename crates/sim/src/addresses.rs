//! The addresses of the simulated GPU. Reservations get the lowest addresses; `malloc` gets addresses by the rule that
//! a real driver was seen to follow.
//!
//! Owns: the choice of the next addresses. The bookkeeping notes which memory lies at the addresses.

use crate::bookkeeping::{Addresses, Answer, GRANULARITY, refuse};
use seamalloc_driver::Status;

/// The address space of reservations, in bytes. On an H200 a reservation of 64 TiB succeeds and a reservation of 100
/// TiB does not. Several smaller reservations reach 126 TiB together. This is not modelled, since no allocator should
/// need as many addresses.
pub(super) const ADDRESS_SPACE: u64 = 64 << 40;
/// The first address of reservations. The address is a round number, so that addresses in a report are readable.
const RESERVE_BASE: u64 = ADDRESS_SPACE;
/// The first address of `malloc`. The region is separate from reservations and below them, as on a real GPU.
const MALLOC_BASE: u64 = 16 << 40;

/// All addresses of a device.
#[derive(Debug)]
pub(super) struct AddressSpace {
    reservations: Addresses,
    mallocs: MallocAddresses,
}

impl AddressSpace {
    pub(super) fn new() -> Self {
        Self {
            reservations: Addresses::new(RESERVE_BASE, ADDRESS_SPACE),
            mallocs: MallocAddresses::new(MALLOC_BASE, RESERVE_BASE),
        }
    }

    pub(super) fn reserve(&mut self, size: u64, alignment: u64) -> Answer<u64> {
        self.reservations.allocate(size, alignment).ok_or_else(|| {
            refuse(Status::OUT_OF_MEMORY, format!("no {size} bytes of address space aligned to {alignment} are left"))
        })
    }

    pub(super) fn address_free(&mut self, address: u64, size: u64) {
        self.reservations.release(address, size);
    }

    /// Returns an address for `malloc`. No real memory lies there.
    pub(super) fn malloc(&mut self, size: u64) -> Answer<(u64, ())> {
        let none = || refuse(Status::OUT_OF_MEMORY, format!("no addresses are left for {size} bytes of `malloc`"));
        Ok((self.mallocs.allocate(size, GRANULARITY).ok_or_else(none)?, ()))
    }

    pub(super) fn free(&mut self, address: u64, size: u64) {
        self.mallocs.release(address, size);
    }
}

/// The addresses of `malloc`, chosen by the rule that a real driver was seen to follow (PyTorch snapshots, H200, driver
/// 580): the lowest hole that fits, or else a new stretch (a multiple of 32 MiB) below all earlier stretches. The rest
/// of a stretch becomes a hole. The drawing shows the sizes in three stretches, in MiB.
///
/// ```text
///   new stretches <- | 150 MiB, 10 free | 20, 2, 2, 8 free | 58 MiB, 6 free |
/// ```
#[derive(Debug)]
pub(super) struct MallocAddresses {
    holes: Addresses,
    base: u64,
    lowest: u64,
}

/// The unit of new stretches, in bytes.
const STRETCH: u64 = 32 << 20;

impl MallocAddresses {
    /// Makes the region between `base` and `end`, a multiple of 32 MiB.
    pub(super) fn new(base: u64, end: u64) -> Self {
        Self { holes: Addresses::new(end, 0), base, lowest: end }
    }

    pub(super) fn allocate(&mut self, size: u64, alignment: u64) -> Option<u64> {
        if let Some(address) = self.holes.allocate(size, alignment) {
            return Some(address);
        }
        let stretch = size.checked_next_multiple_of(STRETCH)?;
        let address = self.lowest.checked_sub(stretch).filter(|address| *address >= self.base)?;
        self.lowest = address;
        if stretch > size {
            self.holes.release(address + size, stretch - size);
        }
        Some(address)
    }

    pub(super) fn release(&mut self, address: u64, size: u64) {
        self.holes.release(address, size);
    }
}
