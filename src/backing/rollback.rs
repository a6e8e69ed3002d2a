//! Mappings that failed calls left behind, and how they are undone.
//!
//! Owns: mappings that could not be undone at once. They count as reserved, and undoing them is tried again before the
//! next change.

use super::mapping::Mapping;
use crate::driver::{Driver, DriverResult};
use crate::heap::Heap;
use crate::ids::{Class, Handle};

/// Mappings that are still to be undone.
#[derive(Debug, Default)]
pub(crate) struct PendingRollback(Vec<Mapping>);

impl PendingRollback {
    /// Returns whether nothing is left to undo.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Undoes a mapping that failed. If that fails too, it counts as reserved, and is tried again later.
    pub(crate) fn undo(&mut self, heap: &mut Heap, driver: &dyn Driver, mut mapping: Mapping) {
        if let Err(error) = mapping.undo(driver) {
            tracing::error!(%error, address = mapping.address, "a failed growth could not be undone yet");
            if let Some(class) = mapping.owned {
                heap.pending_rollback(class, mapping.held(), 0);
            }
            self.0.push(mapping);
        }
    }

    /// Releases memory that is not mapped and that the heap no longer counts. If that fails, it counts as reserved
    /// until it succeeds.
    pub(crate) fn release(
        &mut self,
        heap: &mut Heap,
        driver: &dyn Driver,
        (handle, size): (Handle, u64),
        class: Class,
    ) -> DriverResult<()> {
        driver.release(handle).inspect_err(|_| {
            heap.pending_rollback(class, size, 0);
            self.0.push(Mapping::of_unmapped(handle, size, class));
        })
    }

    /// Tries again to undo everything.
    pub(crate) fn retry(&mut self, heap: &mut Heap, driver: &dyn Driver) -> DriverResult<()> {
        while let Some(mapping) = self.0.last_mut() {
            let before = mapping.held();
            let result = mapping.undo(driver);
            if let Some(class) = mapping.owned {
                heap.pending_rollback(class, mapping.held(), before);
            }
            result?;
            self.0.pop();
        }
        Ok(())
    }
}
