//! Errors before a device is open: no driver, too old a driver, no such device.
//!
//! Owns: the error types of this folder. Failed calls on an open device are [`DriverError`](crate::DriverError)s.

use crate::Status;
use crate::machine::UNKNOWN_MEMORY;

/// libcuda could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaLoadError {
    /// No NVIDIA driver is installed, or the dynamic linker does not find it.
    #[error("no NVIDIA driver found: {detail}")]
    NotFound {
        /// The dynamic linker's message for each name that was tried.
        detail: String,
    },
    /// This operating system is not supported.
    #[error("CUDA is only supported on Linux in this version")]
    UnsupportedPlatform,
}

/// The loaded libcuda is too old for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("libcuda has no {name} (CUDA {since} or newer is needed)")]
pub struct MissingEntryPoint {
    /// The entry point: `cuMemCreate`.
    pub name: &'static str,
    /// The first version of CUDA whose driver has the entry point: `10.2`.
    pub since: &'static str,
}

/// A device could not be opened, or a stream could not be made on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaOpenError {
    /// There is no driver.
    #[error(transparent)]
    Load(#[from] CudaLoadError),
    /// The driver is too old.
    #[error(transparent)]
    MissingEntryPoint(#[from] MissingEntryPoint),
    /// The name is not the name of a CUDA device.
    #[error("{name:?} is not a CUDA device: write cuda:0, cuda:1, …")]
    BadName {
        /// The name as it was given.
        name: String,
    },
    /// The name is not the name of page-locked memory.
    #[error("{name:?} is not page-locked memory: write pinned:0, pinned:1, …, or pinned:0,node=1")]
    BadPinnedName {
        /// The name as it was given.
        name: String,
    },
    /// The system does not say how much memory the machine has.
    #[error("{UNKNOWN_MEMORY}")]
    UnknownMemory,
    /// No device has this ordinal.
    #[error("there is no cuda:{ordinal}: {}", devices_text(*.devices))]
    NoSuchDevice {
        /// The ordinal that the program asked for.
        ordinal: u32,
        /// The number of devices.
        devices: u32,
    },
    /// A call failed.
    #[error("{call} failed with {name} ({})", status.0)]
    Call {
        /// The entry point.
        call: &'static str,
        /// The status that it returned.
        status: Status,
        /// The driver's name of the status.
        name: String,
    },
}

fn devices_text(devices: u32) -> String {
    match devices {
        0 => "the driver sees no device".to_owned(),
        1 => "the only device is cuda:0".to_owned(),
        _ => format!("there are {devices} devices, cuda:0 to cuda:{}", devices - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_is_there_and_what_is_needed() {
        let error = CudaOpenError::NoSuchDevice { ordinal: 7, devices: 4 };
        assert_eq!(error.to_string(), "there is no cuda:7: there are 4 devices, cuda:0 to cuda:3");
        let error = CudaOpenError::NoSuchDevice { ordinal: 0, devices: 0 };
        assert_eq!(error.to_string(), "there is no cuda:0: the driver sees no device");
        let error = MissingEntryPoint { name: "cuMemCreate", since: "10.2" };
        assert_eq!(error.to_string(), "libcuda has no cuMemCreate (CUDA 10.2 or newer is needed)");
        let error = CudaOpenError::Call { call: "cuInit", status: Status(803), name: "CUDA_ERROR_X".into() };
        assert_eq!(error.to_string(), "cuInit failed with CUDA_ERROR_X (803)");
    }
}
