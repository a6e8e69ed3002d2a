//! The values of options: their parsing, and the messages for invalid values.

use seamalloc::driver::cuda::CudaDriver;
use seamalloc::driver::host::HostConfig;
use seamalloc::driver::sim::{Profile, SimConfig};
use seamalloc::{Config, ConfigError, StrategyKind};
use seamalloc_trace::timeline::Policy;
use seamalloc_trace::{ENDINGS, SNAPSHOT_ENDING, can_write};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// The longest time: a year, in seconds.
const MOST_SECONDS: f64 = 365.0 * 86_400.0;

/// One strategy, or the strategies of a family.
#[derive(Clone, Debug)]
pub(crate) struct Strategies(pub(crate) Vec<StrategyKind>);

/// Parses the name of a strategy or of a family of strategies.
pub(crate) fn strategies(text: &str) -> Result<Strategies, ConfigError> {
    StrategyKind::named(text).map(Strategies)
}

/// Parses options in PyTorch's syntax.
pub(crate) fn options(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text)
}

/// Parses options in PyTorch's syntax, and keeps their text.
pub(crate) fn policy(text: &str) -> Result<Policy, ConfigError> {
    Ok(Policy { name: text.to_owned(), config: Some(Config::parse(text)?) })
}

/// The device of a run.
#[derive(Clone, Debug)]
pub(crate) enum Device {
    /// A simulated GPU.
    Sim(SimConfig),
    /// Host memory.
    Host(HostConfig),
    /// Page-locked memory for the GPU with that ordinal, on the given NUMA node or the nearest one.
    Pinned(u32, Option<u32>),
    /// The GPU with that ordinal.
    Cuda(u32),
}

impl Device {
    /// Returns whether the device's time is real.
    pub(crate) fn is_real(&self) -> bool {
        !matches!(self, Self::Sim(_))
    }
}

/// Parses a simulated device, host memory, page-locked memory, or a real GPU.
pub(crate) fn any_device(text: &str) -> Result<Device, String> {
    if text.starts_with("cuda") {
        return CudaDriver::parse_ordinal(text).map(Device::Cuda).map_err(|error| error.to_string());
    }
    if text.starts_with("pinned") {
        let named = CudaDriver::parse_pinned(text).map_err(|error| error.to_string());
        return named.map(|(ordinal, node)| Device::Pinned(ordinal, node));
    }
    if text.starts_with("host") {
        return HostConfig::parse(text).map(Device::Host).map_err(|error| error.to_string());
    }
    device(text).map(Device::Sim)
}

/// Returns the help of `--device`: simulated devices, and `more` that are allowed.
pub(crate) fn device_help(more: &str) -> String {
    let size = |profile: &Profile| format!("{} ({} GiB)", profile.name(), profile.memory() >> 30);
    let profiles: Vec<_> = Profile::ALL.iter().map(size).collect();
    format!(
        "The device: sim:PROFILE[,capacity=SIZE][,vmm=no]{more}. Profiles, all with the costs of an H200: {}",
        profiles.join(", ")
    )
}

/// Parses a simulated device.
pub(crate) fn device(text: &str) -> Result<SimConfig, String> {
    if ["cuda", "host", "pinned"].iter().any(|name| text.starts_with(name)) {
        return Err(format!("`{text}`: only a simulated device will do here, such as sim:h200"));
    }
    SimConfig::parse(text).map_err(|error| error.to_string())
}

/// Parses a multiple of the live bytes.
pub(crate) fn times_live(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (1.0..=1000.0).contains(number));
    number.ok_or_else(|| "expected a number from 1 to 1000, such as 1.05".to_owned())
}

/// Parses the path of a trace, whose ending is the format.
pub(crate) fn destination(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if can_write(&path) || text.ends_with(SNAPSHOT_ENDING) {
        return Ok(path);
    }
    Err(format!("expected a name that ends in {}, {SNAPSHOT_ENDING}", ENDINGS.join(", ")))
}

/// Parses the path of a picture. Other endings than `.svg` are errors, since only SVG is drawn.
pub(crate) fn picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg")) {
        return Ok(path);
    }
    Err("expected a name that ends in .svg: pictures are drawn as SVG and as nothing else".to_owned())
}

/// Parses a time in seconds, with or without a fraction.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=MOST_SECONDS).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("expected seconds, from 0 to {MOST_SECONDS}"))
}

/// Parses a whole number within a range.
pub(crate) fn whole<T: TryFrom<u64> + Into<u64> + Copy>(text: &str, range: RangeInclusive<T>) -> Result<T, String> {
    let (least, most): (u64, u64) = ((*range.start()).into(), (*range.end()).into());
    let number = text.parse().ok().filter(|number| (least..=most).contains(number)).and_then(|n| T::try_from(n).ok());
    number.ok_or_else(|| match most {
        u64::MAX => format!("expected a whole number, {least} or more"),
        _ => format!("expected a whole number from {least} to {most}"),
    })
}
