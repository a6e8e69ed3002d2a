//! Peers: other devices of the process that use this device's memory.
//!
//! Owns: the contract of [`PeerAccess`].

use crate::error::DriverResult;

/// Access of other devices of the process to this device's memory.
pub trait PeerAccess {
    /// Lets the device with the ordinal `peer` use all mapped memory of this device, mapped at present or later. With
    /// `plain`, `peer` may also use all memory of `malloc` in the process, present and future. Enabling a peer twice
    /// has no further effect. Returns [`Status::PEER_ACCESS_UNSUPPORTED`](crate::Status::PEER_ACCESS_UNSUPPORTED) if no
    /// path between the two devices allows this access.
    fn enable_peer_access(&self, peer: u32, plain: bool) -> DriverResult<()>;
}
