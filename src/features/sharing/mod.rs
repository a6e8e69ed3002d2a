//! Sharing with other processes and other devices.
//!
//! Owns: the live allocations that others may open, the opened memory of other processes, and the devices that may use
//! the memory.

mod opened;
mod shares;

pub(crate) use opened::{Opened, OpenedRange};
pub(crate) use shares::Shares;

#[derive(Default)]
pub(crate) struct Sharing {
    pub(crate) shares: Shares,
    pub(crate) opened: Opened,
    /// The devices that may use the memory.
    pub(crate) peers: Vec<u32>,
}
