//! The allocator's streams: how they are met, and how they end.
//!
//! Owns: when the driver is asked which stream a handle is, and what is done once a stream is no more. Neither is on the hot
//! path: a handle that was met before is taken for the same stream there.

use super::{Allocator, Core};
use crate::blocks::BlockId;
use crate::driver::{Call, DriverError, Status};
use crate::error::Result;
use crate::ids::StreamId;
use crate::stats::Class;

/// # Streams
///
/// A [`StreamId`] is the handle of a stream, and the stream must live for as long as the allocator may name it to the
/// driver: from the first call with it to [`forget_stream`](Self::forget_stream), or to the end of the allocator. Events are
/// recorded on it also after its memory was freed.
///
/// Drivers give the handle of a destroyed stream to a new one. Where the driver numbers streams (CUDA 12.0), that is noticed
/// before another stream gets memory that was freed on it, and before such memory goes back to the driver; the CPU waits for
/// the device then. It is not noticed by the new stream's own requests, which may get memory that the old one still uses, nor
/// for a stream named with [`record_stream`](Self::record_stream) or [`free_under`](Self::free_under), nor in private
/// pools. So forget a stream before it is destroyed.
impl Allocator {
    /// The program is about to destroy `stream`: the CPU waits for what it was given, and the allocator never names it to the
    /// driver again. Its free memory serves other streams, with `stitch` at once; with the other strategies, which do not
    /// share, it serves a new stream of that handle, or goes back to the driver when memory is short. Frees that wait for
    /// the stream are over.
    ///
    /// Memory that was allocated for it and is still live stays valid. It is of no stream: once freed it serves others, so
    /// name the streams that use it on with [`Self::record_stream`]. A later call with the same handle means a new stream.
    /// The default stream cannot be destroyed, and is not forgotten.
    ///
    /// The wait is short for a program that has waited itself.
    ///
    /// ```
    /// # use seamalloc::{Allocator, Config, driver::{StreamId, sim::{SimConfig, SimGpu}}};
    /// # use std::sync::Arc;
    /// # let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200")?)?);
    /// let allocator = Allocator::new(gpu, Config::default())?;
    /// let stream = StreamId(7);
    /// let address = allocator.allocate(10 << 20, stream)?;
    /// allocator.free(address)?;
    /// allocator.forget_stream(stream)?;
    /// // cuStreamDestroy(stream)
    /// assert_eq!(allocator.allocate(10 << 20, StreamId::DEFAULT)?, address);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver): while a stream is being captured, when nothing can be waited for
    /// ([`Status::STREAM_CAPTURE_UNSUPPORTED`]); where the wait failed. The stream is known as before then.
    pub fn forget_stream(&self, stream: StreamId) -> Result<()> {
        let core = &mut *self.core.lock();
        let stream = core.driver.canonical_stream(stream)?;
        if stream == StreamId::DEFAULT {
            return Ok(());
        }
        core.forget_stream(stream)?;
        core.checked()
    }
}

impl Core {
    /// A request for a stream that has no pools yet, or whose handle has ended.
    #[cold]
    pub(super) fn meet(&mut self, stream: StreamId, size: u64) -> Result<(u32, Class)> {
        let canonical = self.driver.canonical_stream(stream)?;
        if canonical == StreamId::DEFAULT {
            self.heap.alias_default(stream);
        } else {
            // Nobody knows whether a capture would allow to ask.
            let number = match self.heap.private.capturing() {
                true => None,
                false => self.timed(|_, ground| ground.driver.stream_number(canonical))?,
            };
            self.heap.meet(canonical, number);
        }
        let found = self.heap.pool_for(canonical, size);
        found.ok_or(crate::Error::Internal("a stream that was met has no pool"))
    }

    /// Something that was taken out of the table of live allocations is freed under another stream than its own, or under
    /// another name of its own.
    #[cold]
    pub(super) fn note_freed_under(&mut self, id: BlockId, stream: StreamId) -> Result<()> {
        let stream = self.driver.canonical_stream(stream)?;
        let large = self.heap.blocks[id].pool & !1;
        let of = &self.heap.pools[large as usize];
        if of.stream == stream && !of.ended {
            return Ok(());
        }
        // Where it waits for others anyway, or has no stream of its own any more, it waits for this one too.
        let mut waits = of.ended || self.deferred.has_uses(id);
        if !waits && self.heap.is_private(large) {
            // What a private pool has serves nobody else before the pool ends.
            self.heap.private.freed_under(self.heap.owner_of(large));
        } else if !waits {
            waits = !self.timed(|strategy, ground| strategy.freed_under(ground, large, stream))?;
        }
        if waits {
            self.deferred.record_use(&mut self.heap, id, stream);
        }
        Ok(())
    }

    fn forget_stream(&mut self, stream: StreamId) -> Result<()> {
        if self.heap.private.capturing() {
            let detail = format!("stream {stream} cannot be waited for while a stream is being captured");
            return Err(DriverError::new(Call::StreamSynchronize, Status::STREAM_CAPTURE_UNSUPPORTED, detail).into());
        }
        let waited = self.timed(|_, ground| match ground.driver.stream_synchronize(stream) {
            // It was destroyed already: its work is waited for with all other.
            Err(error) if error.status == Status::INVALID_HANDLE => ground.driver.synchronize(),
            waited => waited,
        });
        waited?;
        let pools = self.heap.pools_of(stream);
        if pools.iter().any(|large| self.strategy.waits_for_others(*large)) {
            self.timed(|_, ground| ground.driver.synchronize())?;
        }
        self.deferred.end_stream(&mut self.heap, stream)?;
        for large in pools {
            self.timed(|strategy, ground| strategy.stream_passed(ground, large));
        }
        self.heap.end_stream(stream);
        Ok(())
    }
}
