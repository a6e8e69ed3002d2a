//! The names of the options, and the messages about wrong names and values.
//!
//! Owns: the options without effect, the removed ones, and the words of [`ConfigError`].

use super::error::ConfigError;
use super::options::ROWS;
use super::strategy_kind::StrategyKind;
use seamalloc_driver::nearest::near;
use std::fmt;

/// Options of PyTorch that have no effect in this allocator.
pub(super) const WITHOUT_EFFECT: [&str; 6] = [
    "release_lock_on_cudamalloc",
    "graph_capture_record_stream_reuse",
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
];

/// Why these options have no effect.
pub(super) const OF_PYTORCH: &str =
    "it concerns page-locked memory, locking or graph capture in PyTorch's own allocator";

/// Options that earlier versions had, and the sentence that says what to write in place of each.
pub(super) const REMOVED: [(&str, &str); 7] = [
    ("arenas", "leave it out: all threads share one heap"),
    ("plan", "leave it out: `strategy:stitch` needs no plan"),
    ("sharing_threshold", "leave it out, or choose `sharing:wait` or `sharing:never`"),
    ("memory_fraction", "write `per_process_memory_fraction`"),
    ("broker_weight", "leave it out, or give the process that should keep more a larger `broker_guarantee`"),
    ("FLAGS_vmm_v2_remap_on_oom", "leave it out: free handles are always moved together before a request is refused"),
    ("FLAGS_vmm_v2_small_pool_handle_size_in_mb", "leave it out: a handle of small requests has 2 MiB"),
];

/// Returns the names of all options that have an effect.
pub(super) fn option_list() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.name)
}

/// Returns the names of all options, with or without effect.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    option_list().chain(WITHOUT_EFFECT)
}

/// Returns the error for a name that no option has.
pub(super) fn unknown(name: &str) -> ConfigError {
    if let Some((option, instead)) = REMOVED.into_iter().find(|(option, _)| *option == name) {
        return ConfigError::Removed { what: "option", name: option, instead };
    }
    ConfigError::UnknownOption { found: name.to_owned(), nearest: near(name, names()) }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |f: &mut fmt::Formatter<'_>, names: &mut dyn Iterator<Item = &'static str>| {
            f.write_str("; there are ")?;
            names.enumerate().try_for_each(|(at, name)| write!(f, "{}`{name}`", if at > 0 { ", " } else { "" }))
        };
        match self {
            Self::UnknownOption { found, nearest } => {
                write!(f, "unknown option `{found}`")?;
                match nearest {
                    Some(name) => write!(f, "; did you mean `{name}`?"),
                    None => listed(f, &mut option_list()),
                }
            }
            Self::UnknownStrategy { found, nearest } => {
                write!(f, "unknown strategy `{found}`")?;
                listed(f, &mut StrategyKind::ALL.into_iter().map(StrategyKind::name))?;
                nearest.map_or(Ok(()), |name| write!(f, "; did you mean `{name}`?"))
            }
            Self::WithoutBaselines { strategy } => write!(
                f,
                "the strategy `{strategy}` is not in this build: the allocators of the literature are strategies with the feature \
                 `baselines` of seamalloc, which is off here"
            ),
            Self::Removed { what, name, instead } => write!(f, "the {what} `{name}` was removed; {instead}"),
            Self::BadValue { option, found, expected } => {
                write!(f, "option `{option}` has the value `{found}`; expected {expected}")
            }
            Self::Syntax { text, at, expected } => write!(f, "options: expected {expected} at byte {at} of `{text}`"),
        }
    }
}
