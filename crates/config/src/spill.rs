//! Spilling: live memory that does not fit the device lies in host memory.
//!
//! Owns: the description of memory that may be spilled, the trait of policies that choose it, and the default policy.

use std::fmt;

/// Access advice of a program for an allocation (`Spilling::advise`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[repr(u8)]
pub enum Advice {
    /// The allocation is not used for a while: it is spilled first.
    Cold,
    /// No access advice has been given for the allocation.
    #[default]
    Normal,
    /// The allocation is used all the time: it is spilled last.
    Hot,
}

impl Advice {
    /// Every advice.
    pub const ALL: [Self; 3] = [Self::Cold, Self::Normal, Self::Hot];

    /// Returns the name: `cold`, `normal` or `hot`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Normal => "normal",
            Self::Hot => "hot",
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A chunk of physical memory that may be spilled: no other process or device uses it, it is not registered
/// (`Sharing::pin_physical`), no graph's private pool has a part of it, and no part of it is for small requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpillCandidate {
    /// Bytes of device memory that spilling the chunk frees.
    pub size: u64,
    /// The bytes of `size` in live blocks, which are copied, and take host memory.
    pub live: u64,
    /// Bytes of the largest live block of which a part lies in the chunk.
    pub largest: u64,
    /// The number of allocations and frees since the program last used a block in the chunk. A block is used when it is
    /// allocated, named to `Allocator::record_stream`, or advised.
    pub age: u64,
    /// The hottest advice for any block in the chunk.
    pub advice: Advice,
}

impl SpillCandidate {
    /// Returns a chunk of `size` bytes without live blocks, with the greatest age and the coldest advice.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(size: u64) -> Self {
        Self { size, live: 0, largest: 0, age: u64::MAX, advice: Advice::Cold }
    }
}

/// A policy that chooses which live memory is spilled. Called under the allocator's lock: it must neither call the
/// allocator nor panic.
pub trait SpillPolicy: Send + Sync {
    /// Returns the name for reports.
    fn name(&self) -> &'static str;

    /// Returns how cold a chunk is: the chunks with the highest figures are spilled first, and come back last. A chunk
    /// with `None` is not spilled.
    fn coldness(&self, candidate: &SpillCandidate) -> Option<u64>;
}

/// The default policy: [`Advice::Cold`] memory first, [`Advice::Hot`] memory last. Of memory with equal advice, the
/// memory unused for longest comes first, where ages are compared by powers of two; of equally old memory, the memory
/// in the largest blocks comes first.
#[derive(Clone, Copy, Debug, Default)]
pub struct ColdestFirst;

impl SpillPolicy for ColdestFirst {
    fn name(&self) -> &'static str {
        "coldest"
    }

    fn coldness(&self, candidate: &SpillCandidate) -> Option<u64> {
        /// The lowest bits of the returned figure, which hold the size. The next six bits hold the age, and the highest
        /// two the advice.
        const BITS_OF_SIZE: u32 = 56;
        const UNIT: u64 = 64 << 10;
        let advice = match candidate.advice {
            Advice::Cold => 2,
            Advice::Normal => 1,
            Advice::Hot => 0,
        };
        let age = u64::from((candidate.age + 1).ilog2());
        let size = (candidate.largest / UNIT).min((1 << BITS_OF_SIZE) - 1);
        Some((advice << 62) | (age << BITS_OF_SIZE) | size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_says_comes_before_age_and_age_before_size() {
        let of = |advice, age, largest| {
            let candidate = SpillCandidate { size: 1, live: 1, largest, age, advice };
            ColdestFirst.coldness(&candidate).unwrap()
        };
        let cold = of(Advice::Cold, 0, 1 << 20);
        let old = of(Advice::Normal, 1 << 30, 1 << 20);
        let new = of(Advice::Normal, 3, 1 << 40);
        let hot = of(Advice::Hot, u64::MAX - 1, u64::MAX);
        assert!(cold > old && old > new && new > hot);
        assert!(of(Advice::Normal, 1000, 2 << 30) > of(Advice::Normal, 1020, 1 << 30), "of about the same age");
        assert!(Advice::Cold < Advice::Normal && Advice::Normal < Advice::Hot);
    }
}
