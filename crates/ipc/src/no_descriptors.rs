//! Platforms without abstract sockets, where no descriptors can be sent.

use super::error::{IpcError, NotDone};
use super::handle::Endpoint;
use seamalloc_driver::Exported;

pub fn offer(_: &[Exported]) -> Result<Endpoint, NotDone> {
    Err(unavailable().into())
}

pub fn fetch(_: &Endpoint, _: impl Iterator<Item = u64>) -> Result<Vec<Exported>, NotDone> {
    Err(unavailable().into())
}

fn unavailable() -> IpcError {
    IpcError::Unavailable { why: "it is built for Linux only".to_owned() }
}
