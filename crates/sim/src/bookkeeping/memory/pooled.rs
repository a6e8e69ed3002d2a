//! Allocations of the driver's pools, and the bytes that the pools hold.
//!
//! Owns: finding an allocation of a pool by its first address, and the driver's rules about such allocations. The
//! device's `pool.rs` chooses the place of an allocation in its pool.

use super::{Memory, Piece, Pooled};
use crate::bookkeeping::refusal::{Answer, refuse};
use seamalloc_driver::Status;

impl<P> Memory<P> {
    /// Takes physical memory for a pool.
    pub(crate) fn take(&mut self, bytes: u64) -> Answer<()> {
        self.check_free(bytes)?;
        self.held += bytes;
        Ok(())
    }

    /// Gives physical memory of a pool back.
    pub(crate) fn give(&mut self, bytes: u64) {
        self.held = self.held.saturating_sub(bytes);
    }

    /// Returns a number for the memory of a pool.
    pub(crate) fn number_of_pool(&mut self) -> u64 {
        self.next_number()
    }

    /// Notes an allocation of a pool. The pool holds the allocation's bytes.
    pub(crate) fn add_pooled(&mut self, address: u64, piece: Piece) {
        self.pooled.insert(address, Pooled { size: piece.size, number: piece.memory, offset: piece.offset });
    }

    /// Returns the memory of the allocation at `address` in its pool.
    pub(crate) fn of_pooled(&self, address: u64) -> Answer<Piece> {
        let unknown = || refuse(Status::INVALID_VALUE, format!("no pool has allocated anything at {address:#x}"));
        let found = self.pooled.get(&address).ok_or_else(unknown)?;
        Ok(Piece { memory: found.number, offset: found.offset, size: found.size })
    }

    /// Removes an allocation of a pool.
    pub(crate) fn remove_pooled(&mut self, address: u64) {
        self.pooled.remove(&address);
    }
}
