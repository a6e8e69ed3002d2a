//! The values of options: how each is read, and what is said where it cannot be.

use seamalloc::driver::cuda::CudaDriver;
use seamalloc::driver::host::HostConfig;
use seamalloc::driver::sim::{Profile, SimConfig};
use seamalloc::{Config, ConfigError, StrategyKind};
use seamalloc_trace::timeline::Policy;
use seamalloc_trace::{ENDINGS, SNAPSHOT_ENDING, can_write};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// The longest time: a year.
const MOST_SECONDS: f64 = 365.0 * 86_400.0;

/// One strategy, or those of a family.
#[derive(Clone, Debug)]
pub(crate) struct Strategies(pub(crate) Vec<StrategyKind>);

/// A strategy by its name, or a family of them.
pub(crate) fn strategies(text: &str) -> Result<Strategies, ConfigError> {
    StrategyKind::named(text).map(Strategies)
}

/// Options in PyTorch's syntax.
pub(crate) fn options(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text)
}

/// Options in PyTorch's syntax, and how they were written.
pub(crate) fn policy(text: &str) -> Result<Policy, ConfigError> {
    Ok(Policy { name: text.to_owned(), config: Some(Config::parse(text)?) })
}

/// Where a run takes place.
#[derive(Clone, Debug)]
pub(crate) enum Device {
    /// On a simulated GPU.
    Sim(SimConfig),
    /// On the host's memory.
    Host(HostConfig),
    /// On page-locked memory for the GPU of that ordinal, of a NUMA node or the nearest.
    Pinned(u32, Option<u32>),
    /// On the GPU of that ordinal.
    Cuda(u32),
}

impl Device {
    /// Whether it keeps its own time.
    pub(crate) fn is_real(&self) -> bool {
        !matches!(self, Self::Sim(_))
    }
}

/// A simulated device, the host's memory, page-locked memory, or a real GPU.
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

/// What `--help` says of `--device`: simulated ones, and `more` that will do.
pub(crate) fn device_help(more: &str) -> String {
    let size = |profile: &Profile| format!("{} ({} GiB)", profile.name(), profile.memory() >> 30);
    let profiles: Vec<_> = Profile::ALL.iter().map(size).collect();
    format!(
        "The device: sim:PROFILE[,capacity=SIZE][,vmm=no]{more}. Profiles, all with the costs of an H200: {}",
        profiles.join(", ")
    )
}

/// A simulated device.
pub(crate) fn device(text: &str) -> Result<SimConfig, String> {
    if ["cuda", "host", "pinned"].iter().any(|name| text.starts_with(name)) {
        return Err(format!("`{text}`: only a simulated device will do here, such as sim:h200"));
    }
    SimConfig::parse(text).map_err(|error| error.to_string())
}

/// A multiple of what is live.
pub(crate) fn times_live(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (1.0..=1000.0).contains(number));
    number.ok_or_else(|| "expected a number from 1 to 1000, such as 1.05".to_owned())
}

/// A place for a trace, whose name tells the format.
pub(crate) fn destination(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if can_write(&path) || text.ends_with(SNAPSHOT_ENDING) {
        return Ok(path);
    }
    Err(format!("expected a name that ends in {}, {SNAPSHOT_ENDING}", ENDINGS.join(", ")))
}

/// A place for a picture. Only SVG is drawn, so that another ending is a mistake.
pub(crate) fn picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg")) {
        return Ok(path);
    }
    Err("expected a name that ends in .svg: pictures are drawn as SVG and as nothing else".to_owned())
}

/// A time in seconds, with a fraction or without.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=MOST_SECONDS).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("expected seconds, from 0 to {MOST_SECONDS}"))
}

/// A whole number of a range, or what was expected.
pub(crate) fn whole<T: TryFrom<u64> + Into<u64> + Copy>(text: &str, range: RangeInclusive<T>) -> Result<T, String> {
    let (least, most): (u64, u64) = ((*range.start()).into(), (*range.end()).into());
    let number = text.parse().ok().filter(|number| (least..=most).contains(number)).and_then(|n| T::try_from(n).ok());
    number.ok_or_else(|| match most {
        u64::MAX => format!("expected a whole number, {least} or more"),
        _ => format!("expected a whole number from {least} to {most}"),
    })
}
