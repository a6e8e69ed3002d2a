//! Fingerprints: numbers that tell whether a table has the same contents as before.
//!
//! Owns: [`Fingerprint`].

/// The exclusive or of a hash of each pair that a table holds. Tables with the same pairs have the same fingerprint.
/// Tables with different pairs have the same fingerprint with a chance of 1 in 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    /// Notes that a pair was added, or that a pair was removed.
    #[inline]
    pub(super) fn flip(&mut self, a: u64, b: u64) {
        self.0 ^= mixed(a, b);
    }

    /// Returns the fingerprint of this table and another table, in this order.
    pub(super) fn and(self, other: Self) -> Self {
        self.with(other.0)
    }

    /// Returns the fingerprint of this table and a number.
    pub(crate) fn with(self, number: u64) -> Self {
        Self(mixed(self.0, number))
    }

    /// Returns the fingerprint as a number.
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// Returns the exclusive or of the two halves of a product of 128 bits, as in wyhash.
#[inline]
fn mixed(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9E37_79B9_7F4A_7C15) * u128::from(b ^ 0xD1B5_4A32_D192_ED03);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Pairs of small multiples of a granule. Like the pairs of a heap, these pairs differ in few bits.
    #[test]
    fn every_part_of_a_number_depends_on_every_part_of_a_pair() {
        const EACH: u64 = 64;
        let pairs = (0..EACH * EACH).map(|n| (n / EACH) << 21).zip((0..EACH * EACH).map(|n| (n % EACH) << 21));
        let numbers: Vec<u64> = pairs.map(|(a, b)| mixed(a, b)).collect();
        let different =
            |of: &dyn Fn(u64) -> u64| numbers.iter().map(|number| of(*number)).collect::<HashSet<_>>().len();
        assert_eq!(different(&|number| number), numbers.len(), "two pairs have one number");
        // Of 4,096 draws from 1,024 values, chance leaves out 18 values.
        for (part, shift) in [("first", 54), ("middle", 27), ("last", 0)] {
            let drawn = different(&|number| number >> shift & 1023);
            assert!(drawn > 900, "{drawn} of 1,024 values of the {part} ten bits");
        }
    }
}
