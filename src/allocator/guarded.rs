//! Guard mode: the public operations, and the steps of an allocation and a free while it is on.
//!
//! Owns: the order of these steps. While guard mode is on, every request and every free takes the slow path, by the flags
//! that private pools and `record_stream` set on it; while it is off, nothing here is reached.

use super::core::{Allocator, Core};
use super::operations::GuardMode;
use super::prepared::{Order, Prepared};
use crate::backing::{AllocatorContext, reclaim_private_pools};
use crate::driver::{Call, DriverError, Status};
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::ids::{BlockId, StreamId};
use crate::report::guard::{Explanation, Finding};
use parking_lot::MutexGuard;

impl Allocator {
    /// Serves a request while guard mode is on.
    #[cold]
    pub(super) fn allocate_watched(&self, core: &mut MutexGuard<'_, Core>, order: &Order) -> Result<u64> {
        core.on_guard(Guard::step);
        if let Some(address) = core.allocate_guarded(order)? {
            return Ok(address);
        }
        let address = match order.owner {
            Some(owner) => self.serve_private(core, order, owner)?,
            None => self.serve_public(core, order)?,
        };
        core.watch(address)?;
        Ok(address)
    }
}

impl GuardMode<'_> {
    /// Returns what an address belongs to, live or freed, or at which edge of an allocation it lies. `None` if that is not
    /// known, or guard mode is off. Works after the context was lost: it makes no driver call.
    #[must_use]
    pub fn explain(self, address: u64) -> Option<Explanation> {
        self.0.core.lock().guard.as_ref()?.explain(address)
    }

    /// Returns the mistakes that guard mode has found, the first 1000, oldest first. How many there were in all is in
    /// [`stats`](crate::Allocator::stats).
    #[must_use]
    pub fn findings(self) -> Vec<Finding> {
        self.0.core.lock().guard.as_ref().map_or_else(Vec::new, |guard| guard.findings().to_vec())
    }

    /// Waits for the device, and looks for bytes that were written around live allocations, and in freed memory. What is
    /// found is a [`Finding`]. Returns how many mistakes were found so far. Without guard mode it does nothing.
    ///
    /// # Errors
    /// [`Error::Driver`] during a stream capture, when the CPU cannot wait
    /// ([`Status::STREAM_CAPTURE_UNSUPPORTED`]), or if a call failed.
    pub fn check(self) -> Result<u64> {
        let core = &mut *self.0.core.lock();
        if core.guard.is_none() {
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

    /// Says that the work which was given to `stream` last uses these allocations, each by an address inside of it. Guard
    /// mode then finds a free before that work ends, if neither [`record_stream`](crate::Allocator::record_stream) named the stream nor
    /// the allocation's own stream waits for it ([`record_wait`](Self::record_wait)). Addresses of no live allocation are
    /// ignored, and so is a stream that is being captured. Without guard mode it does nothing.
    ///
    /// # Errors
    /// [`Error::Driver`] if an event could not be recorded.
    pub fn record_access(self, addresses: &[u64], stream: StreamId) -> Result<()> {
        let core = &mut *self.0.core.lock();
        if core.guard.is_none() || core.capturing() {
            return Ok(());
        }
        let stream = core.driver.canonical_stream(stream)?;
        if stream != StreamId::DEFAULT && core.driver.is_capturing(stream)? {
            return Ok(());
        }
        let noted = core.on_guard(|guard, context| guard.note_uses(context.driver(), addresses, stream));
        Ok(noted.unwrap_or(Ok(()))?)
    }

    /// Says that the program recorded an event on `stream`, behind all work noted so far. `event` is whatever number the
    /// program has for it; recording it again forgets the earlier record.
    ///
    /// # Errors
    /// [`Error::Driver`] if `stream` names no particular stream.
    pub fn record_event(self, event: u64, stream: StreamId) -> Result<()> {
        let core = &mut *self.0.core.lock();
        let stream = core.driver.canonical_stream(stream)?;
        if let Some(guard) = &mut core.guard {
            guard.note_event(event, stream);
        }
        Ok(())
    }

    /// Says that the program lets later work of `stream` wait for an event of [`Self::record_event`].
    ///
    /// # Errors
    /// [`Error::Driver`] if `stream` names no particular stream.
    pub fn record_wait(self, stream: StreamId, event: u64) -> Result<()> {
        let core = &mut *self.0.core.lock();
        let stream = core.driver.canonical_stream(stream)?;
        if let Some(guard) = &mut core.guard {
            guard.note_wait(stream, event);
        }
        Ok(())
    }
}

impl Core {
    /// Runs a step of guard mode. Returns `None` if it is off.
    pub(super) fn on_guard<T>(&mut self, step: impl FnOnce(&mut Guard, &mut AllocatorContext<'_>) -> T) -> Option<T> {
        let mut guard = self.guard.take()?;
        let result = self.timed(|_, context| step(&mut guard, context));
        self.guard = Some(guard);
        Some(result)
    }

    /// Serves a request by a guarded block, if it is to be guarded and can be.
    fn allocate_guarded(&mut self, order: &Order) -> Result<Option<u64>> {
        let Some(graphs) = self.guard.as_ref().filter(|guard| guard.wants(order.size)).map(|g| g.options().graphs)
        else {
            return Ok(None);
        };
        let prepared = self.prepare(order)?;
        if !self.may_be_guarded(&prepared, graphs) {
            return Ok(None);
        }
        let made = self.on_guard(|guard, context| guard.allocate(context, &prepared.request));
        let Some(id) = made.unwrap_or(Ok(None))? else { return Ok(None) };
        let address = self.hand_out(id, &prepared)?;
        self.watch(address)?;
        Ok(Some(address))
    }

    /// Memory of a source of its own comes in the source's segments. What a graph uses cannot be unmapped while the graph
    /// may be launched, so it is guarded only where that was asked for.
    fn may_be_guarded(&self, prepared: &Prepared, graphs: bool) -> bool {
        let Some(private) = prepared.private else { return true };
        let is_captured = private.captured || self.heap.private().get(private.owner).is_some_and(|pool| pool.captured);
        private.unsplit.is_none() && (graphs || !is_captured)
    }

    /// Notes an allocation, and lets its free take the slow path.
    pub(super) fn watch(&mut self, address: u64) -> Result<()> {
        let Some(guard) = &mut self.guard else { return Ok(()) };
        let id = self.heap.live(address)?;
        guard.allocated(&self.heap, &*self.driver, id);
        self.heap.set_has_uses(id);
        Ok(())
    }

    /// Takes a live allocation out of the address table. An address that is none is explained, if guard mode knows it.
    #[inline]
    pub(super) fn take_live(&mut self, address: u64) -> Result<BlockId> {
        self.heap.take_live(address).map_err(|error| self.explained(address, error))
    }

    #[cold]
    fn explained(&mut self, address: u64, error: Error) -> Error {
        let finding = self.guard.as_mut().and_then(|guard| guard.wrong_free(address));
        finding.map_or(error, |finding| Error::WrongFree { address, finding: Box::new(finding) })
    }

    /// Frees a block while guard mode is on, by `free`.
    pub(super) fn free_watched(&mut self, id: BlockId, free: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let block = *self.heap.block(id);
        let own = self.heap.pool(block.pool.large()).stream;
        self.find_missing_record_stream(id);
        free(self)?;
        self.on_guard(|guard, context| {
            guard.freed(block.address, own);
            guard.step(context);
        });
        Ok(())
    }

    /// Finds the streams that still use a block which is about to be freed, and that nobody named. The memory waits for
    /// them all the same: the run goes on as if they had been named.
    pub(super) fn find_missing_record_stream(&mut self, id: BlockId) {
        if self.guard.is_none() {
            return;
        }
        let address = self.heap.block(id).address;
        let named = self.streams.recorded.uses(id).to_vec();
        let missing = self.on_guard(|guard, context| guard.missing_record_stream(context.driver(), address, &named));
        for stream in missing.into_iter().flatten() {
            if let Err(error) = self.streams.recorded.record_use(&mut self.heap, id, stream) {
                tracing::warn!(%error, %stream, "freed memory does not wait for a stream that nobody named");
            }
        }
    }

    /// Gives the memory of a private pool that has just ended back, so that a graph which is launched all the same has an
    /// illegal address. The CPU waits for the device.
    pub(super) fn end_guarded_pools(&mut self) {
        if self.capturing() || !self.guard.as_ref().is_some_and(|guard| guard.options().graphs) {
            return;
        }
        let ended = self.timed(|_, context| reclaim_private_pools(context));
        if let Err(error) = ended.and_then(|failed| failed.map_or(Ok(()), Err)) {
            tracing::warn!(%error, "the memory of a private pool stays for now");
        }
        self.on_guard(Guard::drain);
    }

    /// Unmaps all guarded memory that can go. The CPU waits for it.
    pub(super) fn drain_guard(&mut self) {
        self.on_guard(Guard::drain);
    }
}
