//! Private pools with segments of their own: how they are opened.
//!
//! Owns: the public operations on them. `backing/segments.rs` takes the segments and gives them back.

use super::operations::Pools;
use crate::error::{Error, Result};
use crate::heap::Segments;
use crate::ids::PoolId;

/// # Private pools with segments of their own
///
/// These pools serve PyTorch's `MemPool(allocator=…)` and `MemPool(no_split=True)`. Such a pool is used, released and
/// counted like any other. The difference is the source of its memory, to which the memory returns when the pool has
/// ended.
///
/// ```
/// use seamalloc::driver::{PlainMemory, StreamId, sim::{SimConfig, SimGpu}};
/// use seamalloc::{Allocator, Config, PoolId, SegmentSource, Segments, SourceError};
/// use std::sync::Arc;
///
/// struct Registered(Arc<SimGpu>);
///
/// impl SegmentSource for Registered {
///     fn malloc(&mut self, size: u64) -> Result<u64, SourceError> {
///         // A real source also registers the memory with a library.
///         self.0.malloc(size).map_err(|_| SourceError::OutOfMemory)
///     }
///     fn free(&mut self, address: u64, _size: u64) -> Result<(), SourceError> {
///         self.0.free(address).map_err(|error| SourceError::Failed(error.to_string()))
///     }
/// }
///
/// let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200")?)?);
/// let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::default())?;
/// let pool = PoolId(0, 1);
/// allocator.pools().open_with(pool, Segments::from_source(Registered(gpu)))?;
/// let address = allocator.pools().allocate(pool, 3 << 20, StreamId::DEFAULT)?;
/// assert_eq!(allocator.pools().stats(pool)?.reserved_bytes, 20 << 20);
/// allocator.free(address)?;
/// allocator.pools().release(pool)?;
/// assert_eq!(allocator.pools().empty(pool)?, 20 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Pools<'_> {
    /// Adds one use to the private pool of this id, with segments of its own. The pool is made if it does not exist.
    ///
    /// After the last use of the pool was released, its memory serves no requests. Free memory goes back by
    /// [`Self::empty`], [`Allocator::empty_cache`](crate::Allocator::empty_cache) and
    /// [`Allocator::trim`](crate::Allocator::trim), before a request would fail, and at the end of the allocator, each
    /// time after a wait for the device. Live blocks stay valid, and their memory goes back in the same way after the
    /// free. The source is dropped after the last segment went back. Until then the pool can be opened again, like any
    /// other.
    ///
    /// # Errors
    /// [`Error::UnknownPool`] for [`PoolId::NONE`]; [`Error::PoolInUse`] if the pool already has memory or segments of
    /// its own; [`Error::HostMemory`]; [`Error::Driver`] if devices that may use the allocator's memory could not get
    /// access to plain memory. After an error, `segments` are dropped.
    pub fn open_with(self, pool: PoolId, segments: Segments) -> Result<()> {
        if segments.are_unfounded() {
            return Err(Error::HostMemory);
        }
        let core = &mut *self.0.core.lock();
        if core.heap.private().segments(pool).is_some() || !core.heap.holds_nothing(pool) {
            return Err(Error::PoolInUse { pool });
        }
        core.open_plain_to_peers()?;
        core.heap.private_mut().open(pool)?;
        core.heap.private_mut().set_segments(pool, segments);
        Ok(())
    }

    /// Keeps each segment of a private pool one block from this call on, as described at [`Segments::unsplit`]. The
    /// pool gets segments by the driver's `malloc` if it has none of its own.
    ///
    /// # Errors
    /// [`Error::UnknownPool`] if the pool has no use; [`Error::PoolInUse`] if it has memory already that is not in
    /// segments of its own; [`Error::Driver`] as for [`Self::open_with`].
    pub fn set_unsplit(self, pool: PoolId) -> Result<()> {
        let core = &mut *self.0.core.lock();
        core.heap.private_mut().used(pool)?;
        if let Some(segments) = core.heap.private_mut().segments_mut(pool) {
            segments.set_unsplit();
            return Ok(());
        }
        if !core.heap.holds_nothing(pool) {
            return Err(Error::PoolInUse { pool });
        }
        core.open_plain_to_peers()?;
        core.heap.private_mut().set_segments(pool, Segments::by_malloc().unsplit());
        Ok(())
    }
}
