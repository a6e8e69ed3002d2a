//! The times at which an allocator with a headroom asks the device for its free memory.
//!
//! Owns: the pause between two such questions (looks).

/// The pause between two looks at the device's free memory, in nanoseconds of the device's clock. A look takes 3.4 us
/// on an H200.
const PAUSE: u64 = 10_000_000;
/// The number of misses after which a look at the device is due in any case. A miss that maps memory takes some 20 us
/// in the driver, so a look costs less than 0.1% of 256 such misses.
const MISSES: u64 = 256;
/// The largest factor by which the pause and the number of misses between two looks at the device are multiplied, as
/// long as no look leads to a release.
const LONGEST: u64 = 64;

/// With a soft headroom, the pause between two looks at the device, and the time for which memory must have been unused
/// to be released, in nanoseconds. The pause is longer than most training steps, so that no step takes memory again
/// that the previous step released.
const UNUSED_FOR: u64 = 10_000_000_000;

/// The last look at the device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looks {
    at_ns: u64,
    /// The misses since the last look.
    misses: u64,
    /// The factor by which the pause between two looks at the device is stretched; 0 before the first look.
    stretch: u64,
}

impl Looks {
    /// Counts a miss. Returns whether a look at the device's free memory is due.
    pub(crate) fn due(&mut self, now_ns: u64) -> bool {
        self.misses += 1;
        let waited = now_ns.saturating_sub(self.at_ns);
        waited >= PAUSE.saturating_mul(self.stretch) || self.misses > MISSES.saturating_mul(self.stretch)
    }

    /// Returns whether, with a soft headroom, a look at the device is due. The first call begins the first pause.
    pub(crate) fn due_softly(&mut self, now_ns: u64) -> bool {
        if self.stretch == 0 {
            self.done(now_ns, false);
        }
        now_ns.saturating_sub(self.at_ns) >= UNUSED_FOR
    }

    /// Notes a look at the device's free memory. `in_vain` says that the device is short of memory, and none could be
    /// released.
    pub(crate) fn done(&mut self, now_ns: u64, in_vain: bool) {
        let stretch = if in_vain { self.stretch.saturating_mul(2).min(LONGEST) } else { 1 };
        *self = Self { at_ns: now_ns, misses: 0, stretch: stretch.max(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_keep_their_distance_and_stretch_it_while_they_are_in_vain() {
        let mut looks = Looks::default();
        assert!(looks.due(0), "the first miss looks");
        looks.done(0, false);
        assert!(!looks.due(PAUSE - 1) && looks.due(PAUSE));
        looks.done(PAUSE, true);
        assert!(!looks.due(3 * PAUSE - 1) && looks.due(3 * PAUSE));
        (0..20).for_each(|_| looks.done(0, true));
        assert!(!looks.due(LONGEST * PAUSE - 1) && looks.due(LONGEST * PAUSE));
        looks.done(0, false);
        assert_eq!((1..=2 * MISSES).find(|_| looks.due(0)), Some(MISSES + 1), "without a clock misses count");
        // A clock that goes backwards makes no look due.
        looks.done(PAUSE, false);
        assert!(!looks.due(0));
    }
}
