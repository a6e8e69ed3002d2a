//! The options of an allocator, and the rules that depend on several of them.
//!
//! Owns: [`Config`] and its parts, which a macro makes from the list of options in `table.rs`. `syntax.rs` reads and
//! writes them as text.

use super::choices::{Split, StreamSharing};
use super::error::ConfigError;
use super::headroom::Headroom;
use super::row::{Row, check, options};
use super::strategy_kind::StrategyKind::{
    self, Buddy, Caching, Exact, Expandable, Gmlake, MallocAsync, PaddleAutoGrowth, PaddleNaiveBestFit,
    PaddleThreadLocal, PaddleVmm, Stitch,
};
use super::values::{
    AtLeastOne, Bytes, Choice, Divisions, FileName, Fraction, HeadroomSize, HostSize, InBytes, MIB, Mib, Number,
    Optional, OrOff, Sharing, Spelled, StrategyName, Switch, Syntax, Threshold, Whole, bad_value, holds, is_file_name,
};
use crate::rounding::{LARGE_SEGMENT, ROUNDUP_INTERVALS, RoundupDivisions};
use std::fmt::{self, Display as _};

/// The strategies that can take plain segments of PyTorch's sizes.
const PYTORCH_LIKE: [StrategyKind; 4] = [Caching, Expandable, Gmlake, Stitch];

include!("table.rs");

impl Config {
    /// Returns the default options with another strategy.
    #[must_use]
    pub fn with_strategy(strategy: StrategyKind) -> Self {
        Self::default().of_strategy(strategy)
    }

    /// Returns these options with another strategy, which the program has chosen.
    #[must_use]
    pub fn of_strategy(self, strategy: StrategyKind) -> Self {
        Self { strategy, strategy_named: true, ..self }
    }

    /// Returns whether a device that lacks a feature which the strategy needs is an error.
    #[doc(hidden)]
    #[must_use]
    pub fn insists_on_strategy(&self) -> bool {
        self.strategy_named || self.strategy != StrategyKind::default()
    }

    /// Returns the most bytes that `memory_limit` and `per_process_memory_fraction` let an allocator hold on a device
    /// with `total` bytes; `None` if neither option is given.
    #[must_use]
    pub fn limit_on(&self, total: u64) -> Option<u64> {
        let fraction = self.memory_fraction.map(|fraction| (total as f64 * fraction) as u64);
        fraction.into_iter().chain(self.memory_limit).min()
    }

    /// Checks the range of each option, also where the range depends on another option.
    ///
    /// # Errors
    /// [`ConfigError::BadValue`] for the first option that is outside of its range.
    pub fn validated(self) -> Result<Self, ConfigError> {
        ROWS.iter().try_for_each(|row| (row.check)(&self))?;
        Ok(self)
    }
}

fn at_least_a_segment(size: u64, config: &Config) -> Result<(), String> {
    let segment = config.large_segment_size;
    if size >= segment { Ok(()) } else { Err(format!("at least large_segment_size_mb ({})", segment / MIB)) }
}

fn set_strategy(config: &mut Config, option: &str, value: &str) -> Result<(), ConfigError> {
    (config.strategy, config.strategy_named) = (StrategyName.read(option, value)?, true);
    Ok(())
}

fn set_expandable_segments(config: &mut Config, option: &str, value: &str) -> Result<(), ConfigError> {
    match value {
        "True" => (config.strategy, config.strategy_named) = (Expandable, true),
        "False" if config.strategy == Expandable => {
            (config.strategy, config.strategy_named) = (StrategyKind::default(), false);
        }
        "False" => {}
        _ => return Err(bad_value(option, value, "`True` or `False`")),
    }
    Ok(())
}

fn set_backend(config: &mut Config, option: &str, value: &str) -> Result<(), ConfigError> {
    match value {
        "native" => {}
        "cudaMallocAsync" => (config.strategy, config.strategy_named) = (MallocAsync, true),
        _ => return Err(bad_value(option, value, "`native` or `cudaMallocAsync`")),
    }
    Ok(())
}

fn set_large_segment_size(config: &mut Config, option: &str, value: &str) -> Result<(), ConfigError> {
    config.large_segment_size = Mib.read(option, value)?;
    // `max_non_split_rounding` grows too, since its value may not be smaller than a large segment.
    config.max_non_split_rounding = config.max_non_split_rounding.max(config.large_segment_size);
    Ok(())
}

/// Sets which mistakes guard mode looks for, and keeps its other options.
fn set_guard(config: &mut Config, option: &str, value: &str) -> Result<(), ConfigError> {
    let GuardOptions { sample, min_size, quarantine, .. } = config.guard;
    config.guard = GuardOptions { sample, min_size, quarantine, ..GuardParts.read(option, value)? };
    Ok(())
}

impl GuardOptions {
    /// Guard mode as `guard:on` switches it on: all parts but `graphs`.
    pub const ON: Self = Self { page: true, canary: true, poison: true, streams: true, ..Self::OFF };

    /// Returns whether guard mode looks for any mistakes.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.page || self.streams
    }

    /// Returns the parts of guard mode, by the names of the option `guard`.
    fn parts(&mut self) -> [(&'static str, &mut bool); 5] {
        let Self { page, canary, poison, streams, graphs, .. } = self;
        [("page", page), ("canary", canary), ("poison", poison), ("streams", streams), ("graphs", graphs)]
    }

    /// Returns whether any part is switched on.
    fn names_parts(mut self) -> bool {
        self.parts().into_iter().any(|(_, is_on)| *is_on)
    }
}

/// Prints the parts of guard mode that are on, as the value of the option `guard`.
impl fmt::Display for GuardOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match { *self }.parts().map(|(_, is_on)| *is_on) {
            [false, false, false, false, false] => f.write_str("off"),
            [true, true, true, true, false] => f.write_str("on"),
            [true, true, true, true, true] => f.write_str("all"),
            _ => {
                let mut separator = "";
                { *self }
                    .parts()
                    .into_iter()
                    .filter(|(_, is_on)| **is_on)
                    .try_for_each(|(name, _)| write!(f, "{}{name}", std::mem::replace(&mut separator, "|")))
            }
        }
    }
}

/// The syntax of `guard`: `off`, `on`, `all`, or names of parts joined by `|`.
struct GuardParts;

impl GuardParts {
    const EXPECTED: &str = "`on`, `off`, `all`, or of `page`, `canary`, `poison`, `streams` and `graphs` those wanted, \
                            joined by `|`; `canary`, `poison` and `graphs` need `page`";
}

impl Syntax<GuardOptions> for GuardParts {
    fn read(&self, option: &str, value: &str) -> Result<GuardOptions, ConfigError> {
        let mut chosen = GuardOptions::OFF;
        match value {
            "off" | "False" | "0" => {}
            "on" | "True" | "1" => chosen = GuardOptions::ON,
            "all" => chosen = GuardOptions { graphs: true, ..GuardOptions::ON },
            list => {
                for name in list.split('|') {
                    let part = chosen.parts().into_iter().find(|(part, _)| *part == name.trim());
                    *part.ok_or_else(|| bad_value(option, value, Self::EXPECTED))?.1 = true;
                }
            }
        }
        Ok(chosen)
    }

    fn write(&self, value: &GuardOptions, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value.fmt(f)
    }
}
