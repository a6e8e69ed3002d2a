//! PyTorch's syntax of options (`key:value,key:[a:b,c:d]`), read and written.
//!
//! Owns: how options are written in one text. `values.rs` has the syntax of each value. The syntax is that of
//! `PYTORCH_CUDA_ALLOC_CONF`, so that a setting can be copied as it is.

use super::effect;
use super::error::ConfigError;
use super::names::{OF_PYTORCH, WITHOUT_EFFECT, names, option_list, unknown};
use super::options::{Config, ROWS};
use std::fmt;

/// The value of an option that is not given, as programs in Python write it.
const NOT_GIVEN: &str = "None";

impl Config {
    /// Reads options in PyTorch's syntax over the defaults: `max_split_size_mb:512,expandable_segments:True`.
    ///
    /// Besides PyTorch's keys there are `strategy:NAME`, `memory_limit:80GiB`, `headroom:4GiB`, the options of
    /// stitching: `sharing`, `max_view_mappings`, `max_views` and `max_view_address_space`, and the options of guard
    /// mode: `guard`, `guard_sample`, `guard_min_size` and `guard_quarantine_mb`. The strategies `exact` and `buddy`
    /// have `exact_buffer_mb` and `buddy_capacity_mb`, the strategies of Paddle have Paddle's flags, such as
    /// `FLAGS_free_idle_chunk:True` ([`PaddleFlags`](crate::PaddleFlags)).
    ///
    /// The value `None` means that the option is not given. Sizes have a unit, unless the option's name has the unit
    /// (`_mb`), or the option comes from another allocator and counts bytes (`fragLimit`).
    ///
    /// ```
    /// use seamalloc::{Config, StrategyKind};
    /// let config = Config::parse("max_split_size_mb:512,roundup_power2_divisions:[256:1,512:2,>:4]")?;
    /// assert_eq!(config.max_split_size, Some(512 << 20));
    /// assert_eq!(Config::parse("expandable_segments:True")?.strategy, StrategyKind::Expandable);
    /// # Ok::<(), seamalloc::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// The error names the option and its values; for an unknown name, it suggests the nearest name that exists.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::default().overlaid(text)
    }

    /// Returns these options, changed by those of `text`.
    ///
    /// # Errors
    /// The errors of [`Config::parse`].
    pub fn overlaid(mut self, text: &str) -> Result<Self, ConfigError> {
        for (key, value) in split_options(text)? {
            if value != NOT_GIVEN {
                self.set(key, value)?;
            } else if !names().any(|name| name == key) {
                return Err(unknown(key));
            }
        }
        self.validated()
    }

    /// Returns the names of all options that have an effect, as [`Config::parse`] reads them. `docs/options.md` has a
    /// row for each.
    ///
    /// ```
    /// assert!(seamalloc::Config::option_names().any(|name| name == "max_split_size_mb"));
    /// ```
    pub fn option_names() -> impl Iterator<Item = &'static str> {
        option_list()
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        match ROWS.iter().find(|row| row.name == key) {
            Some(row) => (row.set)(self, value),
            None if WITHOUT_EFFECT.contains(&key) => {
                effect::tell(key, OF_PYTORCH);
                Ok(())
            }
            None => Err(unknown(key)),
        }
    }
}

/// Prints the options that differ from the defaults, in PyTorch's syntax; [`Config::parse`] reads them back. A strategy
/// that was chosen by name is printed even if it is the default.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        ROWS.iter().filter(|row| (row.is_given)(self)).try_for_each(|row| {
            write!(f, "{}{}:", std::mem::replace(&mut comma, ","), row.name)?;
            (row.write)(self, f)
        })
    }
}

/// Splits `key:value,key:[a:b,c:d]` at the commas outside of brackets.
fn split_options(text: &str) -> Result<Vec<(&str, &str)>, ConfigError> {
    let syntax = |at, expected| ConfigError::Syntax { text: text.to_owned(), at, expected };
    let mut out = Vec::new();
    let mut depth = 0u32;
    let mut start = 0;
    for (at, ch) in text.char_indices().chain([(text.len(), ',')]) {
        match ch {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1).ok_or_else(|| syntax(at, "no `]` without a `[`"))?,
            ',' if depth == 0 => {
                let part = &text[start..at];
                if !part.trim().is_empty() {
                    let Some((key, value)) = part.split_once(':') else { return Err(syntax(start, "`key:value`")) };
                    out.push((key.trim(), value.trim()));
                }
                start = at + ch.len_utf8();
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(syntax(text.len(), "a closing `]`"));
    }
    Ok(out)
}
