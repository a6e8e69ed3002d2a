//! How much host memory the tables take.

use std::collections::HashMap;

/// Returns about the bytes behind a hash map: an eighth of it is kept vacant, and each entry has a byte beside it.
pub(crate) fn map_bytes<K, V, S>(map: &HashMap<K, V, S>) -> usize {
    map.capacity() / 7 * 8 * (size_of::<(K, V)>() + 1)
}
