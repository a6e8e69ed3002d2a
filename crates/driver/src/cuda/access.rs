//! Which devices may use this device's memory.
//!
//! Owns: the peers that were enabled, and the ranges mapped with access, so that a later peer gets access to these
//! ranges too. peer_access.rs makes the calls.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::api::CudaApi;
use super::context::PrimaryContext;
use super::ffi::{CUdevice, MemAccessDesc};

/// The one list of devices that may use all mapped memory.
#[derive(Debug)]
pub(super) struct Access(pub(super) Mutex<AccessState>);

/// The state that [`Access`] locks.
#[derive(Debug)]
pub(super) struct AccessState {
    /// The device itself; then the CPU, if the device's memory is host memory; then the peers.
    pub(super) list: Vec<MemAccessDesc>,
    pub(super) peers: Vec<Peer>,
    /// The mapped ranges to which the devices of `list` have access: the end of each, by its start. No range crosses
    /// the end of a reservation.
    pub(super) ranges: BTreeMap<u64, u64>,
}

/// A device that may use the memory.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) ordinal: u32,
    pub(super) device: CUdevice,
    /// The peer's context, retained while the peer may use memory of `malloc` (`cuMemAlloc`).
    pub(super) context: Option<PrimaryContext>,
}

impl Access {
    /// Makes the access list of the devices that have access from the beginning, the device itself first.
    pub(super) fn of(list: Vec<MemAccessDesc>) -> Self {
        Self(Mutex::new(AccessState { list, peers: Vec::new(), ranges: BTreeMap::new() }))
    }

    /// Releases the peers' contexts. The contexts must not be used afterwards.
    pub(super) fn release(&self, api: &CudaApi) {
        let peers = std::mem::take(&mut self.0.lock().peers);
        peers.into_iter().filter_map(|peer| peer.context).for_each(|context| context.release(api));
    }
}

impl AccessState {
    /// Records that a range has access.
    pub(super) fn note(&mut self, start: u64, end: u64) {
        self.forget(start, end);
        self.ranges.insert(start, end);
    }

    /// Removes a range, which may consist of parts of several noted ranges.
    pub(super) fn forget(&mut self, start: u64, end: u64) {
        let before = self.ranges.range(..start).next_back().filter(|(_, to)| **to > start).map(|(from, _)| *from);
        let met = before.into_iter().chain(self.ranges.range(start..end).map(|(from, _)| *from)).collect::<Vec<_>>();
        for from in met {
            let Some(to) = self.ranges.remove(&from) else { continue };
            if from < start {
                self.ranges.insert(from, start);
            }
            if to > end {
                self.ranges.insert(end, to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_what_was_noted_less_what_was_forgotten() {
        let mut state = AccessState { list: Vec::new(), peers: Vec::new(), ranges: BTreeMap::new() };
        let ranges = |state: &AccessState| state.ranges.iter().map(|(from, to)| (*from, *to)).collect::<Vec<_>>();
        state.note(10, 20);
        state.note(20, 30);
        state.note(40, 50);
        assert_eq!(ranges(&state), [(10, 20), (20, 30), (40, 50)], "neighbours may be of two reservations");
        state.forget(15, 45);
        assert_eq!(ranges(&state), [(10, 15), (45, 50)]);
        state.note(12, 48);
        assert_eq!(ranges(&state), [(10, 12), (12, 48), (48, 50)]);
        state.forget(20, 25);
        assert_eq!(ranges(&state), [(10, 12), (12, 20), (25, 48), (48, 50)]);
        state.forget(0, 100);
        assert!(state.ranges.is_empty());
    }
}
