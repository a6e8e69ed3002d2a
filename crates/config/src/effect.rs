//! Whether an option has an effect with a strategy, with the other options, and on a device.
//!
//! Owns: the tables, from which the warnings and part of `docs/options.md` follow. An option counts as given if its
//! value is not the default.

use super::choices::StreamSharing;
use super::options::{Config, GuardOptions, ROWS};
use super::row::Row;
use super::strategy_kind::StrategyKind;
use super::values::TARGET;
use seamalloc_driver::DeviceProperties;
use std::fmt;

/// Options that have an effect only together with other options, or on certain devices.
struct Rule {
    options: &'static [&'static str],
    has_effect: fn(&Config, &DeviceProperties) -> bool,
    /// Why the option has no effect if `has_effect` returns `false`.
    reason: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        options: &["max_non_split_rounding_mb"],
        has_effect: |config, _| config.max_split_size.is_some(),
        reason: "it needs `max_split_size_mb`",
    },
    Rule {
        options: &["garbage_collection_threshold"],
        has_effect: |config, _| config.memory_fraction.is_some_and(|fraction| fraction < 1.0),
        reason: "it refers to `per_process_memory_fraction`, which has to be below 1",
    },
    Rule {
        options: &["guard_sample", "guard_min_size", "guard_quarantine_mb"],
        has_effect: |config, _| config.guard.page,
        reason: "it needs `guard:page`",
    },
    Rule {
        options: &["split", "spill"],
        has_effect: |config, _| !GuardOptions::is_on(&config.guard),
        reason: "memory keeps its place with `guard`",
    },
    Rule {
        options: &["split", "spill"],
        has_effect: |config, _| config.wait_ms.is_none(),
        reason: "it takes a wait for the device, which `wait_ms` forbids",
    },
    Rule {
        options: &["max_view_mappings", "max_view_address_space"],
        has_effect: |config, _| config.max_views > 0,
        reason: "`max_views:0` forbids all views",
    },
    Rule {
        options: &["max_views", "max_view_address_space"],
        has_effect: |config, _| config.max_view_mappings > 0,
        reason: "`max_view_mappings:0` forbids all views",
    },
    Rule {
        options: &["max_views", "max_view_mappings"],
        has_effect: |config, _| config.max_view_address_space > 0,
        reason: "`max_view_address_space:0B` forbids all views",
    },
    Rule {
        options: &["broker_guarantee", "broker_wait_ms"],
        has_effect: |config, _| config.broker.is_some(),
        reason: "it needs `broker`",
    },
    Rule {
        options: &["fragLimit", "reuseLimit", "autoGC"],
        has_effect: |config, _| config.defrag_level < 3,
        reason: "with a `defragLevel` of 3 and more no memory is stitched",
    },
    Rule {
        options: &["FLAGS_small_pool_auto_growth_chunk_size_in_mb", "FLAGS_large_pool_auto_growth_chunk_size_in_mb"],
        has_effect: |config, _| config.paddle.small_pool_size > 0,
        reason: "it needs `FLAGS_small_pool_size_in_mb`",
    },
    Rule {
        options: &["FLAGS_auto_growth_chunk_size_in_mb"],
        has_effect: |config, _| config.paddle.small_pool_size == 0,
        reason: "the pools of `FLAGS_small_pool_size_in_mb` have options of their own for it",
    },
    Rule {
        options: &["FLAGS_free_when_no_cache_hit"],
        has_effect: |config, _| !config.paddle.free_idle_chunk,
        reason: "`FLAGS_free_idle_chunk` leaves no idle chunks",
    },
    Rule {
        options: &["FLAGS_fraction_of_gpu_memory_to_use"],
        has_effect: |config, _| config.paddle.initial_gpu_memory == 0 || config.paddle.reallocate_gpu_memory == 0,
        reason: "`FLAGS_initial_gpu_memory_in_mb` and `FLAGS_reallocate_gpu_memory_in_mb` say how large all chunks are",
    },
    Rule {
        options: &["memory_limit"],
        has_effect: |config, device| config.memory_limit.is_none_or(|limit| limit < device.total_memory),
        reason: "the device has no more memory than that",
    },
];

/// Why an option has no effect.
enum Reason {
    /// The strategy in use, and the strategies that heed the option.
    Strategy(StrategyKind, &'static [StrategyKind]),
    Rule(&'static str),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Strategy(kind, heeding) => {
                write!(f, "the strategy `{kind}` does not heed it, but ")?;
                let mut names = heeding.iter().enumerate();
                names.try_for_each(|(at, name)| write!(f, "{}`{name}`", if at > 0 { ", " } else { "" }))
            }
            Self::Rule(reason) => f.write_str(reason),
        }
    }
}

/// Logs that a given option has no effect, and why.
pub(super) fn tell(option: &str, reason: impl fmt::Display) {
    tracing::warn!(target: TARGET, "the option `{option}` has no effect: {reason}");
}

/// Logs a warning for each given option that has no effect on a device.
pub fn tell_without_effect(config: &Config, device: &DeviceProperties) {
    for row in ROWS.iter().filter(|row| (row.is_given)(config)) {
        if let Some(reason) = reason(row, config, device) {
            tell(row.name, reason);
        }
    }
}

/// Returns whether an option has an effect if it is given.
#[must_use]
pub fn has_effect(option: &str, config: &Config, device: &DeviceProperties) -> bool {
    let row = ROWS.iter().find(|row| row.name == option);
    row.is_some_and(|row| reason(row, config, device).is_none())
}

/// Returns why a given option has no effect, or `None` if it has one.
fn reason(row: &Row<Config>, config: &Config, device: &DeviceProperties) -> Option<Reason> {
    // A pool of host memory sets `sharing:completed` itself, whatever the strategy, so the value needs no warning.
    let is_set = row.name == "sharing" && config.sharing == StreamSharing::Completed;
    if !is_set && !row.strategies.contains(&config.strategy) {
        return Some(Reason::Strategy(config.strategy, row.strategies));
    }
    let rule = RULES.iter().find(|rule| rule.options.contains(&row.name) && !(rule.has_effect)(config, device));
    rule.map(|rule| Reason::Rule(rule.reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that each name in the rules is the name of an option.
    #[test]
    fn every_name_is_that_of_an_option() {
        for option in RULES.iter().flat_map(|rule| rule.options) {
            assert!(ROWS.iter().any(|row| row.name == *option), "{option}");
        }
    }

    #[test]
    fn the_names_are_those_of_what_is_written() {
        let text = "roundup_power2_divisions:[256:1,512:2,>:4],memory_limit:1GiB,broker:/a:b,guard:page|streams";
        let given = |config: &Config| -> Vec<_> {
            ROWS.iter().filter(|row| (row.is_given)(config)).map(|row| row.name).collect()
        };
        let config = Config::parse(text).unwrap();
        assert_eq!(given(&config), ["roundup_power2_divisions", "memory_limit", "broker", "guard"]);
        assert!(given(&Config::default()).is_empty());
    }
}
