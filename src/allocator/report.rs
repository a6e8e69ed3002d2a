//! The reports of an allocator: statistics, snapshots, and events for an observer.

use super::core::{Allocator, Core};
use super::operations::Reports;
use crate::config::{StrategyKind, StreamSharing};
use crate::error::Result;
use crate::fallible::try_text;
use crate::heap::{GRANULE, Kept};
use crate::ids::Class;
use crate::report::flight::Flight;
use crate::report::fragmentation::Fragmentation;
use crate::report::observer::{Observer, ObserverId};
use crate::report::snapshot::Snapshot;
use crate::report::stats::Stats;

impl Allocator {
    /// Returns the statistics: counts of all operations so far, and the memory held at present.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let core = &mut *self.core.lock();
        let mut stats = core.heap.counters().stats();
        stats.strategy = core.config.strategy;
        stats.instead_of = core.features.fallback.instead_of;
        stats.max_split_size = core.config.max_split_size;
        stats.guard = core.features.guard.as_ref().map_or_else(Default::default, |guard| guard.stats());
        stats.sleep = core.heap.sleep_stats();
        stats.spill_kept_bytes = core.heap.host_stock().bytes();
        stats.host_bytes = (core.heap.host_bytes() + core.streams.host_bytes() + core.strategy.host_bytes()) as u64;
        stats.view_mappings = core.heap.views().mappings() as u64;
        stats.views = core.heap.views().count() as u64;
        stats.view_address_space_bytes = core.heap.views().address_space();
        stats
    }

    fn snapshot_of(&self, core: &Core) -> Result<Snapshot> {
        let device = self.driver.properties().ordinal;
        Ok(Snapshot {
            device,
            segments: core.heap.segment_infos()?,
            settings: try_text(format_args!("{}", core.config))?,
        })
    }
}

impl Reports<'_> {
    /// Returns the usable size in bytes of the live allocation that starts at `address`: the bytes that the program
    /// asked for, rounded up. In guard mode the size is not rounded up, since bytes beyond the request may not be used.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`](crate::Error::InvalidAddress) if no live allocation starts there.
    pub fn size_of(self, address: u64) -> Result<u64> {
        let core = self.0.core.lock();
        if core.grows_at(address)? {
            return Ok(core.features.growing.extent(address)?.mapped);
        }
        let block = core.heap.block(core.heap.live(address)?);
        Ok(if core.features.guard.is_some() { block.requested } else { block.size })
    }

    /// Returns whether a live allocation starts at `address`.
    #[must_use]
    pub fn owns(self, address: u64) -> bool {
        let core = self.0.core.lock();
        // A part of an allocation that grows is no allocation by itself.
        if let Ok(true) | Err(_) = core.grows_at(address) {
            return core.features.growing.extent(address).is_ok();
        }
        core.heap.live(address).is_ok()
    }

    /// Returns the bytes held from the driver: `stats().reserved_bytes.all.current`, without the cost of all
    /// statistics.
    #[must_use]
    pub fn reserved(self) -> u64 {
        self.0.core.lock().heap.reserved()
    }

    /// Returns the strategy that another strategy has replaced, or `None`. [`StrategyKind::Stitch`] is replaced if no
    /// strategy was named and the device has no virtual memory management, as on vGPUs and some virtual machines.
    /// Stitch is also replaced, from the first request on, if the driver refuses address ranges of every size. The
    /// replacement is [`StrategyKind::Caching`], which needs no virtual memory and fragments as PyTorch's own allocator
    /// does; the log has a warning.
    #[must_use]
    pub fn fallback_from(self) -> Option<StrategyKind> {
        self.0.core.lock().features.fallback.instead_of
    }

    /// Returns the present fragmentation: how much memory is free for which streams, and how much of the free memory
    /// one request could have. The call walks over all free ranges under the lock, and makes no driver call. If the
    /// host has no memory for the lists, every figure is 0.
    #[must_use]
    pub fn fragmentation(self) -> Fragmentation {
        self.try_fragmentation().unwrap_or_default()
    }

    /// Returns the same as [`Self::fragmentation`], or an error if the host has no memory for the lists.
    ///
    /// # Errors
    /// [`Error::HostMemory`](crate::Error::HostMemory).
    pub fn try_fragmentation(self) -> Result<Fragmentation> {
        let core = self.0.core.lock();
        let sharing = core.rules.sharing;
        let across = sharing == StreamSharing::Wait;
        core.heap
            .measure(sharing, |pool| core.strategy.estimates().largest_servable(&core.heap, &core.config, pool, across))
    }

    /// Returns the largest request, in bytes, that some stream could be given at present. The request could be served
    /// by free memory that is held, or by memory that the device and the limits leave, or by both together if the
    /// strategy joins memory and the bounds on views allow it. Where chunks may be split, the free granules (2 MiB)
    /// that splits can reach count too. The call walks over all free ranges under the lock, and over all blocks where
    /// chunks may be split, and asks the driver for its free memory.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if the driver does not report its free memory.
    pub fn largest_request(self) -> Result<u64> {
        let free = self.0.driver.memory_info()?.free;
        let core = &*self.0.core.lock();
        let across = core.rules.sharing == StreamSharing::Wait;
        let mut present = core.present(free);
        present.room -= present.room % GRANULE;
        let room = present.room;
        let of = |pool| core.strategy.estimates().largest_with_growth(&present, pool, across);
        let largest = core.heap.stream_pools().map(of).max().unwrap_or(room);
        let layout = core.heap.layout();
        let size = layout.rounding.largest_within(largest, &core.config.roundup_power2_divisions);
        if layout.class_of(size) == Class::Large {
            return Ok(size);
        }
        // The largest request is so small that only pools of small blocks serve it, so the memory of these pools
        // decides.
        let small = core.heap.stream_pools().map(|pool| of(pool.small())).max().unwrap_or(room).min(layout.small_limit);
        Ok(layout.rounding.largest_within(small, &core.config.roundup_power2_divisions))
    }

    /// Sets every peak to the present value.
    pub fn reset_peaks(self) {
        self.0.core.lock().heap.journal_mut().reset_peaks();
    }

    /// Sets every accumulated figure to 0.
    pub fn reset_accumulated(self) {
        self.0.core.lock().heap.journal_mut().reset_accumulated();
    }

    /// Returns a snapshot of all segments and blocks. The snapshot has no segments if the host has no memory for them.
    #[must_use]
    pub fn snapshot(self) -> Snapshot {
        let device = self.0.driver.properties().ordinal;
        self.try_snapshot().unwrap_or_else(|_| Snapshot { device, segments: Vec::new(), settings: String::new() })
    }

    /// Returns the same as [`Self::snapshot`], or an error if the host has no memory for the snapshot.
    ///
    /// # Errors
    /// [`Error::HostMemory`](crate::Error::HostMemory).
    pub fn try_snapshot(self) -> Result<Snapshot> {
        self.0.snapshot_of(&self.0.core.lock())
    }

    /// Returns the last operations that the flight recorder has kept, and the state after them. The lock is held while
    /// the operations are read, some 100 us at the default size.
    ///
    /// # Errors
    /// [`Error::HostMemory`](crate::Error::HostMemory).
    pub fn flight(self) -> Result<Flight> {
        let core = self.0.core.lock();
        let Kept { events, operations, overwritten, capacity } = core.heap.flight()?;
        let mut flight = Flight::default();
        flight.snapshot = self.0.snapshot_of(&core)?;
        (flight.events, flight.operations) = (events, operations);
        (flight.overwritten, flight.capacity) = (overwritten, capacity);
        Ok(flight)
    }

    /// Registers an observer for all changes from now on, in addition to the present observers. Every observer gets
    /// every event, in the order in which the events occur. An observer that panics gets no more events.
    ///
    /// ```
    /// use seamalloc::observer::{Event, Observer};
    /// use seamalloc::{Allocator, StreamId};
    /// use std::sync::mpsc::{Sender, channel};
    ///
    /// struct Tell(Sender<Event>);
    ///
    /// impl Observer for Tell {
    ///     fn event(&mut self, event: &Event) {
    ///         let _ = self.0.send(*event);
    ///     }
    /// }
    ///
    /// let allocator = Allocator::open("sim:h200", "")?;
    /// let (sender, events) = channel();
    /// let first = allocator.reports().add_observer(Box::new(Tell(sender.clone())))?;
    /// let second = allocator.reports().add_observer(Box::new(Tell(sender)))?;
    /// drop(allocator.block(512, StreamId::DEFAULT)?);
    /// let both = events.try_iter().count();
    /// allocator.reports().remove_observer(first);
    /// drop(allocator.block(512, StreamId::DEFAULT)?);
    /// assert!(both > 0 && both % 2 == 0 && events.try_iter().count() > 0);
    /// # allocator.reports().remove_observer(second);
    /// # Ok::<(), seamalloc::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::HostMemory`](crate::Error::HostMemory), and the observer is dropped.
    pub fn add_observer(self, observer: Box<dyn Observer>) -> Result<ObserverId> {
        self.0.core.lock().heap.journal_mut().add_observer(observer)
    }

    /// Removes the observer of this id and returns it. Returns `None` if the observer was removed before, or panicked.
    /// The observer is not called after this call.
    pub fn remove_observer(self, id: ObserverId) -> Option<Box<dyn Observer>> {
        self.0.core.lock().heap.journal_mut().remove_observer(id)
    }

    /// Registers `observer` for all changes from now on, and returns the observer that it replaces: that of the
    /// previous call of this method. Observers of [`Self::add_observer`] stay.
    pub fn set_observer(self, observer: Option<Box<dyn Observer>>) -> Option<Box<dyn Observer>> {
        self.0.core.lock().heap.journal_mut().set_observer(observer)
    }

    /// Walks every table and checks every invariant. The check is slow, and meant for tests.
    ///
    /// # Errors
    /// The error text names the broken invariant and its place.
    pub fn check(self) -> std::result::Result<(), String> {
        self.0.core.lock().check()
    }
}
