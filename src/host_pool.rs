//! A cache of page-locked host memory, which the CPU and streams use.
//!
//! Owns: which requests may reuse the memory of a freed allocation, and when. The allocator does everything else.
//!
//! # Note: host pools
//!
//! **Rationale.** Page-locked memory is expensive to allocate (0.2 to 0.4 ms a MiB, as every page is locked), so
//! programs that offload to it cache it. PyTorch's cache (`CachingHostAllocator`) rounds sizes up to powers of two and
//! neither splits nor merges blocks.
//!
//! **Approach.** A host pool is an [`Allocator`] on a device whose memory is host memory. Blocks are split, merged and
//! stitched as on a GPU, and sizes are rounded to 512 bytes only. Memory of a GPU is reused in the order of its stream,
//! before the stream's earlier work has ended. The CPU follows no stream's order. So all allocations of a host pool are
//! for one stream without work, and every stream that uses an allocation is recorded as another stream
//! ([`Allocator::record_stream`]). A freed allocation is reused once an event of each such stream is complete.

use crate::allocator::Allocator;
use crate::config::{Config, ConfigError};
use crate::driver::cuda::CudaDriver;
use crate::driver::{Device, Driver, StreamId};
use crate::error::Result;
use std::sync::Arc;

/// The handle of a stream without work, for devices on which a stream need not be created. No program uses this handle.
const WITHOUT_WORK: StreamId = StreamId(u64::MAX - 1);

/// A cache of memory that the CPU and streams use at the same addresses, such as page-locked memory
/// ([`CudaDriver::open_pinned`]).
///
/// ```no_run
/// use seamalloc::driver::cuda::CudaDriver;
/// use seamalloc::{Config, HostPool};
/// use std::sync::Arc;
///
/// # fn main() -> seamalloc::Result<()> {
/// let driver = Arc::new(CudaDriver::open_pinned(0, None)?);
/// let stream = driver.create_stream()?;
/// let pool = HostPool::pinned(driver, Config::default())?;
/// let address = pool.allocate(100 << 20)?;
/// // The CPU writes to the memory, and the stream gets a copy to the GPU. Then:
/// pool.record_use(address, stream)?;
/// // The memory is reused when the stream has passed the copy.
/// pool.free(address)?;
/// # Ok(())
/// # }
/// ```
pub struct HostPool {
    allocator: Allocator,
    /// The stream without work for which all allocations are made.
    own: StreamId,
}

impl HostPool {
    /// Creates a pool of the memory of `driver`, which the CPU can use. `own` is a stream of the driver that gets no
    /// work.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for options that make the device read or write contents (guard mode,
    /// `spill` and `split:ungated`); the errors of [`Allocator::new`].
    pub fn new(driver: Arc<dyn Driver>, own: StreamId, config: Config) -> Result<Self> {
        Ok(Self { allocator: Allocator::new(driver, Self::config(config)?)?, own })
    }

    /// Opens page-locked memory by its name and creates a pool of that memory: `pinned:0`, `pinned:0,node=1`. Plain
    /// host memory (`host:1GiB`) and a simulated GPU (`sim:h200`) let a program run without a GPU.
    ///
    /// ```
    /// use seamalloc::HostPool;
    ///
    /// let pool = HostPool::open("sim:h200", "memory_limit:1GiB")?;
    /// let address = pool.allocate(100 << 20)?;
    /// pool.free(address)?;
    /// # Ok::<(), seamalloc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Open`](crate::Error::Open), [`Error::Device`](crate::Error::Device) for a device that cannot be opened;
    /// the errors of [`Self::new`] and of [`Config::parse`].
    pub fn open(device: &str, options: &str) -> Result<Self> {
        let config = Self::config(Config::parse(options)?)?;
        let opened = Device::parse(device)?.open()?;
        Self::new(opened.driver, opened.own_stream.unwrap_or(WITHOUT_WORK), config)
    }

    /// Returns the options for memory that the CPU uses too: streams share memory whose event is complete, and no
    /// stream waits for another on the GPU, since such a wait would not make the CPU wait.
    ///
    /// # Errors
    /// The errors of [`Self::check`].
    pub fn config(config: Config) -> std::result::Result<Config, ConfigError> {
        config.for_host_pool()
    }

    /// Refuses options with which the device reads or writes contents in the order of streams.
    ///
    /// # Errors
    /// [`ConfigError::BadValue`] for guard mode, `spill` and `split:ungated`.
    pub fn check(config: &Config) -> std::result::Result<(), ConfigError> {
        config.check_for_host_pool()
    }

    /// Creates a pool of the page-locked memory of [`CudaDriver::open_pinned`]. Streams of other libraries need
    /// [`CudaDriver::trust_streams`].
    ///
    /// # Errors
    /// The errors of [`Self::new`] and of [`CudaDriver::create_stream`].
    pub fn pinned(driver: Arc<CudaDriver>, config: Config) -> Result<Self> {
        let own = driver.create_stream()?;
        Self::new(driver, own, config)
    }

    /// Allocates `size` bytes. Returns the address, a multiple of 512, which is valid for the CPU and the device.
    /// Returns address 0 for 0 bytes; [`Self::free`] ignores address 0.
    ///
    /// # Errors
    /// The errors of [`Allocator::allocate`].
    pub fn allocate(&self, size: u64) -> Result<u64> {
        self.allocator.allocate(size, self.own)
    }

    /// Records that work given to `stream` uses an allocation. After the free, the memory is reused only when the
    /// stream has passed all work given to it before the free. Each stream must be named before the free, and needs to
    /// be named only once.
    ///
    /// # Errors
    /// The errors of [`Allocator::record_stream`].
    pub fn record_use(&self, address: u64, stream: StreamId) -> Result<()> {
        self.allocator.record_stream(address, stream)
    }

    /// Frees an allocation. The CPU must not use the memory any more. Work that was given to the named streams before
    /// the free may still use it.
    ///
    /// # Errors
    /// The errors of [`Allocator::free`].
    pub fn free(&self, address: u64) -> Result<()> {
        self.allocator.free(address)
    }

    /// Returns the allocator of the pool, for statistics, limits and snapshots, and to give memory back
    /// ([`Allocator::empty_cache`]).
    #[must_use]
    pub fn allocator(&self) -> &Allocator {
        &self.allocator
    }
}
