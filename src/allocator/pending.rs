//! Freed memory that work on the GPU still uses: a request that would be refused waits for such memory, the oldest
//! first.
//!
//! Owns: the order of these waits, the tries after each, and their bound. The lock is not held during a wait: other
//! threads allocate and free, and so do host functions on which the awaited work may depend.

use super::core::Core;
use super::search::{Search, serve_by_all};
use crate::backing::{AllocatorContext, Miss};
use crate::config::StreamSharing;
use crate::error::Result;
use crate::heap::Request;
use crate::ids::BlockId;
use crate::strategy::Means;
use crate::streams::{Pending, Wanted, wait_for_events};
use parking_lot::MutexGuard;

/// Nanoseconds in a millisecond, the unit of the option `wait_ms`.
const MS: u64 = 1_000_000;

/// A request waits until the GPU has passed this part (1/n) of the pending memory, even if the request needs less.
/// Otherwise later requests would wait again and again, and would get memory in ever smaller pieces.
const PART: u64 = 8;

/// The waits of one request.
struct Waiting {
    /// The time of the device's clock at which waiting ends, if the waits have a bound.
    until: Option<u64>,
    /// Bytes by which memory can grow.
    room: u64,
    spent_ns: u64,
    any: bool,
    expired: bool,
}

/// Asks the strategy for a block: by cheap means, and then by all means, unless the request is to wait first.
pub(super) fn own_means(search: &mut Search<'_, '_>) -> Result<Option<BlockId>> {
    let core = &mut **search.core;
    let request = search.prepared.request;
    if !core.rules.waits_for_oldest || core.capturing() || core.heap.is_segmented(request.pool) {
        return search.ask(Means::All);
    }
    core.drain_guard();
    let mut room = None;
    let found = core.ask(|strategy, context| match strategy.serve(context, &request, Means::Cheap) {
        Err(Miss::OutOfMemory { refused }) => {
            room = room_of_waiting(context, &request)?;
            if room.is_some() { Err(Miss::OutOfMemory { refused }) } else { serve_by_all(strategy, context, &request) }
        }
        found => found,
    })?;
    search.room = room;
    Ok(search.note(found))
}

/// Waits for pending memory, if the request should wait. Returns a block of that memory, or of memory that the GPU has
/// passed by then. If waits have no bound, all means are tried in the end.
pub(super) fn wait(search: &mut Search<'_, '_>) -> Result<Option<BlockId>> {
    let Some(room) = search.room else { return Ok(None) };
    let bound = search.core.config.wait_ms.map(|ms| ms.saturating_mul(MS));
    let until = bound.map(|ns| search.allocator.driver.clock_ns().saturating_add(ns));
    let mut waiting = Waiting { until, room, spent_ns: 0, any: false, expired: false };
    let mut found = waiting.for_oldest(search);
    let before = search.core.heap.counters().pending_waits;
    if matches!(found, Ok(None)) {
        found = if waiting.until.is_none() || search.core.capturing() {
            search.retry(Means::All)
        } else {
            waiting.until_given_back(search)
        };
    }
    if waiting.any {
        let since = search.core.heap.counters().pending_waits.since(&before);
        search.core.heap.journal_mut().waited_for_pending(waiting.spent_ns, waiting.expired, &since);
    }
    found
}

impl Waiting {
    /// Waits for pending memory that may serve the request at the addresses where the memory lies.
    fn for_oldest(&mut self, search: &mut Search<'_, '_>) -> Result<Option<BlockId>> {
        let at_first = search.core.pending_bytes(&search.prepared.request)?;
        let enough = (at_first / PART).max(search.prepared.request.size);
        let begun = search.core.heap.counters().operations();
        let mut last = None;
        while !search.core.capturing() {
            let others = search.core.timed(|_, context| shares(context));
            let pending = search.core.oldest(&search.prepared.request, others)?;
            // A second wait for the same pending memory would free no more memory. Memory freed since the waits began
            // is not awaited.
            let is_next = |pending: &Pending| last.as_ref() != Some(pending) && pending.at <= begun;
            let Some(pending) = pending.filter(is_next) else { return search.retry(Means::Cheap) };
            let done = self.unlocked(search, &pending)?;
            search.prepare_again()?;
            // A capture that began meanwhile allows no more event queries.
            if search.core.capturing() {
                break;
            }
            search.core.timed(|_, context| {
                let (streams, mut on) = context.on_streams();
                streams.ask_for(&mut on, &pending)
            })?;
            let request = &search.prepared.request;
            let passed = at_first.saturating_sub(search.core.pending_bytes(request)?);
            if !done || (passed >= at_first / PART && search.core.may_fit(request, self.room)) {
                // Before a view is built, the request waits a little longer for memory in one piece.
                let means = if done && passed < enough { Means::AsMapped } else { Means::Cheap };
                let found = search.retry(means)?;
                if found.is_some() || !done {
                    return Ok(found);
                }
            }
            last = Some(pending);
        }
        Ok(None)
    }

    /// Waits, within the bound, until the GPU has passed memory that can then be given back to the driver, so that
    /// memory can grow for the request.
    fn until_given_back(&mut self, search: &mut Search<'_, '_>) -> Result<Option<BlockId>> {
        let mut last = None;
        loop {
            if search.core.capturing() {
                return search.retry(Means::All);
            }
            let found = search.retry(Means::Passed)?;
            if found.is_some() || self.expired || search.core.capturing() {
                return Ok(found);
            }
            let pending = search.core.oldest(&search.prepared.request, true)?;
            let Some(pending) = pending.filter(|pending| last.as_ref() != Some(pending)) else { return Ok(None) };
            self.unlocked(search, &pending)?;
            last = Some(pending);
        }
    }

    /// Waits for pending memory without the lock. Returns whether the memory is free.
    fn unlocked(&mut self, search: &mut Search<'_, '_>, pending: &Pending) -> Result<bool> {
        let (driver, core) = (&*search.allocator.driver, &mut *search.core);
        let (before, busy) = (driver.clock_ns(), driver.busy_ns());
        core.streams.begin_wait();
        let waited = MutexGuard::unlocked(core, || wait_for_events(driver, &pending.events, self.until));
        core.streams.end_wait();
        let spent = driver.clock_ns().saturating_sub(before);
        let journal = core.heap.journal_mut();
        journal.stalled(driver.busy_ns().saturating_sub(busy));
        journal.waited_for_events(pending.events.len() as u64, spent);
        self.spent_ns = self.spent_ns.saturating_add(spent);
        self.any = true;
        let done = waited?;
        // Other threads may take the memory that each wait has freed, so the time is checked after every wait.
        self.expired |= !done || self.until.is_some_and(|until| driver.clock_ns() >= until);
        Ok(done)
    }
}

impl Core {
    /// Returns the means of a request's last try. If the waits of a request have a bound, these means do not wait for
    /// the device.
    pub(super) fn last_means(&self) -> Means {
        let bounded = self.config.wait_ms.is_some() && self.rules.waits_for_oldest && !self.capturing();
        if bounded { Means::Passed } else { Means::All }
    }

    /// Returns whether free memory and `room` bytes of new memory together may be enough for the request.
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

/// Returns whether a request may take memory that other streams freed, at the addresses where it lies, once the GPU has
/// passed the frees.
fn shares(context: &AllocatorContext<'_>) -> bool {
    context.config.sharing != StreamSharing::Never
}

/// Returns the pending bytes that may serve the request at the addresses where they lie.
fn pending_bytes(context: &mut AllocatorContext<'_>, request: &Request) -> Result<u64> {
    let wanted = Wanted { own: request.pool.large(), others: shares(context) };
    let (streams, on) = context.on_streams();
    streams.pending_bytes(on.heap, wanted)
}

/// Decides whether a request should wait: it should if pending memory may serve it, and always with the option
/// `wait_ms`. Returns the bytes by which memory can grow (0 without pending memory), or `None` if the request should
/// not wait.
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
