//! The strategy that replaces one that the device does not support.
//!
//! Owns: the requested strategy, and whether the driver has refused addresses or splits.

use crate::config::StrategyKind;

#[derive(Default)]
pub(crate) struct Fallback {
    /// The requested strategy that the device does not support; `None` if the present strategy is the requested one.
    pub(crate) instead_of: Option<StrategyKind>,
    /// Whether the driver has refused addresses since the last miss began.
    pub(crate) no_addresses: bool,
    /// Whether a split needed a gate or host memory that could not be had, since the last miss began.
    pub(crate) no_splits: bool,
}

impl Fallback {
    /// Forgets the refusals of the driver so far.
    pub(crate) fn begin_miss(&mut self) {
        (self.no_addresses, self.no_splits) = (false, false);
    }
}
