//! Allocations of `malloc`, and allocations of other devices that this device has opened.
//!
//! Owns: finding an allocation by its first address, the number of openings of another device's allocation, and the
//! driver's rules about allocations and openings.

use super::{GRANULARITY, Malloc, Memory, Opening};
use crate::bookkeeping::refusal::{Answer, refuse};
use crate::bookkeeping::shared_memory::SharedMemory;
use seamalloc_driver::Status;

impl<P> Memory<P> {
    /// Allocates `size` bytes. `place` finds an address for the size in whole granules.
    pub(crate) fn malloc(&mut self, size: u64, place: impl FnOnce(u64) -> Answer<(u64, P)>) -> Answer<u64> {
        if size == 0 {
            return Err(refuse(Status::INVALID_VALUE, "a size of 0".to_owned()));
        }
        let too_large = || refuse(Status::OUT_OF_MEMORY, format!("{size} bytes are more than any device has"));
        let physical = size.checked_next_multiple_of(GRANULARITY).ok_or_else(too_large)?;
        self.check_free(physical)?;
        let (address, backing) = place(physical)?;
        self.held += physical;
        let number = self.next_number();
        self.mallocs.insert(address, Malloc { size, physical, number, foreign: None, backing });
        Ok(address)
    }

    /// Returns the number and size of this device's allocation of `malloc` at `address`.
    pub(crate) fn of_malloc(&self, address: u64) -> Answer<(u64, u64)> {
        let own = self.mallocs.get(&address).filter(|malloc| malloc.foreign.is_none());
        let unknown = || refuse(Status::INVALID_VALUE, format!("nothing was allocated at {address:#x}"));
        own.map(|malloc| (malloc.number, malloc.size)).ok_or_else(unknown)
    }

    /// Opens an allocation of another device. `place` finds an address for its size in whole granules. Returns the
    /// address, which is the same at each opening.
    pub(crate) fn open(&mut self, of: SharedMemory, place: impl FnOnce(u64) -> Answer<(u64, P)>) -> Answer<u64> {
        for (address, malloc) in &mut self.mallocs {
            if let Some(opening) = malloc.foreign.as_mut().filter(|opening| opening.of == of) {
                opening.times += 1;
                return Ok(*address);
            }
        }
        let size = of.size;
        let too_large = || refuse(Status::INVALID_VALUE, format!("no allocation has {size} bytes"));
        let physical = size.checked_next_multiple_of(GRANULARITY).ok_or_else(too_large)?;
        let (address, backing) = place(physical)?;
        let (number, foreign) = (self.next_number(), Some(Opening { of, times: 1 }));
        self.mallocs.insert(address, Malloc { size, physical, number, foreign, backing });
        Ok(address)
    }

    /// Ends one opening of another device's allocation by `open`. When the last opening ends, `give_back` is called
    /// with the size in bytes.
    pub(crate) fn close(&mut self, address: u64, give_back: impl FnOnce(u64) -> Answer<()>) -> Answer<()> {
        let opened =
            self.mallocs.get_mut(&address).and_then(|malloc| Some((malloc.foreign.as_mut()?, malloc.physical)));
        let Some((opening, physical)) = opened else {
            return Err(refuse(Status::INVALID_VALUE, format!("nothing was opened at {address:#x}")));
        };
        if opening.times == 1 {
            give_back(physical)?;
            self.mallocs.remove(&address);
        } else {
            opening.times -= 1;
        }
        Ok(())
    }

    /// Returns the requested size of the allocation of `malloc` at `address`; 0 for address 0, which may be freed.
    pub(crate) fn malloc_size(&self, address: u64) -> Answer<u64> {
        if address == 0 {
            return Ok(0);
        }
        let unknown = || refuse(Status::INVALID_VALUE, format!("nothing was allocated at {address:#x}"));
        self.mallocs.get(&address).map(|malloc| malloc.size).ok_or_else(unknown)
    }

    /// Frees an allocation of `malloc`. `give_back` gets the allocation's size in bytes.
    pub(crate) fn free(&mut self, address: u64, give_back: impl FnOnce(u64) -> Answer<()>) -> Answer<()> {
        if address == 0 {
            return Ok(());
        }
        self.of_malloc(address)?;
        let physical = self.mallocs.get(&address).map_or(0, |malloc| malloc.physical);
        give_back(physical)?;
        self.mallocs.remove(&address);
        self.held -= physical;
        Ok(())
    }
}
