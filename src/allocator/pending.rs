//! Freed memory that work on the GPU still uses: a request that would be refused waits for it, the oldest first.
//!
//! Owns: the order of these waits, what is tried after each, and their bound. The lock is not held meanwhile: other threads
//! allocate and free, and so do host functions on which the work that is waited for may depend.

use super::allocate::{Found, Order, Prepared, serve_by_all};
use super::core::{Allocator, Core};
use crate::backing::{Miss, StrategyContext};
use crate::config::StreamSharing;
use crate::driver::Driver;
use crate::error::Result;
use crate::heap::Request;
use crate::ids::EventId;
use crate::strategy::Means;
use crate::streams::{Wanted, wait_for_events};
use parking_lot::MutexGuard;

/// In nanoseconds: the unit of the option.
const MS: u64 = 1_000_000;

/// The waits of one request.
struct Waiting {
    /// When the last one ends, by the device's clock.
    until: Option<u64>,
    spent_ns: u64,
    any: bool,
    expired: bool,
}

impl Waiting {
    fn new(most_ms: Option<u64>, driver: &dyn Driver) -> Self {
        let until = most_ms.map(|ms| driver.clock_ns().saturating_add(ms.saturating_mul(MS)));
        Self { until, spent_ns: 0, any: false, expired: false }
    }
}

impl Allocator {
    /// Finds a block for a request that was found to wait ([`Core::ask_first`]): with the memory that is pending, and with that
    /// which the GPU has passed by then; where waits have no bound, by all means in the end.
    pub(super) fn wait_and_ask(
        &self,
        core: &mut MutexGuard<'_, Core>,
        order: &Order,
        mut prepared: Prepared,
    ) -> Result<(Prepared, Found)> {
        let mut waiting = Waiting::new(core.config.wait_ms, &*self.driver);
        let waited = self.wait_for_oldest(core, order, &mut prepared, &mut waiting);
        let before = core.heap.counters().pending_waits;
        let found = match waited {
            Ok(Err(_)) if waiting.until.is_none() || core.capturing() => {
                core.retry(order, prepared, Means::All).map(|(again, found)| {
                    prepared = again;
                    found
                })
            }
            waited => waited,
        };
        if waiting.any {
            let waits = &mut core.heap.counters_mut().pending_waits;
            waits.add_request(waiting.spent_ns, waiting.expired, &waits.since(&before));
        }
        found.map(|found| (prepared, found))
    }

    /// Waits for pending memory, the oldest first, and tries again: with what serves the request where it lies; and then, where
    /// the device is not to be waited for, with what can be given back, so that memory can grow by it.
    fn wait_for_oldest(
        &self,
        core: &mut MutexGuard<'_, Core>,
        order: &Order,
        prepared: &mut Prepared,
        waiting: &mut Waiting,
    ) -> Result<Found> {
        if core.timed(|_, context| waits_in_place(context, &prepared.request))? {
            let mut last = Vec::new();
            while !core.capturing() {
                let others = core.timed(|_, context| shares(context, &prepared.request));
                let events = core.oldest(&prepared.request, others)?;
                // What a wait has not freed, another one would not.
                if events.is_empty() || events == last {
                    break;
                }
                let done = self.wait_unlocked(core, &events, waiting)?;
                // A private pool may have changed meanwhile, and its request is made anew.
                if prepared.private.is_some() || core.may_fit(&prepared.request)? {
                    let (again, found) = core.retry(order, *prepared, Means::Cheap)?;
                    *prepared = again;
                    if found.is_ok() {
                        return Ok(found);
                    }
                }
                if !done {
                    break;
                }
                last = events;
            }
        }
        let mut found = Err(None);
        if waiting.until.is_some() {
            let mut last = Vec::new();
            while !core.capturing() {
                (*prepared, found) = core.retry(order, *prepared, Means::Passed)?;
                let events = match found {
                    Err(_) if !waiting.expired => core.oldest(&prepared.request, true)?,
                    _ => break,
                };
                if events.is_empty() || events == last {
                    break;
                }
                self.wait_unlocked(core, &events, waiting)?;
                last = events;
            }
        }
        Ok(found)
    }

    /// Waits for the events without the lock. Returns whether they are complete.
    fn wait_unlocked(
        &self,
        core: &mut MutexGuard<'_, Core>,
        events: &[EventId],
        waiting: &mut Waiting,
    ) -> Result<bool> {
        let driver = &*self.driver;
        let (before, busy) = (driver.clock_ns(), driver.busy_ns());
        let waited = MutexGuard::unlocked(core, || wait_for_events(driver, events, waiting.until));
        let spent = driver.clock_ns().saturating_sub(before);
        let counters = core.heap.counters_mut();
        counters.stalls.add(driver.busy_ns().saturating_sub(busy));
        counters.pending_waits.add_events(events.len() as u64, spent);
        waiting.spent_ns = waiting.spent_ns.saturating_add(spent);
        waiting.any = true;
        let done = waited?;
        waiting.expired |= !done;
        Ok(done)
    }
}

impl Core {
    /// Asks the strategy for a block: by cheap means, and then by all means, unless the request is to wait first. Returns what it
    /// finds, and whether the request is to wait.
    pub(super) fn ask_first(&mut self, prepared: &Prepared) -> Result<(Found, bool)> {
        if !self.rules.waits_for_oldest || self.capturing() || self.heap.is_segmented(prepared.request.pool) {
            return Ok((self.ask_strategy(prepared, Means::All)?, false));
        }
        self.drain_guard();
        let request = &prepared.request;
        let mut waits = false;
        let found = self.ask(|strategy, context| match strategy.serve(context, request, Means::Cheap) {
            Err(Miss::OutOfMemory { refused }) => {
                waits = context.config.wait_ms.is_some() || waits_in_place(context, request)?;
                if waits { Err(Miss::OutOfMemory { refused }) } else { serve_by_all(strategy, context, request) }
            }
            found => found,
        })?;
        Ok((found, waits))
    }

    /// Returns the last means of a request: without all that waits, if the waits of a request are bounded.
    pub(super) fn last_means(&self) -> Means {
        let bounded = self.config.wait_ms.is_some() && self.rules.waits_for_oldest && !self.capturing();
        if bounded { Means::Passed } else { Means::All }
    }

    /// Notes what the GPU has passed, and returns whether that may serve the request where it lies.
    fn may_fit(&mut self, request: &Request) -> Result<bool> {
        self.poll()?;
        self.timed(|strategy, context| {
            context.gather(request)?;
            let across = context.on_streams().1.sharing == StreamSharing::Wait;
            let free = strategy.largest_servable(context.heap, context.config, request.pool, across);
            Ok(free >= request.size || free.saturating_add(context.room()) >= request.size)
        })
    }

    fn oldest(&mut self, request: &Request, others: bool) -> Result<Vec<EventId>> {
        self.streams.oldest_pending(&self.heap, Wanted { own: request.pool.large(), others })
    }
}

/// Returns whether the request may have memory of other streams where it lies, once they have passed.
fn shares(context: &mut StrategyContext<'_>, request: &Request) -> bool {
    // Private pools take what streams have passed at any time.
    let by_need = context.config.sharing == StreamSharing::Auto && context.heap.is_private(request.pool);
    by_need || context.on_streams().1.sharing != StreamSharing::Never
}

/// Returns whether pending memory may serve the request where it lies.
fn waits_in_place(context: &mut StrategyContext<'_>, request: &Request) -> Result<bool> {
    let wanted = Wanted { own: request.pool.large(), others: shares(context, request) };
    let pending = context.streams.pending_bytes(context.heap, wanted)?;
    if pending == 0 {
        return Ok(false);
    }
    let active = context.heap.counters().active_bytes.current();
    let free = context.heap.reserved().saturating_sub(active);
    Ok(free.saturating_add(pending).saturating_add(context.room()) >= request.size)
}
