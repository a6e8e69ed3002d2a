//! A region of addresses, or of offsets in a file. A request gets the lowest free range.
//!
//! Owns: the free ranges. The caller knows the contents of all other ranges.

use std::collections::{BTreeMap, BTreeSet};

/// A region. A request gets the lowest free range that fits. A range that is given back merges with its neighbours.
/// Sizes and addresses are in bytes.
#[derive(Debug)]
pub(crate) struct Addresses {
    /// The free ranges, from start to size. No two are adjacent.
    free: BTreeMap<u64, u64>,
    /// The starts of free ranges, in classes by the power of two at or below their size. A request must search only one
    /// class, since every range of a larger class fits.
    classes: [BTreeSet<u64>; u64::BITS as usize],
}

impl Addresses {
    pub(crate) fn new(base: u64, size: u64) -> Self {
        let mut region = Self { free: BTreeMap::new(), classes: std::array::from_fn(|_| BTreeSet::new()) };
        region.insert(base, size);
        region
    }

    /// Returns the lowest free `size` bytes at a multiple of `alignment`, a power of two; `None` if no free range has
    /// them.
    pub(crate) fn allocate(&mut self, size: u64, alignment: u64) -> Option<u64> {
        let (start, address) = self.lowest(size, alignment)?;
        let range = self.remove(start)?;
        let (end, taken_end) = (start.checked_add(range)?, address.checked_add(size)?);
        self.insert(start, address - start);
        self.insert(taken_end, end - taken_end);
        Some(address)
    }

    /// Gives back a range from `allocate`.
    pub(crate) fn release(&mut self, address: u64, size: u64) {
        let (mut start, mut end) = (address, address.saturating_add(size));
        if let Some((&before, &length)) = self.free.range(..address).next_back()
            && before.saturating_add(length) == address
        {
            self.remove(before);
            start = before;
        }
        if let Some(length) = self.remove(end) {
            end = end.saturating_add(length);
        }
        self.insert(start, end - start);
    }

    fn lowest(&self, size: u64, alignment: u64) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64)> = None;
        for starts in self.classes.get(class(size)..)? {
            for &start in starts {
                if best.is_some_and(|(lowest, _)| lowest <= start) {
                    break;
                }
                let fits = || {
                    let length = *self.free.get(&start)?;
                    let address = start.checked_next_multiple_of(alignment)?;
                    (address.checked_add(size)? <= start.checked_add(length)?).then_some(address)
                };
                if let Some(address) = fits() {
                    best = Some((start, address));
                    break;
                }
            }
        }
        best
    }

    fn insert(&mut self, start: u64, size: u64) {
        if size == 0 {
            return;
        }
        self.free.insert(start, size);
        if let Some(starts) = self.classes.get_mut(class(size)) {
            starts.insert(start);
        }
    }

    fn remove(&mut self, start: u64) -> Option<u64> {
        let size = self.free.remove(&start)?;
        if let Some(starts) = self.classes.get_mut(class(size)) {
            starts.remove(&start);
        }
        Some(size)
    }
}

fn class(size: u64) -> usize {
    size.checked_ilog2().unwrap_or(0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_out_the_lowest_that_fits() {
        let mut region = Addresses::new(1000, 1000);
        assert_eq!(region.allocate(100, 1), Some(1000));
        assert_eq!(region.allocate(300, 1), Some(1100));
        assert_eq!(region.allocate(100, 1), Some(1400));
        region.release(1000, 100);
        assert_eq!(region.allocate(200, 1), Some(1500), "the hole of 100 is too small");
        assert_eq!(region.allocate(50, 1), Some(1000));
        region.release(1100, 300);
        assert_eq!(region.allocate(350, 1), Some(1050), "holes merge");
        assert_eq!(region.allocate(301, 1), None);
        assert_eq!(region.allocate(300, 1), Some(1700));
        for (address, size) in [(1700, 300), (1400, 100), (1000, 50), (1050, 350), (1500, 200)] {
            region.release(address, size);
        }
        assert_eq!(region.allocate(1000, 1), Some(1000), "all of it is one again");
    }

    #[test]
    fn aligns_and_leaves_what_comes_before() {
        let mut region = Addresses::new(1000, 3096);
        assert_eq!(region.allocate(100, 1024), Some(1024));
        assert_eq!(region.allocate(24, 1), Some(1000));
        assert_eq!(region.allocate(1, 1 << 40), None);
        assert_eq!(region.allocate(1, 1 << 63), None);
        assert_eq!(region.allocate(u64::MAX, 1), None);
    }
}
