//! Random numbers for tests: the same series for the same seed, on every machine.

/// splitmix64: any seed gives a good series.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below the limit; 0 where the limit is 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % limit.max(1)
    }
}
