//! A substitute for the host device on systems other than 64-bit Linux. Code that names [`HostDriver`] compiles, and
//! gets an error when it opens a device.

#[path = "host/config.rs"]
mod config;

pub use crate::bookkeeping::{Fault, Leaks, Piece, Range};
pub use config::{HostConfig, HostConfigError};

use seamalloc_driver::Driver;
use seamalloc_driver::ForwardingDriver;
use seamalloc_driver::StreamId;

/// A device that hands out host memory. This system supports none.
#[derive(Debug)]
pub enum HostDriver {}

/// Work of a stream that lasts until [`HostDriver::finish_hold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostHold {}

impl HostDriver {
    /// # Errors
    /// [`HostConfigError::System`], always.
    pub fn new(_: HostConfig) -> Result<Self, HostConfigError> {
        Err(HostConfigError::System { reason: "this is not a 64-bit Linux".to_owned() })
    }

    /// Gives a stream work that lasts until [`Self::finish_hold`].
    ///
    /// # Errors
    /// None: no device exists.
    pub fn hold(&self, _: StreamId) -> seamalloc_driver::DriverResult<HostHold> {
        match *self {}
    }

    /// Ends work of [`Self::hold`].
    pub fn finish_hold(&self, _: HostHold) -> bool {
        match *self {}
    }

    /// Returns the number of waits of streams whose event was already complete.
    #[must_use]
    pub fn idle_waits(&self) -> u64 {
        match *self {}
    }
}

impl ForwardingDriver for HostDriver {
    fn inner(&self) -> &dyn Driver {
        match *self {}
    }
}
