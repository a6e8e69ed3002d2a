//! The text syntax of the values of options.
//!
//! Owns: a [`Syntax`] for each unit. `table.rs` has the syntax of each option.

use super::choices::StreamSharing;
use super::error::ConfigError;
use super::headroom::Headroom;
use super::rounding::{ROUNDUP_INTERVALS, RoundupDivisions};
use super::strategy_kind::StrategyKind;
use seamalloc_driver::units::{Exactly, parse_bytes_with_unit};
use std::fmt::{self, Display};
use std::num::NonZeroU64;
use std::str::FromStr;

pub(super) const MIB: u64 = 1 << 20;
/// The target of log events about options.
pub(super) const TARGET: &str = "seamalloc::config";

/// How values of one type are read and printed.
pub(super) trait Syntax<T> {
    /// Reads the value of an option.
    fn read(&self, option: &str, value: &str) -> Result<T, ConfigError>;

    /// Prints a value, so that [`Self::read`] reads it.
    fn write(&self, value: &T, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// Returns the text of a value that is outside of its range, for an error.
    fn show(&self, value: &T) -> String {
        struct Shown<'a, S: ?Sized, T>(&'a S, &'a T);
        impl<S: Syntax<T> + ?Sized, T> Display for Shown<'_, S, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.write(self.1, f)
            }
        }
        Shown(self, value).to_string()
    }
}

pub(super) fn bad_value(option: &str, found: &str, expected: &str) -> ConfigError {
    ConfigError::BadValue { option: option.to_owned(), found: found.to_owned(), expected: expected.to_owned() }
}

/// Returns `expected` as the error if a condition does not hold.
pub(super) fn holds(condition: bool, expected: &str) -> Result<(), String> {
    if condition { Ok(()) } else { Err(expected.to_owned()) }
}

/// A whole number of this unit.
pub(super) struct Whole(pub(super) &'static str);

impl<T: FromStr + Display> Syntax<T> for Whole {
    fn read(&self, option: &str, value: &str) -> Result<T, ConfigError> {
        value.parse().map_err(|_| bad_value(option, value, &format!("a whole number of {}", self.0)))
    }

    fn write(&self, value: &T, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value.fmt(f)
    }
}

/// The value of an option: a whole number above 0, in this unit.
pub(super) struct AtLeastOne(pub(super) &'static str);

impl Syntax<u64> for AtLeastOne {
    fn read(&self, option: &str, value: &str) -> Result<u64, ConfigError> {
        let number = value.parse::<NonZeroU64>().map(NonZeroU64::get);
        number.map_err(|_| bad_value(option, value, &format!("a whole number of {}", self.0)))
    }

    fn write(&self, value: &u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value.fmt(f)
    }
}

/// A number with a fraction; the text describes the expected values.
pub(super) struct Number(pub(super) &'static str);

impl Syntax<f64> for Number {
    fn read(&self, option: &str, value: &str) -> Result<f64, ConfigError> {
        value.parse().map_err(|_| bad_value(option, value, self.0))
    }

    fn write(&self, value: &f64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value.fmt(f)
    }
}

/// A part of a whole.
pub(super) struct Fraction;

impl Fraction {
    pub(super) const EXPECTED: &str = "a number from 0 to 1";
}

impl Syntax<f64> for Fraction {
    fn read(&self, option: &str, value: &str) -> Result<f64, ConfigError> {
        let number = Number(Self::EXPECTED).read(option, value)?;
        if number.is_finite() { Ok(number) } else { Err(bad_value(option, value, Self::EXPECTED)) }
    }

    fn write(&self, value: &f64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value.fmt(f)
    }
}

/// A part of a whole, above 0 and below 1.
pub(super) struct Threshold;

impl Threshold {
    pub(super) const EXPECTED: &str = "a number above 0 and below 1";
}

impl Syntax<f64> for Threshold {
    fn read(&self, option: &str, value: &str) -> Result<f64, ConfigError> {
        let part = Fraction.read(option, value)?;
        if part == 0.0 { Err(bad_value(option, value, Self::EXPECTED)) } else { Ok(part) }
    }

    fn write(&self, value: &f64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value.fmt(f)
    }
}

/// Bytes, as a number of MiB without a unit: the option's name has the unit.
pub(super) struct Mib;

impl Syntax<u64> for Mib {
    fn read(&self, option: &str, value: &str) -> Result<u64, ConfigError> {
        let number = value.parse::<u64>().ok().and_then(|n| n.checked_mul(MIB)).filter(|n| *n <= 1 << 60);
        number.ok_or_else(|| bad_value(option, value, "a whole number of MiB"))
    }

    fn write(&self, value: &u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (value / MIB).fmt(f)
    }

    fn show(&self, value: &u64) -> String {
        if value.is_multiple_of(MIB) { (value / MIB).to_string() } else { format!("{value} bytes") }
    }
}

/// Bytes, as a size with a unit; the text is an example.
pub(super) struct Bytes(pub(super) &'static str);

impl Syntax<u64> for Bytes {
    fn read(&self, option: &str, value: &str) -> Result<u64, ConfigError> {
        parse_bytes_with_unit(value).map_err(|error| {
            let expected = format!("a size with a unit, such as {}, or None ({})", self.0, error.problem);
            bad_value(option, value, &expected)
        })
    }

    fn write(&self, value: &u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Exactly(*value).fmt(f)
    }
}

/// A headroom: `4GiB`, or `soft=4GiB`.
pub(super) struct HeadroomSize;

const HEADROOM: Bytes = Bytes("4GiB or soft=4GiB");

impl Syntax<Headroom> for HeadroomSize {
    fn read(&self, option: &str, value: &str) -> Result<Headroom, ConfigError> {
        match value.strip_prefix("soft=") {
            Some(size) => HEADROOM.read(option, size.trim()).map(Headroom::soft),
            None => HEADROOM.read(option, value).map(Headroom::kept),
        }
    }

    fn write(&self, value: &Headroom, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if value.is_soft { "soft=" } else { "" })?;
        HEADROOM.write(&value.bytes, f)
    }
}

/// A number of bytes that is read as by [`Bytes`], and printed without a unit.
pub(super) struct InBytes(pub(super) Bytes);

impl Syntax<u64> for InBytes {
    fn read(&self, option: &str, value: &str) -> Result<u64, ConfigError> {
        self.0.read(option, value)
    }

    fn write(&self, value: &u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{value}B")
    }
}

/// Bytes of host memory: `host=64GiB`.
pub(super) struct HostSize;

impl Syntax<u64> for HostSize {
    fn read(&self, option: &str, value: &str) -> Result<u64, ConfigError> {
        let size = value.strip_prefix("host=").and_then(|size| parse_bytes_with_unit(size.trim()).ok());
        let expected = "`off`, or `host=SIZE` with a size such as 64GiB";
        size.filter(|size| *size != 0).ok_or_else(|| bad_value(option, value, expected))
    }

    fn write(&self, value: &u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host={}", Exactly(*value))
    }
}

/// The name of a file.
pub(super) struct FileName;

impl Syntax<String> for FileName {
    fn read(&self, _: &str, value: &str) -> Result<String, ConfigError> {
        Ok(value.to_owned())
    }

    fn write(&self, value: &String, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(value)
    }
}

/// Checks that a name can stand among options.
pub(super) fn is_file_name(path: &Option<String>) -> Result<(), String> {
    let is_none = |path: &String| path.is_empty() || path.contains([',', '[', ']', '\0', '\n']);
    holds(!path.as_ref().is_some_and(is_none), "the name of a file, without commas and brackets")
}

/// `True` or `False`.
pub(super) struct Switch;

impl Syntax<bool> for Switch {
    fn read(&self, option: &str, value: &str) -> Result<bool, ConfigError> {
        match value {
            "True" | "true" | "1" => Ok(true),
            "False" | "false" | "0" => Ok(false),
            _ => Err(bad_value(option, value, "`True` or `False`, or 1 or 0")),
        }
    }

    fn write(&self, value: &bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *value { "True" } else { "False" })
    }
}

/// A value that may be absent, and is then not printed.
pub(super) struct Optional<S>(pub(super) S);

impl<T, S: Syntax<T>> Syntax<Option<T>> for Optional<S> {
    fn read(&self, option: &str, value: &str) -> Result<Option<T>, ConfigError> {
        self.0.read(option, value).map(Some)
    }

    fn write(&self, value: &Option<T>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value.as_ref().map_or(Ok(()), |value| self.0.write(value, f))
    }
}

/// A value that may be absent, written as `off`.
pub(super) struct OrOff<S>(pub(super) S);

impl<T, S: Syntax<T>> Syntax<Option<T>> for OrOff<S> {
    fn read(&self, option: &str, value: &str) -> Result<Option<T>, ConfigError> {
        if value == "off" { Ok(None) } else { self.0.read(option, value).map(Some) }
    }

    fn write(&self, value: &Option<T>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match value {
            Some(value) => self.0.write(value, f),
            None => f.write_str("off"),
        }
    }
}

/// One of several values, by its name. The last field lists the names for errors.
pub(super) struct Choice<T: 'static>(
    pub(super) &'static [T],
    pub(super) fn(T) -> &'static str,
    pub(super) &'static str,
);

impl<T: Copy> Syntax<T> for Choice<T> {
    fn read(&self, option: &str, value: &str) -> Result<T, ConfigError> {
        let found = self.0.iter().copied().find(|choice| (self.1)(*choice) == value);
        found.ok_or_else(|| bad_value(option, value, self.2))
    }

    fn write(&self, value: &T, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str((self.1)(*value))
    }
}

/// The names of [`StreamSharing`], and `auto`, a name of an earlier version.
pub(super) struct Sharing;

impl Sharing {
    const NAMES: Choice<StreamSharing> =
        Choice(&StreamSharing::ALL, StreamSharing::name, "`never`, `completed` or `wait`");
}

impl Syntax<StreamSharing> for Sharing {
    fn read(&self, option: &str, value: &str) -> Result<StreamSharing, ConfigError> {
        if value == "auto" {
            tracing::warn!(target: TARGET, "`sharing:auto` means `sharing:wait`: streams share freed memory at any time");
            return Ok(StreamSharing::Wait);
        }
        Self::NAMES.read(option, value)
    }

    fn write(&self, value: &StreamSharing, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::NAMES.write(value, f)
    }
}

/// The name of a strategy.
pub(super) struct StrategyName;

impl Syntax<StrategyKind> for StrategyName {
    fn read(&self, _: &str, value: &str) -> Result<StrategyKind, ConfigError> {
        value.parse()
    }

    fn write(&self, value: &StrategyKind, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value.fmt(f)
    }
}

/// A value that is always printed as this text. The option has a function of its own that sets it.
pub(super) struct Spelled(pub(super) &'static str);

impl<T> Syntax<T> for Spelled {
    fn read(&self, option: &str, value: &str) -> Result<T, ConfigError> {
        Err(bad_value(option, value, self.0))
    }

    fn write(&self, _: &T, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The value of `roundup_power2_divisions`: `4` divisions for all intervals, or `[256:1,512:2,>:4]`, where 256 names
/// the interval from 256 MiB to 512 MiB. As in PyTorch, sizes below the first named interval take its divisions, `>`
/// replaces the divisions of the last named interval and of all above, and an interval between two named ones stays
/// off.
pub(super) struct Divisions;

impl Divisions {
    pub(super) const EXPECTED: &str = "a power of two, or 0 for off";

    /// Returns the first number that is neither a power of two nor 0.
    pub(super) fn wrong(divisions: &RoundupDivisions) -> Option<u32> {
        divisions.iter().copied().find(|number| *number != 0 && !number.is_power_of_two())
    }
}

impl Syntax<RoundupDivisions> for Divisions {
    fn read(&self, option: &str, value: &str) -> Result<RoundupDivisions, ConfigError> {
        let parse = |text: &str| {
            let number = text.parse::<u32>().ok().filter(|n| *n == 0 || n.is_power_of_two());
            number.ok_or_else(|| bad_value(option, text, Self::EXPECTED))
        };
        let Some(list) = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
            return Ok([parse(value)?; ROUNDUP_INTERVALS]);
        };
        let mut out = [0; ROUNDUP_INTERVALS];
        let mut last = None;
        for pair in list.split(',') {
            let Some((interval, count)) = pair.split_once(':') else {
                return Err(bad_value(option, pair, "INTERVAL:DIVISIONS, the interval a power of two of MiB or `>`"));
            };
            let count = parse(count.trim())?;
            if interval.trim() == ">" {
                out[last.unwrap_or(0)..].fill(count);
                continue;
            }
            let Some(mib) = interval.trim().parse::<u64>().ok().filter(|n| n.is_power_of_two()) else {
                return Err(bad_value(option, interval, "a power of two of MiB, or `>`"));
            };
            let index = (mib.ilog2() as usize).min(ROUNDUP_INTERVALS - 1);
            if last.is_none() {
                out[..index].fill(count);
            }
            out[index] = count;
            last = Some(index);
        }
        Ok(out)
    }

    fn write(&self, value: &RoundupDivisions, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (interval, divisions) in value.iter().enumerate() {
            write!(f, "{}{}:{divisions}", if interval > 0 { "," } else { "" }, 1u64 << interval)?;
        }
        f.write_str("]")
    }

    fn show(&self, value: &RoundupDivisions) -> String {
        Self::wrong(value).unwrap_or(0).to_string()
    }
}
