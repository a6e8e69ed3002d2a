//! The contract between layers.
//!
//! Owns: [`MemoryResource`], the operations of the resource below a layer; [`RawBlock`], the description of a block
//! that these operations return and take; [`Layer`], a trait in which a layer implements only the operations that it
//! changes; [`PrivatePools`], the additional operations that a layer for graphs needs.
//!
//! The contract has RMM's shape (`stream_ordered_memory_resource.hpp`: `allocate`, `deallocate` with the size and a
//! stream) with the additional operations of Paddle's facade (`phi::Allocator::Release`, `RecordStream`), and with
//! errors as values.

use crate::error::Result;
use seamalloc::RawBlock;
use seamalloc::driver::MemoryInfo;
use seamalloc::{PoolId, StreamId};
use std::fmt;
use std::sync::Arc;

/// A source of memory of one device: an [`Allocator`](seamalloc::Allocator), or a layer over another resource.
///
/// Any number of threads may call a resource at the same time. A call that fails leaves the resource unchanged, except
/// for [`Self::release`].
pub trait MemoryResource: Send + Sync {
    /// Allocates `size` bytes for work on `stream`. A request for 0 bytes gets [`RawBlock::empty`].
    ///
    /// # Errors
    /// Too little memory ([`ResourceError::is_out_of_memory`](crate::ResourceError::is_out_of_memory)), and any other
    /// error that the resource's own documentation names.
    fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock>;

    /// Frees a block that [`Self::allocate`] returned. `stream` is the stream that used the block last. If the block
    /// was allocated for another stream, its memory waits for the work of both streams.
    ///
    /// # Errors
    /// An error of the resource; the block stays live.
    fn deallocate(&self, block: RawBlock, stream: StreamId) -> Result<()>;

    /// Records that work on `stream` uses a block too: after the free, the block's memory waits for that stream.
    ///
    /// # Errors
    /// An error of the resource; the use is not recorded.
    fn record_stream(&self, block: RawBlock, stream: StreamId) -> Result<()>;

    /// Undoes [`Self::record_stream`], because `stream` uses the block no more: the program has waited for the work of
    /// `stream`. The call does nothing if no such use was recorded.
    ///
    /// # Errors
    /// An error of the resource; the record stays.
    fn erase_stream(&self, block: RawBlock, stream: StreamId) -> Result<()>;

    /// Gives free memory back to the driver. Returns the bytes given back.
    ///
    /// # Errors
    /// An error of the resource; memory that was given back before stays given back.
    fn release(&self) -> Result<u64>;

    /// Returns the free and the total memory of the device.
    ///
    /// # Errors
    /// The driver's error.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// Returns whether work given to `stream` is being captured for a graph.
    ///
    /// # Errors
    /// The driver's error: while another stream is being captured, the driver refuses the question for the default
    /// stream.
    fn is_capturing(&self, stream: StreamId) -> Result<bool>;

    /// Writes the names of the resource's layers, the outermost first: `retry > limit > stitch`.
    ///
    /// # Errors
    /// The errors of the writer.
    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

impl fmt::Debug for dyn MemoryResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(f)
    }
}

impl fmt::Debug for dyn PrivatePools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(f)
    }
}

/// A resource with private pools: memory that serves only the requests of a graph's captures.
///
/// [`Allocator`](seamalloc::Allocator) describes private pools.
pub trait PrivatePools: MemoryResource {
    /// Adds a private pool with one use. Returns its id.
    ///
    /// # Errors
    /// An error if the host has no memory for the pool.
    fn create_pool(&self) -> Result<PoolId>;

    /// Ends the use of a private pool. The pool's memory serves other requests once no graph can use it.
    ///
    /// # Errors
    /// An error if there is no such pool.
    fn release_pool(&self, pool: PoolId) -> Result<()>;

    /// Routes requests for `stream`, which is about to be captured, to a private pool.
    ///
    /// # Errors
    /// An error of the resource; no requests are routed.
    fn begin_capture(&self, pool: PoolId, stream: StreamId) -> Result<()>;

    /// Ends the route that [`Self::begin_capture`] began, after the capture.
    ///
    /// # Errors
    /// An error if no requests are routed to the pool.
    fn end_capture(&self, pool: PoolId) -> Result<()>;
}

/// A resource over another resource. A layer implements only the methods that it changes; calls of all other methods go
/// to the resource below.
///
/// Each layer is a [`MemoryResource`], and has [`PrivatePools`] if the resource below has them.
///
/// ```
/// use seamalloc::driver::StreamId;
/// use seamalloc_layers::{RawBlock, Layer, MemoryResource, Result};
/// use std::fmt;
///
/// /// Rounds sizes up to whole pages.
/// struct Pages<R>(R);
///
/// impl<R: MemoryResource> Layer for Pages<R> {
///     type Upstream = R;
///     fn upstream(&self) -> &R {
///         &self.0
///     }
///     fn name(&self) -> &str {
///         "pages"
///     }
///     fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock> {
///         self.0.allocate(size.next_multiple_of(4096), stream)
///     }
/// }
/// # use seamalloc::{Allocator, Config, driver::sim::{SimConfig, SimGpu}};
/// # use std::sync::Arc;
/// # let gpu = Arc::new(SimGpu::new(SimConfig::default())?);
/// let pages = Pages(Allocator::new(gpu, Config::default())?);
/// let block = MemoryResource::allocate(&pages, 5000, StreamId::DEFAULT)?;
/// assert_eq!(block.size, 8192);
/// MemoryResource::deallocate(&pages, block, StreamId::DEFAULT)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Layer: Send + Sync {
    /// The resource below.
    type Upstream: MemoryResource + ?Sized;

    /// Returns the resource below.
    fn upstream(&self) -> &Self::Upstream;

    /// Returns the name of the layer, in one word.
    fn name(&self) -> &str;

    /// Allocates as [`MemoryResource::allocate`] does.
    ///
    /// # Errors
    /// The errors of the resource below.
    fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock> {
        self.upstream().allocate(size, stream)
    }

    /// Frees as [`MemoryResource::deallocate`] does.
    ///
    /// # Errors
    /// The errors of the resource below.
    fn deallocate(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        self.upstream().deallocate(block, stream)
    }

    /// Releases as [`MemoryResource::release`] does.
    ///
    /// # Errors
    /// The errors of the resource below.
    fn release(&self) -> Result<u64> {
        self.upstream().release()
    }
}

impl<L: Layer> MemoryResource for L {
    fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock> {
        Layer::allocate(self, size, stream)
    }

    fn deallocate(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        Layer::deallocate(self, block, stream)
    }

    fn record_stream(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        self.upstream().record_stream(block, stream)
    }

    fn erase_stream(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        self.upstream().erase_stream(block, stream)
    }

    fn release(&self) -> Result<u64> {
        Layer::release(self)
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.upstream().memory_info()
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool> {
        self.upstream().is_capturing(stream)
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > ", self.name())?;
        self.upstream().describe(f)
    }
}

impl<L: Layer> PrivatePools for L
where
    L::Upstream: PrivatePools,
{
    fn create_pool(&self) -> Result<PoolId> {
        self.upstream().create_pool()
    }

    fn release_pool(&self, pool: PoolId) -> Result<()> {
        self.upstream().release_pool(pool)
    }

    fn begin_capture(&self, pool: PoolId, stream: StreamId) -> Result<()> {
        self.upstream().begin_capture(pool, stream)
    }

    fn end_capture(&self, pool: PoolId) -> Result<()> {
        self.upstream().end_capture(pool)
    }
}

impl<R: MemoryResource + ?Sized> MemoryResource for Arc<R> {
    fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock> {
        (**self).allocate(size, stream)
    }

    fn deallocate(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        (**self).deallocate(block, stream)
    }

    fn record_stream(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        (**self).record_stream(block, stream)
    }

    fn erase_stream(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        (**self).erase_stream(block, stream)
    }

    fn release(&self) -> Result<u64> {
        (**self).release()
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        (**self).memory_info()
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool> {
        (**self).is_capturing(stream)
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).describe(f)
    }
}

impl<R: PrivatePools + ?Sized> PrivatePools for Arc<R> {
    fn create_pool(&self) -> Result<PoolId> {
        (**self).create_pool()
    }

    fn release_pool(&self, pool: PoolId) -> Result<()> {
        (**self).release_pool(pool)
    }

    fn begin_capture(&self, pool: PoolId, stream: StreamId) -> Result<()> {
        (**self).begin_capture(pool, stream)
    }

    fn end_capture(&self, pool: PoolId) -> Result<()> {
        (**self).end_capture(pool)
    }
}
