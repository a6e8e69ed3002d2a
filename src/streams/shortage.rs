//! Whether memory is plentiful or short: under `sharing:auto` that decides whether streams share it.
//!
//! Owns: which of the two holds, the border between them, and the policy in force. `backing` asks the device.
//!
//! # Note: sharing by need
//!
//! **Rationale.** A stream that takes memory of another waits for it on the GPU. Where the device has plenty, that buys
//! memory which nobody needs with time that the program pays for: FSDP2's steps took 4 to 18% longer. Where memory is
//! short, a wait is cheaper than a refusal, and than all that a program does to avoid one.
//!
//! **Approach.** Below the border each stream keeps what it has freed, as in PyTorch, and memory grows: no epoch ends, no
//! event is recorded, nothing is waited for. The first request that would take memory beyond the border makes it short:
//! from then on streams share as under `sharing:wait`. It is plentiful again once a request finds that it keeps
//! [`PLENTY`] of the border with what it needs, because memory went back to the device or the border rose.
//!
//! The border is the memory limit, or a part of the device less what others hold there, whichever is lower. What others
//! hold changes without a word. The device is asked when memory has grown halfway to the border since it was last asked, so
//! that a growth by a small chunk does not pay for a question each time; a growth that the device refuses makes memory short
//! as well. While memory is short, the device is asked at every 64th miss.
//!
//! **Limitations.**
//! - The first wait after the change is for everything that the other stream was given so far, since no event tells
//!   earlier from later.
//! - What the streams hold at the change stays held: together they may need more than one stream that uses everything.

use crate::config::StreamSharing;
use crate::report::stats::ShortageStats;

/// The part of the border below which memory is plentiful again, with what is needed.
const PLENTY: f64 = 0.75;
/// While memory is short, every so many misses the border is looked for again.
const ASK_EVERY: u32 = 64;

/// Whether memory is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shortage {
    is_short: bool,
    /// How many bytes may be held before memory is short, as far as is known.
    border: u64,
    /// As long as no more bytes are held than these, the device need not be asked.
    known_to: u64,
    /// How often memory became short.
    times: u64,
    /// Misses since the border was last looked for, while memory is short.
    unasked: u32,
}

impl Shortage {
    /// Returns the policy in force.
    pub(crate) fn in_force(&self, policy: StreamSharing) -> StreamSharing {
        match policy {
            StreamSharing::Auto if self.is_short => StreamSharing::Wait,
            StreamSharing::Auto => StreamSharing::Never,
            policy => policy,
        }
    }

    /// Notes that `held` bytes must grow by `more`. `border` finds out how many may be held before memory is short, and is
    /// called only where that may decide. Returns whether memory has just become short.
    pub(crate) fn must_grow(&mut self, held: u64, more: u64, border: impl FnOnce() -> u64) -> bool {
        let wanted = held.saturating_add(more);
        let may_change = if self.is_short { self.may_end(wanted) } else { wanted > self.known_to };
        if may_change {
            self.border = border();
            self.known_to = held.saturating_add(self.border.saturating_sub(held) / 2);
        }
        if self.is_short {
            self.is_short = wanted >= self.plenty();
            return false;
        }
        wanted > self.border && self.begin()
    }

    /// Returns whether it is time to find out whether memory is still short: below the border as it was, or where nobody has
    /// asked for long. What others hold may have gone.
    fn may_end(&mut self, wanted: u64) -> bool {
        self.unasked += 1;
        let is_due = wanted < self.plenty() || self.unasked >= ASK_EVERY;
        if is_due {
            self.unasked = 0;
        }
        is_due
    }

    /// Notes that the device has refused to give memory. Returns whether memory has just become short.
    pub(crate) fn refused(&mut self, held: u64) -> bool {
        if self.is_short {
            return false;
        }
        self.border = held;
        self.begin()
    }

    fn begin(&mut self) -> bool {
        (self.is_short, self.unasked) = (true, 0);
        self.times += 1;
        true
    }

    fn plenty(&self) -> u64 {
        (self.border as f64 * PLENTY) as u64
    }

    /// Returns the figures for users.
    pub(crate) fn stats(&self) -> ShortageStats {
        ShortageStats { is_short: self.is_short, times: self.times, border_bytes: self.border }
    }

    /// Forgets where the border was: the limits have changed.
    pub(crate) fn ask_again(&mut self) {
        (self.known_to, self.unasked) = (0, ASK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unasked() -> u64 {
        panic!("the device was asked")
    }

    #[test]
    fn each_policy_but_auto_is_what_it_is() {
        let mut shortage = Shortage::default();
        for policy in [StreamSharing::Never, StreamSharing::Completed, StreamSharing::Wait] {
            assert_eq!(shortage.in_force(policy), policy);
        }
        assert_eq!(shortage.in_force(StreamSharing::Auto), StreamSharing::Never);
        assert!(shortage.refused(7));
        assert_eq!(shortage.in_force(StreamSharing::Auto), StreamSharing::Wait);
        assert_eq!(shortage.in_force(StreamSharing::Never), StreamSharing::Never);
    }

    #[test]
    fn it_begins_at_the_first_growth_beyond_the_border() {
        let mut shortage = Shortage::default();
        assert!(!shortage.must_grow(0, 10, || 100));
        // Halfway to the border nobody asks.
        assert!(!shortage.must_grow(10, 40, unasked));
        assert!(!shortage.must_grow(50, 50, || 100));
        assert!(shortage.must_grow(100, 1, || 100));
        assert_eq!(shortage.stats(), ShortageStats { is_short: true, times: 1, border_bytes: 100 });
        // It goes on, and is not told twice.
        assert!(!shortage.must_grow(100, 1, unasked));
    }

    #[test]
    fn it_begins_where_others_take_the_device() {
        let mut shortage = Shortage::default();
        assert!(!shortage.must_grow(0, 10, || 100));
        assert!(shortage.must_grow(50, 10, || 55));
    }

    #[test]
    fn it_ends_well_below_the_border() {
        let mut shortage = Shortage::default();
        assert!(shortage.must_grow(90, 20, || 100));
        assert!(!shortage.must_grow(75, 0, unasked));
        assert!(shortage.stats().is_short);
        // What others have taken meanwhile counts.
        assert!(!shortage.must_grow(50, 10, || 70));
        assert!(shortage.stats().is_short);
        // That it went is found out after a while.
        for _ in 1..ASK_EVERY {
            assert!(!shortage.must_grow(50, 10, unasked));
        }
        assert!(!shortage.must_grow(50, 10, || 100));
        assert!(!shortage.stats().is_short);
        assert!(shortage.must_grow(90, 20, || 100));
        assert_eq!(shortage.stats().times, 2);
    }

    #[test]
    fn a_new_limit_is_asked_for() {
        let mut shortage = Shortage::default();
        assert!(!shortage.must_grow(0, 10, || 100));
        shortage.ask_again();
        assert!(shortage.must_grow(10, 10, || 15));
    }
}
