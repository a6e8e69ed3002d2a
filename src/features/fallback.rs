//! The strategy that replaces one that the device does not support.
//!
//! Owns: the requested strategy, and whether the driver has refused addresses or a gate.

use crate::config::StrategyKind;

#[derive(Default)]
pub(crate) struct Fallback {
    /// The requested strategy that the device does not support; `None` if the present strategy is the requested one.
    pub(crate) instead_of: Option<StrategyKind>,
    /// Whether the driver has refused addresses since the last miss began.
    pub(crate) no_addresses: bool,
    /// Whether no gate could be closed since the last miss began, so that no chunk was split.
    pub(crate) no_gate: bool,
}

impl Fallback {
    /// Forgets the refusals of the driver so far.
    pub(crate) fn begin_miss(&mut self) {
        (self.no_addresses, self.no_gate) = (false, false);
    }
}
