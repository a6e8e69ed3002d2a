//! GPU-side waits: how much memory they let streams take from others, and how old the awaited events were.

/// Memory that streams took from other streams, with GPU-side waits for these streams. The age of a wait is the number
/// of operations (allocations and frees, of all streams) since the awaited event was recorded. An older event holds the
/// waiting stream up less; an age near 0 is a wait for all work that the other stream has been given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Waits {
    /// Bytes of free memory that were handed from one stream to another.
    pub bytes: u64,
    /// Bytes of freed memory that recorded streams still used, and that were handed out together with waits for these
    /// streams.
    pub recorded_bytes: u64,
    /// Bytes by which memory grew because a stream would otherwise have waited for work of the present round. A round
    /// of a stream ends when the stream misses memory of the same size class again.
    pub grown_bytes: u64,
    /// The sum of the ages of all waits. An age is the number of operations since the awaited event was recorded.
    pub age_total: u64,
    /// The smallest age of a wait since the last reset of peaks, in operations; `None` without a wait.
    pub age_least: Option<u64>,
    /// The largest age of a wait since the last reset of peaks, in operations.
    pub age_most: u64,
}

impl Waits {
    /// Returns the waits since an earlier copy. The smallest and the largest age are no differences: they count since
    /// the last reset of peaks.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let (bytes, age_total) = (self.bytes, self.age_total);
        Self {
            bytes: bytes.saturating_sub(earlier.bytes),
            recorded_bytes: self.recorded_bytes.saturating_sub(earlier.recorded_bytes),
            grown_bytes: self.grown_bytes.saturating_sub(earlier.grown_bytes),
            age_total: age_total.saturating_sub(earlier.age_total),
            ..*self
        }
    }
}
