//! Mappings, handles and places (addresses of live memory that is not mapped now) that failed calls left behind, and
//! how they are undone.
//!
//! Owns: the mappings, handles and places that could not be undone at once. Their memory counts as reserved. Undoing is
//! tried again before the next change.

use super::mapping::Mapping;
use super::place::Place;
use crate::driver::{Driver, DriverResult};
use crate::fallible::Grown;
use crate::heap::Heap;
use crate::ids::{Account, Handle};

/// The changes that are still to be undone.
#[derive(Debug, Default)]
pub(crate) struct PendingRollback {
    mappings: Vec<Mapping>,
    /// Memory that is not mapped and could not be released: its handle, its bytes, and the account that counts it.
    unreleased: Vec<(Handle, u64, Account)>,
    /// Places of live memory at which the memory could not be mapped again.
    unrestored: Vec<Place>,
}

impl PendingRollback {
    /// Returns whether no change is left to be undone.
    pub(crate) fn is_empty(&self) -> bool {
        self.mappings.is_empty() && self.unreleased.is_empty() && self.unrestored.is_empty()
    }

    /// Makes room for this many mappings, before the mappings are made.
    pub(crate) fn reserve(&mut self, mappings: usize) -> Grown<()> {
        self.mappings.try_reserve(mappings)
    }

    /// Makes room for this many handles, before the handles are released.
    pub(crate) fn reserve_handles(&mut self, handles: usize) -> Grown<()> {
        self.unreleased.try_reserve(handles)
    }

    /// Makes room for this many places, before memory is unmapped at these places.
    pub(super) fn reserve_places(&mut self, places: usize) -> Grown<()> {
        self.unrestored.try_reserve(places)
    }

    /// Maps live memory at its place again. If the call fails, the mapping is tried again before any other step, since
    /// the program cannot use the memory until then.
    pub(super) fn restore(&mut self, driver: &dyn Driver, mut place: Place) {
        if let Err(error) = place.restore(driver) {
            tracing::error!(%error, address = place.address(), "live memory could not be mapped again yet");
            self.unrestored.push(place);
        }
    }

    /// Returns whether all live memory is mapped at its addresses.
    pub(crate) fn is_whole(&self) -> bool {
        self.unrestored.is_empty()
    }

    /// Keeps a mapping that cannot be undone now, and counts its memory as reserved. The mapping is undone later.
    pub(super) fn keep(&mut self, heap: &mut Heap, mapping: Mapping) {
        if let Some(account) = mapping.owned {
            heap.pending_rollback(account, mapping.held(), 0);
        }
        self.mappings.push(mapping);
    }

    /// Undoes a failed mapping. The list has room for the mapping. If undoing fails too, the mapping counts as
    /// reserved, and undoing is tried again later.
    pub(crate) fn undo(&mut self, heap: &mut Heap, driver: &dyn Driver, mut mapping: Mapping) {
        if let Err(error) = mapping.undo(driver) {
            tracing::error!(%error, address = mapping.address, "a failed growth could not be undone yet");
            self.keep(heap, mapping);
        }
    }

    /// Releases memory that is not mapped. The list has room for the memory's handle. If the release fails, the release
    /// is tried again later. Until then, the caller counts the memory as reserved.
    pub(crate) fn release(
        &mut self,
        driver: &dyn Driver,
        (handle, size): (Handle, u64),
        account: impl Into<Account>,
    ) -> DriverResult<()> {
        driver.release(handle).inspect_err(|_| self.unreleased.push((handle, size, account.into())))
    }

    /// Tries again to undo all failed calls that are noted here.
    pub(crate) fn retry(&mut self, heap: &mut Heap, driver: &dyn Driver) -> DriverResult<()> {
        while let Some(place) = self.unrestored.last_mut() {
            place.restore(driver)?;
            self.unrestored.pop();
        }
        while let Some(&(handle, size, account)) = self.unreleased.last() {
            driver.release(handle)?;
            heap.pending_rollback(account, 0, size);
            self.unreleased.pop();
        }
        while let Some(mapping) = self.mappings.last_mut() {
            let before = mapping.held();
            let result = mapping.undo(driver);
            if let Some(account) = mapping.owned {
                heap.pending_rollback(account, mapping.held(), before);
            }
            result?;
            self.mappings.pop();
        }
        Ok(())
    }
}
