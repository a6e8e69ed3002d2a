//! Which devices may use this one's memory.
//!
//! Owns: the peers that were enabled, and what is mapped with access, so that a peer which comes later gets access to that
//! too. Mapped memory has an access list of its own (`cuMemSetAccess`), which CUDA's peer access between contexts
//! (`cudaDeviceEnablePeerAccess`) does not touch; plain memory has that alone.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::api::CudaApi;
use super::context::{ContextError, PrimaryContext};
use super::device::CudaDriver;
use super::error::{CudaOpenError, MissingEntryPoint};
use super::ffi::{self, CUdevice, MemAccessDesc, MemAllocationProp};
use super::open::{find, granularity};
use crate::driver::{Call, DriverError, DriverResult, Status};

/// The access list of everything mapped.
#[derive(Debug)]
pub(super) struct Access(Mutex<State>);

#[derive(Debug)]
struct State {
    /// The device itself, then its peers.
    list: Vec<MemAccessDesc>,
    peers: Vec<Peer>,
    /// What `set_access` was called for and is mapped still, start to end. None reaches beyond one reservation.
    ranges: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Peer {
    ordinal: u32,
    device: CUdevice,
    /// Retained while the peer may use plain memory.
    context: Option<PrimaryContext>,
}

impl Access {
    pub(super) fn of(device: CUdevice) -> Self {
        let list = vec![MemAccessDesc::read_write(device)];
        Self(Mutex::new(State { list, peers: Vec::new(), ranges: BTreeMap::new() }))
    }

    /// Releases the peers' contexts. They must not be used afterwards.
    pub(super) fn release(&self, api: &CudaApi) {
        let peers = std::mem::take(&mut self.0.lock().peers);
        peers.into_iter().filter_map(|peer| peer.context).for_each(|context| context.release(api));
    }
}

impl State {
    fn note(&mut self, start: u64, end: u64) {
        self.forget(start, end);
        self.ranges.insert(start, end);
    }

    /// Takes a range out, whatever it is made of.
    fn forget(&mut self, start: u64, end: u64) {
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

impl CudaDriver {
    pub(super) fn access_range(&self, address: u64, bytes: usize, arguments: impl Fn() -> String) -> DriverResult<()> {
        let mut state = self.access.0.lock();
        self.issue_access(address, bytes, &state.list, arguments)?;
        state.note(address, address.saturating_add(bytes as u64));
        Ok(())
    }

    pub(super) fn unmap_range(&self, address: u64, bytes: usize, arguments: impl Fn() -> String) -> DriverResult<()> {
        let mut state = self.access.0.lock();
        // SAFETY: addresses are checked by the driver; host memory is not touched.
        self.demand(Call::Unmap, arguments, |api| unsafe { api.mem_unmap(address, bytes) })?;
        state.forget(address, address.saturating_add(bytes as u64));
        Ok(())
    }

    fn issue_access(
        &self,
        address: u64,
        bytes: usize,
        list: &[MemAccessDesc],
        arguments: impl Fn() -> String,
    ) -> DriverResult<()> {
        // SAFETY: the descriptions live during the call and their number is right.
        self.demand(Call::SetAccess, arguments, |api| unsafe {
            api.mem_set_access(address, bytes, list.as_ptr(), list.len())
        })
    }

    /// As [`Driver::enable_peer_access`](crate::driver::Driver::enable_peer_access).
    pub(super) fn enable_peer(&self, ordinal: u32, plain: bool) -> DriverResult<()> {
        if ordinal == self.properties.ordinal {
            return Ok(());
        }
        let mut state = self.access.0.lock();
        let known = state.peers.iter().position(|peer| peer.ordinal == ordinal);
        if let Some(known) = known {
            let Peer { device, context, .. } = &state.peers[known];
            if plain && context.is_none() {
                state.peers[known].context = Some(self.enable_plain(*device)?);
            }
            return Ok(());
        }
        let device = find(&self.api, ordinal).map_err(|error| peer_error(ordinal, error))?;
        self.check_peer(ordinal, device)?;
        let context = if plain { Some(self.enable_plain(device)?) } else { None };
        let mut list = state.list.clone();
        list.push(MemAccessDesc::read_write(device));
        if let Err(error) = self.extend_access(&state, &list) {
            if let Some(context) = context {
                self.disable_plain(&context);
            }
            return Err(error);
        }
        state.list = list;
        state.peers.push(Peer { ordinal, device, context });
        Ok(())
    }

    /// Whether a path between the two devices lets the peer use this one's memory, in pieces as this one makes them.
    fn check_peer(&self, ordinal: u32, device: CUdevice) -> DriverResult<()> {
        let peer_error = |error| peer_error(ordinal, error);
        let mut can = 0;
        // SAFETY: the pointer is to a live integer.
        let answer = unsafe { self.api.device_can_access_peer(&mut can, device, self.device) };
        let status = answer.map_err(|missing| peer_error(missing.into()))?;
        if status != Status::SUCCESS {
            return Err(self.refusal(Call::EnablePeer, status, format!("cuDeviceCanAccessPeer, cuda:{ordinal}")));
        }
        let unsupported = |detail| Err(DriverError::new(Call::EnablePeer, Status::PEER_ACCESS_UNSUPPORTED, detail));
        let own = &self.properties;
        if can == 0 {
            return unsupported(format!("cuda:{ordinal} cannot use memory of {}", own.name));
        }
        if own.virtual_memory {
            let prop = MemAllocationProp::on_device(device, false, false);
            let theirs = granularity(&self.api, &prop, ffi::MEM_GRANULARITY_MINIMUM).map_err(peer_error)?;
            if !own.granularity.is_multiple_of(theirs) {
                let detail = format!("granularity {theirs} of cuda:{ordinal}, {} of {}", own.granularity, own.name);
                return unsupported(detail);
            }
        }
        Ok(())
    }

    /// Gives the last device of the list access to what is mapped already, or to nothing of it.
    fn extend_access(&self, state: &State, list: &[MemAccessDesc]) -> DriverResult<()> {
        let Some(peer) = list.last() else { return Ok(()) };
        for (&start, &end) in &state.ranges {
            let bytes = |from: u64, to: u64| usize::try_from(to - from).unwrap_or(usize::MAX);
            let text = || format!("{} bytes at {start:#x} for device {} too", end - start, peer.location.id);
            let Err(error) = self.issue_access(start, bytes(start, end), list, text) else { continue };
            let nobody = [MemAccessDesc { flags: ffi::MEM_ACCESS_NONE, ..*peer }];
            for (&start, &end) in state.ranges.range(..start) {
                let text = || format!("{} bytes at {start:#x} no longer for device {}", end - start, peer.location.id);
                if let Err(error) = self.issue_access(start, bytes(start, end), &nobody, text) {
                    tracing::error!(%error, "a peer keeps access to memory that it was not to have");
                }
            }
            return Err(error);
        }
        Ok(())
    }

    /// Lets a peer's primary context use plain memory of this device.
    fn enable_plain(&self, device: CUdevice) -> DriverResult<PrimaryContext> {
        let text = || format!("context of device {device}");
        let refused = |status| self.refusal(Call::EnablePeer, status, text());
        let missing =
            |missing: MissingEntryPoint| DriverError::new(Call::EnablePeer, Status::NOT_FOUND, missing.to_string());
        let context = PrimaryContext::retain(&self.api, device).map_err(missing)?.map_err(refused)?;
        // SAFETY: this device's context is retained.
        let enable = || unsafe { self.api.ctx_enable_peer_access(self.context.raw(), 0) };
        let error = match context.while_current(&self.api, enable) {
            Ok(Status::SUCCESS | Status::PEER_ACCESS_ALREADY_ENABLED) => return Ok(context),
            Ok(status) | Err(ContextError::Refused(status)) => refused(status),
            Err(ContextError::Missing(entry_point)) => missing(entry_point),
        };
        context.release(&self.api);
        Err(error)
    }

    fn disable_plain(&self, context: &PrimaryContext) {
        // SAFETY: this device's context is retained.
        let disable = || unsafe { self.api.ctx_disable_peer_access(self.context.raw()) };
        let answer = context.while_current(&self.api, disable);
        if !matches!(answer, Ok(Status::SUCCESS)) {
            tracing::error!(?answer, "a peer keeps access to plain memory that it was not to have");
        }
        context.release(&self.api);
    }
}

fn peer_error(ordinal: u32, error: CudaOpenError) -> DriverError {
    let status = match &error {
        CudaOpenError::NoSuchDevice { .. } => Status::INVALID_DEVICE,
        CudaOpenError::Call { status, .. } => *status,
        _ => Status::NOT_FOUND,
    };
    DriverError::new(Call::EnablePeer, status, format!("cuda:{ordinal}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_what_was_noted_less_what_was_forgotten() {
        let mut state = State { list: Vec::new(), peers: Vec::new(), ranges: BTreeMap::new() };
        let ranges = |state: &State| state.ranges.iter().map(|(from, to)| (*from, *to)).collect::<Vec<_>>();
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
