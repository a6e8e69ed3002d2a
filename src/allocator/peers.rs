//! The allocator and real devices: opening one, and others that use its memory.
//!
//! Owns: [`Allocator::cuda`] and what it asks the program to vouch for.

use super::core::{Allocator, Core};
use crate::config::{Config, StrategyKind};
use crate::driver::cuda::CudaDriver;
use crate::error::Result;
use std::sync::Arc;

impl Allocator {
    /// An allocator on an NVIDIA GPU, for programs that have their streams from elsewhere: cudarc, cust, candle, CUDA's
    /// runtime. It shares the device's primary context with them.
    ///
    /// `ordinal` counts the devices that `CUDA_VISIBLE_DEVICES` lets the process see. Streams are named by their handles:
    /// [`StreamId::from_raw`](crate::driver::StreamId::from_raw).
    ///
    /// A program that uses only the default stream and streams of [`CudaDriver::create_stream`] needs no `unsafe`: it opens a
    /// [`CudaDriver`] and gives it to [`Allocator::new`].
    ///
    /// ```no_run
    /// # fn stream() -> *mut u8 { std::ptr::null_mut() }
    /// use seamalloc::{Allocator, Config, driver::StreamId};
    ///
    /// // SAFETY: only live streams of device 0 are named, and forgotten before they are destroyed.
    /// let allocator = unsafe { Allocator::cuda(0, Config::default()) }?;
    /// let address = allocator.allocate(1 << 30, StreamId::from_raw(stream()))?;
    /// # allocator.free(address)?;
    /// # Ok::<(), seamalloc::Error>(())
    /// ```
    ///
    /// # Safety
    /// As [`CudaDriver::trust_streams`]: every stream that the allocator is told of is one of this device's primary context,
    /// and lives until it was [forgotten](Self::forget_stream) or the allocator is dropped.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) where there is no driver or no such device; those of [`Allocator::new`].
    #[allow(unsafe_code, reason = "the caller vouches for the handles of streams, which libcuda follows as pointers")]
    pub unsafe fn cuda(ordinal: u32, config: Config) -> Result<Self> {
        let driver = CudaDriver::open(ordinal)?;
        // SAFETY: the caller's promise, about the streams that come through the allocator; nobody else has the driver.
        unsafe { driver.trust_streams() };
        Self::new(Arc::new(driver), config)
    }

    /// Lets the device with this ordinal read and write all memory of this allocator, what it holds and what it will get:
    /// one access list for all that is mapped (`cuMemSetAccess`), whichever part of the process asked for it. With the
    /// strategies that use plain memory, `caching` and `gmlake`, and from the first private pool with segments of its own
    /// on, it enables CUDA's peer access between the two primary contexts too, and leaves it enabled.
    ///
    /// Each further device makes mapping dearer: a stitched range took nearly twice as long with one on an H200.
    /// Enabling a device twice is the same as once; the device itself needs no enabling.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver):
    /// [`PEER_ACCESS_UNSUPPORTED`](crate::driver::Status::PEER_ACCESS_UNSUPPORTED) where the two cannot be peers;
    /// [`INVALID_DEVICE`](crate::driver::Status::INVALID_DEVICE) where there is no such device. Nothing has changed.
    pub fn enable_peer_access(&self, ordinal: u32) -> Result<()> {
        let core = &mut *self.core.lock();
        let plain = matches!(core.config.strategy, StrategyKind::Caching | StrategyKind::Gmlake)
            || core.heap.private().has_segmented();
        core.timed(|_, context| context.driver.enable_peer_access(ordinal, plain))?;
        if !core.peers.contains(&ordinal) {
            core.peers.push(ordinal);
        }
        core.checked()
    }
}

impl Core {
    /// Plain memory is about to be used: those that may use the other may use that too.
    pub(super) fn let_peers_use_plain(&mut self) -> Result<()> {
        let peers = self.peers.clone();
        self.timed(|_, context| {
            let enable = |peer| context.driver.enable_peer_access(peer, true);
            context.allowed_in_captures(|| peers.into_iter().try_for_each(enable))
        })?;
        Ok(())
    }
}
