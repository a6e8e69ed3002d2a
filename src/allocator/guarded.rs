//! Guard mode: the public operations, and the steps of an allocation and a free while it is on.
//!
//! Owns: the order of these steps. While guard mode is on, every request and every free takes the slow path, by the
//! flags that private pools and `record_stream` set too. While guard mode is off, this code is not reached.

use super::core::{Allocator, Core};
use super::operations::GuardMode;
use super::prepared::AllocRequest;
use crate::driver::{Call, DriverError, Status};
use crate::error::Result;
use crate::features::guard::Guard;
use crate::ids::StreamId;
use crate::report::guard::{Explanation, Finding};
use parking_lot::MutexGuard;

impl Allocator {
    /// Serves a request while guard mode is on.
    #[cold]
    pub(super) fn allocate_watched(&self, core: &mut MutexGuard<'_, Core>, asked: &AllocRequest) -> Result<u64> {
        core.on_guard(Guard::step);
        if let Some(address) = core.allocate_guarded(asked)? {
            return Ok(address);
        }
        let address = match asked.owner {
            Some(owner) => self.serve_private(core, asked, owner)?,
            None => self.serve_public(core, asked)?,
        };
        core.watch(address)?;
        Ok(address)
    }
}

impl GuardMode<'_> {
    /// Returns the live or freed allocation to which an address belongs, or at whose edge it lies. Returns `None` if no
    /// such allocation is known, or guard mode is off. The call also works after the context was lost, since it makes
    /// no driver call.
    #[must_use]
    pub fn explain(self, address: u64) -> Option<Explanation> {
        self.0.core.lock().features.guard.as_ref()?.explain(address)
    }

    /// Returns the mistakes that guard mode has found: the first 1000, oldest first. [`stats`](crate::Allocator::stats)
    /// has the total number.
    #[must_use]
    pub fn findings(self) -> Vec<Finding> {
        self.0.core.lock().features.guard.as_ref().map_or_else(Vec::new, |guard| guard.findings().to_vec())
    }

    /// Waits for the device, and looks for bytes that were written around live allocations and in freed memory. Each
    /// change is a [`Finding`]. Returns the number of mistakes found so far. Without guard mode the call does nothing.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) during a stream capture, when the CPU cannot wait
    /// ([`Status::STREAM_CAPTURE_UNSUPPORTED`]), or if a call failed.
    pub fn check(self) -> Result<u64> {
        let core = &mut *self.0.core.lock();
        if core.features.guard.is_none() {
            return Ok(0);
        }
        if core.capturing() {
            let detail = "guards cannot be looked at while a stream is being captured";
            return Err(DriverError::new(Call::Read, Status::STREAM_CAPTURE_UNSUPPORTED, detail).into());
        }
        let looked = core.on_guard(|guard, context| {
            context.driver().synchronize()?;
            let (streams, on) = context.on_streams();
            streams.recorded.synchronize(on.heap, on.driver)?;
            guard.drain(context);
            guard.look_at_live(context.driver())?;
            Ok(guard.stats().findings)
        });
        looked.unwrap_or(Ok(0))
    }

    /// Tells guard mode that the latest work given to `stream` uses these allocations, each named by an address inside
    /// the allocation. Guard mode then finds a free before the end of this work, if neither
    /// [`record_stream`](crate::Allocator::record_stream) named the stream nor the allocation's own stream waits for
    /// the work ([`record_wait`](Self::record_wait)). Addresses of no live allocation are ignored, and so is a stream
    /// that is being captured. Without guard mode the call does nothing.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if an event could not be recorded.
    pub fn record_access(self, addresses: &[u64], stream: StreamId) -> Result<()> {
        let core = &mut *self.0.core.lock();
        if core.features.guard.is_none() || core.capturing() {
            return Ok(());
        }
        let stream = core.driver.canonical_stream(stream)?;
        if stream != StreamId::DEFAULT && core.driver.is_capturing(stream)? {
            return Ok(());
        }
        let noted = core.on_guard(|guard, context| guard.note_uses(context.driver(), addresses, stream));
        Ok(noted.unwrap_or(Ok(()))?)
    }

    /// Tells guard mode that the program recorded an event on `stream`, after all work noted so far. `event` is any
    /// number by which the program names the event; recording the same number again replaces the earlier record.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if `stream` is `cudaStreamPerThread`, which is another stream in each
    /// thread.
    pub fn record_event(self, event: u64, stream: StreamId) -> Result<()> {
        let core = &mut *self.0.core.lock();
        let stream = core.driver.canonical_stream(stream)?;
        if let Some(guard) = &mut core.features.guard {
            guard.note_event(event, stream);
        }
        Ok(())
    }

    /// Tells guard mode that later work of `stream` waits for an event of [`Self::record_event`].
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if `stream` is `cudaStreamPerThread`, which is another stream in each
    /// thread.
    pub fn record_wait(self, stream: StreamId, event: u64) -> Result<()> {
        let core = &mut *self.0.core.lock();
        let stream = core.driver.canonical_stream(stream)?;
        if let Some(guard) = &mut core.features.guard {
            guard.note_wait(stream, event);
        }
        Ok(())
    }
}
