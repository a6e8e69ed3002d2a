//! The statistics of driver calls: the number of calls of each kind, and the time that they took.
//!
//! Owns: the figures, which are plain values. The drivers do the counting.

use super::error::Call;

/// The number of calls of one kind, and the time that the calling thread spent in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct CallStat {
    /// Calls made, failed ones included.
    pub count: u64,
    /// Total time in nanoseconds, waiting included.
    pub total_ns: u64,
}

/// A [`CallStat`] for each kind of call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallStats([CallStat; Call::COUNT]);

/// Serialized as a map from the name of each call to its figures.
#[cfg(feature = "serde")]
impl serde::Serialize for CallStats {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(call, stat)| (call.name(), stat)))
    }
}

impl Default for CallStats {
    fn default() -> Self {
        Self::from_fn(|_| CallStat::default())
    }
}

impl CallStats {
    /// Returns the figures that `figure` gives for each kind of call.
    pub(super) fn from_fn(figure: impl Fn(Call) -> CallStat) -> Self {
        Self(Call::ALL.map(figure))
    }

    /// Returns the figures of one kind of call.
    #[must_use]
    pub fn get(&self, call: Call) -> CallStat {
        self.0[call as usize]
    }

    /// Adds one call that took `ns` nanoseconds.
    pub fn add(&mut self, call: Call, ns: u64) {
        let stat = &mut self.0[call as usize];
        stat.count += 1;
        stat.total_ns = stat.total_ns.saturating_add(ns);
    }

    /// Returns the calls and the time since `earlier`, which must be an older copy of the same statistics.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut out = self.clone();
        for (now, before) in out.0.iter_mut().zip(earlier.0) {
            now.count = now.count.saturating_sub(before.count);
            now.total_ns = now.total_ns.saturating_sub(before.total_ns);
        }
        out
    }

    /// Returns every kind of call that an allocator makes, with its figures, in the order of [`Call::ALL`]. Calls that
    /// concern contents or the driver's pools are left out if no such call was made.
    pub fn iter(&self) -> impl Iterator<Item = (Call, CallStat)> + '_ {
        let is_of_few = |call: Call| call.is_of_contents() || call.is_of_pools();
        let shown =
            move |(call, stat): &(Call, CallStat)| call.is_allocators() && (stat.count > 0 || !is_of_few(*call));
        Call::ALL.into_iter().map(|call| (call, self.get(call))).filter(shown)
    }

    /// Returns the time in all calls together, in nanoseconds.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.0.iter().map(|stat| stat.total_ns).fold(0, u64::saturating_add)
    }
}
