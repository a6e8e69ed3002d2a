//! Sizes in bytes as people write them.
//!
//! Owns: reading `80GiB` and writing `1.50 GiB`. The callers know what the sizes mean.

use std::fmt;

/// The binary units, largest first.
const BINARY_UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// Every unit that is read, in lower case, with its bytes. A single letter is binary, as in the options of PyTorch and
/// of most allocators.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// Digits after the point that are read; more digits cannot matter for any size below 2^64 in a decimal unit.
const MAX_FRACTION_DIGITS: usize = 18;

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a size in bytes: {problem}; expected a number with a unit, such as 80GiB, 512MB or 1048576")]
pub struct ParseBytesError {
    /// The text as given.
    pub text: String,
    /// The problem with the text.
    pub problem: &'static str,
}

/// Reads a size in bytes: `80GiB`, `512MB`, `1.5 GiB`, `2m`, `1048576`.
///
/// KiB, MiB, GiB and TiB are binary, KB, MB, GB and TB decimal, and K, M, G and T alone binary. Case and blanks around
/// the number do not matter. A fraction of a byte is dropped.
///
/// # Errors
/// [`ParseBytesError`] for a text that is no number, is negative, has an unknown unit, or does not fit in 64 bits.
///
/// ```
/// use seamalloc::units::parse_bytes;
/// assert_eq!(parse_bytes("1.5GiB")?, 1_610_612_736);
/// assert_eq!(parse_bytes("512MB")?, 512_000_000);
/// # Ok::<(), seamalloc::units::ParseBytesError>(())
/// ```
pub fn parse_bytes(text: &str) -> Result<u64, ParseBytesError> {
    parse(text.trim()).map_err(|problem| ParseBytesError { text: text.to_owned(), problem })
}

/// Reads a size as [`parse_bytes`] does, and refuses a number alone: in an option, such a number might be meant in MiB,
/// as in PyTorch's options that end in `_mb`.
///
/// # Errors
/// The errors of [`parse_bytes`], and an error for a number without a unit. `85899345920B` has a unit.
pub fn parse_bytes_with_unit(text: &str) -> Result<u64, ParseBytesError> {
    let bytes = parse_bytes(text)?;
    if text.trim().ends_with(|last: char| last.is_ascii_alphabetic()) {
        return Ok(bytes);
    }
    Err(ParseBytesError { text: text.to_owned(), problem: "it has no unit" })
}

fn parse(text: &str) -> Result<u64, &'static str> {
    const TOO_LARGE: &str = "it does not fit in 64 bits";
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.starts_with('-') {
        return Err("it is negative");
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim().to_ascii_lowercase();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err("it has no number");
    }
    let &(_, unit) = UNITS.iter().find(|(name, _)| *name == unit).ok_or("its unit is unknown")?;
    let unit = u128::from(unit);

    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| TOO_LARGE)? };
    let mut part = 0_u128;
    let mut scale = 1_u128;
    for digit in fraction.bytes().take(MAX_FRACTION_DIGITS) {
        part = part * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    let bytes = whole.checked_mul(unit).and_then(|bytes| bytes.checked_add(unit * part / scale)).ok_or(TOO_LARGE)?;
    u64::try_from(bytes).map_err(|_| TOO_LARGE)
}

/// Returns a size as people read it: `1.50 GiB`, `512 B`.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    for (name, unit) in BINARY_UNITS {
        if bytes >= unit {
            #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
            return format!("{:.2} {name}", bytes as f64 / unit as f64);
        }
    }
    format!("{bytes} B")
}

/// Returns a size without loss, in the largest unit that divides it: `80GiB`, `1000001B`. [`parse_bytes`] reads the
/// text back, and so does [`parse_bytes_with_unit`].
#[must_use]
pub fn format_bytes_exactly(bytes: u64) -> String {
    Exactly(bytes).to_string()
}

#[doc(hidden)]
/// A size that prints itself as [`format_bytes_exactly`] does, without taking host memory.
pub struct Exactly(pub u64);

impl fmt::Display for Exactly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        match BINARY_UNITS.into_iter().find(|(_, unit)| bytes != 0 && bytes.is_multiple_of(*unit)) {
            Some((name, unit)) => write!(f, "{}{name}", bytes / unit),
            None => write!(f, "{bytes}B"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_binary_and_decimal_units_in_any_case() {
        for (text, bytes) in [
            ("1048576", 1 << 20),
            ("0", 0),
            ("80GiB", 80 << 30),
            ("80gib", 80 << 30),
            ("80 G", 80 << 30),
            ("512MB", 512_000_000),
            ("1.5GiB", 3 << 29),
            (".5k", 512),
            ("2.", 2),
            ("2tb", 2_000_000_000_000),
            (" 7 b ", 7),
            ("3KiB", 3072),
            ("3KB", 3000),
            ("16777215TiB", 16_777_215 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size_and_says_why() {
        for (text, problem) in [
            ("", "it is empty"),
            ("-1GiB", "it is negative"),
            ("GiB", "it has no number"),
            ("1.2.3GiB", "it has no number"),
            (".", "it has no number"),
            ("5 parsecs", "its unit is unknown"),
            ("1e9", "its unit is unknown"),
            ("16777216TiB", "it does not fit in 64 bits"),
            ("18446744073709551616", "it does not fit in 64 bits"),
            ("999999999999999999999999999999999999999999999", "it does not fit in 64 bits"),
            ("99999999999999999999999999999999999999TiB", "it does not fit in 64 bits"),
        ] {
            let error = parse_bytes(text).unwrap_err();
            assert_eq!(error.problem, problem, "{text}");
            assert!(error.to_string().contains(&format!("`{text}`")), "{error}");
            assert!(error.to_string().contains("80GiB"), "{error}");
        }
    }

    #[test]
    fn a_long_fraction_is_cut_and_does_not_overflow() {
        assert_eq!(parse_bytes(&format!("1.{}TiB", "9".repeat(200))), Ok((2 << 40) - 1));
    }

    #[test]
    fn writes_for_people_and_without_loss() {
        assert_eq!(format_bytes(3 << 29), "1.50 GiB");
        assert_eq!(format_bytes(1023), "1023 B");
        assert_eq!(format_bytes(u64::MAX), "16777216.00 TiB");
        for bytes in [0, 1, 1023, 1 << 10, 80 << 30, 150_109_880_320, u64::MAX] {
            assert_eq!(parse_bytes(&format_bytes_exactly(bytes)), Ok(bytes));
            assert_eq!(parse_bytes_with_unit(&format_bytes_exactly(bytes)), Ok(bytes));
        }
        assert_eq!(format_bytes_exactly(80 << 30), "80GiB");
        assert_eq!((format_bytes_exactly(0), format_bytes_exactly(1_000_001)), ("0B".into(), "1000001B".into()));
    }

    #[test]
    fn a_number_alone_is_no_size_where_a_unit_is_asked_for() {
        for text in ["80", " 80 ", "0", "1.5", "85899345920"] {
            assert_eq!(parse_bytes_with_unit(text).map_err(|error| error.problem), Err("it has no unit"), "{text}");
        }
        assert_eq!(parse_bytes_with_unit(" 80 GiB "), Ok(80 << 30));
        assert_eq!(parse_bytes_with_unit("0B"), Ok(0));
        assert_eq!(parse_bytes_with_unit("-1").map_err(|error| error.problem), Err("it is negative"));
    }
}
