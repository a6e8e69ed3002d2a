//! A fallback strategy, in the place of one that the device cannot have.
//!
//! Owns: which strategy was wanted, and whether the driver refuses addresses, or a gate.

use crate::config::StrategyKind;

#[derive(Default)]
pub(crate) struct Fallback {
    /// The strategy that the device cannot have, in whose place the present one is.
    pub(crate) instead_of: Option<StrategyKind>,
    /// Whether the driver has refused addresses since the last miss began.
    pub(crate) no_addresses: bool,
    /// Whether no gate could be closed, so that no chunk was split, since the last miss began.
    pub(crate) no_gate: bool,
}

impl Fallback {
    /// Forgets what the driver has refused so far.
    pub(crate) fn begin_miss(&mut self) {
        (self.no_addresses, self.no_gate) = (false, false);
    }
}
