//! Access of other devices to the memory of an allocator.

use super::core::Core;
use super::operations::Sharing;
use crate::error::{Error, Result};
use crate::strategy::has_plain_memory;

impl Sharing<'_> {
    /// Lets the device with this ordinal read and write all memory of this allocator, present and future. Mapped memory
    /// of this allocator's driver has one access list, which is set for every mapped range (`cuMemSetAccess`). With the
    /// strategies that use plain memory, `caching` and `gmlake`, and from the first private pool with segments of its
    /// own on, CUDA's peer access between the two primary contexts is enabled too, and stays enabled.
    ///
    /// Each further device makes mapping slower: with one further device, mapping a stitched range took nearly twice as
    /// long on an H200. Enabling a device twice has no further effect. The allocator's own device needs no call.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver):
    /// [`PEER_ACCESS_UNSUPPORTED`](crate::driver::Status::PEER_ACCESS_UNSUPPORTED) if the two devices cannot be peers;
    /// [`INVALID_DEVICE`](crate::driver::Status::INVALID_DEVICE) if there is no such device. After an error, access is
    /// unchanged. [`Error::NotOfPools`](crate::Error::NotOfPools) with the strategy `malloc-async`.
    pub fn enable_peer_access(self, ordinal: u32) -> Result<()> {
        let core = &mut *self.0.core.lock();
        core.must_not_be_pooled("access of other devices")?;
        // Memory that other devices use cannot be exchanged, so spilled memory comes back first.
        if core.heap.spilled() > 0 && !core.capturing() {
            core.bring_back(None)?;
        }
        let plain = has_plain_memory(core.config.strategy) || core.heap.private().has_segmented();
        core.features.sharing.peers.try_reserve(1)?;
        core.timed(|_, context| context.driver().enable_peer_access(ordinal, plain))?;
        if !core.features.sharing.peers.contains(&ordinal) {
            core.features.sharing.peers.push(ordinal);
        }
        // From now on nothing is spilled, so the host memory kept for the next spill is not needed.
        if !core.capturing() && core.heap.host_stock().bytes() > 0 {
            core.release_host_stock();
        }
        core.checked()
    }
}

impl Core {
    /// Refuses an operation that memory of the driver's pools does not support.
    pub(super) fn must_not_be_pooled(&self, what: &'static str) -> Result<()> {
        if self.rules.abilities.exports { Ok(()) } else { Err(Error::NotOfPools { what }) }
    }

    /// Gives all peers access to plain memory (of `cudaMalloc`) too, before such memory is used.
    pub(super) fn open_plain_to_peers(&mut self) -> Result<()> {
        let peers = std::mem::take(&mut self.features.sharing.peers);
        let enabled = self.timed(|_, context| {
            let enable = |peer: &u32| context.driver().enable_peer_access(*peer, true);
            context.allowed_in_captures(|| peers.iter().try_for_each(enable))
        });
        self.features.sharing.peers = peers;
        Ok(enabled?)
    }
}
