//! Access of one more device to memory that is mapped already.
//!
//! Owns: the way around a rule of the driver. The rule concerns memory that network cards may use
//! (`gpuDirectRDMACapable`) and that was mapped at two addresses. Once the first of the two mappings was removed, the
//! driver refuses access of further devices with `CUDA_ERROR_INVALID_VALUE`, until the memory is mapped at one more
//! address, if only for a moment (docs/measurements/2026-11-25-two-gpus). Exchanges of chunks leave memory in this
//! state. So do views that were mapped before the chunk's permanent address was.
//!
//! ```text
//! first     |chunk|  unmapped
//! second    |chunk|  in use: no other device gets access ...
//! third     |chunk|  ... until this mapping is made, and then removed
//! ```

use std::ffi::c_void;
use std::ptr;

use super::api::CudaApi;
use super::device::{CudaDriver, range_text};
use super::ffi::MemAccessDesc;
use crate::span::Span;
use crate::{Call, DriverError, DriverResult, Status};

impl CudaDriver {
    /// Gives the devices of a list access to a mapped range. An error comes with the address up to which the devices
    /// have access.
    pub(super) fn open_range(&self, range: Span, list: &[MemAccessDesc]) -> Result<(), (u64, DriverError)> {
        let Err(error) = self.open_to(range, list) else { return Ok(()) };
        if error.status != Status::INVALID_VALUE {
            return Err((range.start, error));
        }
        let mut at = range.start;
        while at < range.end() {
            let Some(mapping) = self.mapping_at(at, range.end()) else { return Err((at, error)) };
            let opened =
                self.open_to(mapping, list).or_else(|refused| self.open_while_elsewhere(mapping, list, refused));
            opened.map_err(|error| (at, error))?;
            at = mapping.end();
        }
        Ok(())
    }

    fn open_to(&self, range: Span, list: &[MemAccessDesc]) -> DriverResult<()> {
        let last = list.last().map_or(0, |last| last.location.id);
        let text = || format!("{} for device {last} too", range_text(range.start, range.size));
        self.issue_access(range.start, range.size, list, text)
    }

    /// Returns the one mapping that begins at an address, and ends in the range; `None` if the driver knows no such
    /// mapping.
    fn mapping_at(&self, address: u64, end: u64) -> Option<Span> {
        let (mut start, mut bytes) = (0, 0);
        // SAFETY: both pointers are to live integers.
        let issue = |api: &CudaApi| unsafe { api.mem_get_address_range(&mut start, &mut bytes, address) };
        self.demand(Call::EnablePeer, || format!("the mapping at {address:#x}"), issue).ok()?;
        let mapping = Span::new(start, bytes as u64);
        (start == address && bytes > 0 && mapping.end() <= end).then_some(mapping)
    }

    /// Maps the memory of a mapping at a temporary second address, gives access, and removes the second mapping.
    /// `refused` is the error of the attempt without the second address.
    fn open_while_elsewhere(&self, mapping: Span, list: &[MemAccessDesc], refused: DriverError) -> DriverResult<()> {
        let text = || range_text(mapping.start, mapping.size);
        let Ok(bytes) = usize::try_from(mapping.size) else { return Err(refused) };
        let at = ptr::with_exposed_provenance_mut::<c_void>(mapping.start as usize);
        let (mut handle, mut place) = (0, 0);
        // SAFETY: the pointer is to a live integer; the driver checks the address.
        self.demand(Call::EnablePeer, text, |api| unsafe { api.mem_retain_allocation_handle(&mut handle, at) })?;
        // SAFETY: as above.
        let reserve = |api: &CudaApi| unsafe { api.mem_address_reserve(&mut place, bytes, 0, 0, 0) };
        let opened = self.demand(Call::Reserve, text, reserve).and_then(|()| {
            // SAFETY: the handle is retained, and the addresses are reserved.
            let mapped = self.demand(Call::Map, text, |api| unsafe { api.mem_map(place, bytes, 0, handle, 0) });
            let opened = mapped.and_then(|()| {
                let opened = self.open_to(mapping, list);
                // SAFETY: nobody knows these addresses.
                let unmapped = self.demand(Call::Unmap, text, |api| unsafe { api.mem_unmap(place, bytes) });
                told(unmapped);
                opened
            });
            // SAFETY: nothing is mapped at the addresses, or else the driver refuses.
            told(self.demand(Call::AddressFree, text, |api| unsafe { api.mem_address_free(place, bytes) }));
            opened
        });
        // SAFETY: the handle was retained here.
        told(self.demand(Call::Release, text, |api| unsafe { api.mem_release(handle) }));
        opened
    }
}

/// If the call failed, logs that a part of a temporary mapping could not be given back.
fn told(result: DriverResult<()>) {
    if let Err(error) = result {
        tracing::error!(%error, "memory that was mapped once more for a peer's access is held there still");
    }
}
