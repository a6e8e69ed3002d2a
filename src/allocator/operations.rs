//! The operations of an allocator by subject.
//!
//! Owns: which groups of operations there are. Each group is a value that borrows the allocator, without state of its
//! own. The methods of a group are in the files of its feature. The operations that every program needs are on
//! [`Allocator`] itself.

use super::core::Allocator;

/// Private pools: memory for CUDA graphs and for PyTorch's `MemPool`.
///
/// A private pool's memory serves only requests made for the pool. Addresses that it has handed out stay mapped to the
/// same memory until the pool has no use left, so that a graph captured with them can be replayed.
/// [`Pool`](crate::Pool) is the type that owns a private pool.
///
/// | PyTorch | here |
/// |---|---|
/// | `createOrIncrefPool` | [`open`](Self::open); with an allocator [`open_with`](Self::open_with) |
/// | `setNoSplit` | [`set_unsplit`](Self::set_unsplit) |
/// | `beginAllocateToPool` | `open`, then [`begin`](Self::begin) |
/// | `endAllocateToPool` | [`end`](Self::end) |
/// | `releasePool`, `emptyCache` of a pool | [`release`](Self::release), [`empty`](Self::empty) |
/// | `getCheckpointState`, `setCheckpointPoolState` | [`blocks`](Self::blocks), [`restore`](Self::restore) |
///
/// ```
/// use seamalloc::{Allocator, Config, Route, driver::{StreamId, sim::{CaptureMode, SimConfig, SimGpu}}};
/// use std::sync::Arc;
///
/// let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200")?)?);
/// let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::default())?;
/// let stream = StreamId(7);
/// let pool = allocator.pools().create();
/// allocator.pools().begin(pool, Route::stream(stream).capturing())?;
/// gpu.begin_capture(stream, CaptureMode::Global)?;
/// let address = allocator.allocate(10 << 20, stream)?;
/// allocator.free(address)?;
/// gpu.end_capture(stream)?;
/// allocator.pools().end(pool)?;
/// // The graph can be launched from here on.
/// assert_eq!(allocator.pools().stats(pool)?.reserved_bytes, 10 << 20);
/// // The graph cannot be launched any more.
/// allocator.pools().release(pool)?;
/// assert_eq!(allocator.empty_cache()?, 10 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
#[must_use]
pub struct Pools<'a>(pub(super) &'a Allocator);

/// Tags: memory that sleeps and wakes.
///
/// A *tag* is a private pool with chunks of its own, so that all its physical memory can be given back without touching
/// other memory. Examples are the weights, the key-value cache and the optimizer's state. The caller names the tag of
/// an allocation by [`Pools::allocate`], or by a [`Route`](crate::Route). While a tag sleeps, its blocks stay live at
/// their addresses, without memory.
///
/// ```
/// use seamalloc::{Allocator, Backup, StreamId};
///
/// let allocator = Allocator::open("sim:h200", "")?;
/// let weights = allocator.tags().create()?;
/// let address = allocator.pools().allocate(weights, 1 << 30, StreamId::DEFAULT)?;
/// assert_eq!(allocator.tags().sleep(weights, &Backup::Host)?, 1 << 30);
/// assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
/// // Other programs can use the memory of the device now.
/// assert_eq!(allocator.tags().wake(weights)?, 1 << 30);
/// // The block has its address and its contents again.
/// allocator.free(address)?;
/// allocator.pools().release(weights)?;
/// # Ok::<(), seamalloc::Error>(())
/// ```
#[derive(Clone, Copy)]
#[must_use]
pub struct Tags<'a>(pub(super) &'a Allocator);

/// Allocations that grow in place.
///
/// [`reserve`](Self::reserve) takes addresses and no memory, [`grow`](Self::grow) and [`shrink`](Self::shrink) change
/// how many of the addresses have memory, and [`Allocator::free`] frees the allocation like any other. The address
/// stays, no bytes are copied, and the memory held exceeds the memory in use by at most one granule (2 MiB) or a 128th,
/// whichever is more. Whole free chunks at any addresses serve as its memory. [`Growing`](crate::Growing) is the type
/// that owns such an allocation.
///
/// ```
/// use seamalloc::{Allocator, StreamId};
///
/// let allocator = Allocator::open("sim:h200", "")?;
/// let cache = allocator.growing().reserve(40 << 30, StreamId::DEFAULT)?;
/// assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
/// allocator.growing().grow(cache, 10 << 20)?;
/// // 10 MiB can be used at the address `cache`. More memory follows at the same address.
/// allocator.growing().grow(cache, 1 << 30)?;
/// assert_eq!(allocator.stats().reserved_bytes.all.current, 1 << 30);
/// allocator.growing().shrink(cache, 10 << 20)?;
/// allocator.free(cache)?;
/// # Ok::<(), seamalloc::Error>(())
/// ```
#[derive(Clone, Copy)]
#[must_use]
pub struct GrowingAllocations<'a>(pub(super) &'a Allocator);

/// Guard mode, which finds memory mistakes of the program where they are made.
///
/// The option `guard:on` ([`GuardOptions`](crate::GuardOptions)) looks for mistakes of the program: memory that is used
/// beyond its end or after its free, invalid frees, and frees without [`record_stream`](Allocator::record_stream). A
/// mistake that the CPU can see becomes a [`Finding`](crate::Finding), which is logged, counted and kept. A mistake on
/// the GPU ends in an illegal address error, and [`explain`](Self::explain) says which allocation was at the address.
///
/// ```
/// use seamalloc::{Allocator, Config, driver::{StreamId, sim::{Range, SimConfig, SimGpu}}};
/// use std::sync::Arc;
///
/// let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200")?)?);
/// let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::parse("guard:on")?)?;
/// let address = allocator.allocate(1000, StreamId::DEFAULT)?;
/// let beyond = Range { address: address + 1024, size: 4 };
/// assert!(gpu.launch(StreamId::DEFAULT, &[beyond], 0).is_err());
/// let text = allocator.guard().explain(beyond.address).map(|found| found.to_string()).unwrap_or_default();
/// assert!(text.contains("24 bytes behind the end of allocation #1 (1000 bytes at"), "{text}");
/// allocator.free(address)?;
/// assert!(allocator.free(address).is_err_and(|error| error.to_string().contains("freed twice")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
#[must_use]
pub struct GuardMode<'a>(pub(super) &'a Allocator);

/// Memory that other devices, libraries and processes use too.
///
/// An allocation is exported as a handle, which another process opens, as with CUDA's IPC. Physical memory can be
/// pinned for a library that registers it, such as NCCL. Other devices of the process can be given access to all
/// memory.
///
/// ```
/// use seamalloc::{Allocator, StreamId};
///
/// let allocator = Allocator::open("sim:h200", "split:last_resort")?;
/// let buffer = allocator.allocate(64 << 20, StreamId::DEFAULT)?;
/// // From here on a library may register the memory behind the addresses.
/// allocator.sharing().pin_physical(buffer)?;
/// allocator.free(buffer)?;
/// # Ok::<(), seamalloc::Error>(())
/// ```
#[derive(Clone, Copy)]
#[must_use]
pub struct Sharing<'a>(pub(super) &'a Allocator);

/// Live memory that does not fit the device.
///
/// With [`Config::spill`](crate::Config::spill), live memory that does not fit the device lies in host memory, at its
/// addresses. To serve a request that would be refused otherwise, chunks that were not used for a long time are moved
/// to host memory. Kernels use these chunks as before, but over the bus.
///
/// ```
/// use seamalloc::{Advice, Allocator, StreamId};
///
/// let allocator = Allocator::open("sim:h200,capacity=1GiB", "spill:host=4GiB")?;
/// let states = allocator.allocate(600 << 20, StreamId::DEFAULT)?;
/// allocator.spill().advise(states, Advice::Cold)?;
/// // Both allocations together are larger than the device's memory.
/// let activations = allocator.allocate(700 << 20, StreamId::DEFAULT)?;
/// assert!(allocator.stats().spilled_bytes.current >= 276 << 20);
/// allocator.free(activations)?;
/// assert!(allocator.spill().restore()? >= 276 << 20);
/// assert_eq!(allocator.stats().spilled_bytes.current, 0);
/// # Ok::<(), seamalloc::Error>(())
/// ```
#[derive(Clone, Copy)]
#[must_use]
pub struct Spilling<'a>(pub(super) &'a Allocator);

/// Memory of the device that other processes need or can lend.
///
/// Free memory is lent to processes that lack memory. Free memory also goes back to the driver while the program is
/// idle, and when the device has too little free memory ([`Config::headroom`](crate::Config::headroom)). A
/// [`Lender`](crate::Lender) asks other processes for memory.
///
/// ```
/// use seamalloc::{Allocator, StreamId};
///
/// let allocator = Allocator::open("sim:h200", "")?;
/// allocator.free(allocator.allocate(1 << 30, StreamId::DEFAULT)?)?;
/// assert_eq!(allocator.lending().lendable().free, 1 << 30);
/// // Only memory that the GPU has passed is lent: a first call records events, and a later call releases.
/// let mut lent = allocator.lending().lend(1 << 30)?;
/// lent += allocator.lending().lend((1 << 30) - lent)?;
/// assert_eq!(lent, 1 << 30);
/// # Ok::<(), seamalloc::Error>(())
/// ```
#[derive(Clone, Copy)]
#[must_use]
pub struct DeviceLending<'a>(pub(super) &'a Allocator);

/// Limits on the memory that is held, and callbacks for requests that would exceed a limit.
///
/// ```
/// use seamalloc::{Allocator, StreamId};
///
/// let allocator = Allocator::open("sim:h200", "")?;
/// allocator.limits().set_bytes(Some(1 << 30))?;
/// assert!(allocator.allocate(2 << 30, StreamId::DEFAULT).is_err());
/// allocator.limits().set_bytes(None)?;
/// allocator.free(allocator.allocate(2 << 30, StreamId::DEFAULT)?)?;
/// # Ok::<(), seamalloc::Error>(())
/// ```
#[derive(Clone, Copy)]
#[must_use]
pub struct MemoryLimits<'a>(pub(super) &'a Allocator);

/// Streams: how long the allocator may pass a stream to the driver, and how a program ends this time.
///
/// A [`StreamId`](crate::StreamId) is the handle of a stream. The stream must live for as long as the allocator may
/// pass it to the driver: from the first call with it to [`forget`](Self::forget), or to the end of the allocator.
/// Events are recorded on the stream even after its memory was freed. [`Stream`](crate::Stream) is the type that
/// forgets its stream when it is dropped.
///
/// Drivers reuse the handle of a destroyed stream for a new stream. If the driver numbers streams (CUDA 12.0), the
/// allocator notices the reuse before another stream gets memory that was freed on the old stream, and before such
/// memory goes back to the driver; the CPU then waits for the device. The allocator does not notice the reuse at
/// requests of the new stream, which may get memory that the old stream still uses. Nor does it notice the reuse for a
/// stream named with [`record_stream`](Allocator::record_stream) or
/// [`free_with_current_stream`](Allocator::free_with_current_stream), or in private pools. So forget a stream before it
/// is destroyed.
///
/// ```
/// use seamalloc::{Allocator, StreamId};
///
/// let allocator = Allocator::open("sim:h200", "")?;
/// let stream = StreamId(7);
/// allocator.free(allocator.allocate(10 << 20, stream)?)?;
/// allocator.streams().forget(stream)?;
/// // cuStreamDestroy(stream)
/// # Ok::<(), seamalloc::Error>(())
/// ```
#[derive(Clone, Copy)]
#[must_use]
pub struct Streams<'a>(pub(super) &'a Allocator);

/// Reports beyond [`Allocator::stats`]: addresses, fragmentation, snapshots, the flight recorder, observers.
///
/// ```
/// use seamalloc::{Allocator, StreamId};
///
/// let allocator = Allocator::open("sim:h200", "")?;
/// let address = allocator.allocate(1000, StreamId::DEFAULT)?;
/// assert_eq!(allocator.reports().size_of(address)?, 1024);
/// assert_eq!(allocator.reports().snapshot().segments.len(), 1);
/// allocator.free(address)?;
/// assert!(!allocator.reports().owns(address));
/// # Ok::<(), seamalloc::Error>(())
/// ```
#[derive(Clone, Copy)]
#[must_use]
pub struct Reports<'a>(pub(super) &'a Allocator);

impl Allocator {
    /// Returns the operations of private pools, for CUDA graphs and PyTorch's `MemPool`.
    #[inline]
    pub fn pools(&self) -> Pools<'_> {
        Pools(self)
    }

    /// Returns the operations of tags, which sleep and wake.
    #[inline]
    pub fn tags(&self) -> Tags<'_> {
        Tags(self)
    }

    /// Returns the operations of allocations that grow in place.
    #[inline]
    pub fn growing(&self) -> GrowingAllocations<'_> {
        GrowingAllocations(self)
    }

    /// Returns the operations of guard mode.
    #[inline]
    pub fn guard(&self) -> GuardMode<'_> {
        GuardMode(self)
    }

    /// Returns the operations of memory that other devices, libraries and processes use.
    #[inline]
    pub fn sharing(&self) -> Sharing<'_> {
        Sharing(self)
    }

    /// Returns the operations of live memory that does not fit the device.
    #[inline]
    pub fn spill(&self) -> Spilling<'_> {
        Spilling(self)
    }

    /// Returns the operations by which processes pass memory of the device to one another.
    #[inline]
    pub fn lending(&self) -> DeviceLending<'_> {
        DeviceLending(self)
    }

    /// Returns the limits on held memory, and the callbacks for requests that would exceed a limit.
    #[inline]
    pub fn limits(&self) -> MemoryLimits<'_> {
        MemoryLimits(self)
    }

    /// Returns the operations on streams that most programs do not need.
    #[inline]
    pub fn streams(&self) -> Streams<'_> {
        Streams(self)
    }

    /// Returns the reports beyond [`Self::stats`].
    #[inline]
    pub fn reports(&self) -> Reports<'_> {
        Reports(self)
    }
}
