//! The live allocations that other processes may open.
//!
//! Owns: the descriptors through which other processes get the memory. A descriptor is closed with the last shared
//! allocation in its chunk.

use crate::driver::Exported;
use crate::fallible::Grown;
use rustc_hash::FxHashMap;

/// The exports of the chunks that each shared allocation touches, by the allocation's address. Allocations in one chunk
/// have copies of one export, which is closed with its last copy.
#[derive(Default)]
pub(crate) struct Shares(FxHashMap<u64, Vec<Exported>>);

impl Shares {
    /// Makes room for the exports of one more allocation.
    pub(crate) fn reserve(&mut self) -> Grown<()> {
        self.0.try_reserve(1)
    }

    /// Keeps these exports open until the allocation is freed.
    pub(crate) fn keep(&mut self, address: u64, exported: Vec<Exported>) {
        self.0.insert(address, exported);
    }

    /// Notes that an allocation was freed, shared or not.
    #[inline]
    pub(crate) fn end(&mut self, address: u64) {
        if !self.0.is_empty() {
            self.0.remove(&address);
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn an_export_is_closed_with_its_last_allocation() {
        let export = || Exported::new(std::io::pipe().unwrap().0.into());
        let [first, second] = [export(), export()];
        let open = [&first, &second].map(|exported| Arc::downgrade(exported.descriptor()));
        let are_open = || [0, 1].map(|index: usize| open[index].strong_count() > 0);
        let mut shares = Shares::default();
        shares.keep(100, vec![first.clone()]);
        // The allocation touches both chunks and is shared twice.
        shares.keep(200, vec![first.clone(), second.clone()]);
        shares.keep(200, vec![first, second]);
        shares.end(300);
        assert_eq!(are_open(), [true, true]);
        shares.end(200);
        assert_eq!(are_open(), [true, false]);
        shares.end(100);
        assert_eq!(are_open(), [false, false]);
        assert!(shares.0.is_empty());
    }
}
