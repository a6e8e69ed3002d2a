//! Fingerprints: numbers that tell whether tables hold what they held before.
//!
//! Owns: [`Fingerprint`].

/// The exclusive or of a hash of each pair that a table holds. It is the same whenever the table holds the same pairs, and
/// else another one, but for one chance in 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    /// Notes that a pair was added, or that one was removed.
    #[inline]
    pub(super) fn flip(&mut self, a: u64, b: u64) {
        self.0 ^= mixed(a, b);
    }

    /// Returns the fingerprint of this table and of another one, in this order.
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

/// The two halves of a product of 128 bits, as in wyhash.
#[inline]
fn mixed(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9E37_79B9_7F4A_7C15) * u128::from(b ^ 0xD1B5_4A32_D192_ED03);
    (product as u64) ^ ((product >> 64) as u64)
}
