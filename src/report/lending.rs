//! Memory that processes on one device lend each other: what is asked, what is given, and what a report says of it.

use crate::units::format_bytes;
use std::fmt;
use std::time::Instant;

/// Memory that a request lacks, as a [`Lender`](crate::Lender) is asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// Bytes that the device lacks for it.
    pub missing: u64,
    /// Bytes to ask for, at least as many: others that will be missing soon come with them.
    pub wanted: u64,
    /// Bytes that the allocator holds.
    pub held: u64,
    /// When the request asked for the first time.
    pub since: Instant,
}

impl Shortage {
    /// So many bytes are missing beside those that are held, from now on.
    #[must_use]
    pub fn new(missing: u64, held: u64) -> Self {
        Self { missing, wanted: missing, held, since: Instant::now() }
    }
}

/// The answer of a [`Lender`](crate::Lender). All sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// How many processes were asked.
    pub processes: u32,
    /// What they gave back.
    pub given: u64,
    /// What they hold after that.
    pub held: u64,
    /// The part of it that their programs use.
    pub live: u64,
    /// The part of it that is free, and below their guarantees.
    pub guaranteed: u64,
    /// Whether to ask again if the device still has too little: its driver takes time to take memory back, and others free
    /// memory. The lender has waited for as long as makes sense. It is asked no more once a request has waited for
    /// [`Config::broker_wait_ms`](crate::Config::broker_wait_ms).
    pub again: bool,
}

/// What others were asked for before a request was refused. All sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Lending {
    /// What was missing when they were asked for the first time.
    pub missing: u64,
    /// How often they were asked.
    pub rounds: u32,
    /// How many processes there were the last time; 0 also where no broker answered.
    pub processes: u32,
    /// What they gave back in all.
    pub given: u64,
    /// What they held the last time.
    pub held: u64,
    /// The part of it that their programs used.
    pub live: u64,
    /// The part of it that was free, and below their guarantees.
    pub guaranteed: u64,
    /// From the first question to the last answer.
    pub waited_ms: u64,
}

impl Lending {
    /// Adds an answer.
    pub(crate) fn add(&mut self, lent: &Lent, since: Instant) {
        self.rounds = self.rounds.saturating_add(1);
        self.processes = lent.processes;
        self.given = self.given.saturating_add(lent.given);
        (self.held, self.live, self.guaranteed) = (lent.held, lent.live, lent.guaranteed);
        self.waited_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
    }
}

impl fmt::Display for Lending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.processes == 0 {
            return write!(f, "No other process lends memory on this device (the option broker).");
        }
        let (given, missing) = (format_bytes(self.given), format_bytes(self.missing));
        write!(f, "Other processes ({}) gave back {given} of {missing} within {} ms", self.processes, self.waited_ms)?;
        write!(f, "; they hold {}, of which {} is in use", format_bytes(self.held), format_bytes(self.live))?;
        if self.guaranteed > 0 {
            write!(f, " and {} is guaranteed to them", format_bytes(self.guaranteed))?;
        }
        f.write_str(".")
    }
}

/// What an allocator holds, and could give back. All sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LendableBytes {
    /// What it holds.
    pub held: u64,
    /// The part of it that the program uses, and that of freed blocks which other streams still use.
    pub live: u64,
    /// The rest. Free memory of private pools, and free parts of chunks that are partly in use, are in it and cannot go.
    pub free: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_others_gave_and_hold() {
        let mut lending = Lending { missing: 3 << 30, ..Lending::default() };
        assert!(lending.to_string().starts_with("No other process"));
        let since = Instant::now();
        let lent =
            Lent { processes: 2, given: 1 << 30, held: 9 << 30, live: 7 << 30, guaranteed: 2 << 30, again: true };
        lending.add(&lent, since);
        lending.add(&Lent { given: 0, ..lent }, since);
        assert_eq!((lending.rounds, lending.given, lending.processes), (2, 1 << 30, 2));
        let text = lending.to_string();
        for part in ["(2) gave back 1.00 GiB of 3.00 GiB", "hold 9.00 GiB, of which 7.00 GiB", "2.00 GiB is guaranteed"]
        {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
