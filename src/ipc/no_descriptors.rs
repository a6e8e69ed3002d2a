//! Platforms without abstract sockets, where no descriptors can be sent.

use super::error::IpcError;
use super::handle::Endpoint;
use crate::driver::Exported;

pub(crate) fn offer(_: &[Exported]) -> Result<Endpoint, IpcError> {
    Err(IpcError::Unavailable { why: "it is built for Linux only".to_owned() })
}

pub(crate) fn fetch(_: &Endpoint, _: impl Iterator<Item = u64>) -> Result<Vec<Exported>, IpcError> {
    Err(IpcError::Unavailable { why: "it is built for Linux only".to_owned() })
}
