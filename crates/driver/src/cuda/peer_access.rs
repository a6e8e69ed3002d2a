//! Access of other devices to this device's memory.
//!
//! Owns: the calls that grant access, and that revoke access if one of these calls fails. Mapped memory has an access
//! list of its own (`cuMemSetAccess`), which is independent of CUDA's peer access between contexts
//! (`cudaDeviceEnablePeerAccess`). Plain memory (of `malloc`) has only peer access between contexts.

use super::access::{AccessState, Peer};
use super::context::{ContextError, PrimaryContext};
use super::device::{CudaDriver, range_text};
use super::error::{CudaOpenError, MissingEntryPoint};
use super::ffi::{self, CUdevice, MemAccessDesc, MemAllocationProp, MemLocation};
use super::query::{find, granularities};
use crate::span::Span;
use crate::{Call, DriverError, DriverResult, PeerAccess, Status};

impl PeerAccess for CudaDriver {
    fn enable_peer_access(&self, ordinal: u32, plain: bool) -> DriverResult<()> {
        if ordinal == self.properties.ordinal {
            return Ok(());
        }
        let mut state = self.access.0.lock();
        let known = state.peers.iter().position(|peer| peer.ordinal == ordinal);
        if let Some(known) = known {
            let Peer { device, context, .. } = &state.peers[known];
            if plain && context.is_none() && self.place.is_on_device() {
                state.peers[known].context = Some(self.enable_plain(*device)?);
            }
            return Ok(());
        }
        let device = find(&self.api, ordinal).map_err(|error| peer_error(ordinal, error))?;
        self.check_peer(ordinal, device)?;
        // Host memory that was not made by the virtual memory calls is page-locked for all contexts, so it needs no
        // peer access.
        let plain = plain && self.place.is_on_device();
        let context = if plain { Some(self.enable_plain(device)?) } else { None };
        let mut list = state.list.clone();
        list.push(MemAccessDesc::read_write(MemLocation::device(device)));
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
}

impl CudaDriver {
    pub(super) fn access_range(&self, address: u64, bytes: usize, arguments: impl Fn() -> String) -> DriverResult<()> {
        let mut state = self.access.0.lock();
        self.issue_access(address, bytes as u64, &state.list, arguments)?;
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

    /// Refuses a peer without a path to this device's memory, or with an unsuitable granularity.
    fn check_peer(&self, ordinal: u32, device: CUdevice) -> DriverResult<()> {
        let peer_error = |error| peer_error(ordinal, error);
        if !self.place.is_on_device() {
            // Every device reaches host memory.
            return Ok(());
        }
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
            let Some((theirs, _)) = granularities(&self.api, &prop).map_err(peer_error)? else {
                return unsupported(format!("cuda:{ordinal} has no virtual memory management"));
            };
            if !own.granularity.is_multiple_of(theirs) {
                let detail = format!("granularity {theirs} of cuda:{ordinal}, {} of {}", own.granularity, own.name);
                return unsupported(detail);
            }
        }
        Ok(())
    }

    /// Gives the last device of the list access to all mapped memory. If a call fails, revokes the access that was
    /// already given.
    fn extend_access(&self, state: &AccessState, list: &[MemAccessDesc]) -> DriverResult<()> {
        let Some(peer) = list.last() else { return Ok(()) };
        for (&start, &end) in &state.ranges {
            let Err((reached, error)) = self.open_range(Span::between(start, end), list) else { continue };
            let nobody = [MemAccessDesc { flags: ffi::MEM_ACCESS_NONE, ..*peer }];
            let opened = state.ranges.range(..start).map(|(start, end)| Span::between(*start, *end));
            for range in opened.chain((reached > start).then(|| Span::between(start, reached))) {
                let id = peer.location.id;
                let text = || format!("{} no longer for device {id}", range_text(range.start, range.size));
                if let Err(error) = self.issue_access(range.start, range.size, &nobody, text) {
                    tracing::error!(%error, "a peer keeps access to memory that it was not to have");
                }
            }
            return Err(error);
        }
        Ok(())
    }

    /// Lets a peer's primary context use plain memory (of `malloc`) of this device.
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
