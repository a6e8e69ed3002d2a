//! Other devices that can use the simulated one's memory.
//!
//! Owns: which there are, and which of them were given access. Every mapping with access has the same list, as on a real
//! device: a peer gets what is mapped already, too.

use super::faults::Range;
use super::memory::Memory;
use super::refusal::{Answer, refuse};
use crate::driver::{Status, StreamId};

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

    /// How many devices are in the access list beside the device itself.
    pub(super) fn count(&self) -> u64 {
        self.mapped.len() as u64
    }

    /// Lets a peer use what is mapped. Whether that is new.
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

    /// Whether a kernel of that device may use `range`.
    pub(super) fn can_use(&self, ordinal: u32, range: Range, memory: &Memory) -> bool {
        let (mapped, plain) = memory.kinds_in(range);
        memory.check_use(range, StreamId::DEFAULT).is_ok()
            && (!mapped || self.mapped.contains(&ordinal))
            && (!plain || self.plain.contains(&ordinal))
    }
}
