//! Physical memory mapped one piece behind the other, whole or not at all.
//!
//! Owns: the order of driver calls that make a mapping, and that undo one of which a call failed. What cannot be undone
//! at once is kept, counted as reserved, and tried again.

use super::Ground;
use crate::driver::{Driver, DriverResult, Handle};
use crate::stats::Class;

/// A piece of a mapping.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) size: u64,
    /// `None` once released.
    pub(super) handle: Option<Handle>,
}

/// Pieces on their way to be mapped, one behind the other.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) address: u64,
    pub(super) pieces: Vec<Piece>,
    /// Bytes from the address on that are mapped.
    mapped: u64,
    /// The class that the memory counts for, if it was created for this mapping; otherwise others own it.
    owned: Option<Class>,
    /// Bytes of address space that are given back with it.
    reserved: u64,
}

impl Mapping {
    /// Memory that is to be created for addresses which stay reserved.
    pub(super) fn of_new_memory(address: u64, class: Class) -> Self {
        Self { address, pieces: Vec::new(), mapped: 0, owned: Some(class), reserved: 0 }
    }

    /// Memory of others, mapped once more at addresses of its own.
    pub(super) fn of_chunks(address: u64, pieces: Vec<Piece>) -> Self {
        let reserved = pieces.iter().map(|piece| piece.size).sum();
        Self { address, pieces, mapped: 0, owned: None, reserved }
    }

    /// Memory of others, mapped at addresses that stay reserved.
    pub(super) fn at_home(address: u64, pieces: Vec<Piece>) -> Self {
        Self { address, pieces, mapped: 0, owned: None, reserved: 0 }
    }

    /// Creates `size` bytes in pieces of at most `piece` bytes, behind those that are there.
    pub(super) fn create(&mut self, driver: &dyn Driver, size: u64, piece: u64) -> DriverResult<()> {
        let mut missing = size;
        while missing > 0 {
            let size = piece.min(missing);
            self.pieces.push(Piece { size, handle: Some(driver.create(size)?) });
            missing -= size;
        }
        Ok(())
    }

    /// Maps every piece and lets the device use it.
    pub(super) fn map(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        for piece in &self.pieces {
            let Some(handle) = piece.handle else { continue };
            driver.map(self.address + self.mapped, piece.size, 0, handle)?;
            self.mapped += piece.size;
        }
        driver.set_access(self.address, self.mapped)
    }

    /// Physical bytes that it holds: pieces that are mapped, or not released.
    fn held(&self) -> u64 {
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

    /// Releases, unmaps and gives back what is its own. Nothing has used the addresses yet.
    fn give_back(&mut self, driver: &dyn Driver) -> DriverResult<()> {
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

/// What failed calls have left behind.
#[derive(Debug, Default)]
pub(super) struct Unsettled(Vec<Mapping>);

impl Unsettled {
    /// Whether nothing is left behind.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Undoes a mapping that failed. What cannot be undone now counts as reserved, and is tried again.
    pub(super) fn undo(&mut self, ground: &mut Ground<'_>, mut mapping: Mapping) {
        if let Err(error) = mapping.give_back(ground.driver) {
            tracing::error!(%error, address = mapping.address, "a failed growth could not be undone yet");
            if let Some(class) = mapping.owned {
                ground.heap.unsettled(class, mapping.held(), 0);
            }
            self.0.push(mapping);
        }
    }

    /// Releases memory that is mapped nowhere any more and that the heap no longer counts. If that fails, it counts as
    /// reserved until it goes.
    pub(super) fn release(
        &mut self,
        ground: &mut Ground<'_>,
        handle: Handle,
        size: u64,
        class: Class,
    ) -> DriverResult<()> {
        let Err(error) = ground.driver.release(handle) else { return Ok(()) };
        ground.heap.unsettled(class, size, 0);
        let pieces = vec![Piece { size, handle: Some(handle) }];
        self.0.push(Mapping { address: 0, pieces, mapped: 0, owned: Some(class), reserved: 0 });
        Err(error)
    }

    /// Tries again.
    pub(super) fn settle(&mut self, ground: &mut Ground<'_>) -> DriverResult<()> {
        while let Some(mapping) = self.0.last_mut() {
            let before = mapping.held();
            let result = mapping.give_back(ground.driver);
            if let Some(class) = mapping.owned {
                ground.heap.unsettled(class, mapping.held(), before);
            }
            result?;
            self.0.pop();
        }
        Ok(())
    }
}
