//! Allocators on devices that are named.
//!
//! Owns: the order in which options and device are checked, and the promise that streams of others require.

use super::core::Allocator;
use crate::config::Config;
use crate::driver::Device;
use crate::driver::cuda::CudaDriver;
use crate::error::Result;
use std::sync::Arc;

impl Allocator {
    /// Opens a device by its name and makes an allocator on it, with options in PyTorch's syntax
    /// ([`Config::parse`], docs/options.md; `""` for none). [`Device`] lists the names.
    ///
    /// ```
    /// use seamalloc::{Allocator, StreamId};
    ///
    /// let allocator = Allocator::open("sim:h200", "memory_limit:8GiB")?;
    /// let address = allocator.allocate(1 << 30, StreamId::DEFAULT)?;
    /// allocator.free(address)?;
    /// # Ok::<(), seamalloc::Error>(())
    /// ```
    ///
    /// On a real GPU only the default stream and streams of the driver's own may be named: others are refused with an error of
    /// the driver's. Programs that have their streams from elsewhere call [`Self::open_trusting`]. Page-locked memory
    /// (`pinned:0`) gets the options of a [`HostPool`](crate::HostPool), which says who may use it when:
    /// [`HostPool::open`](crate::HostPool::open).
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for an option that is misspelt or outside of its range, before a device is opened;
    /// [`Error::Open`](crate::Error::Open) for a device that cannot be had; those of [`Self::new`].
    pub fn open(device: &str, options: &str) -> Result<Self> {
        let (device, config) = read(device, options)?;
        Self::new(device.open()?.driver, config)
    }

    /// Opens an allocator as [`Self::open`] does, for programs that have their streams from elsewhere: cudarc, cust,
    /// CUDA's runtime. The allocator shares the device's primary context with them. [`Stream`](crate::Stream) keeps the
    /// promise for streams that it holds.
    ///
    /// ```no_run
    /// # fn stream() -> *mut u8 { std::ptr::null_mut() }
    /// use seamalloc::{Allocator, StreamId};
    ///
    /// // SAFETY: only live streams of device 0 are named, and forgotten before they are destroyed.
    /// let allocator = unsafe { Allocator::open_trusting("cuda:0", "") }?;
    /// let address = allocator.allocate(1 << 30, StreamId::from_raw(stream()))?;
    /// # allocator.free(address)?;
    /// # Ok::<(), seamalloc::Error>(())
    /// ```
    ///
    /// # Safety
    /// The contract of [`CudaDriver::trust_streams`]: every stream that is passed to the allocator belongs to this
    /// device's primary context, and lives until it was [forgotten](crate::operations::Streams::forget) or the
    /// allocator is dropped. Devices other than `cuda:` and `pinned:` have no such condition.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    #[allow(unsafe_code, reason = "the caller vouches for the handles of streams, which libcuda follows as pointers")]
    pub unsafe fn open_trusting(device: &str, options: &str) -> Result<Self> {
        let (device, config) = read(device, options)?;
        // SAFETY: the caller's promise covers the streams that come through the allocator; no one else has the driver.
        Self::new(unsafe { device.open_trusting() }?.driver, config)
    }

    /// Makes an allocator on an NVIDIA GPU, with typed options, for programs that have their streams from elsewhere:
    /// [`Self::open_trusting`] with `cuda:` and the ordinal.
    ///
    /// `ordinal` counts the devices that `CUDA_VISIBLE_DEVICES` lets the process see. Streams are named by their handles:
    /// [`StreamId::from_raw`](crate::driver::StreamId::from_raw).
    ///
    /// A program that uses only the default stream and streams of [`CudaDriver::create_stream`] needs no `unsafe`: it
    /// opens a [`CudaDriver`] and passes it to [`Self::new`].
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
    /// The contract of [`Self::open_trusting`].
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if there is no driver or no such device; those of [`Self::new`].
    #[allow(unsafe_code, reason = "the caller vouches for the handles of streams, which libcuda follows as pointers")]
    pub unsafe fn cuda(ordinal: u32, config: Config) -> Result<Self> {
        let driver = CudaDriver::open(ordinal)?;
        // SAFETY: the caller's promise covers the streams that come through the allocator; no one else has the driver.
        unsafe { driver.trust_streams() };
        Self::new(Arc::new(driver), config)
    }
}

/// Reads the options, then the name of the device, so that a misspelt option opens none.
pub(super) fn read(device: &str, options: &str) -> Result<(Device, Config)> {
    let config = Config::parse(options)?;
    let device = Device::parse(device)?;
    let config = if device.is_pinned() { config.for_host_pool()? } else { config };
    Ok((device, config))
}
