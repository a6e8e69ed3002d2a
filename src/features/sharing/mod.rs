//! Sharing with other processes and other devices.
//!
//! Owns: which live allocations others may open, which memory of others is open here, and which devices may use the
//! memory.

mod opened;
mod shares;

pub(crate) use opened::{Opened, OpenedRange};
pub(crate) use shares::Shares;

#[derive(Default)]
pub(crate) struct Sharing {
    pub(crate) shares: Shares,
    pub(crate) opened: Opened,
    /// Devices that may use the memory.
    pub(crate) peers: Vec<u32>,
}
