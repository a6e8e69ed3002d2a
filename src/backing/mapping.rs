//! Pieces of physical memory that are mapped at contiguous addresses, all or none.
//!
//! Owns: the order of the driver calls that make a mapping, and of the calls that undo a mapping after a failure.

use crate::driver::{Driver, DriverResult};
use crate::fallible::{Grown, with_room};
use crate::ids::{Account, Class, Handle};
use crate::span::Span;

/// A piece of a mapping.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) size: u64,
    /// The piece's handle; `None` once the handle is released.
    pub(crate) handle: Option<Handle>,
}

/// Pieces that are to be mapped at contiguous addresses.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) address: u64,
    pub(crate) pieces: Vec<Piece>,
    /// The number of bytes that are mapped, from the address on.
    pub(super) mapped: u64,
    /// The account that counts the memory, if the memory was created for this mapping. `None` if another owner counts
    /// the memory.
    pub(super) owned: Option<Account>,
    /// The addresses that are given back with the mapping; empty if the addresses stay reserved.
    pub(super) reservation: Span,
}

impl Mapping {
    /// Prepares a mapping of `size` bytes of memory at addresses that stay reserved. The memory will be created in
    /// pieces of at most `piece` bytes.
    pub(crate) fn of_new_memory(address: u64, class: Class, size: u64, piece: u64) -> Grown<Self> {
        let pieces = with_room(size.div_ceil(piece) as usize)?;
        Ok(Self { address, pieces, mapped: 0, owned: Some(class.into()), reservation: Span::default() })
    }

    /// Sets the address of the mapping. The address lies inside `reservation`, which is given back with the mapping.
    pub(crate) fn place(&mut self, reservation: Span, address: u64) {
        (self.reservation, self.address) = (reservation, address);
    }

    /// Prepares a mapping of memory that will be created in `count` pieces, at an address that is not known yet.
    pub(crate) fn of_new_pieces(account: impl Into<Account>, count: usize) -> Grown<Self> {
        let owned = Some(account.into());
        Ok(Self { address: 0, pieces: with_room(count)?, mapped: 0, owned, reservation: Span::default() })
    }

    /// Leaves the memory to another owner. From then on, [`Self::undo`] removes only the mapping.
    pub(crate) fn disown(&mut self) {
        self.owned = None;
    }

    /// Prepares another mapping of existing memory, at addresses that are given back with the mapping.
    pub(crate) fn of_chunks(address: u64, pieces: Vec<Piece>) -> Self {
        let reservation = Span::new(address, pieces.iter().map(|piece| piece.size).sum());
        Self { address, pieces, mapped: 0, owned: None, reservation }
    }

    /// Prepares another mapping of existing memory, at addresses that stay reserved.
    pub(crate) fn at_home(address: u64, pieces: Vec<Piece>) -> Self {
        Self { address, pieces, mapped: 0, owned: None, reservation: Span::default() }
    }

    /// Creates `size` bytes of memory in pieces of at most `piece` bytes, and appends the pieces. The list has room for
    /// them.
    pub(crate) fn create(&mut self, driver: &dyn Driver, size: u64, piece: u64) -> DriverResult<()> {
        let mut missing = size;
        while missing > 0 {
            let size = piece.min(missing);
            let on_host = self.owned == Some(Account::Host);
            let handle = if on_host { driver.create_on_host(size)? } else { driver.create(size)? };
            self.pieces.push(Piece { size, handle: Some(handle) });
            missing -= size;
        }
        Ok(())
    }

    /// Maps every piece, and gives the device access to all pieces.
    pub(crate) fn map(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        for piece in &self.pieces {
            let Some(handle) = piece.handle else { continue };
            driver.map(self.address + self.mapped, piece.size, 0, handle)?;
            self.mapped += piece.size;
        }
        driver.set_access(self.address, self.mapped)
    }

    /// Returns the physical bytes that the mapping holds: the bytes of pieces that are mapped or not released.
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

    /// Releases, unmaps and gives back all that the mapping owns. No work has used the addresses yet. After a call that
    /// fails, the next attempt continues with the rest.
    pub(super) fn undo(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        if self.owned.is_some() {
            for piece in &mut self.pieces {
                if let Some(handle) = piece.handle {
                    driver.release(handle)?;
                    piece.handle = None;
                }
            }
        }
        self.unmap(driver)
    }

    /// Unmaps the pieces and gives back the addresses, but releases no memory.
    pub(super) fn unmap(&mut self, driver: &dyn Driver) -> DriverResult<()> {
        if self.mapped > 0 {
            driver.unmap(self.address, self.mapped)?;
            self.mapped = 0;
        }
        if self.reservation.size > 0 {
            driver.address_free(self.reservation.start, self.reservation.size)?;
            self.reservation = Span::default();
        }
        Ok(())
    }
}
