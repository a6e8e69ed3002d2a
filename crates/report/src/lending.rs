//! Memory that processes on one device lend each other: questions to other processes, their answers, and the figures of
//! a report.

use seamalloc_driver::units::format_bytes;
use std::fmt;
use std::time::Instant;

/// The memory that a request lacks, for which a `Lender` is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// Bytes that the device lacks for the request.
    pub missing: u64,
    /// Bytes to ask for, at least `missing`: memory that will be missing soon is asked for at the same time.
    pub wanted: u64,
    /// Bytes that the allocator holds.
    pub held: u64,
    /// The time at which the request first asked the lender.
    pub since: Instant,
}

impl Shortage {
    /// Returns a shortage of `missing` bytes for an allocator that holds `held`. The present time counts as the time at
    /// which the request first asked the lender.
    #[must_use]
    pub fn new(missing: u64, held: u64) -> Self {
        Self { missing, wanted: missing, held, since: Instant::now() }
    }
}

/// The answer of a `Lender`. All sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// The number of processes that were asked.
    pub processes: u32,
    /// Bytes that these processes gave back.
    pub given: u64,
    /// Bytes that these processes still hold.
    pub held: u64,
    /// The part of `held` that their programs use.
    pub live: u64,
    /// The part of `held` that is free, and that the processes keep since it lies below their guarantees (the option
    /// `broker_guarantee`).
    pub guaranteed: u64,
    /// Whether to ask again if the device still has too little memory: memory that goes back takes time to become free,
    /// and other processes may free more. The lender has already waited for a suitable time. A request does not ask
    /// again once it has waited for [`Config::broker_wait_ms`](seamalloc_config::Config::broker_wait_ms).
    pub again: bool,
}

/// The requests to other processes before a request was refused. All sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Lending {
    /// Bytes that the request lacked when other processes were first asked.
    pub missing: u64,
    /// How often other processes were asked.
    pub rounds: u32,
    /// The number of other processes when they were last asked; also 0 if no broker answered.
    pub processes: u32,
    /// Total bytes that these processes gave back.
    pub given: u64,
    /// Bytes that these processes held when they last answered.
    pub held: u64,
    /// The part of `held` that their programs used.
    pub live: u64,
    /// The part of `held` that was free, and that the processes kept since it lay below their guarantees (the option
    /// `broker_guarantee`).
    pub guaranteed: u64,
    /// Milliseconds from the first question to these processes to their last answer.
    pub waited_ms: u64,
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

/// The bytes that an allocator holds, and could give back. All sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LendableBytes {
    /// Bytes of device memory that are held.
    pub held: u64,
    /// The part of `held` in blocks that the program uses, and in freed blocks that other streams still use.
    pub live: u64,
    /// The rest of `held`. Free memory of private pools, and free parts of chunks that are partly in use, are included
    /// but cannot be given back.
    pub free: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_others_gave_and_hold() {
        let mut lending = Lending { missing: 3 << 30, ..Lending::default() };
        assert!(lending.to_string().starts_with("No other process"));
        lending =
            Lending { processes: 2, given: 1 << 30, held: 9 << 30, live: 7 << 30, guaranteed: 2 << 30, ..lending };
        let text = lending.to_string();
        for part in ["(2) gave back 1.00 GiB of 3.00 GiB", "hold 9.00 GiB, of which 7.00 GiB", "2.00 GiB is guaranteed"]
        {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
