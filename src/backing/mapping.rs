//! Physical memory mapped one piece behind the other, whole or not at all.
//!
//! Owns: the order of driver calls that make a mapping, and that undo one of which a call failed.

use crate::driver::{Driver, DriverResult};
use crate::ids::{Class, Handle};

/// A piece of a mapping.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) size: u64,
    /// `None` once released.
    pub(crate) handle: Option<Handle>,
}

/// Pieces on their way to be mapped, one behind the other.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) address: u64,
    pub(crate) pieces: Vec<Piece>,
    /// Bytes from the address on that are mapped.
    mapped: u64,
    /// The class that the memory counts for, if it was created for this mapping; otherwise others own it.
    pub(super) owned: Option<Class>,
    /// Bytes of address space that are given back with it.
    reserved: u64,
}

impl Mapping {
    /// Memory that is to be created for addresses which stay reserved.
    pub(crate) fn of_new_memory(address: u64, class: Class) -> Self {
        Self { address, pieces: Vec::new(), mapped: 0, owned: Some(class), reserved: 0 }
    }

    /// Memory of others, mapped once more at addresses of its own.
    pub(crate) fn of_chunks(address: u64, pieces: Vec<Piece>) -> Self {
        let reserved = pieces.iter().map(|piece| piece.size).sum();
        Self { address, pieces, mapped: 0, owned: None, reserved }
    }

    /// Memory of others, mapped at addresses that stay reserved.
    pub(crate) fn at_home(address: u64, pieces: Vec<Piece>) -> Self {
        Self { address, pieces, mapped: 0, owned: None, reserved: 0 }
    }

    /// Creates `size` bytes in pieces of at most `piece` bytes, behind those that are there.
    pub(crate) fn create(&mut self, driver: &dyn Driver, size: u64, piece: u64) -> DriverResult<()> {
        let mut missing = size;
        while missing > 0 {
            let size = piece.min(missing);
            self.pieces.push(Piece { size, handle: Some(driver.create(size)?) });
            missing -= size;
        }
        Ok(())
    }

    /// Maps every piece and lets the device use it.
    pub(crate) fn map(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        for piece in &self.pieces {
            let Some(handle) = piece.handle else { continue };
            driver.map(self.address + self.mapped, piece.size, 0, handle)?;
            self.mapped += piece.size;
        }
        driver.set_access(self.address, self.mapped)
    }

    /// Memory that is mapped nowhere and could not be released.
    pub(super) fn of_unmapped(handle: Handle, size: u64, class: Class) -> Self {
        let pieces = vec![Piece { size, handle: Some(handle) }];
        Self { address: 0, pieces, mapped: 0, owned: Some(class), reserved: 0 }
    }

    /// Returns the physical bytes that it holds: pieces that are mapped, or not released.
    pub(super) fn held(&self) -> u64 {
        let mut at = 0;
        let mut held = 0;
        for piece in &self.pieces {
            if self.owned.is_some() && (piece.handle.is_some() || at < self.mapped) {
                held += piece.size;
            }
            at += piece.size;
        }
        held
    }

    /// Releases, unmaps and gives back what is its own. Nothing has used the addresses yet. After a failed call it says how
    /// far it came.
    pub(super) fn undo(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        if self.owned.is_some() {
            for piece in &mut self.pieces {
                if let Some(handle) = piece.handle {
                    driver.release(handle)?;
                    piece.handle = None;
                }
            }
        }
        if self.mapped > 0 {
            driver.unmap(self.address, self.mapped)?;
            self.mapped = 0;
        }
        if self.reserved > 0 {
            driver.address_free(self.address, self.reserved)?;
            self.reserved = 0;
        }
        Ok(())
    }
}
