//! Random numbers with the forms of choice that programs make.

use crate::random::Random;

pub(super) struct Dice(Random);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(Random(seed))
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.below(u64::MAX)
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Returns an index into a list, or `None` for an empty one.
    pub(super) fn index(&mut self, length: usize) -> Option<usize> {
        (length > 0).then(|| self.below(length as u64) as usize)
    }
}
