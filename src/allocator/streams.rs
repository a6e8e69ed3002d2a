//! The allocator's streams: how they are registered, named by programs, and how they end.
//!
//! Owns: when the driver is asked which stream a handle is, and what is done once a stream is no more. Neither is on the hot
//! path: a handle that is registered is taken for the same stream there.

use super::core::{Allocator, Core};
use crate::driver::{Call, DriverError, Status};
use crate::error::{Error, Result};
use crate::ids::{Class, PoolIndex, StreamId};

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
    /// Says that work on `stream` uses the allocation: after it is freed, it waits for that stream too. The
    /// allocation's own stream need not be named. Address 0 is ignored.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`] if no live allocation starts there.
    pub fn record_stream(&self, address: u64, stream: StreamId) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let core = &mut *self.core.lock();
        let stream = core.driver.canonical_stream(stream)?;
        let id = core.heap.live(address)?;
        core.streams.recorded.record_use(&mut core.heap, id, stream);
        core.checked()
    }

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
    /// Registers the stream of a request, which has no pools yet or whose handle has ended. Returns the pool that serves it.
    #[cold]
    pub(super) fn register_stream(&mut self, stream: StreamId, size: u64) -> Result<(PoolIndex, Class)> {
        let canonical = self.driver.canonical_stream(stream)?;
        if canonical == StreamId::DEFAULT {
            self.heap.alias_default(stream);
        } else {
            // Nobody knows whether a capture would allow to ask.
            let number = match self.capturing() {
                true => None,
                false => self.timed(|_, context| context.driver.stream_number(canonical))?,
            };
            self.heap.register_stream(canonical, number);
        }
        let found = self.heap.pool_for(canonical, size);
        found.ok_or(Error::Internal("a registered stream has no pool"))
    }

    fn forget_stream(&mut self, stream: StreamId) -> Result<()> {
        if self.capturing() {
            let detail = format!("stream {stream} cannot be waited for while a stream is being captured");
            return Err(DriverError::new(Call::StreamSynchronize, Status::STREAM_CAPTURE_UNSUPPORTED, detail).into());
        }
        let waited = self.timed(|_, context| match context.driver.stream_synchronize(stream) {
            // It was destroyed already: its work is waited for with all other.
            Err(error) if error.status == Status::INVALID_HANDLE => context.driver.synchronize(),
            waited => waited,
        });
        waited?;
        let pools = self.heap.pools_of(stream);
        if pools.iter().any(|large| self.streams.epochs.waits_for_others(*large)) {
            self.timed(|_, context| context.driver.synchronize())?;
        }
        self.streams.recorded.end_stream(&mut self.heap, stream)?;
        for large in pools {
            self.streams.epochs.passed(&mut self.heap, large);
            if self.rules.passes_memory_on && !self.heap.is_private(large) {
                self.heap.make_passed_idle(large, u64::MAX);
            }
        }
        self.heap.end_stream(stream);
        Ok(())
    }
}
