//! GPU-side waits: how much memory they passed on, and how old the events were that they were for.

/// Memory that streams took from others behind GPU-side waits. The age of a wait is how many operations (allocations
/// and frees, of all streams) ago its event had been recorded: the older, the less the waiting stream is held up, and
/// an age near 0 is a wait for all that the other stream has been given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Bytes of free memory handed from one stream to another.
    pub bytes: u64,
    /// The ages of all waits together, in operations.
    pub age_total: u64,
    /// The least age since the last reset of peaks, in operations; `None` without a wait.
    pub age_least: Option<u64>,
    /// The largest age since the last reset of peaks, in operations.
    pub age_most: u64,
}

impl Waits {
    /// A wait for an event recorded `age` operations ago.
    pub(crate) fn add(&mut self, age: u64) {
        self.age_total = self.age_total.saturating_add(age);
        self.age_least = Some(self.age_least.map_or(age, |least| least.min(age)));
        self.age_most = self.age_most.max(age);
    }

    /// What came since an earlier copy. The extremes are those since the last reset of peaks, whenever that was.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let (bytes, age_total) = (self.bytes, self.age_total);
        Self {
            bytes: bytes.saturating_sub(earlier.bytes),
            age_total: age_total.saturating_sub(earlier.age_total),
            ..*self
        }
    }

    pub(crate) fn reset_peak(&mut self) {
        (self.age_least, self.age_most) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_are_those_since_the_last_reset() {
        let mut waits = Waits::default();
        [7, 3, 12].iter().for_each(|age| waits.add(*age));
        assert_eq!((waits.age_total, waits.age_least, waits.age_most), (22, Some(3), 12));
        waits.reset_peak();
        assert_eq!((waits.age_least, waits.age_most), (None, 0));
        waits.add(5);
        assert_eq!((waits.age_total, waits.age_least, waits.age_most), (27, Some(5), 5));
    }
}
