//! Live memory is spilled to the machine's memory, and comes back: what programs say of it, and when it comes back.
//!
//! Owns: the public operations. `backing/spill.rs` chooses, and `strategy/stitch/last_resort.rs` spills before a refusal.

use super::core::Core;
use super::operations::Spilling;
use crate::backing;
use crate::config::{Advice, SpillPolicy};
use crate::error::Result;
use crate::heap::Request;
use crate::ids::{BlockId, ChunkId, Class, StreamId, ViewId};
use crate::strategy::Goal;

/// Of the memory limit, the part (1/n) that stays free where memory comes back by itself.
const SPARE: u64 = 16;

impl Spilling<'_> {
    /// Says how the program uses a live allocation from now on, which counts as a use. What is [`Advice::Cold`] is spilled first,
    /// what is [`Advice::Hot`] last, and comes back at once if the device has room for it. Of an allocation that grows it holds for
    /// all of it, and for what it will get. Address 0 is ignored, and so is the advice where nothing is spilled.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`](crate::Error::InvalidAddress) if no live allocation starts there; [`Error::HostMemory`](crate::Error::HostMemory); the driver's, and the advice is taken.
    pub fn advise(self, address: u64, advice: Advice) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let core = &mut *self.0.core.lock();
        let spilled = if core.grows_at(address)? {
            core.advise_growing(address, advice)?
        } else {
            let id = core.heap.live(address)?;
            core.heap.advise(id, advice);
            core.heap.spilled_under(id)?
        };
        if advice == Advice::Hot && !spilled.is_empty() && !core.capturing() && core.may_spill().is_some() {
            core.bring_back(Some(&spilled))?;
        }
        core.checked()
    }

    /// Lets what was spilled come back to the device, as far as there is room; free memory is given back for it. Returns the bytes
    /// that came back. The CPU waits for the device. During a stream capture, and once another device has access to the memory,
    /// nothing comes back.
    ///
    /// While it runs, no thread may give the device work that uses memory of the allocator, as with [`Split`](crate::Split).
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver), [`Error::HostMemory`](crate::Error::HostMemory); what came back before stays so.
    pub fn restore(self) -> Result<u64> {
        let core = &mut *self.0.core.lock();
        if core.heap.spilled() == 0 || core.capturing() || core.may_spill().is_none() {
            return Ok(0);
        }
        let returned = core.bring_back(None);
        core.checked()?;
        returned
    }

    /// Chooses by another policy what is spilled from now on. The default is [`ColdestFirst`](crate::ColdestFirst).
    pub fn set_policy(self, policy: impl SpillPolicy + 'static) {
        self.0.core.lock().spill_policy = Box::new(policy);
    }
}

impl Core {
    /// Lets spilled memory come back, or only these chunks, after a wait for the device. Where there is too little room, free
    /// memory is given back for it.
    pub(super) fn bring_back(&mut self, only: Option<&[ChunkId]>) -> Result<u64> {
        let spilled = self.heap.spilled_chunks().filter(|(id, _)| only.is_none_or(|only| only.contains(id)));
        let bytes: u64 = spilled.map(|(_, chunk)| chunk.size).sum();
        self.timed(|strategy, context| {
            context.wait_for_all()?;
            // What was freed and waited for a stream is free now.
            context.poll_recorded()?;
            let missing = context.missing(bytes);
            if missing > 0 {
                let down_to = context.heap().reserved().saturating_sub(missing);
                strategy.release(context, Goal::DownTo { down_to, may_wait: true })?;
            }
            backing::unspill(context, only, 0)
        })
    }

    /// Where there was no need to spill for long, lets spilled memory come back by itself, if much of what is held is free. What that
    /// lay in is kept, and given back after as long again. A failure is logged: the memory stays where it is.
    #[cold]
    pub(super) fn return_spilled(&mut self) {
        let limit = self.limits.lowest().unwrap_or(u64::MAX).min(self.driver.properties().total_memory);
        if self.capturing() || self.may_spill().is_none() || !self.heap.may_return(limit) {
            return;
        }
        let active = self.heap.counters().active_bytes.current().saturating_sub(self.heap.live_asleep());
        let spare = limit / SPARE;
        // What is live, spilled memory included, must fit with some room.
        let spilled = self.heap.spilled();
        if spilled == 0 || active.saturating_add(spare) > limit {
            self.release_host_stock();
            return;
        }
        if self.some_stream_is_captured() {
            return;
        }
        self.heap.has_returned();
        let returned = self.timed(|strategy, context| {
            context.wait_for_all()?;
            // What was freed and waited for a stream is free now.
            context.poll_recorded()?;
            let missing = context.missing(spilled.saturating_add(spare));
            if missing > 0 {
                let down_to = context.heap().reserved().saturating_sub(missing);
                strategy.release(context, Goal::DownTo { down_to, may_wait: true })?;
            }
            backing::unspill(context, None, 0)
        });
        match returned {
            Ok(bytes) => tracing::debug!(bytes, "spilled memory came back"),
            Err(error) => tracing::warn!(%error, "spilled memory could not come back; it stays where it is"),
        }
    }

    /// Returns whether a stream is being captured of which nobody told the allocator: a wait for the device would end that
    /// capture. Streams that are borrowed, and those that made no request, are not asked.
    fn some_stream_is_captured(&self) -> bool {
        let captured = |large| {
            let pool = self.heap.pool(large);
            let is_asked = !pool.ended && pool.stream != StreamId::DEFAULT && !self.heap.is_borrowed(pool.stream);
            // One that is gone is captured by nobody. Where it is unknown, it may be.
            is_asked && self.driver.is_capturing(pool.stream).unwrap_or_else(|error| !error.status.may_name_no_stream())
        };
        self.heap.stream_pools().any(captured)
    }

    /// Gives back what is kept of the machine's memory for the next spill. A failure is logged: it stays.
    pub(super) fn release_host_stock(&mut self) {
        if self.heap.host_stock().bytes() == 0 {
            return;
        }
        if let Err(error) = self.timed(|_, context| backing::release_host_stock(context)) {
            tracing::warn!(%error, "memory of the machine that is kept could not be given back yet");
        }
    }

    /// Gives the machine's memory back in which nothing is live any more. A failure is logged: it stays, and is tried again.
    ///
    /// # Errors
    /// A call failed, and memory is missing at an address: nothing may be served before it is back.
    #[cold]
    pub(super) fn drop_spilled(&mut self) -> Result<()> {
        let Err(error) = self.timed(|_, context| backing::drop_spilled(context)) else { return Ok(()) };
        if self.rollback.is_whole() {
            tracing::warn!(%error, "memory of the machine that is free could not be given back yet");
            return Ok(());
        }
        Err(error)
    }

    /// Returns whether the memory of a block goes back to the machine once the block is freed.
    pub(super) fn goes_when_freed(&self, id: BlockId) -> bool {
        self.heap.spilled() > 0 && !self.heap.is_private(self.heap.block(id).pool) && self.heap.is_spilled(id)
    }

    /// Lets a block that is about to be freed wait for its own stream too, if it is spilled: then its memory goes back instead of
    /// serving as if it were the device's. Returns whether it is to wait; not if the host has no memory to note it, and then its
    /// memory goes with the next epoch.
    pub(super) fn wait_for_own(&mut self, id: BlockId) -> bool {
        if !self.goes_when_freed(id) || self.heap.waits_for_own(id).is_err() {
            return false;
        }
        let noted = self.streams.recorded.record_own(&mut self.heap, id).unwrap_or(false);
        if !noted {
            self.heap.waits_for_own_no_more(id);
        }
        noted
    }

    /// Takes that back, where the block could not be freed.
    pub(super) fn forget_own(&mut self, id: BlockId) {
        self.heap.waits_for_own_no_more(id);
        let stream = self.heap.pool(self.heap.block(id).pool.large()).stream;
        self.streams.recorded.forget_use(&mut self.heap, id, stream);
    }

    /// Lets the memory of a live block come back to the device, because others are to know it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if the device has no room for it; those of the driver.
    pub(super) fn must_be_on_device(&mut self, id: BlockId) -> Result<()> {
        let spilled = self.heap.spilled_under(id)?;
        if spilled.is_empty() {
            return Ok(());
        }
        if !self.capturing() {
            self.bring_back(Some(&spilled))?;
        }
        let left = self.heap.spilled_under(id)?;
        if left.is_empty() {
            return Ok(());
        }
        let home = self.heap.home().into_iter();
        let size = home.flat_map(|home| left.iter().filter_map(|id| home.chunk(*id))).map(|chunk| chunk.size).sum();
        let pool = self.heap.block(id).pool.large();
        Err(self
            .out_of_memory(&Request { size, requested: size, pool, class: Class::Large, extends: ViewId::NONE }, None))
    }
}
