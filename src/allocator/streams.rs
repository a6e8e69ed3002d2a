//! The allocator's streams: registered at their first request, named by programs, and ended.
//!
//! Owns: when the driver is asked which stream a handle names, and the steps after a stream has ended. Neither the
//! question nor these steps are on the hot path, where a registered handle always means the same stream.

use super::core::{Allocator, Core};
use super::operations::Streams;
use crate::driver::{Call, DriverError, Status};
use crate::error::Result;
use crate::fallible::{TryCollect, text};
use crate::ids::{PoolIndex, StreamId};
use crate::streams::StreamState;

impl Allocator {
    /// Records that work on `stream` uses the allocation. After the free, the memory waits for that stream too. The
    /// allocation's own stream need not be named. Address 0 is ignored.
    ///
    /// With the flag [`use_stream_safe_cuda_allocator`](crate::PaddleFlags::use_stream_safe_cuda_allocator) of a
    /// strategy of Paddle's, the memory waits only for work that `stream` was given before the last such call.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`](crate::Error::InvalidAddress) if no live allocation starts there;
    /// [`Error::HostMemory`](crate::Error::HostMemory); [`Error::Driver`](crate::Error::Driver).
    pub fn record_stream(&self, address: u64, stream: StreamId) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let core = &mut *self.core.lock();
        let stream = core.driver.canonical_stream(stream)?;
        if core.grows_at(address)? {
            core.name_growing(address, stream)?;
            return core.checked();
        }
        let id = core.heap.live(address)?;
        core.name_stream(id, stream)?;
        core.checked()
    }
}

impl Streams<'_> {
    /// Undoes [`Allocator::record_stream`](crate::Allocator::record_stream) for a live allocation that `stream` uses no
    /// more, because the program or the allocation's own stream has waited for the work of `stream`. Once freed, the
    /// memory does not wait for `stream`. The counterpart in Paddle is `EraseStream` (`StreamSafeCUDAAllocation`). The
    /// call does nothing if the stream was not named. Address 0 is ignored.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`](crate::Error::InvalidAddress) if no live allocation starts there;
    /// [`Error::Driver`](crate::Error::Driver) if the driver does not know the stream.
    pub fn unrecord(self, address: u64, stream: StreamId) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let core = &mut *self.0.core.lock();
        let stream = core.driver.canonical_stream(stream)?;
        if core.grows_at(address)? {
            core.features.growing.erase(address, stream);
            return core.checked();
        }
        let id = core.heap.live(address)?;
        core.streams.recorded.forget_use(&mut core.heap, id, stream);
        if core.features.guard.is_some() {
            core.heap.set_has_uses(id);
        }
        core.checked()
    }

    /// Registers a stream that may use the allocator's memory and that no request, free or
    /// [`Allocator::record_stream`](crate::Allocator::record_stream) names. A gate holds the stream while chunks are
    /// split ([`Split`](crate::Split)). Call [`Self::forget`] before the stream is destroyed.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if the driver does not know the stream;
    /// [`Error::HostMemory`](crate::Error::HostMemory).
    pub fn announce(self, stream: StreamId) -> Result<()> {
        let core = &mut *self.0.core.lock();
        let stream = core.driver.canonical_stream(stream)?;
        core.streams.known.add(stream)?;
        Ok(())
    }

    /// Marks `stream` as belonging to an owner who may destroy the stream without notice, such as PyTorch's
    /// `ExternalStream`. The allocator then passes the stream to the driver only within calls that name the stream,
    /// which must be live then: a request for the stream,
    /// [`Allocator::free_with_current_stream`](crate::Allocator::free_with_current_stream) with the stream as the
    /// current one, and the free of an allocation for which
    /// [`Allocator::record_stream`](crate::Allocator::record_stream) named the stream. Memory that is freed in another
    /// call, or while the stream is being captured, serves other streams only after a wait for the device.
    /// [`Self::forget`] ends the mark. The default stream is ignored.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if the driver does not know the stream.
    pub fn mark_external(self, stream: StreamId) -> Result<()> {
        let core = &mut *self.0.core.lock();
        let stream = core.driver.canonical_stream(stream)?;
        if stream == StreamId::DEFAULT {
            return Ok(());
        }
        if core.heap.pool_for(stream, 1).is_none() {
            core.register_stream(stream, 1)?;
        }
        core.heap.mark_external(stream)
    }

    /// Forgets a stream that the program is about to destroy: the CPU waits for its work, and the allocator never
    /// passes it to the driver again. The stream's free memory then serves other streams at once with `stitch`. With
    /// the other strategies, which do not share, the memory serves a new stream with the same handle, or goes back to
    /// the driver when memory is short. Frees that wait for the stream are completed.
    ///
    /// The stream's live memory stays valid, and belongs to no stream. Once freed, this memory serves other streams, so
    /// name the streams that go on using it with [`Allocator::record_stream`](crate::Allocator::record_stream). A later
    /// call with the same handle means a new stream, which must be named for that memory like any other. The default
    /// stream cannot be destroyed, and is not forgotten.
    ///
    /// The wait is short if the program has already waited itself. If memory of the stream was freed while another
    /// stream was current ([`Allocator::free_with_current_stream`](crate::Allocator::free_with_current_stream)), the
    /// CPU waits for the device. The call walks all blocks.
    ///
    /// ```
    /// # use seamalloc::{Allocator, Config, driver::{StreamId, sim::{SimConfig, SimGpu}}};
    /// # use std::sync::Arc;
    /// # let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200")?)?);
    /// let allocator = Allocator::new(gpu, Config::default())?;
    /// let stream = StreamId(7);
    /// let address = allocator.allocate(10 << 20, stream)?;
    /// allocator.free(address)?;
    /// allocator.streams().forget(stream)?;
    /// // cuStreamDestroy(stream)
    /// assert_eq!(allocator.allocate(10 << 20, StreamId::DEFAULT)?, address);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) while a stream is being captured, when the CPU cannot wait
    /// ([`Status::STREAM_CAPTURE_UNSUPPORTED`]), or if the wait failed. After an error, the stream stays registered.
    pub fn forget(self, stream: StreamId) -> Result<()> {
        let core = &mut *self.0.core.lock();
        let stream = core.driver.canonical_stream(stream)?;
        if stream == StreamId::DEFAULT {
            return Ok(());
        }
        core.forget_stream(stream)?;
        core.checked()
    }
}

impl Core {
    fn forget_stream(&mut self, stream: StreamId) -> Result<()> {
        if self.capturing() {
            let detail = text(format_args!("stream {stream} cannot be waited for while a stream is being captured"));
            return Err(DriverError::new(Call::StreamSynchronize, Status::STREAM_CAPTURE_UNSUPPORTED, detail).into());
        }
        let pools = self.heap.pools_of(stream).try_to_vec()?;
        let known = pools.iter().copied().find(|large| !self.heap.is_private(*large) && !self.heap.pool(*large).ended);
        let waited = self.timed(|_, context| {
            // The handle may name a new stream by now: a wait for the new stream does not cover the old stream's work.
            if let Some(large) = known
                && context.on_streams().1.stream_state(large)? == StreamState::Ended
            {
                return Ok(());
            }
            match context.driver().stream_synchronize(stream) {
                // The stream was destroyed already: a wait for the device covers its work.
                Err(error) if error.status.may_name_no_stream() => context.driver().synchronize(),
                waited => waited,
            }
        });
        waited?;
        let others =
            |large: &PoolIndex| self.heap.pool(*large).used_by_others || self.streams.epochs.waits_for_others(*large);
        if pools.iter().any(others) {
            self.timed(|_, context| context.driver().synchronize())?;
        }
        self.streams.recorded.end_stream(&mut self.heap, stream)?;
        for large in pools {
            self.streams.epochs.passed(&mut self.heap, large);
            if self.rules.passes_memory_on && !self.heap.is_private(large) {
                self.heap.make_passed_idle(large, u64::MAX)?;
            }
        }
        self.heap.end_stream(stream);
        self.streams.known.forget(stream);
        self.features.growing.forget_stream(stream);
        if let Some(guard) = &mut self.features.guard {
            guard.forget_stream(stream);
        }
        if self.heap.has_passed_spilled() { self.drop_spilled() } else { Ok(()) }
    }
}
