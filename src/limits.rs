//! The limits on the memory that an allocator may hold.
//!
//! Owns: the two limits, and whether an increase keeps within them. PyTorch's strategies count a whole segment against
//! the fraction, even if only a part of the segment is mapped; the limit in bytes counts the bytes that are really
//! taken. The headroom is a bound on the free memory of the device, not on the memory held.

use crate::config::Config;
use crate::report::out_of_memory::Limit;

/// The limits on the bytes that may be held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    fraction: Option<u64>,
    bytes: Option<u64>,
    headroom: u64,
}

/// The bytes about to be taken, as each limit counts them. `None` for a limit that is checked elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Increase {
    pub(crate) against_fraction: Option<u64>,
    pub(crate) against_bytes: Option<u64>,
}

impl Increase {
    /// Returns an increase that both limits count alike.
    pub(crate) const fn of(bytes: u64) -> Self {
        Self { against_fraction: Some(bytes), against_bytes: Some(bytes) }
    }

    /// Returns the increase for a whole segment, which counts against `memory_fraction` only, as in PyTorch.
    pub(crate) const fn segment(bytes: u64) -> Self {
        Self { against_fraction: Some(bytes), against_bytes: None }
    }

    /// Returns the increase for the bytes really taken for a segment, whose whole size was counted before.
    pub(crate) const fn taken(bytes: u64) -> Self {
        Self { against_fraction: None, against_bytes: Some(bytes) }
    }
}

impl Limits {
    /// Returns the limits under these options, on a device with `total` bytes.
    pub(crate) fn new(config: &Config, total: u64) -> Self {
        let fraction = config.memory_fraction.map(|fraction| (total as f64 * fraction) as u64);
        Self { fraction, bytes: config.memory_limit, headroom: config.headroom.kept_bytes() }
    }

    /// Returns the lower of the two limits, or `None` without a limit.
    pub(crate) fn lowest(&self) -> Option<u64> {
        self.fraction.into_iter().chain(self.bytes).min()
    }

    /// Returns the limit by `memory_fraction`, or `None` without that option.
    pub(crate) fn by_fraction(&self) -> Option<u64> {
        self.fraction
    }

    /// Returns the bytes of the device that must stay free.
    pub(crate) fn headroom(&self) -> u64 {
        self.headroom
    }

    /// Returns the bytes that may be taken if `held` bytes are held, and `free` bytes of the device are free.
    pub(crate) fn room(&self, held: u64, free: u64) -> u64 {
        let within = self.lowest().map_or(u64::MAX, |limit| limit.saturating_sub(held));
        within.min(free.saturating_sub(self.headroom))
    }

    /// Returns how many bytes the allocator or other users of the device must give back before `more` bytes may be
    /// taken. `held` bytes are held, and `free` bytes of the device are free. `held` may be above a limit that was
    /// lowered, and `free` below the headroom.
    pub(crate) fn missing(&self, held: u64, free: u64, more: u64) -> u64 {
        let beyond_limit = self.lowest().map_or(0, |limit| held.saturating_add(more).saturating_sub(limit));
        beyond_limit.max(more.saturating_add(self.headroom).saturating_sub(free))
    }

    /// Returns whether the headroom stays free if `more` is taken of a device with `free` bytes free.
    pub(crate) fn leaves_headroom(&self, free: u64, more: Increase) -> bool {
        more.against_bytes.is_none_or(|more| more.saturating_add(self.headroom) <= free)
    }

    /// Returns whether more memory, beside the bytes `held`, keeps within the limits.
    pub(crate) fn allows(&self, held: u64, more: Increase) -> bool {
        self.exceeded(held, more).is_none()
    }

    /// Returns the limits that more memory would exceed, or `None` if it keeps within them.
    pub(crate) fn exceeded(&self, held: u64, more: Increase) -> Option<Limit> {
        let exceeds = |limit: Option<u64>, more: Option<u64>| {
            limit.zip(more).is_some_and(|(limit, more)| held.saturating_add(more) > limit)
        };
        match (exceeds(self.fraction, more.against_fraction), exceeds(self.bytes, more.against_bytes)) {
            (false, false) => None,
            (true, false) => Some(Limit::Fraction),
            (false, true) => Some(Limit::Bytes),
            (true, true) => Some(Limit::Both),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Headroom;

    #[test]
    fn each_limit_counts_its_own_bytes() {
        let config = Config { memory_fraction: Some(0.5), memory_limit: Some(60), ..Config::default() };
        let limits = Limits::new(&config, 100);
        assert_eq!(
            (limits.lowest(), limits.by_fraction(), limits.room(45, 100), limits.room(45, 3), limits.room(99, 100)),
            (Some(50), Some(50), 5, 3, 0)
        );
        assert!(limits.allows(45, Increase::of(5)) && !limits.allows(45, Increase::of(6)));
        assert!(limits.allows(45, Increase::taken(15)) && !limits.allows(45, Increase::segment(6)));
        assert_eq!(limits.exceeded(45, Increase::taken(16)), Some(Limit::Bytes));
        assert_eq!(limits.exceeded(45, Increase::of(10)), Some(Limit::Fraction));
        assert_eq!(limits.exceeded(45, Increase::of(u64::MAX)), Some(Limit::Both));
    }

    #[test]
    fn the_headroom_stays_free_whatever_the_limits_allow() {
        let config = Config { memory_limit: Some(60), headroom: Headroom::kept(20), ..Config::default() };
        let limits = Limits::new(&config, 100);
        assert_eq!((limits.room(45, 55), limits.room(45, 30), limits.room(45, 19)), (15, 10, 0));
        assert!(limits.leaves_headroom(30, Increase::of(10)) && !limits.leaves_headroom(30, Increase::of(11)));
        assert!(limits.leaves_headroom(20, Increase::of(0)) && !limits.leaves_headroom(19, Increase::of(0)));
        assert!(!limits.leaves_headroom(u64::MAX - 1, Increase::of(u64::MAX)));
        // A whole segment counts against the fraction only, so it needs no headroom: its memory is not taken yet.
        assert!(limits.leaves_headroom(0, Increase::segment(10)));
    }

    #[test]
    fn what_is_missing_counts_what_is_held_above_a_limit_and_what_others_took_of_the_headroom() {
        let config = Config { memory_limit: Some(60), headroom: Headroom::kept(20), ..Config::default() };
        let limits = Limits::new(&config, 100);
        assert_eq!((limits.missing(45, 55, 15), limits.missing(45, 55, 16)), (0, 1));
        assert_eq!((limits.missing(80, 90, 10), limits.missing(80, 90, 0)), (30, 20), "the limit was lowered");
        assert_eq!((limits.missing(0, 15, 10), limits.missing(0, 30, 10)), (15, 0), "others took of the headroom");
        assert_eq!(Limits::new(&Config::default(), 100).missing(90, 10, 15), 5);
        for (held, free, more) in [(45, 55, 16), (60, 40, 3), (10, 25, 40)] {
            let room = limits.room(held, free);
            assert_eq!(limits.missing(held, free, more), more.saturating_sub(room), "within the limits");
        }
    }

    #[test]
    fn without_limits_everything_is_allowed() {
        let limits = Limits::new(&Config::default(), 100);
        assert_eq!((limits.lowest(), limits.room(7, u64::MAX)), (None, u64::MAX));
        assert!(limits.allows(u64::MAX, Increase::of(u64::MAX)));
    }
}
