//! The host memory that hash maps take.

use std::collections::HashMap;

/// Returns about how many bytes a hash map takes: the map keeps an eighth vacant, and stores one more byte for each
/// entry.
pub(crate) fn map_bytes<K, V, S>(map: &HashMap<K, V, S>) -> usize {
    map.capacity() / 7 * 8 * (size_of::<(K, V)>() + 1)
}
