//! Random numbers for the methods that search.
//!
//! Owns: the generator.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng as _, SeedableRng as _};

/// A generator of random numbers from a seed.
pub(crate) struct Random(Pcg64Mcg);

impl Random {
    /// Makes a generator. The same seed gives the same numbers.
    pub(crate) fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// Returns a number below `count`, which is not 0.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.0.next_u64()) * count as u128) >> 64) as usize
    }

    /// Returns a number from 0 to 1.
    pub(crate) fn part(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
