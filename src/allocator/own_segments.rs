//! Private pools with segments of their own: how they are opened.
//!
//! Owns: the public operations on them. Where the segments come from is `backing/segments.rs`'s.

use super::core::Allocator;
use crate::error::{Error, Result};
use crate::heap::Segments;
use crate::ids::PoolId;

/// # Private pools with segments of their own
///
/// PyTorch's `MemPool(allocator=…)` and `MemPool(no_split=True)`. Such a pool is used, released and counted as any other;
/// what differs is where its memory comes from, and that it goes back there when the pool has ended.
///
/// ```
/// use seamalloc::driver::{Driver, StreamId, sim::{SimConfig, SimGpu}};
/// use seamalloc::{Allocator, Config, PoolId, SegmentSource, Segments, SourceError};
/// use std::sync::Arc;
///
/// struct Registered(Arc<SimGpu>);
///
/// impl SegmentSource for Registered {
///     fn malloc(&mut self, size: u64) -> Result<u64, SourceError> {
///         // And tell a library of it.
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
/// allocator.open_pool_with(pool, Segments::from_source(Registered(gpu)))?;
/// let address = allocator.allocate_in(pool, 3 << 20, StreamId::DEFAULT)?;
/// assert_eq!(allocator.pool_stats(pool)?.reserved_bytes, 20 << 20);
/// allocator.free(address)?;
/// allocator.release_pool(pool)?;
/// assert_eq!(allocator.empty_pool(pool)?, 20 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Allocator {
    /// Uses the private pool of that name once more, or makes it; it has segments of its own from now on.
    ///
    /// When its last use was released, its memory serves nobody any more. What lies free goes back by
    /// [`Self::empty_pool`], [`Self::empty_cache`] and [`Self::trim`], before a request would fail, and at the allocator's
    /// end, each time after a wait for the device; live blocks stay valid, and go back that way after they were freed. The
    /// source is dropped with the last of it. As any pool it can be opened anew until then.
    ///
    /// # Errors
    /// [`Error::UnknownPool`] for [`PoolId::NONE`]; [`Error::PoolInUse`] where the pool has memory, or segments of its own,
    /// already; [`Error::Driver`] where devices that may use the allocator's memory could not be let to use plain memory.
    /// `segments` are dropped then.
    pub fn open_pool_with(&self, pool: PoolId, segments: Segments) -> Result<()> {
        let core = &mut *self.core.lock();
        if core.heap.private().segments(pool).is_some() || !core.heap.holds_nothing(pool) {
            return Err(Error::PoolInUse { pool });
        }
        core.let_peers_use_plain()?;
        core.heap.private_mut().open(pool)?;
        core.heap.private_mut().set_segments(pool, segments);
        Ok(())
    }

    /// From now on a private pool's segments are one block each, as [`Segments::unsplit`] says; it gets segments by the
    /// driver's `malloc` if it has none of its own.
    ///
    /// # Errors
    /// [`Error::UnknownPool`] where nobody uses it; [`Error::PoolInUse`] where it has memory already that is not in
    /// segments of its own; [`Error::Driver`] as of [`Self::open_pool_with`].
    pub fn set_pool_unsplit(&self, pool: PoolId) -> Result<()> {
        let core = &mut *self.core.lock();
        core.heap.private_mut().used(pool)?;
        if let Some(segments) = core.heap.private_mut().segments_mut(pool) {
            segments.set_unsplit();
            return Ok(());
        }
        if !core.heap.holds_nothing(pool) {
            return Err(Error::PoolInUse { pool });
        }
        core.let_peers_use_plain()?;
        core.heap.private_mut().set_segments(pool, Segments::by_malloc().unsplit());
        Ok(())
    }
}
