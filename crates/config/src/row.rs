//! The macro that defines the options from their table: the structs with their defaults, and a row for each option.
//!
//! Owns: [`Row`], and the macro `options!` that `table.rs` is written in.

use super::error::ConfigError;
use super::strategy_kind::StrategyKind;
use super::values::{Syntax, bad_value};
use std::fmt;

/// One option: its name, and functions that set and print it in the options `C`.
pub(super) struct Row<C> {
    pub(super) name: &'static str,
    /// The strategies that heed the option.
    pub(super) strategies: &'static [StrategyKind],
    /// Sets the option to the value of a text.
    pub(super) set: fn(&mut C, &str) -> Result<(), ConfigError>,
    /// Whether the option is printed; usually, whether it differs from its default.
    pub(super) is_given: fn(&C) -> bool,
    /// Prints the value.
    pub(super) write: fn(&C, &mut fmt::Formatter<'_>) -> fmt::Result,
    /// Checks the range.
    pub(super) check: fn(&C) -> Result<(), ConfigError>,
}

/// Checks a value by `valid`. Its error says what value was expected.
pub(super) fn check<T, C>(
    option: &str,
    syntax: &impl Syntax<T>,
    value: &T,
    config: &C,
    valid: impl Fn(&T, &C) -> Result<(), String>,
) -> Result<(), ConfigError> {
    valid(value, config).map_err(|expected| bad_value(option, &syntax.show(value), &expected))
}

/// Defines the structs of the options, and `ROWS` with a row for each option. `table.rs` describes the syntax.
macro_rules! options {
    ($(
        $(#[$about:meta])*
        pub struct $Owner:ident at $place:ident, $visible:vis const $DEFAULT:ident $of_default:literal {
            $( @section $title:literal, $introduction:literal; $(
                $(#[$doc:meta])* $field:ident: $type:ty = $default:expr;
                $(
                    $name:literal: $syntax:expr
                        $(, only $strategies:expr)? $(, beside $beside:literal)?
                        $(, set $set:expr)? $(, given $given:expr)? $(, valid $valid:expr)?,
                        typed $typed:literal, default $shown:literal, example $example:literal, when $when:literal;
                )*
            )* )*
        }
    )*) => {
        $(
            $(#[$about])*
            pub struct $Owner { $( $( $(#[$doc])* pub $field: $type, )* )* }

            impl $Owner {
                #[doc = $of_default]
                $visible const $DEFAULT: Self = Self { $( $( $field: $default, )* )* };
            }

            impl Default for $Owner {
                fn default() -> Self {
                    Self::$DEFAULT
                }
            }
        )*

        /// Every option with an effect, in the order in which they are printed.
        pub(super) const ROWS: &[Row<Config>] = &[ $( $( $( $( Row {
            name: $name,
            strategies: options!(@one [$($strategies)?] &StrategyKind::ALL),
            set: |config, value| options!(@one [$($set(config, $name, value))?] {
                options!(@at $place config).$field = $syntax.read($name, value)?;
                Ok(())
            }),
            is_given: options!(@one [$($given)?] |config| options!(@at $place config).$field != $default),
            write: |config, f| $syntax.write(&options!(@at $place config).$field, f),
            check: options!(@one [
                $( |config| check($name, &$syntax, &options!(@at $place config).$field, config, $valid) )?
            ] |_| Ok(())),
        }, )* )* )* )* ];
    };
    (@one [] $usual:expr) => { $usual };
    (@one [$given:expr] $usual:expr) => { $given };
    (@at whole $config:ident) => { $config };
    (@at $part:ident $config:ident) => { $config.$part };
}
pub(super) use options;
