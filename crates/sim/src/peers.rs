//! Other devices that can use the memory of the simulated device.
//!
//! Owns: the devices that exist, and those that have access. All mappings with access share one list of devices, as in
//! `CudaDriver`, so a new peer also gets access to existing mappings.

use crate::bookkeeping::{Answer, Memory, Range, refuse};
use seamalloc_driver::{Status, StreamId};

#[derive(Debug, Default)]
pub(super) struct Peers {
    connected: Vec<u32>,
    mapped: Vec<u32>,
    plain: Vec<u32>,
}

impl Peers {
    pub(super) fn connect(&mut self, ordinal: u32) {
        if !self.connected.contains(&ordinal) {
            self.connected.push(ordinal);
        }
    }

    /// Returns the number of devices in the access list, without the device itself.
    pub(super) fn count(&self) -> u64 {
        self.mapped.len() as u64
    }

    /// Gives a peer access to mapped memory and, with `plain`, to memory of `malloc`. Returns whether the access to
    /// mapped memory is new.
    pub(super) fn enable(&mut self, ordinal: u32, plain: bool) -> Answer<bool> {
        if !self.connected.contains(&ordinal) {
            return Err(refuse(
                Status::PEER_ACCESS_UNSUPPORTED,
                format!("no device {ordinal} is connected to this one"),
            ));
        }
        if plain && !self.plain.contains(&ordinal) {
            self.plain.push(ordinal);
        }
        let new = !self.mapped.contains(&ordinal);
        if new {
            self.mapped.push(ordinal);
        }
        Ok(new)
    }

    /// Returns whether a kernel of the peer with this ordinal may use `range`.
    pub(super) fn can_use(&self, ordinal: u32, range: Range, memory: &Memory<()>) -> bool {
        let (mapped, plain) = memory.kinds_in(range);
        memory.check_use(range, StreamId::DEFAULT).is_ok()
            && (!mapped || self.mapped.contains(&ordinal))
            && (!plain || self.plain.contains(&ordinal))
    }
}
