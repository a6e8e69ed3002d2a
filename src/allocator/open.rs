//! Opening an allocator by a device's name.
//!
//! Owns: the order in which options and device are checked, and the safety conditions for streams that the allocator's
//! driver did not create.

use super::core::Allocator;
use crate::config::Config;
use crate::driver::Device;
use crate::driver::cuda::CudaDriver;
use crate::error::Result;
use std::sync::Arc;

impl Allocator {
    /// Opens a device by its name and creates an allocator on it, with options in PyTorch's syntax ([`Config::parse`],
    /// docs/options.md; `""` for none). [`Device`] lists the names.
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
    /// On a real GPU only the default stream and streams that the driver created may be named; the driver refuses other
    /// streams with an error. Programs that have their streams from elsewhere call [`Self::open_trusting`]. Page-locked
    /// memory (`pinned:0`) gets the options of a [`HostPool`](crate::HostPool);
    /// [`HostPool::open`](crate::HostPool::open) is the usual way to open it.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for an option that is misspelt or outside of its range, before a device
    /// is opened; [`Error::Open`](crate::Error::Open) for a device that cannot be opened; the errors of [`Self::new`].
    pub fn open(device: &str, options: &str) -> Result<Self> {
        let (device, config) = read(device, options)?;
        Self::new(device.open()?.driver, config)
    }

    /// Opens an allocator as [`Self::open`] does, for programs that have their streams from elsewhere: cudarc, cust,
    /// CUDA's runtime. The allocator shares the device's primary context with them. [`Stream`](crate::Stream) keeps the
    /// safety contract for the stream that it holds.
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
        // SAFETY: the caller's promise covers the streams that come through the allocator; no other code has the
        // driver.
        Self::new(unsafe { device.open_trusting() }?.driver, config)
    }

    /// Creates an allocator on an NVIDIA GPU, with typed options, for programs that have their streams from elsewhere.
    /// The call is [`Self::open_trusting`] with `cuda:` and the ordinal.
    ///
    /// `ordinal` counts the devices that `CUDA_VISIBLE_DEVICES` lets the process see. Streams are named by their
    /// handles: [`StreamId::from_raw`](crate::driver::StreamId::from_raw).
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
    /// [`Error::Device`](crate::Error::Device) if there is no driver or no such device; the errors of [`Self::new`].
    #[allow(unsafe_code, reason = "the caller vouches for the handles of streams, which libcuda follows as pointers")]
    pub unsafe fn cuda(ordinal: u32, config: Config) -> Result<Self> {
        let driver = CudaDriver::open(ordinal)?;
        // SAFETY: the caller's promise covers the streams that come through the allocator; no other code has the
        // driver.
        unsafe { driver.trust_streams() };
        Self::new(Arc::new(driver), config)
    }
}

/// Parses the options and the name of the device. No device is opened, so that a misspelt option is found first.
pub(super) fn read(device: &str, options: &str) -> Result<(Device, Config)> {
    let config = Config::parse(options)?;
    let device = Device::parse(device)?;
    let config = if device.is_pinned() { config.for_host_pool()? } else { config };
    Ok((device, config))
}
