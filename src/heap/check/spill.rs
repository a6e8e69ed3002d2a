//! The rules of spilled memory.

use super::found::{Checked, Found};
use crate::heap::tables::Heap;

impl Heap {
    /// Spilled memory is counted apart from the held memory of the device. A spilled chunk neither sleeps nor is a
    /// slab, and code outside the allocator does not know its memory.
    pub(super) fn what_is_spilled_is_not_held(&self, found: &mut Found) -> Checked {
        let mut bytes = [0; 2];
        for (id, chunk) in self.home.map().into_iter().flat_map(|home| home.chunks()).filter(|(_, chunk)| chunk.spilled)
        {
            if chunk.pinned || chunk.asleep || chunk.slab {
                return Err(format!("chunk {id:?} is spilled: {chunk:?}"));
            }
            for (class, size) in self.bytes_by_class(&chunk) {
                bytes[class as usize] += size;
            }
        }
        if bytes != self.home.spilling().bytes {
            return Err(format!("{bytes:?} bytes are spilled, {:?} counted", self.home.spilling().bytes));
        }
        let (all, counted) = (self.spilled(), self.journal.counters().spilled_bytes.current());
        if all != counted {
            return Err(format!("{all} bytes of host memory, {counted} counted"));
        }
        if !self.home.spilling().stock.is_whole() {
            return Err(format!("what is kept for the next spill: {:?}", self.home.spilling().stock));
        }
        for (held, spilled) in found.held.iter_mut().zip(bytes) {
            *held -= spilled;
        }
        Ok(())
    }
}
