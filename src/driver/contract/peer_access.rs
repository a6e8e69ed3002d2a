//! Peers: other devices of the process that use this one's memory.
//!
//! Owns: the contract of [`PeerAccess`].

use crate::driver::error::DriverResult;

/// Access of other devices of the process to this one's memory.
pub trait PeerAccess {
    /// Lets the device with the ordinal `peer` use this one's memory too: what is mapped, and what will be. With `plain`
    /// also what `malloc` has given and will give, to whoever in the process. Enabling it twice is the same as once.
    /// [`Status::PEER_ACCESS_UNSUPPORTED`](crate::driver::Status::PEER_ACCESS_UNSUPPORTED) where no path between the two
    /// allows it.
    fn enable_peer_access(&self, peer: u32, plain: bool) -> DriverResult<()>;
}
