//! The limit on the host memory that reading a file may take.
//!
//! Owns: the limit, which follows the size of the file, and the account of the memory held. Before a table for a file's
//! content grows, its new bytes are added to the account (charged). If the account would exceed the limit, or if the
//! allocation fails, the reader returns an error. The types of tables whose keys a file chooses are here too.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash};

use rapidhash::fast::RandomState;

/// A table whose keys a file chooses. The hash function has random secrets, so no file can choose colliding keys, which
/// would take quadratic time.
pub(crate) type SeededMap<K, V> = HashMap<K, V, RandomState>;

/// A set whose keys a file chooses.
pub(crate) type SeededSet<K> = HashSet<K, RandomState>;

/// The most bytes that a reader holds, as a multiple of the unpacked bytes. Reading a snapshot of PyTorch takes five
/// times the unpacked bytes.
pub(crate) const FACTOR: u64 = 8;
/// The bytes that a reader of a small file may hold beyond the unpacked bytes. The larger of this limit and the limit
/// from [`FACTOR`] applies.
pub(crate) const BEYOND: u64 = 256 << 20;
/// The most bytes that a reader ever holds, whatever the size of the file. A snapshot of 1 GiB, the longest that is
/// read (`MAX_WHOLE`), takes about as much.
pub(crate) const MOST: u64 = 6 << 30;

/// The fewest bytes that a heap allocation takes (glibc).
const LEAST_ALLOCATION: u64 = 32;
/// The unit of heap allocations in bytes (glibc).
const ALLOCATION_STEP: u64 = 16;
/// A list of up to this many bytes doubles when it grows; a longer list grows by a quarter. While a list moves, both
/// copies are held.
const DOUBLES_TO: u64 = 1 << 20;
/// The most heap bytes for each byte of a description in JSON. The worst case is a dict with one key, which is 5 bytes
/// of text and a node of a B-tree.
const JSON_FACTOR: u64 = 160;

/// The error of a reader that may take no more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The reader takes more memory than a file of this size allows.
    #[error("reading it takes more than {limit} bytes of memory, which is the most for a file of its size")]
    Limit {
        /// The limit in bytes.
        limit: u64,
    },
    /// The system refused an allocation.
    #[error("there is no memory for {bytes} bytes more")]
    Refused {
        /// The requested bytes.
        bytes: u64,
    },
}

/// The account of a reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    unpacked: u64,
    held: u64,
    limit: u64,
    /// The account's error, kept while a parser returns an error of its own type.
    failed: Option<MemoryError>,
}

impl Default for Memory {
    /// Makes an account without a limit, for data that does not come from a file.
    fn default() -> Self {
        Self { unpacked: 0, held: 0, limit: u64::MAX, failed: None }
    }
}

impl Memory {
    /// Makes the account of a file with `unpacked` unpacked bytes.
    pub(crate) fn of(unpacked: u64) -> Self {
        let mut memory = Self { limit: 0, ..Self::default() };
        memory.unpacked(unpacked);
        memory
    }

    /// Raises the limit for `bytes` more unpacked bytes.
    pub(crate) fn unpacked(&mut self, bytes: u64) {
        self.unpacked = self.unpacked.saturating_add(bytes);
        let times = self.unpacked.saturating_mul(FACTOR);
        self.limit = times.max(self.unpacked.saturating_add(BEYOND)).min(MOST);
    }

    /// Returns the bytes held.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Sets the bytes held to `before`, the bytes held before a part of a file was read, plus `kept`, the bytes of the
    /// result.
    pub(crate) fn settle(&mut self, before: u64, kept: u64) {
        self.held = before.saturating_add(kept);
    }

    /// Charges bytes that are about to be allocated.
    pub(crate) fn charge(&mut self, bytes: u64) -> Result<(), MemoryError> {
        self.check(bytes)?;
        self.held = self.held.saturating_add(bytes);
        Ok(())
    }

    /// Charges the memory for a parsed description in JSON.
    pub(crate) fn charge_json(&mut self, text: &[u8]) -> Result<(), MemoryError> {
        self.charge((text.len() as u64).saturating_mul(JSON_FACTOR))
    }

    /// Keeps an error for [`Self::failure`].
    pub(crate) fn fail(&mut self, error: MemoryError) -> MemoryError {
        self.failed = Some(error);
        error
    }

    /// Returns the account's error that made a parser return its own error, if there is one.
    pub(crate) fn failure(&self) -> Option<MemoryError> {
        self.failed
    }

    /// Adds an item to a list.
    #[inline]
    pub(crate) fn push<T>(&mut self, list: &mut Vec<T>, item: T) -> Result<(), MemoryError> {
        if list.len() == list.capacity() {
            self.grow(list, 1)?;
        }
        list.push(item);
        Ok(())
    }

    /// Adds items to a list.
    pub(crate) fn extend<T: Copy>(&mut self, list: &mut Vec<T>, items: &[T]) -> Result<(), MemoryError> {
        if list.capacity() - list.len() < items.len() {
            self.grow(list, items.len())?;
        }
        list.extend_from_slice(items);
        Ok(())
    }

    /// Makes room for exactly `items` items in an empty list.
    pub(crate) fn room<T>(&mut self, list: &mut Vec<T>, items: usize) -> Result<(), MemoryError> {
        let bytes = list_bytes::<T>(items);
        self.charge(bytes)?;
        list.try_reserve_exact(items).map_err(|_| MemoryError::Refused { bytes })
    }

    /// Removes the bytes of a list from the account. The caller drops the list.
    pub(crate) fn release<T>(&mut self, list: &Vec<T>) {
        self.held = self.held.saturating_sub(list_bytes::<T>(list.capacity()));
    }

    /// Makes room for one more key in a map.
    #[inline]
    pub(crate) fn room_in_map<K: Eq + Hash, V, S: BuildHasher>(
        &mut self,
        map: &mut HashMap<K, V, S>,
    ) -> Result<(), MemoryError> {
        if map.len() < map.capacity() {
            return Ok(());
        }
        let bytes = self.next_table::<(K, V)>(map.len())?;
        map.try_reserve(1).map_err(|_| MemoryError::Refused { bytes })?;
        self.held = self.held.saturating_add(table_bytes::<(K, V)>(map.capacity()));
        Ok(())
    }

    /// Makes room for one more key in a set.
    #[inline]
    pub(crate) fn room_in_set<K: Eq + Hash, S: BuildHasher>(
        &mut self,
        set: &mut HashSet<K, S>,
    ) -> Result<(), MemoryError> {
        if set.len() < set.capacity() {
            return Ok(());
        }
        let bytes = self.next_table::<K>(set.len())?;
        set.try_reserve(1).map_err(|_| MemoryError::Refused { bytes })?;
        self.held = self.held.saturating_add(table_bytes::<K>(set.capacity()));
        Ok(())
    }

    /// Charges the next larger table for a full hash table with `keys` keys. Removes the full table from the account,
    /// since it is dropped after its keys have moved.
    fn next_table<T>(&mut self, keys: usize) -> Result<u64, MemoryError> {
        let bytes = table_bytes::<T>(keys.saturating_add(1));
        self.check(bytes)?;
        self.held = self.held.saturating_sub(table_bytes::<T>(keys));
        Ok(bytes)
    }

    /// Grows a list. While the list moves, its old and its new place are both charged.
    #[cold]
    fn grow<T>(&mut self, list: &mut Vec<T>, items: usize) -> Result<(), MemoryError> {
        let capacity = list.capacity();
        let more = if list_bytes::<T>(capacity) < DOUBLES_TO { capacity } else { capacity / 4 };
        let needed = list.len().saturating_add(items);
        let new = needed.max(capacity.saturating_add(more)).max(4);
        let bytes = list_bytes::<T>(new);
        self.check(bytes)?;
        list.try_reserve_exact(new.saturating_sub(list.len())).map_err(|_| MemoryError::Refused { bytes })?;
        self.held = self.held.saturating_sub(list_bytes::<T>(capacity)).saturating_add(bytes);
        Ok(())
    }

    fn check(&self, bytes: u64) -> Result<(), MemoryError> {
        if self.held.saturating_add(bytes) > self.limit {
            return Err(MemoryError::Limit { limit: self.limit });
        }
        Ok(())
    }
}

/// Returns the heap bytes of a list with this capacity.
pub(crate) fn list_bytes<T>(capacity: usize) -> u64 {
    let bytes = (capacity as u64).saturating_mul(size_of::<T>() as u64);
    if bytes == 0 { 0 } else { bytes.saturating_add(8).next_multiple_of(ALLOCATION_STEP).max(LEAST_ALLOCATION) }
}

/// Returns the heap bytes of a hash table with room for `keys` keys. The number of the table's places for keys is a
/// power of two. Seven in eight places are used, and each place takes one further byte (its control byte).
fn table_bytes<T>(keys: usize) -> u64 {
    const BESIDE: u64 = 1;
    /// The further control bytes after the last place for a key, since control bytes are read in groups of 16.
    const GROUP: u64 = 16;
    if keys == 0 {
        return 0;
    }
    let places = (keys as u64).saturating_mul(8).div_ceil(7).max(4).next_power_of_two();
    places.saturating_mul(size_of::<T>() as u64 + BESIDE).saturating_add(GROUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_limit_follows_what_is_unpacked() {
        let limit = |unpacked| Memory::of(unpacked).limit;
        assert_eq!(limit(0), 256 * MIB);
        assert_eq!(limit(30 * MIB), 286 * MIB);
        assert_eq!(limit(100 * MIB), 800 * MIB);
        assert_eq!(limit(u64::MAX), MOST);
        let mut read = Memory::of(30 * MIB);
        read.unpacked(70 * MIB);
        assert_eq!(read.limit, 800 * MIB);
    }

    #[test]
    fn a_list_is_charged_before_it_grows() {
        let mut memory = Memory::of(0);
        memory.charge(255 * MIB).unwrap();
        let mut list = Vec::new();
        let pushed = (0..MIB).position(|n| memory.push(&mut list, n).is_err());
        // The next step would be 64 Ki numbers of 8 bytes beside the 32 Ki numbers that are held. These 768 KiB exceed
        // the limit.
        assert_eq!(pushed, Some(list.len()));
        assert!(list.len() >= 32 << 10 && list.capacity() == list.len(), "{}", list.len());
        assert_eq!(memory.held(), 255 * MIB + list_bytes::<u64>(list.capacity()));
        assert!(memory.charge(MIB).is_err(), "what is held is held");
        memory.release(&list);
        assert_eq!(memory.charge(MIB), Ok(()));
    }

    #[test]
    fn tables_are_charged_what_they_take() {
        let mut memory = Memory::default();
        let mut map = HashMap::new();
        for key in 0..100_000_u64 {
            memory.room_in_map(&mut map).unwrap();
            map.insert(key, key);
            if key > 3 && key % 3 > 0 {
                map.remove(&(key - 3));
            }
        }
        assert_eq!(memory.held(), table_bytes::<(u64, u64)>(map.capacity()));
        assert_eq!(table_bytes::<(u64, u64)>(57_344), 65_536 * 17 + 16);
    }

    #[test]
    fn what_the_system_does_not_give_is_an_error() {
        let mut list: Vec<u64> = Vec::new();
        let refused = Memory::default().room(&mut list, usize::MAX / 16);
        assert!(matches!(refused, Err(MemoryError::Refused { .. })), "{refused:?}");
    }
}
