//! Allocations of the driver's pools, and the bytes that the pools hold.
//!
//! Owns: which allocation begins at an address, and the driver's rules about it. Which bytes of a pool it gets is the machine's
//! side.

use super::{Memory, Pooled};
use crate::driver::Status;
use crate::driver::bookkeeping::refusal::{Answer, refuse};

impl<P> Memory<P> {
    /// Takes physical memory for a pool.
    pub(in crate::driver) fn take(&mut self, bytes: u64) -> Answer<()> {
        self.check_free(bytes)?;
        self.held += bytes;
        Ok(())
    }

    /// Gives physical memory of a pool back.
    pub(in crate::driver) fn give(&mut self, bytes: u64) {
        self.held = self.held.saturating_sub(bytes);
    }

    /// Notes an allocation of a pool, which holds its bytes.
    pub(in crate::driver) fn add_pooled(&mut self, address: u64, size: u64) {
        let number = self.next_number();
        self.pooled.insert(address, Pooled { size, number });
    }

    /// Returns the number and size of the allocation of a pool at `address`.
    pub(in crate::driver) fn of_pooled(&self, address: u64) -> Answer<(u64, u64)> {
        let unknown = || refuse(Status::INVALID_VALUE, format!("no pool has allocated anything at {address:#x}"));
        self.pooled.get(&address).map(|pooled| (pooled.number, pooled.size)).ok_or_else(unknown)
    }

    /// Removes an allocation of a pool.
    pub(in crate::driver) fn remove_pooled(&mut self, address: u64) {
        self.pooled.remove(&address);
    }
}
