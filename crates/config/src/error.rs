//! Errors in the options that were given.
//!
//! Owns: [`ConfigError`]. `names.rs` has the texts of these errors.

/// An unknown option, or a value that an option cannot take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No option has this name.
    UnknownOption {
        /// The name as given.
        found: String,
        /// A similar name that exists.
        nearest: Option<&'static str>,
    },
    /// No strategy has this name.
    UnknownStrategy {
        /// The name as given.
        found: String,
        /// A similar name that exists.
        nearest: Option<&'static str>,
    },
    /// The strategy is not in this build: the feature `baselines` of seamalloc, off by default, is off.
    WithoutBaselines {
        /// The strategy.
        strategy: &'static str,
    },
    /// An earlier version had the option or the strategy.
    Removed {
        /// `option` or `strategy`.
        what: &'static str,
        /// The name.
        name: &'static str,
        /// The replacement, in words.
        instead: &'static str,
    },
    /// The value of the option is invalid.
    BadValue {
        /// The option.
        option: String,
        /// The value as given.
        found: String,
        /// The values that the option takes.
        expected: String,
    },
    /// The text is not a list of `key:value`.
    Syntax {
        /// The whole text.
        text: String,
        /// The position of the error, in bytes.
        at: usize,
        /// The text that was expected at this position.
        expected: &'static str,
    },
}
