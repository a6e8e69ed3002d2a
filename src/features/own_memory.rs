//! Private pools with memory of their own.
//!
//! Owns: the rules by which requests to such pools find their blocks.

use crate::config::Config;
use crate::heap::FitRules;
use crate::strategy::{Rules, rules_of_own_segments};

pub(crate) struct OwnMemory {
    /// The rules for pools with segments of their own: the first for segments that are split, the second for segments
    /// that stay one block.
    pub(crate) segments: [FitRules; 2],
    /// The rules for pools with chunks of their own.
    pub(crate) apart: FitRules,
}

impl OwnMemory {
    /// Returns the rules that follow from these options and from the strategy's rules.
    pub(crate) fn new(config: &Config, rules: &Rules) -> Self {
        let segments = [false, true].map(|unsplit| rules_of_own_segments(config, unsplit));
        Self { segments, apart: FitRules { takes_idle: false, ..rules.fit } }
    }
}
