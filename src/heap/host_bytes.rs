//! The bytes of host memory in hash maps.

use std::collections::HashMap;

/// Returns about how many bytes a hash map takes. The map keeps an eighth of its slots vacant, and stores one more byte
/// for each slot.
pub(crate) fn map_bytes<K, V, S>(map: &HashMap<K, V, S>) -> usize {
    map.capacity() / 7 * 8 * (size_of::<(K, V)>() + 1)
}
