//! Devices by name: `sim:h200`, `host:4GiB`, `cuda:0`, `pinned:0`.
//!
//! Owns: which driver a name means, and how the device is opened. Each driver parses the details of its names.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

#[cfg(feature = "sim")]
use super::host::{HostConfig, HostConfigError, HostDriver};
#[cfg(feature = "sim")]
use super::sim::{SimConfig, SimConfigError, SimGpu};
use seamalloc_driver::cuda::{CudaDriver, CudaOpenError};
use seamalloc_driver::{Driver, DriverError, StreamId};

/// A device that can be opened, as the C library, Python and [`Allocator::open`](crate::Allocator::open) name it.
///
/// | name | device |
/// |---|---|
/// | `sim:h200`, `sim:h200,capacity=80GiB` | [`SimGpu`] |
/// | `host:4GiB`, `host` | [`HostDriver`] |
/// | `cuda:0` | [`CudaDriver`] |
/// | `pinned:0`, `pinned:0,node=1` | page-locked host memory, [`CudaDriver::open_pinned`] |
///
/// ```
/// use seamalloc::driver::{Device, Driver};
///
/// let device: Device = "sim:h200,capacity=1GiB".parse()?;
/// assert_eq!(device.to_string(), "sim:h200,capacity=1GiB");
/// assert_eq!(device.open()?.driver.properties().total_memory, 1 << 30);
/// assert!("gpu:0".parse::<Device>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// A simulated GPU.
    #[cfg(feature = "sim")]
    Sim(SimConfig),
    /// The machine's own memory.
    #[cfg(feature = "sim")]
    Host(HostConfig),
    /// An NVIDIA GPU.
    #[non_exhaustive]
    Cuda {
        /// The GPU's number among those that `CUDA_VISIBLE_DEVICES` lets the process see.
        ordinal: u32,
    },
    /// Page-locked host memory.
    #[non_exhaustive]
    Pinned {
        /// The number of the GPU that also uses the memory.
        ordinal: u32,
        /// The NUMA node of the memory; `None` for the node nearest to the GPU.
        node: Option<u32>,
    },
}

/// A device that was opened.
#[non_exhaustive]
pub struct OpenDevice {
    /// The device's driver.
    pub driver: Arc<dyn Driver>,
    /// For page-locked memory (`pinned:0`), a stream without work, for which the memory is allocated
    /// ([`HostPool`](crate::HostPool)). `None` for all other devices.
    pub own_stream: Option<StreamId>,
}

/// The reason why a device was not opened.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name begins with no known kind of device.
    #[error(
        "`{name}` is no device; expected cuda:0, page-locked memory such as pinned:0, host memory such as host:4GiB, or a simulated one such as sim:h200"
    )]
    Unknown {
        /// The name as given.
        name: String,
    },
    /// Devices of this kind are not in the build: the feature `sim` of seamalloc, on by default, is off.
    #[error(
        "`{name}` is not in this build: simulated GPUs and host memory are devices with the feature `sim` of seamalloc, which is \
         off here"
    )]
    WithoutSim {
        /// The name as given.
        name: String,
    },
    /// The simulated GPU could not be opened.
    #[cfg(feature = "sim")]
    #[error(transparent)]
    Sim(#[from] SimConfigError),
    /// The device of host memory could not be opened.
    #[cfg(feature = "sim")]
    #[error(transparent)]
    Host(#[from] HostConfigError),
    /// The GPU could not be opened.
    #[error(transparent)]
    Cuda(#[from] CudaOpenError),
    /// A call of the device's driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl Device {
    /// Parses the name of a device, without opening the device.
    ///
    /// # Errors
    /// [`OpenError`], which says what was expected.
    pub fn parse(name: &str) -> Result<Self, OpenError> {
        if name.starts_with("sim") || name.starts_with("host") {
            Self::without_gpu(name)
        } else if name.starts_with("pinned") {
            let (ordinal, node) = CudaDriver::parse_pinned(name)?;
            Ok(Self::Pinned { ordinal, node })
        } else if name.starts_with("cuda") {
            Ok(Self::Cuda { ordinal: CudaDriver::parse_ordinal(name)? })
        } else {
            Err(OpenError::Unknown { name: name.to_owned() })
        }
    }

    /// Parses the name of a device that needs no GPU.
    #[cfg(feature = "sim")]
    fn without_gpu(name: &str) -> Result<Self, OpenError> {
        if name.starts_with("sim") {
            Ok(Self::Sim(SimConfig::parse(name)?))
        } else {
            Ok(Self::Host(HostConfig::parse(name)?))
        }
    }

    /// Refuses the name of a device that needs no GPU.
    #[cfg(not(feature = "sim"))]
    fn without_gpu(name: &str) -> Result<Self, OpenError> {
        Err(OpenError::WithoutSim { name: name.to_owned() })
    }

    /// Returns the number of the GPU: 1 for `cuda:1` and `pinned:1`. Returns 0 for devices without a GPU.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        match self {
            Self::Cuda { ordinal } | Self::Pinned { ordinal, .. } => *ordinal,
            #[cfg(feature = "sim")]
            Self::Sim(_) | Self::Host(_) => 0,
        }
    }

    /// Returns whether the device is page-locked host memory, which the CPU and a GPU use at the same addresses.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        matches!(self, Self::Pinned { .. })
    }

    /// Opens the device. On a real GPU only the default stream and streams of [`CudaDriver::create_stream`] may be
    /// named.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&self) -> Result<OpenDevice, OpenError> {
        Ok(self.open_with_cuda()?.0)
    }

    /// Opens the device for a program that has its streams from elsewhere: cudarc, cust, CUDA's runtime.
    ///
    /// # Safety
    /// The caller must keep the conditions of [`CudaDriver::trust_streams`]: every stream that the driver is told of
    /// belongs to the device's primary context, and lives for as long as the driver may name it. Devices without a GPU
    /// have no such condition.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    #[allow(unsafe_code, reason = "the caller vouches for the handles of streams, which libcuda follows as pointers")]
    pub unsafe fn open_trusting(&self) -> Result<OpenDevice, OpenError> {
        let (opened, cuda) = self.open_with_cuda()?;
        if let Some(cuda) = cuda {
            // SAFETY: the caller's promise covers the streams that come from the caller; no other code has the driver.
            unsafe { cuda.trust_streams() };
        }
        Ok(opened)
    }

    fn open_with_cuda(&self) -> Result<(OpenDevice, Option<Arc<CudaDriver>>), OpenError> {
        Ok(match self {
            #[cfg(feature = "sim")]
            Self::Sim(config) => of_machine(SimGpu::new(config.clone())?),
            #[cfg(feature = "sim")]
            Self::Host(config) => of_machine(HostDriver::new(config.clone())?),
            Self::Cuda { ordinal } => of_cuda(CudaDriver::open(*ordinal)?, None),
            Self::Pinned { ordinal, node } => {
                let driver = CudaDriver::open_pinned(*ordinal, *node)?;
                let own = driver.create_stream()?;
                of_cuda(driver, Some(own))
            }
        })
    }
}

#[cfg(feature = "sim")]
fn of_machine(driver: impl Driver + 'static) -> (OpenDevice, Option<Arc<CudaDriver>>) {
    (OpenDevice { driver: Arc::new(driver), own_stream: None }, None)
}

fn of_cuda(driver: CudaDriver, own_stream: Option<StreamId>) -> (OpenDevice, Option<Arc<CudaDriver>>) {
    let cuda = Arc::new(driver);
    let driver: Arc<dyn Driver> = Arc::<CudaDriver>::clone(&cuda);
    (OpenDevice { driver, own_stream }, Some(cuda))
}

impl FromStr for Device {
    type Err = OpenError;

    fn from_str(name: &str) -> Result<Self, OpenError> {
        Self::parse(name)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            #[cfg(feature = "sim")]
            Self::Sim(config) => config.fmt(f),
            #[cfg(feature = "sim")]
            Self::Host(config) => config.fmt(f),
            Self::Cuda { ordinal } => write!(f, "cuda:{ordinal}"),
            Self::Pinned { ordinal, node: None } => write!(f, "pinned:{ordinal}"),
            Self::Pinned { ordinal, node: Some(node) } => write!(f, "pinned:{ordinal},node={node}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for name in ["sim:h200", "sim:h200,capacity=80GiB", "host:4GiB", "cuda:1", "pinned:2", "pinned:0,node=1"] {
            assert_eq!(Device::parse(name).unwrap().to_string(), name);
        }
        assert_eq!(Device::parse("cuda").unwrap().ordinal(), 0);
        assert_eq!(Device::parse("pinned:3").unwrap().ordinal(), 3);
        assert!(Device::parse("pinned").unwrap().is_pinned() && !Device::parse("cuda").unwrap().is_pinned());
    }

    #[test]
    fn a_wrong_name_says_what_was_expected() {
        for name in ["", "gpu:0", "Cuda:0", "sim:h20", "host:0", "cuda:x", "pinned:0,node=x"] {
            assert!(Device::parse(name).is_err(), "{name}");
        }
        let text = Device::parse("gpu:0").unwrap_err().to_string();
        assert!(text.contains("`gpu:0` is no device") && text.contains("cuda:0"), "{text}");
        assert!(Device::parse("sim:h20").unwrap_err().to_string().contains("h200"));
        let text = OpenError::WithoutSim { name: "sim:h200".to_owned() }.to_string();
        assert!(
            text.contains("`sim:h200` is not in this build") && text.contains("the feature `sim` of seamalloc"),
            "{text}"
        );
    }
}
