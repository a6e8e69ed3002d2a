//! Amounts in words, rounded so that the statement stays true.

use seamalloc::units::format_bytes;

/// The factor from a unit to the next larger one.
const UNIT: u64 = 1024;
/// The power of 1024 that is a TiB, the largest unit.
const TIB: u32 = 4;
/// The number of parts of a unit: amounts are shown in hundredths of a unit.
const SHOWN: u128 = 100;

/// Returns an amount that is needed, rounded up to the shown digits, so that the stated amount is enough.
pub(super) fn needed(bytes: u64) -> String {
    shown(bytes, |part, unit| part.div_ceil(unit))
}

/// Returns an amount that is free or saved, rounded down to the shown digits.
pub(super) fn spare(bytes: u64) -> String {
    shown(bytes, |part, unit| part / unit)
}

/// Returns an amount in hundredths of its unit. `rounded` is a division that rounds up or down to whole hundredths.
fn shown(bytes: u64, rounded: fn(u128, u128) -> u128) -> String {
    let unit = u128::from(UNIT.pow(bytes.max(1).ilog(UNIT).min(TIB)));
    let parts = rounded(u128::from(bytes) * SHOWN, unit);
    format_bytes(u64::try_from((parts * unit).div_ceil(SHOWN)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_rounded_up_and_what_is_spare_down() {
        let mib = |mib: u64| mib << 20;
        for (bytes, up, down) in [
            (0, "0 B", "0 B"),
            (1023, "1023 B", "1023 B"),
            (mib(8192), "8.00 GiB", "8.00 GiB"),
            (mib(8194), "8.01 GiB", "8.00 GiB"),
            (mib(6298), "6.16 GiB", "6.15 GiB"),
            (mib(1024) - 1, "1.00 GiB", "1023.99 MiB"),
            (u64::MAX, "16777216.00 TiB", "16777215.99 TiB"),
        ] {
            assert_eq!((needed(bytes).as_str(), spare(bytes).as_str()), (up, down), "{bytes}");
        }
    }
}
