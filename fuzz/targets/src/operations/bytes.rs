//! An input's bytes, one after the other. Behind the last one there are zeros, so that every input is a program.
//!
//! Owns: how a choice is made of a byte.

/// The bytes that are left.
pub(super) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// The next eight bytes as a number.
    pub(super) fn next_u64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.next()))
    }

    /// One of several, all equally likely.
    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        pick(from, self.next())
    }

    /// `true` once in `n` times.
    pub(super) fn one_in(&mut self, n: u8) -> bool {
        self.next() % n == n - 1
    }

    /// One of several, as likely as its weight says. The weights add up to 256.
    pub(super) fn weighted<T: Copy>(&mut self, from: &[(u16, T)]) -> T {
        let mut at = u16::from(self.next());
        let found = from.iter().find(|(weight, _)| {
            let is_it = at < *weight;
            at = at.saturating_sub(*weight);
            is_it
        });
        found.unwrap_or(&from[0]).1
    }
}

pub(super) fn pick<T: Copy>(from: &[T], at: u8) -> T {
    from[usize::from(at) % from.len()]
}
