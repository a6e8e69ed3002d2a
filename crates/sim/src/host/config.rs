//! The capacity of a host device, and its text form: `host:4GiB`.
//!
//! Owns: [`HostConfig`], its text form and its errors, and the default share of host memory.

use std::fmt;
use std::str::FromStr;

use crate::MAX_CAPACITY;
use crate::bookkeeping::GRANULARITY;
use seamalloc_driver::internal::memory;
use seamalloc_driver::units::{ParseBytesError, format_bytes_exactly, parse_bytes_with_unit};

/// The beginning of every specification.
const PREFIX: &str = "host";
/// The divisor of the available host memory that gives the default capacity.
const DEFAULT_SHARE: u64 = 4;
/// The unit to which the default capacity is rounded down, in bytes. A capacity below this unit is rounded to chunks.
const DEFAULT_STEP: u64 = 256 << 20;
/// The default capacity if the machine does not report its memory, in bytes.
const DEFAULT_UNKNOWN: u64 = 1 << 30;

/// The specification of a device that hands out host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// The most bytes that the device hands out. The capacity may exceed host memory, since only touched memory takes
    /// any.
    pub capacity: u64,
}

impl HostConfig {
    /// Reads `host`, with a quarter of the available host memory, or `host:4GiB`.
    ///
    /// # Errors
    /// [`HostConfigError`].
    pub fn parse(spec: &str) -> Result<Self, HostConfigError> {
        let config = match spec.trim().split_once(':') {
            None if spec.trim() == PREFIX => return Ok(Self::default()),
            Some((PREFIX, capacity)) => Self { capacity: parse_bytes_with_unit(capacity)? },
            _ => return Err(HostConfigError::NotHost { spec: spec.to_owned() }),
        };
        config.check()?;
        Ok(config)
    }

    /// Refuses a capacity with less than a chunk, or with more than [`MAX_CAPACITY`].
    pub(super) fn check(&self) -> Result<(), HostConfigError> {
        if !(GRANULARITY..=MAX_CAPACITY).contains(&self.capacity) {
            return Err(HostConfigError::Capacity { capacity: self.capacity });
        }
        Ok(())
    }
}

impl Default for HostConfig {
    /// Specifies a quarter of the memory that the machine has available now.
    fn default() -> Self {
        let Some(share) = memory().map(|memory| memory.free / DEFAULT_SHARE) else {
            return Self { capacity: DEFAULT_UNKNOWN };
        };
        let step = if share < DEFAULT_STEP { GRANULARITY } else { DEFAULT_STEP };
        Self { capacity: (share - share % step).clamp(GRANULARITY, MAX_CAPACITY) }
    }
}

impl FromStr for HostConfig {
    type Err = HostConfigError;

    fn from_str(spec: &str) -> Result<Self, Self::Err> {
        Self::parse(spec)
    }
}

impl fmt::Display for HostConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}:{}", format_bytes_exactly(self.capacity))
    }
}

/// The error of a host device that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostConfigError {
    /// The text is no specification of a host device.
    #[error("`{spec}` is not host memory; expected `host` or `host:4GiB`")]
    NotHost {
        /// The text as given.
        spec: String,
    },
    /// The capacity is not a size.
    #[error("capacity: {0}")]
    Bytes(#[from] ParseBytesError),
    /// The capacity has less than a chunk, or exceeds the limit.
    #[error("a capacity of {capacity} bytes is not possible; expected {GRANULARITY} (2MiB) to {MAX_CAPACITY} (16TiB)")]
    Capacity {
        /// The capacity in bytes.
        capacity: u64,
    },
    /// The system cannot make files in memory.
    #[error("host memory cannot be had: {reason}")]
    System {
        /// The system's message.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for (spec, written) in [("host:4g", "host:4GiB"), (" host:512MiB ", "host:512MiB"), ("host:2MiB", "host:2MiB")]
        {
            let config = HostConfig::parse(spec).unwrap();
            assert_eq!(config.to_string(), written, "{spec}");
            assert_eq!(written.parse(), Ok(config), "{spec}");
        }
        let share = HostConfig::parse("host").unwrap();
        assert!(share.check().is_ok());
        assert_eq!(share.to_string().parse(), Ok(share));
    }

    #[test]
    fn refuses_what_is_no_device() {
        for spec in ["", "hosts", "sim:h200", "HOST"] {
            assert!(matches!(HostConfig::parse(spec), Err(HostConfigError::NotHost { .. })), "{spec}");
        }
        for spec in ["host:", "host:lots", "host:4"] {
            assert!(matches!(HostConfig::parse(spec), Err(HostConfigError::Bytes(_))), "{spec}");
        }
        for spec in ["host:1MiB", "host:17TiB"] {
            assert!(matches!(HostConfig::parse(spec), Err(HostConfigError::Capacity { .. })), "{spec}");
        }
    }
}
