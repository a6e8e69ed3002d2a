//! The context of a strategy's step, and the reasons why a step fails.
//!
//! Owns: [`StrategyContext`], and the steps that no other file has: waits for the device, taking memory of other
//! streams, and calls that captures forbid.

use super::mapping::Mapping;
use super::rollback::PendingRollback;
use crate::config::{Config, SpillPolicy, StreamSharing};
use crate::driver::{Driver, DriverError, DriverResult, in_relaxed_capture_mode};
use crate::error::Error;
use crate::heap::{Heap, Request, ViewUsage};
use crate::ids::{BlockId, Class};
use crate::limits::{Increase, Limits};
use crate::span::Span;
use crate::streams::{self, StreamContext, Streams, Until};
use std::collections::TryReserveError;
use std::ops::{Deref, DerefMut};

/// Everything that a strategy may use: the heap to read, and the verbs of `backing` to change the heap. The fields with
/// which tables are written and the driver is called are private to `backing`. So a strategy can neither write a table
/// nor call the driver.
pub(crate) struct StrategyContext<'a> {
    pub(super) heap: &'a mut Heap,
    pub(super) streams: &'a mut Streams,
    pub(super) rollback: &'a mut PendingRollback,
    pub(super) driver: &'a dyn Driver,
    pub(crate) config: &'a Config,
    pub(crate) limits: Limits,
    /// The rule for exchanges of physical memory under live addresses.
    pub(super) exchanges: Exchanges,
    /// The budget and the policy of spilling; `None` if live memory may not be spilled.
    pub(super) spill: Option<Spill<'a>>,
    /// Whether the driver has refused to reserve addresses.
    pub(super) no_addresses: bool,
    /// Whether a split needed a gate or host memory that could not be had. If so, no chunk is split for this request
    /// any more.
    pub(super) no_splits: bool,
    /// The nanoseconds that the last gate of this step took to close, capped at the longest time of a try. The next
    /// gate leaves out the tries that wait for a shorter time.
    pub(super) gate_took_ns: u64,
}

/// The tables that a step may change.
type Tables<'a> = (&'a mut Heap, &'a mut Streams, &'a mut PendingRollback);

/// The context of a step of the allocator or of guard mode: a [`StrategyContext`] with access to the tables and the
/// driver.
pub(crate) struct AllocatorContext<'a>(StrategyContext<'a>);

impl<'a> Deref for AllocatorContext<'a> {
    type Target = StrategyContext<'a>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for AllocatorContext<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<'a> AllocatorContext<'a> {
    pub(crate) fn new(
        (heap, streams, rollback): Tables<'a>,
        driver: &'a dyn Driver,
        (config, limits): (&'a Config, Limits),
        exchanges: Exchanges,
        spill: Option<Spill<'a>>,
    ) -> Self {
        let (no_addresses, no_splits, gate_took_ns) = (false, false, 0);
        Self(StrategyContext {
            heap,
            streams,
            rollback,
            driver,
            config,
            limits,
            exchanges,
            spill,
            no_addresses,
            no_splits,
            gate_took_ns,
        })
    }

    pub(crate) fn driver(&self) -> &'a dyn Driver {
        self.0.driver
    }

    pub(crate) fn heap_mut(&mut self) -> &mut Heap {
        self.0.heap
    }

    /// Returns the state of the streams, and the context that the methods of this state take.
    pub(crate) fn on_streams(&mut self) -> (&mut Streams, StreamContext<'_>) {
        self.0.on_streams()
    }

    /// Frees the blocks that all their recorded streams have passed. The CPU does not wait.
    pub(crate) fn poll_recorded(&mut self) -> Result<(), Error> {
        self.0.streams.recorded.poll(self.0.heap, self.0.driver)
    }

    /// Returns whether all live memory is mapped at its addresses.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.rollback.is_whole()
    }

    /// Returns whether a split needed a gate or host memory that could not be had.
    pub(crate) fn has_no_splits(&self) -> bool {
        self.0.no_splits
    }

    /// Returns whether the driver has refused addresses during the step.
    pub(crate) fn has_no_addresses(&self) -> bool {
        self.0.no_addresses
    }
}

/// The rule for exchanges of physical memory under live addresses ([`Split`](crate::config::Split)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exchanges {
    Never,
    /// Memory is exchanged while a gate holds all streams that the allocator knows.
    Gated,
    /// Memory is exchanged without a gate if the driver has none, or if the gate cannot be closed. The program has
    /// promised that no other thread launches work meanwhile.
    Ungated,
}

/// The budget and the policy of spilling live memory.
#[derive(Clone, Copy)]
pub(crate) struct Spill<'a> {
    /// The most bytes of host memory that spilled memory may take.
    pub(crate) budget: u64,
    pub(crate) policy: &'a dyn SpillPolicy,
}

/// The reason why no memory was found for a request.
#[derive(Debug)]
pub(crate) enum Miss {
    /// Too little memory was found by the means that were allowed.
    OutOfMemory {
        /// If the bounds on views (`max_views` and others) refused a view: the usage that all views would have had with
        /// that view, if every view that can be dropped were dropped.
        refused: Option<ViewUsage>,
    },
    /// Another error occurred.
    Failed(Error),
}

/// The result of a step for a request, or the reason why there is no memory.
pub(crate) type MissResult<T> = std::result::Result<T, Miss>;

/// A free block that serves a request, or the reason why there is none.
pub(crate) type Served = MissResult<BlockId>;

/// Steps for a request that are tried in turn until one finds memory.
pub(crate) trait InTurn<T>: Sized {
    /// Returns `None` if there was too little memory, so that the next step is tried.
    fn found(self) -> MissResult<Option<T>>;

    /// Calls `next` if there was too little memory, and returns the result of `next`.
    fn or_try(self, next: impl FnOnce() -> Self) -> Self;
}

impl<T> InTurn<T> for MissResult<T> {
    fn found(self) -> MissResult<Option<T>> {
        self.map(Some).or_try(|| Ok(None))
    }

    fn or_try(self, next: impl FnOnce() -> Self) -> Self {
        if let Err(Miss::OutOfMemory { .. }) = self { next() } else { self }
    }
}

impl Miss {
    /// The miss of a request for which too little memory was found, and for which the bounds on views refused no view.
    pub(crate) const OUT_OF_MEMORY: Self = Self::OutOfMemory { refused: None };
}

impl From<DriverError> for Miss {
    fn from(error: DriverError) -> Self {
        if error.is_out_of_memory() { Self::OUT_OF_MEMORY } else { Self::Failed(error.into()) }
    }
}

impl From<Error> for Miss {
    fn from(error: Error) -> Self {
        match error {
            Error::Driver(error) => error.into(),
            error => Self::Failed(error),
        }
    }
}

impl From<TryReserveError> for Miss {
    fn from(_: TryReserveError) -> Self {
        Self::Failed(Error::HostMemory)
    }
}

impl StrategyContext<'_> {
    /// Returns whether a stream may be in a capture. Until the end of the capture, the allocator makes no wait, query
    /// or free that a capture forbids.
    pub(crate) fn capturing(&self) -> bool {
        self.heap.private().capturing()
    }

    /// Returns the heap for reading.
    pub(crate) fn heap(&self) -> &Heap {
        self.heap
    }

    /// Returns the bytes of the device's memory.
    pub(crate) fn total_memory(&self) -> u64 {
        self.driver.properties().total_memory
    }

    /// Returns the state of the streams, and the context that the methods of this state take.
    pub(super) fn on_streams(&mut self) -> (&mut Streams, StreamContext<'_>) {
        let context = StreamContext { heap: self.heap, driver: self.driver, sharing: self.config.sharing };
        (self.streams, context)
    }

    /// Returns whether physical memory may be exchanged under live addresses at present. During a capture, an exchange
    /// is forbidden.
    pub(crate) fn may_exchange(&self) -> bool {
        self.exchanges != Exchanges::Never && !self.capturing()
    }

    /// Notes that no chunk is split for this request any more.
    pub(super) fn split_no_more(&mut self) {
        (self.exchanges, self.no_splits) = (Exchanges::Never, true);
    }

    /// Returns whether live memory may be spilled at present. During a capture, spilling is forbidden.
    pub(crate) fn may_spill(&self) -> bool {
        self.spill.is_some() && !self.capturing()
    }

    /// Returns whether memory freed on one stream serves no other stream.
    pub(crate) fn shares_nothing(&self) -> bool {
        self.config.sharing == StreamSharing::Never
    }

    /// Returns whether the limits allow this increase, and the device keeps its headroom.
    pub(crate) fn allows(&self, more: Increase) -> bool {
        self.limits.allows(self.heap.reserved(), more) && self.leaves_headroom(more)
    }

    /// Returns [`Miss::OutOfMemory`] for an increase that is not allowed.
    pub(crate) fn require(&self, more: Increase) -> MissResult<()> {
        if self.allows(more) { Ok(()) } else { Err(Miss::OUT_OF_MEMORY) }
    }

    /// Returns whether the device keeps its headroom. The driver is asked each time, since other processes allocate
    /// memory of the device too. If the driver does not answer, memory grows as without a headroom.
    fn leaves_headroom(&self, more: Increase) -> bool {
        if self.limits.headroom() == 0 {
            return true;
        }
        match self.driver.memory_info() {
            Ok(info) => self.limits.leaves_headroom(info.free, more),
            Err(error) => {
                tracing::warn!(%error, "the device does not tell how much is free: memory grows without regard to the headroom");
                true
            }
        }
    }

    /// Returns by how many bytes memory can grow at present; 0 if the driver does not answer.
    pub(crate) fn room(&self) -> u64 {
        self.known_room().unwrap_or(0)
    }

    /// Returns how many held bytes must be released before memory can grow by `more` bytes.
    pub(crate) fn missing(&self, more: u64) -> u64 {
        // If the driver does not answer, the device counts as having no room beyond the headroom.
        let free = self.driver.memory_info().map_or(self.limits.headroom(), |info| info.free);
        self.limits.missing(self.heap.reserved(), free, more)
    }

    /// Returns by how many bytes memory can grow, or `None` if the driver does not answer.
    pub(crate) fn known_room(&self) -> Option<u64> {
        self.driver.memory_info().ok().map(|info| self.limits.room(self.heap.reserved(), info.free))
    }

    /// Reserves addresses. If the driver refuses, the context notes the refusal.
    pub(super) fn reserve_addresses(&mut self, size: u64, alignment: u64) -> DriverResult<u64> {
        let reserved = self.driver.reserve(size, alignment);
        self.no_addresses |= reserved.as_ref().is_err_and(DriverError::is_out_of_memory);
        reserved
    }

    /// Maps all pieces, or undoes the mapping. The rollback has room for the mapping.
    pub(super) fn map(&mut self, mut mapping: Mapping) -> MissResult<Mapping> {
        if let Err(error) = mapping.map(self.driver) {
            self.rollback.undo(self.heap, self.driver, mapping);
            return Err(error.into());
        }
        Ok(mapping)
    }

    /// Tries again to undo earlier failed calls.
    pub(crate) fn retry_rollback(&mut self) -> DriverResult<()> {
        self.rollback.retry(self.heap, self.driver)
    }

    /// Waits on the CPU for the device, unnamed streams included, since neither an unmap nor a release waits for the
    /// GPU.
    pub(crate) fn wait_for_all(&mut self) -> DriverResult<()> {
        self.driver.synchronize()?;
        let (streams, mut on) = self.on_streams();
        streams.epochs.all_passed(&mut on);
        streams.recorded.device_passed(on.heap);
        Ok(())
    }

    /// Waits on the CPU for every freed block that recorded streams use, and frees these blocks.
    pub(crate) fn wait_for_recorded_streams(&mut self) -> Result<(), Error> {
        self.heap.journal_mut().synchronized();
        self.streams.recorded.synchronize(self.heap, self.driver)
    }

    /// Waits on the CPU for blocks that recorded streams use, and frees these blocks. Under Paddle's stream safety, the
    /// method does not wait, and frees only the blocks whose events are complete.
    pub(crate) fn reclaim_recorded_streams(&mut self) -> Result<(), Error> {
        if streams::are_safe_as_in_paddle(self.config) {
            return self.streams.recorded.poll(self.heap, self.driver);
        }
        self.wait_for_recorded_streams()
    }

    /// Waits on the CPU for recorded streams and for the device, before a request is refused.
    pub(crate) fn wait_at_last(&mut self) -> Result<(), Error> {
        let before = self.driver.clock_ns();
        self.wait_for_recorded_streams()?;
        self.wait_for_all()?;
        let waited = self.driver.clock_ns().saturating_sub(before);
        self.heap.journal_mut().waited_for_device(waited);
        Ok(())
    }

    /// Makes idle the memory that every stream has passed.
    pub(crate) fn gather(&mut self, request: &Request) -> Result<(), Error> {
        let (streams, mut on) = self.on_streams();
        streams.epochs.gather(&mut on, request.pool.large())
    }

    /// Ends every open epoch and notes which epochs the GPU has passed.
    pub(crate) fn advance_epochs(&mut self) -> Result<(), Error> {
        let (streams, mut on) = self.on_streams();
        streams.epochs.advance(&mut on)
    }

    /// Notes that the request has missed. Returns the work for which the request may wait (`streams/rounds.rs`).
    pub(crate) fn begin_round(&mut self, request: &Request) -> Result<Until, Error> {
        Ok(self.streams.rounds.begin(self.heap, request)?)
    }

    /// Notes the request's wait for recent work (work of the present round). A warning is logged later if the wait
    /// stays pending (`streams/new_waits.rs`).
    pub(crate) fn note_new_wait(&mut self, request: &Request) {
        let (at, awaited) = self.heap.journal_mut().take_newest_wait();
        if at == 0 || !self.streams.rounds.is_new(at) {
            return;
        }
        let waiting = self.heap.pool(request.pool.large()).stream;
        if let Err(error) = self.streams.new_waits.note(self.driver, waiting, awaited) {
            tracing::debug!(%error, "a wait is not noted; no warning is given if it stays pending");
        }
    }

    /// Gives the request memory that the GPU may still use, and makes its stream wait on the GPU, until about `missing`
    /// bytes are found. First come blocks of the request's own pool that recorded streams use. For a large request,
    /// blocks freed by other streams follow, and then blocks of other streams that recorded streams use. No wait is for
    /// an event recorded later than `until`. Returns whether any memory was found.
    pub(crate) fn wait_on_gpu(&mut self, request: &Request, missing: u64, until: Until) -> Result<bool, Miss> {
        let (streams, mut on) = self.on_streams();
        Ok(streams.take_recorded(&mut on, request, (missing, until, false))?
            || (request.class == Class::Large
                && (streams.epochs.wait_for(&mut on, request, missing, until.freed)?
                    || streams.take_recorded(&mut on, request, (missing, until, true))?)))
    }

    /// Frees memory of the request's pool that recorded streams still use, after waits on the GPU: one block that
    /// serves the request, or several blocks of about `missing` bytes together. Returns whether any memory was found.
    pub(crate) fn take_recorded(&mut self, request: &Request, missing: u64, until: Until) -> Result<bool, Miss> {
        let (streams, mut on) = self.on_streams();
        Ok(streams.take_recorded(&mut on, request, (missing, until, false))?)
    }

    /// Returns whether the request can have memory of other streams after waits on the GPU.
    pub(crate) fn may_wait_for_others(&mut self, request: &Request) -> Result<bool, Error> {
        let (streams, on) = self.on_streams();
        streams.epochs.may_wait(&on, request)
    }

    /// Gives the request the memory of other streams in these spans of home, after waits on the GPU.
    pub(crate) fn wait_for_spans(&mut self, request: &Request, spans: &[Span]) -> Result<(), Error> {
        let (streams, mut on) = self.on_streams();
        streams.epochs.wait_for_spans(&mut on, request, spans)
    }

    /// Makes calls that captures forbid, in a mode of the thread that leaves captures valid.
    pub(crate) fn allowed_in_captures<T>(&self, calls: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        in_relaxed_capture_mode(self.driver, self.capturing(), calls)
    }
}
