//! Private pools with memory of their own.
//!
//! Owns: the rules of requests to them.

use crate::config::Config;
use crate::heap::FitRules;
use crate::strategy::{Rules, rules_of_own_segments};

pub(crate) struct OwnMemory {
    /// In segments of their own: split ones, and unsplit ones.
    pub(crate) segments: [FitRules; 2],
    /// In chunks of their own.
    pub(crate) apart: FitRules,
}

impl OwnMemory {
    /// Those under these options, beside the rules of the strategy.
    pub(crate) fn new(config: &Config, rules: &Rules) -> Self {
        let segments = [false, true].map(|unsplit| rules_of_own_segments(config, unsplit));
        Self { segments, apart: FitRules { takes_idle: false, ..rules.fit } }
    }
}
