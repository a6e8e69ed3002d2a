//! Freed memory that work on the GPU still uses: a request that would be refused waits for it, the oldest first.
//!
//! Owns: the order of these waits, what is tried after each, and their bound. The lock is not held meanwhile: other threads
//! allocate and free, and so do host functions on which the work that is waited for may depend.

use super::allocate::{Found, serve_by_all};
use super::core::{Allocator, Core};
use super::prepared::{Order, Prepared};
use crate::backing::{AllocatorContext, Miss};
use crate::config::StreamSharing;
use crate::error::Result;
use crate::heap::Request;
use crate::strategy::Means;
use crate::streams::{Pending, Wanted, wait_for_events};
use parking_lot::MutexGuard;

/// In nanoseconds: the unit of the option.
const MS: u64 = 1_000_000;

/// A request waits for this part (1/n) of what is pending, if that is more than it needs. Otherwise those that follow would wait
/// again and again, and join memory that lies in ever smaller pieces.
const PART: u64 = 8;

/// The waits of one request.
struct Waiting {
    /// When the last one ends, by the device's clock.
    until: Option<u64>,
    /// Bytes by which memory can grow.
    room: u64,
    spent_ns: u64,
    any: bool,
    expired: bool,
}

impl Allocator {
    /// Finds a block for a request that [`Core::ask_first`] lets wait: with the memory that is pending, and with that which the GPU
    /// has passed by then; where waits have no bound, by all means in the end.
    pub(super) fn wait_and_ask(
        &self,
        core: &mut MutexGuard<'_, Core>,
        order: &Order,
        mut prepared: Prepared,
        room: u64,
    ) -> Result<(Prepared, Found)> {
        let bound = core.config.wait_ms.map(|ms| ms.saturating_mul(MS));
        let until = bound.map(|ns| self.driver.clock_ns().saturating_add(ns));
        let mut waiting = Waiting { until, room, spent_ns: 0, any: false, expired: false };
        let mut found = self.wait_for_oldest(core, order, &mut prepared, &mut waiting);
        let before = core.heap.counters().pending_waits;
        if matches!(found, Ok(Err(_))) {
            found = if waiting.until.is_none() || core.capturing() {
                core.retry(order, &mut prepared, Means::All)
            } else {
                self.wait_to_give_back(core, order, &mut prepared, &mut waiting)
            };
        }
        if waiting.any {
            let waits = &mut core.heap.counters_mut().pending_waits;
            waits.add_request(waiting.spent_ns, waiting.expired, &waits.since(&before));
        }
        found.map(|found| (prepared, found))
    }

    /// Waits for pending memory that may serve the request where it lies.
    fn wait_for_oldest(
        &self,
        core: &mut MutexGuard<'_, Core>,
        order: &Order,
        prepared: &mut Prepared,
        waiting: &mut Waiting,
    ) -> Result<Found> {
        let at_first = core.pending_bytes(&prepared.request)?;
        let enough = (at_first / PART).max(prepared.request.size);
        let begun = core.heap.counters().operations();
        let mut last = None;
        while !core.capturing() {
            let others = core.timed(|_, context| shares(context));
            let pending = core.oldest(&prepared.request, others)?;
            // What a wait has not freed, another one would not; and what others have freed since is not waited for.
            let is_next = |pending: &Pending| last.as_ref() != Some(pending) && pending.at <= begun;
            let Some(pending) = pending.filter(is_next) else {
                return core.retry(order, prepared, Means::Cheap);
            };
            let done = self.wait_unlocked(core, &pending, waiting)?;
            *prepared = core.prepare_again(order)?;
            // A capture that began meanwhile allows no more questions.
            if core.capturing() {
                break;
            }
            core.timed(|_, context| {
                let (streams, mut on) = context.on_streams();
                streams.ask_for(&mut on, &pending)
            })?;
            let passed = at_first.saturating_sub(core.pending_bytes(&prepared.request)?);
            if !done || (passed >= at_first / PART && core.may_fit(&prepared.request, waiting.room)) {
                // Before a view is built, a little more is waited for: with luck it lies in one piece.
                let means = if done && passed < enough { Means::AsMapped } else { Means::Cheap };
                let found = core.retry(order, prepared, means)?;
                if found.is_ok() || !done {
                    return Ok(found);
                }
            }
            last = Some(pending);
        }
        Ok(Err(None))
    }

    /// Waits, within the bound, for memory that can be given back for the request once the GPU has passed it.
    fn wait_to_give_back(
        &self,
        core: &mut MutexGuard<'_, Core>,
        order: &Order,
        prepared: &mut Prepared,
        waiting: &mut Waiting,
    ) -> Result<Found> {
        let mut last = None;
        loop {
            if core.capturing() {
                return core.retry(order, prepared, Means::All);
            }
            let found = core.retry(order, prepared, Means::Passed)?;
            if found.is_ok() || waiting.expired || core.capturing() {
                return Ok(found);
            }
            let pending = core.oldest(&prepared.request, true)?.filter(|pending| last.as_ref() != Some(pending));
            let Some(pending) = pending else { return Ok(found) };
            self.wait_unlocked(core, &pending, waiting)?;
            last = Some(pending);
        }
    }

    /// Waits for pending memory without the lock. Returns whether it is free.
    fn wait_unlocked(&self, core: &mut MutexGuard<'_, Core>, pending: &Pending, waiting: &mut Waiting) -> Result<bool> {
        let driver = &*self.driver;
        let (before, busy) = (driver.clock_ns(), driver.busy_ns());
        core.streams.begin_wait();
        let waited = MutexGuard::unlocked(core, || wait_for_events(driver, &pending.events, waiting.until));
        core.streams.end_wait();
        let spent = driver.clock_ns().saturating_sub(before);
        let counters = core.heap.counters_mut();
        counters.stalls.add(driver.busy_ns().saturating_sub(busy));
        counters.pending_waits.add_events(pending.events.len() as u64, spent);
        waiting.spent_ns = waiting.spent_ns.saturating_add(spent);
        waiting.any = true;
        let done = waited?;
        // What is done by then may be taken by others each time.
        waiting.expired |= !done || waiting.until.is_some_and(|until| driver.clock_ns() >= until);
        Ok(done)
    }
}

impl Core {
    /// Asks the strategy for a block: by cheap means, and then by all means, unless the request is to wait first. Returns what it
    /// finds; if the request is to wait, also the bytes by which memory can grow.
    pub(super) fn ask_first(&mut self, prepared: &Prepared) -> Result<(Found, Option<u64>)> {
        if !self.rules.waits_for_oldest || self.capturing() || self.heap.is_segmented(prepared.request.pool) {
            return Ok((self.ask_strategy(prepared, Means::All)?, None));
        }
        self.drain_guard();
        let request = &prepared.request;
        let mut waits = None;
        let found = self.ask(|strategy, context| match strategy.serve(context, request, Means::Cheap) {
            Err(Miss::OutOfMemory { refused }) => {
                waits = room_of_waiting(context, request)?;
                if waits.is_some() {
                    Err(Miss::OutOfMemory { refused })
                } else {
                    serve_by_all(strategy, context, request)
                }
            }
            found => found,
        })?;
        Ok((found, waits))
    }

    /// Returns the last means of a request: without those that wait for the device, if the waits of a request have a bound.
    pub(super) fn last_means(&self) -> Means {
        let bounded = self.config.wait_ms.is_some() && self.rules.waits_for_oldest && !self.capturing();
        if bounded { Means::Passed } else { Means::All }
    }

    /// Returns whether free memory may serve the request where it lies.
    fn may_fit(&mut self, request: &Request, room: u64) -> bool {
        self.timed(|strategy, context| {
            let across = context.config.sharing == StreamSharing::Wait;
            let free = strategy.estimates().largest_servable(context.heap(), context.config, request.pool, across);
            free.saturating_add(room) >= request.size
        })
    }

    fn pending_bytes(&mut self, request: &Request) -> Result<u64> {
        self.timed(|_, context| pending_bytes(context, request))
    }

    fn oldest(&mut self, request: &Request, others: bool) -> Result<Option<Pending>> {
        self.streams.oldest_pending(&self.heap, Wanted { own: request.pool.large(), others })
    }
}

/// Returns whether the request may have memory of other streams where it lies, once they have passed.
fn shares(context: &AllocatorContext<'_>) -> bool {
    context.config.sharing != StreamSharing::Never
}

/// Returns the bytes that are pending, and may serve the request where they lie.
fn pending_bytes(context: &mut AllocatorContext<'_>, request: &Request) -> Result<u64> {
    let wanted = Wanted { own: request.pool.large(), others: shares(context) };
    let (streams, on) = context.on_streams();
    streams.pending_bytes(on.heap, wanted)
}

/// Returns the bytes by which memory can grow, if the request is to wait: because pending memory may serve it, or because it may
/// not wait for more than that.
fn room_of_waiting(context: &mut AllocatorContext<'_>, request: &Request) -> Result<Option<u64>> {
    let pending = pending_bytes(context, request)?;
    let bounded = context.config.wait_ms.is_some();
    if pending == 0 {
        return Ok(bounded.then_some(0));
    }
    let free = context.heap().reserved().saturating_sub(context.heap().counters().active_bytes.current());
    let room = context.room();
    let suffices = free.saturating_add(pending).saturating_add(room) >= request.size;
    Ok((bounded || suffices).then_some(room))
}
