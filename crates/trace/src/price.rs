//! The cost of running on a device.
//!
//! Owns: the choice of the passes' figures that make up the cost.

use crate::replay::PassReport;

/// The cost of the passes that ran to their end, in nanoseconds of the simulated driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// The time in the driver in the first pass.
    pub first_ns: u64,
    /// The time in the driver in the last pass: the cost that remains once memory has grown.
    pub last_ns: u64,
    /// The number of waits of the CPU for the GPU in the last pass.
    pub cpu_syncs: u64,
    /// The time of the longest of the last pass's operations that called the driver.
    pub worst_ns: u64,
}

impl Price {
    /// Returns the price of these passes; `None` if memory ran out.
    #[must_use]
    pub fn of(passes: &[PassReport]) -> Option<Self> {
        let (first, last) = (passes.first()?, passes.last()?);
        last.oom.is_none().then(|| Self {
            first_ns: first.driver.total_ns(),
            last_ns: last.driver.total_ns(),
            cpu_syncs: last.cpu_syncs,
            worst_ns: last.stalls.worst_ns,
        })
    }
}
