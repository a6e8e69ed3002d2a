//! The simulated GPU's specification, and its text form: `sim:h200,capacity=80GiB`.
//!
//! Owns: [`SimConfig`], its text form and its errors. `gpu.rs` makes devices.

use std::fmt;
use std::str::FromStr;

use super::cost::Profile;
use crate::bookkeeping::GRANULARITY;
use seamalloc_driver::nearest::{near, nearest};
use seamalloc_driver::units::{ParseBytesError, format_bytes_exactly, parse_bytes, parse_bytes_with_unit};

/// The beginning of every specification.
const PREFIX: &str = "sim";
/// The name of the first part, in errors.
const PROFILE: &str = "profile";
/// The most memory that a simulated GPU can have, in bytes (16 TiB). The limit is a quarter of the address space, since
/// allocators reserve several times a device's memory in addresses.
pub const MAX_CAPACITY: u64 = 16 << 40;
/// The keys that a specification may have.
const KEYS: [&str; 3] = ["capacity", "vmm", "host"];
/// The bytes of host memory that a device may use by default: the share of one GPU in a server with eight GPUs and 2
/// TiB.
const HOST_CAPACITY: u64 = 256 << 30;

/// The specification of a simulated GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// The card, with its name and the costs of its driver's calls.
    pub profile: Profile,
    /// Physical memory in bytes. The value may exceed the card's memory.
    pub capacity: u64,
    /// Whether the device has virtual memory management. Some vGPUs and virtual machines have none, and refuse the
    /// calls for it.
    pub virtual_memory: bool,
    /// Host memory that the device may use, in bytes
    /// ([`create_on_host`](seamalloc_driver::VirtualMemory::create_on_host)).
    pub host_capacity: u64,
    /// Whether the clock advances by the cost of each call. `false` if the clock counts another unit, such as the
    /// operations of a replay. A wait still advances the clock then, but is not part of the counted times of calls.
    pub calls_advance_clock: bool,
}

impl SimConfig {
    /// Specifies the card with all of its memory.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        let capacity = profile.memory();
        Self { profile, capacity, virtual_memory: true, host_capacity: HOST_CAPACITY, calls_advance_clock: true }
    }

    /// Reads `sim`, `sim:h200`, `sim:h200,capacity=80GiB`, `sim:capacity=80GiB` or `sim:h200,host=64GiB`. The default
    /// profile is the H200, the default capacity all memory of the card, and the default of host memory 256 GiB.
    /// `vmm=no` gives a device without virtual memory management. `vmm=yes`, the default, gives a device with it.
    ///
    /// # Errors
    /// [`SimConfigError`]; an unknown profile or key names the nearest known one.
    pub fn parse(spec: &str) -> Result<Self, SimConfigError> {
        let mut config = Self::default();
        let parts = match spec.trim().split_once(':') {
            None if spec.trim() == PREFIX => return Ok(config),
            Some((PREFIX, parts)) => parts,
            _ => return Err(SimConfigError::NotSim { spec: spec.to_owned(), hint: hint(spec.trim()) }),
        };
        for (at, part) in parts.split(',').map(str::trim).enumerate() {
            match part.split_once('=') {
                Some((key, value)) if key.trim() == "capacity" => config.capacity = parse_bytes(value)?,
                Some((key, value)) if key.trim() == "vmm" => {
                    config.virtual_memory = match value.trim() {
                        "yes" => true,
                        "no" => false,
                        found => return Err(SimConfigError::Switch { found: found.to_owned() }),
                    };
                }
                Some((key, value)) if key.trim() == "host" => config.host_capacity = parse_bytes(value)?,
                Some((key, _)) => return Err(unknown("key", key.trim(), &KEYS)),
                None if at == 0 => {
                    let names = Profile::ALL.map(Profile::name);
                    let profile = Profile::named(part).ok_or_else(|| unknown(PROFILE, part, &names))?;
                    config = Self::new(profile);
                }
                None => return Err(unknown("key", part, &KEYS)),
            }
        }
        config.check()?;
        Ok(config)
    }

    /// Refuses a capacity with less than a chunk, or with more than [`MAX_CAPACITY`].
    pub(super) fn check(&self) -> Result<(), SimConfigError> {
        if !(GRANULARITY..=MAX_CAPACITY).contains(&self.capacity) {
            return Err(SimConfigError::Capacity { capacity: self.capacity });
        }
        Ok(())
    }
}

impl Default for SimConfig {
    fn default() -> Self {
        Self::new(Profile::H200)
    }
}

impl FromStr for SimConfig {
    type Err = SimConfigError;

    fn from_str(spec: &str) -> Result<Self, Self::Err> {
        Self::parse(spec)
    }
}

impl fmt::Display for SimConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}:{}", self.profile.name())?;
        if self.capacity != self.profile.memory() {
            write!(f, ",capacity={}", format_bytes_exactly(self.capacity))?;
        }
        if !self.virtual_memory {
            f.write_str(",vmm=no")?;
        }
        if self.host_capacity != HOST_CAPACITY {
            write!(f, ",host={}", format_bytes_exactly(self.host_capacity))?;
        }
        Ok(())
    }
}

/// The error of a specification from which no GPU can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimConfigError {
    /// The text is no specification of a simulated GPU.
    #[error(
        "`{spec}` is not a simulated GPU; {hint}expected `sim:PROFILE` or `sim:PROFILE,capacity=SIZE`, such as \
         `sim:h200,capacity=24GiB`. Profiles: {}",
        Profile::ALL.map(Profile::name).join(", ")
    )]
    NotSim {
        /// The text as given.
        spec: String,
        /// The text that was probably meant, as a question with a space at the end; empty if no known text is similar.
        hint: String,
    },
    /// A profile or key that does not exist.
    #[error(
        "the simulated GPU has no {what} `{found}`; did you mean `{nearest}`? Known: {known}{}",
        if *what == PROFILE { "; of any other GPU say the memory: `sim:h200,capacity=24GiB`" } else { "" }
    )]
    Unknown {
        /// `profile` or `key`.
        what: &'static str,
        /// The name as given.
        found: String,
        /// The known name that is most similar.
        nearest: &'static str,
        /// All known names.
        known: String,
    },
    /// The value of `vmm` is not `yes` or `no`.
    #[error("vmm: `{found}`; expected `yes` or `no`")]
    Switch {
        /// The value as given.
        found: String,
    },
    /// The capacity is not a size.
    #[error("capacity: {0}")]
    Bytes(#[from] ParseBytesError),
    /// The capacity has less than a chunk, or exceeds the limit.
    #[error(
        "a capacity of {capacity} bytes cannot be simulated; expected {GRANULARITY} (2MiB) to {MAX_CAPACITY} (16TiB)"
    )]
    Capacity {
        /// The capacity in bytes.
        capacity: u64,
    },
}

/// Returns the question "did you mean …?" if the text is a profile or a size without the prefix; otherwise an empty
/// text.
fn hint(spec: &str) -> String {
    let meant = match near(spec, Profile::ALL.map(Profile::name)) {
        Some(profile) => format!("{PREFIX}:{profile}"),
        None if parse_bytes_with_unit(spec).is_ok() => format!("{PREFIX}:h200,capacity={spec}"),
        None => return String::new(),
    };
    format!("did you mean `{meant}`? ")
}

fn unknown(what: &'static str, found: &str, known: &[&'static str]) -> SimConfigError {
    let is_size = what != PROFILE && parse_bytes_with_unit(found).is_ok();
    let nearest = if is_size { KEYS[0] } else { nearest(found, known.iter().copied()) };
    SimConfigError::Unknown { what, found: found.to_owned(), nearest, known: known.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for (spec, written) in [
            ("sim", "sim:h200"),
            ("sim:h200", "sim:h200"),
            (" sim:h200 , capacity = 80GiB ", "sim:h200,capacity=80GiB"),
            ("sim:host=64GiB,capacity=80GiB", "sim:h200,capacity=80GiB,host=64GiB"),
            ("sim:h200,host=0", "sim:h200,host=0B"),
            ("sim:capacity=1.5g", "sim:h200,capacity=1536MiB"),
            ("sim:h200,capacity=150109880320", "sim:h200"),
            ("sim:a100-80gb", "sim:a100-80gb"),
            ("sim:h100,capacity=2TiB", "sim:h100,capacity=2TiB"),
            ("sim:h200,capacity=80000000001", "sim:h200,capacity=80000000001B"),
            ("sim:a100-80gb, vmm = no", "sim:a100-80gb,vmm=no"),
            ("sim:vmm=no,capacity=2GiB", "sim:h200,capacity=2GiB,vmm=no"),
            ("sim:h200,vmm=yes", "sim:h200"),
        ] {
            let config = SimConfig::parse(spec).unwrap();
            assert_eq!(config.to_string(), written, "{spec}");
            assert_eq!(written.parse(), Ok(config), "{spec}");
        }
    }

    #[test]
    fn names_the_nearest_of_what_is_unknown() {
        for (spec, expected) in [
            ("sim:h20", "h200"),
            ("sim:H200", "h200"),
            ("sim:a100", "a100-80gb"),
            ("sim:h10", "h100"),
            ("sim:h200,capacty=1GiB", "capacity"),
            ("sim:h200,vm=no", "vmm"),
            ("sim:h200,lag=3", "vmm"),
            ("sim:h200,h100", "host"),
            ("sim:rtx4090,24GiB", "capacity"),
        ] {
            match SimConfig::parse(spec) {
                Err(SimConfigError::Unknown { nearest, .. }) => assert_eq!(nearest, expected, "{spec}"),
                other => panic!("{spec}: {other:?}"),
            }
        }
        let text = SimConfig::parse("sim:h20").unwrap_err().to_string();
        assert!(text.contains("did you mean `h200`?") && text.contains("a100-80gb"), "{text}");
        assert!(text.ends_with("of any other GPU say the memory: `sim:h200,capacity=24GiB`"), "{text}");
        for (spec, meant) in [("rtx4090", "sim:rtx4090"), ("H100", "sim:h100"), ("24GiB", "sim:h200,capacity=24GiB")] {
            let text = SimConfig::parse(spec).unwrap_err().to_string();
            assert!(text.contains(&format!("did you mean `{meant}`?")) && text.contains("l40s"), "{text}");
        }
        let text = SimConfig::parse("mps").unwrap_err().to_string();
        assert!(!text.contains("did you mean") && text.contains("`sim:h200,capacity=24GiB`"), "{text}");
    }

    #[test]
    fn refuses_what_is_no_device() {
        for spec in ["", "cuda:0", "simulated", "SIM:h200"] {
            assert!(matches!(SimConfig::parse(spec), Err(SimConfigError::NotSim { .. })), "{spec}");
        }
        assert!(matches!(SimConfig::parse("sim:"), Err(SimConfigError::Unknown { .. })));
        assert!(matches!(SimConfig::parse("sim:h200,capacity=lots"), Err(SimConfigError::Bytes(_))));
        assert_eq!(SimConfig::parse("sim:vmm=maybe").unwrap_err().to_string(), "vmm: `maybe`; expected `yes` or `no`");
        for spec in ["sim:capacity=0", "sim:capacity=2097151"] {
            assert!(matches!(SimConfig::parse(spec), Err(SimConfigError::Capacity { .. })), "{spec}");
        }
        assert!(SimConfig::parse("sim:capacity=2MiB").is_ok());
    }
}
