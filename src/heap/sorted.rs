//! A sorted set in one piece of host memory that can be reserved in advance.
//!
//! Owns: [`SortedSet`]. The set of the standard library allocates nodes at any insertion, and aborts the process if the
//! host has no memory. An insertion here moves all later elements. The elements are views or ranges without memory.
//! There are thousands of elements at most, and each is the result of a driver call.

use crate::fallible::Grown;

/// Elements in order, without duplicates.
#[derive(Debug)]
pub(crate) struct SortedSet<T>(Vec<T>);

impl<T> Default for SortedSet<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Copy + Ord> SortedSet<T> {
    /// Makes room for `more` elements.
    pub(crate) fn reserve(&mut self, more: usize) -> Grown<()> {
        self.0.try_reserve(more)
    }

    /// Inserts an element. The set has room for the element.
    pub(crate) fn insert(&mut self, value: T) {
        if let Err(at) = self.0.binary_search(&value) {
            debug_assert!(self.0.len() < self.0.capacity(), "no room was made for an element");
            self.0.insert(at, value);
        }
    }

    pub(crate) fn remove(&mut self, value: &T) {
        if let Ok(at) = self.0.binary_search(value) {
            self.0.remove(at);
        }
    }

    pub(crate) fn contains(&self, value: &T) -> bool {
        self.0.binary_search(value).is_ok()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.0.first()
    }

    pub(crate) fn last(&self) -> Option<&T> {
        self.0.last()
    }

    /// Returns all elements in order.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// Returns the greatest element less than `value`, or `None`.
    #[cfg(feature = "baselines")]
    pub(crate) fn before(&self, value: T) -> Option<&T> {
        self.0.partition_point(|other| *other < value).checked_sub(1).and_then(|at| self.0.get(at))
    }

    /// Returns the elements not less than `least`, in order.
    pub(crate) fn from(&self, least: T) -> &[T] {
        &self.0[self.0.partition_point(|value| *value < least)..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_in_order_and_each_is_there_once() {
        let mut set = SortedSet::default();
        set.reserve(4).unwrap();
        [5, 1, 3, 5].into_iter().for_each(|value| set.insert(value));
        assert_eq!(set.iter().copied().collect::<Vec<_>>(), [1, 3, 5]);
        assert_eq!((set.first(), set.last(), set.from(2)), (Some(&1), Some(&5), &[3, 5][..]));
        assert_eq!((set.before(1), set.before(4), set.before(9)), (None, Some(&3), Some(&5)));
        set.remove(&3);
        set.remove(&4);
        assert!(!set.contains(&3) && set.contains(&5) && set.len() == 2 && set.from(6).is_empty());
    }
}
