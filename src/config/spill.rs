//! Live memory that does not fit the device: what of it lies in the machine's memory instead.
//!
//! Owns: what is told of memory that may be spilled, the trait by which it is chosen, and the choice that is the default.

use std::fmt;

/// What a program says of its use of an allocation ([`Spilling::advise`](crate::operations::Spilling::advise)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[repr(u8)]
pub enum Advice {
    /// It is not used for a while: it is spilled first.
    Cold,
    /// Nothing is known.
    #[default]
    Normal,
    /// It is used all the time: it is spilled last.
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

/// A chunk of physical memory that may be spilled: no other process, device or registration knows it, no graph's private pool
/// has a part of it, and no part of it is for small requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpillCandidate {
    /// Bytes by which the device has more memory then.
    pub size: u64,
    /// Bytes of them that live blocks have: they are copied, and take the machine's memory.
    pub live: u64,
    /// Bytes of the largest live block of which a part lies in it.
    pub largest: u64,
    /// Allocations and frees since the program last said that it uses one of the blocks in it: since it was allocated, named to
    /// [`Allocator::record_stream`](crate::Allocator::record_stream), or advised.
    pub age: u64,
    /// The hottest that the program said of any block in it.
    pub advice: Advice,
}

/// Chooses which live memory is spilled. It runs under the allocator's lock, and must neither call the allocator nor panic.
pub trait SpillPolicy: Send + Sync {
    /// Returns the name for reports.
    fn name(&self) -> &'static str;

    /// Returns how cold a chunk is: those with the highest figures are spilled first, and come back last. `None`: it is not
    /// spilled.
    fn coldness(&self, candidate: &SpillCandidate) -> Option<u64>;
}

/// The default: what the program calls cold first, and what it calls hot last. Then what was not used for long, told apart by
/// powers of two, and of that what lies in the largest blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct ColdestFirst;

impl SpillPolicy for ColdestFirst {
    fn name(&self) -> &'static str {
        "coldest"
    }

    fn coldness(&self, candidate: &SpillCandidate) -> Option<u64> {
        /// Of the figure: two for the advice, six for the age.
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
