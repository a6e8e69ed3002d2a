//! What is wrong with options that were given.
//!
//! Owns: [`ConfigError`], and its words.

use super::names::option_list;
use super::strategy_kind::StrategyKind;

/// An unknown option, or a value that an option cannot take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No option has this name.
    #[error("unknown option `{found}`{}", nearest.map_or_else(option_names, |_| suggestion(nearest)))]
    UnknownOption {
        /// The name as given.
        found: String,
        /// A similar name that exists.
        nearest: Option<&'static str>,
    },
    /// No strategy has this name.
    #[error("unknown strategy `{found}`; there are {}{}", strategy_names(), suggestion(.nearest))]
    UnknownStrategy {
        /// The name as given.
        found: String,
        /// A similar name that exists.
        nearest: Option<&'static str>,
    },
    /// An earlier version had the option or the strategy.
    #[error("the {what} `{name}` was removed; {instead}")]
    Removed {
        /// `option` or `strategy`.
        what: &'static str,
        /// The name.
        name: &'static str,
        /// The replacement, in words.
        instead: &'static str,
    },
    /// The value of the option is invalid.
    #[error("option `{option}` has the value `{found}`; expected {expected}")]
    BadValue {
        /// The option.
        option: String,
        /// The value as given.
        found: String,
        /// The values that it takes.
        expected: String,
    },
    /// The text is not a list of `key:value`.
    #[error("options: expected {expected} at byte {at} of `{text}`")]
    Syntax {
        /// The whole text.
        text: String,
        /// Where it went wrong, in bytes.
        at: usize,
        /// What was expected there.
        expected: &'static str,
    },
}

fn suggestion(nearest: &Option<&'static str>) -> String {
    nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

fn option_names() -> String {
    let names: Vec<String> = option_list().map(|name| format!("`{name}`")).collect();
    format!("; there are {}", names.join(", "))
}

fn strategy_names() -> String {
    StrategyKind::ALL.map(|kind| format!("`{kind}`")).join(", ")
}
