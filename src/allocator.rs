//! The allocator: one device, one lock, any number of threads and streams.
//!
//! Owns: the order of things in an operation, the lock, the limit, and the errors users see. A hit is here and in the
//! heap alone; a miss goes to the strategy.

mod checkpoint;
mod devices;
mod giving_back;
#[cfg(test)]
mod old_drivers;
mod private;
mod segmented;
mod sharing;
mod streams;
mod tide;

use self::tide::Tide;
use crate::blocks::{Block, BlockId};
use crate::config::{Config, Sharing, StrategyKind};
use crate::deferred::Deferred;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::fragmentation::Fragmentation;
use crate::heap::{FitRules, Heap, Request};
use crate::home::GRANULE;
use crate::ids::StreamId;
use crate::observer::{Action, Observer};
use crate::pressure::Callbacks;
use crate::rounding::{MAX_REQUEST, round_size};
use crate::shortage::Facts;
use crate::snapshot::Snapshot;
use crate::stats::Stats;
use crate::strategy::{self, Ground, Miss, Strategy};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// A caching allocator for the memory of one device.
///
/// Addresses are those of the device (`CUdeviceptr`). Memory freed on a stream is handed out again on that stream in
/// stream order, without waiting for the GPU; where other streams use a block, say so with
/// [`Allocator::record_stream`].
///
/// ```
/// use seamalloc::{Allocator, Config, driver::{StreamId, sim::{SimConfig, SimGpu}}};
/// use std::sync::Arc;
///
/// let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB")?)?);
/// let allocator = Allocator::new(gpu, Config::default())?;
/// let address = allocator.allocate(10 << 20, StreamId::DEFAULT)?;
/// allocator.free(address)?;
/// assert_eq!(allocator.stats().reserved_bytes.all.current, 10 << 20);
/// allocator.empty_cache()?;
/// assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Allocator {
    core: Mutex<Core>,
    driver: Arc<dyn Driver>,
    callbacks: Callbacks,
}

struct Core {
    heap: Heap,
    deferred: Deferred,
    driver: Arc<dyn Driver>,
    config: Config,
    rules: FitRules,
    limits: Limits,
    tide: Tide,
    /// Whether a request has more to look at than free blocks: frees that wait for other streams, or routes to private
    /// pools. One flag, for the hot path; it may stay set for one request too many.
    attends: bool,
    strategy: Box<dyn Strategy>,
    opened: sharing::Opened,
    /// Devices that were let to use the memory.
    peers: Vec<u32>,
}

/// The most bytes that may be held, where that is limited.
#[derive(Clone, Copy)]
struct Limits {
    by_fraction: Option<u64>,
    /// By that, or by `memory_limit`.
    lowest: Option<u64>,
}

impl Allocator {
    /// An allocator that holds nothing yet. Makes no driver call.
    ///
    /// # Errors
    /// [`Error::Config`] for options outside of their range, [`Error::NoVirtualMemory`] and [`Error::Granularity`] where the
    /// device cannot do what the strategy needs.
    pub fn new(driver: Arc<dyn Driver>, config: Config) -> Result<Self> {
        let config = without_full_fraction(config.validated()?);
        let kind = config.strategy;
        let properties = driver.properties();
        if kind.needs_virtual_memory() && !properties.virtual_memory {
            return Err(Error::NoVirtualMemory { strategy: kind.name(), device: properties.name.clone() });
        }
        if kind.needs_virtual_memory() && !GRANULE.is_multiple_of(properties.granularity) {
            let (device, granularity) = (properties.name.clone(), properties.granularity);
            return Err(Error::Granularity { device, granularity });
        }
        let limits = limits_of(&config, &*driver);
        let strategy = strategy::new(kind);
        let mut heap = Heap::new(config.max_split_size.unwrap_or(u64::MAX));
        heap.adopts_idle = config.sharing != Sharing::Completed;
        heap.home_is_shared = config.strategy == StrategyKind::Stitch;
        let core = Core {
            heap,
            deferred: Deferred::default(),
            driver: Arc::clone(&driver),
            rules: strategy.rules(&config),
            config,
            limits,
            tide: Tide::default(),
            attends: false,
            strategy,
            opened: sharing::Opened::default(),
            peers: Vec::new(),
        };
        Ok(Self { core: Mutex::new(core), driver, callbacks: Callbacks::default() })
    }

    /// The device it allocates on.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// The options in force.
    #[must_use]
    pub fn config(&self) -> Config {
        self.core.lock().config.clone()
    }

    /// `size` bytes for work on `stream`, at an address that is a multiple of 512. 0 bytes get address 0, which
    /// [`Allocator::free`] takes back without doing anything.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with a report after everything that could be given back was; [`Error::RequestTooLarge`];
    /// [`Error::Driver`] where a driver call failed otherwise; [`Error::Source`] where the source of a private pool did, to
    /// which the request was routed. Nothing has changed for live allocations.
    pub fn allocate(&self, size: u64, stream: StreamId) -> Result<u64> {
        if size == 0 {
            return Ok(0);
        }
        if size > MAX_REQUEST {
            return Err(Error::RequestTooLarge { size });
        }
        self.allocate_locked(&mut self.core.lock(), size, stream)
    }

    fn allocate_locked(&self, guard: &mut MutexGuard<'_, Core>, size: u64, stream: StreamId) -> Result<u64> {
        let core = &mut **guard;
        if core.attends
            && let Some(pool) = core.attend(stream)?
        {
            return self.allocate_privately(guard, pool, size, stream);
        }
        let rounded = round_size(size, &core.config.roundup_power2_divisions);
        let (pool, class) = match core.heap.pool_for(stream, rounded) {
            Some(known) => known,
            None => core.meet(stream, rounded)?,
        };
        let request = Request { size: rounded, requested: size, pool, class };
        let mut id = core.heap.fit(&request, &core.rules);
        if id.is_none() {
            id = self.miss(guard, &request)?;
        } else if core.heap.is_bare(id, request.size) {
            core.map_home(id, &request)?;
        }
        let core = &mut **guard;
        let address = core.heap.hand_out(id, &request, &core.rules)?;
        core.checked()?;
        Ok(address)
    }

    /// Frees an allocation. Its memory serves later requests of its stream at once; where other streams were named
    /// with [`Allocator::record_stream`], once they have passed this point.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`] if no live allocation starts there; [`Error::Driver`] where an event could not be
    /// recorded, and the allocation stays live.
    pub fn free(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        self.core.lock().free(address)
    }

    /// As [`Self::free`], for a program that names the stream of the last use, as CUDA's stream-ordered frees do: where
    /// that is not the stream of the allocation, its memory waits for both.
    ///
    /// # Errors
    /// As [`Self::free`].
    pub fn free_on(&self, address: u64, stream: StreamId) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let core = &mut *self.core.lock();
        let stream = core.driver.canonical_stream(stream)?;
        let id = core.heap.take_live(address)?;
        core.deferred.record_use(&mut core.heap, id, stream);
        core.free_taken(id)
    }

    /// As [`Self::free`], for a program that has a current stream, as PyTorch's: work on it may use the allocation although
    /// nobody named it with [`Self::record_stream`]. The memory serves its own stream at once, as there. Other streams, and the
    /// driver, get it once `stream` too has passed all that it was given so far.
    ///
    /// PyTorch's own allocator never passes memory from one stream to another, so a program may free a tensor under the
    /// stream that used it, and be right as long as the tensor's own stream asks for nothing meanwhile.
    ///
    /// With the strategy `expandable`, and while a stream is being captured, when no event can be recorded, the memory waits
    /// for both streams, as by [`Self::free_on`].
    ///
    /// # Errors
    /// As [`Self::free`].
    pub fn free_under(&self, address: u64, stream: StreamId) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let core = &mut *self.core.lock();
        let id = core.heap.take_live(address)?;
        let of = &core.heap.pools[(core.heap.blocks[id].pool & !1) as usize];
        // A handle that has ended is another stream's now.
        if (of.stream != stream || of.ended)
            && let Err(error) = core.note_freed_under(id, stream)
        {
            core.heap.keep_live(id);
            return Err(error);
        }
        core.free_taken(id)
    }

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
        core.deferred.record_use(&mut core.heap, id, stream);
        core.checked()
    }

    /// Waits for freed blocks that other streams use, and gives back to the driver all free memory that can be: the
    /// bytes given back. Memory of private pools that were not released stays. During a stream capture, when nothing can
    /// be waited for, it does nothing.
    ///
    /// # Errors
    /// [`Error::Driver`]; what was given back before the call that failed stays given back, and is accounted.
    /// [`Error::Source`] where a source did not take its own back; all else was given back.
    pub fn empty_cache(&self) -> Result<u64> {
        let core = &mut *self.core.lock();
        if core.heap.private.capturing() {
            return Ok(0);
        }
        let before = core.heap.reserved();
        core.timed(|strategy, ground| {
            ground.heap.counters.num_sync_all_streams += 1;
            ground.deferred.synchronize(ground.heap, ground.driver)?;
            let failed = ground.reclaim()?;
            strategy.release_cached(ground)?;
            failed.map_or(Ok(()), Err)
        })?;
        core.close_shared()?;
        core.checked()?;
        Ok(before.saturating_sub(core.heap.reserved()))
    }

    /// Limits what the allocator may hold to a part (0 to 1) of the device's memory; 1 lifts the limit. What is held
    /// already is not given back.
    ///
    /// # Errors
    /// [`Error::Config`] outside of 0 to 1.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<()> {
        let core = &mut *self.core.lock();
        let config = Config { memory_fraction: Some(fraction), ..core.config.clone() };
        core.config = without_full_fraction(config.validated()?);
        core.limits = limits_of(&core.config, &*core.driver);
        core.rules = core.strategy.rules(&core.config);
        Ok(())
    }

    /// The address and size in bytes of the live allocation that starts at `address`, rounding included.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`] if no live allocation starts there.
    pub fn size_of(&self, address: u64) -> Result<u64> {
        let core = self.core.lock();
        Ok(core.heap.blocks[core.heap.live(address)?].size)
    }

    /// What was done so far and is held now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let core = self.core.lock();
        Stats {
            max_split_size: core.config.max_split_size,
            host_bytes: (core.heap.host_bytes() + core.deferred.host_bytes()) as u64,
            view_mappings: core.heap.views.mappings() as u64,
            views: core.heap.views.count() as u64,
            view_address_space_bytes: core.heap.views.address_space(),
            ..core.heap.counters.stats()
        }
    }

    /// Bytes held of the driver: `stats().reserved_bytes.all.current`, without the copy of all else.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.core.lock().heap.reserved()
    }

    /// How the memory is divided up now: what is free for whom, and how much of it one request could have. Walks over all
    /// free ranges under the lock, and makes no driver call.
    #[must_use]
    pub fn fragmentation(&self) -> Fragmentation {
        let core = self.core.lock();
        let sharing = core.strategy.sharing(&core.config);
        core.heap.measure(sharing, |pool| core.strategy.reach(&core.heap, &core.config, pool, sharing == Sharing::Wait))
    }

    /// Sets every peak to the present value.
    pub fn reset_peak_stats(&self) {
        self.core.lock().heap.counters.reset_peak();
    }

    /// Sets every accumulated figure to 0.
    pub fn reset_accumulated_stats(&self) {
        self.core.lock().heap.counters.reset_accumulated();
    }

    /// Segments and blocks, as they are now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let core = self.core.lock();
        let device = self.driver.properties().ordinal;
        Snapshot { device, segments: core.heap.segment_infos(), settings: core.config.to_string() }
    }

    /// From now on `observer` is told of everything that changes; the one before is returned.
    pub fn observe(&self, observer: Option<Box<dyn Observer>>) -> Option<Box<dyn Observer>> {
        std::mem::replace(&mut self.core.lock().heap.observer, observer)
    }

    /// Walks every table and checks every rule that always holds: for tests, slow.
    ///
    /// # Errors
    /// Says which rule is broken, and where.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.core.lock().check()
    }
}

impl Core {
    /// A hit found memory at home that is not mapped there yet.
    #[cold]
    fn map_home(&mut self, id: BlockId, request: &Request) -> Result<()> {
        self.heap.counters.views_refused = None;
        let mapped = self.timed(|strategy, ground| strategy.map_home(ground, id, request.size));
        mapped.map_err(|miss| {
            self.heap.index(id);
            match miss {
                Miss::OutOfMemory => self.out_of_memory(request),
                Miss::Failed(error) => error,
            }
        })
    }

    fn free(&mut self, address: u64) -> Result<()> {
        let id = self.heap.take_live(address)?;
        self.free_taken(id)
    }

    #[inline]
    fn free_taken(&mut self, id: BlockId) -> Result<()> {
        let Block { size, pool, .. } = self.heap.blocks[id];
        if self.heap.blocks[id].has_uses {
            self.free_used(id)?;
        } else {
            self.heap.free_requested(id);
            self.heap.free_completed(id);
        }
        if self.tide.has_ebbed(size, &self.heap) {
            self.ebb();
        }
        let freed = &mut self.heap.pools[(pool & !1) as usize].freed_bytes;
        *freed += size;
        if *freed > LONG_EPOCH.max(self.heap.reserved() / EPOCHS) {
            self.freed_much(pool & !1);
        }
        self.checked()
    }

    #[cold]
    fn freed_much(&mut self, large: u32) {
        self.heap.pools[large as usize].freed_bytes = 0;
        if let Err(error) = self.timed(|strategy, ground| strategy.freed_much(ground, large)) {
            tracing::warn!(%error, "an epoch could not be ended");
        }
    }

    #[cold]
    fn ebb(&mut self) {
        // The block is free whether or not this works.
        if let Err(error) = self.timed(|strategy, ground| strategy.ebb(ground)) {
            tracing::warn!(%error, "freed memory could not be gathered");
        }
    }

    /// Runs a step that calls the driver, and counts its time as a stall.
    fn timed<T>(&mut self, step: impl FnOnce(&mut dyn Strategy, &mut Ground<'_>) -> T) -> T {
        let before = self.driver.busy_ns();
        let mut ground = Ground {
            heap: &mut self.heap,
            deferred: &mut self.deferred,
            driver: &*self.driver,
            config: &self.config,
            limit: self.limits.lowest,
            fraction_limit: self.limits.by_fraction,
        };
        let result = step(&mut *self.strategy, &mut ground);
        self.heap.counters.stalls.add(self.driver.busy_ns().saturating_sub(before));
        result
    }

    #[cold]
    fn out_of_memory(&mut self, request: &Request) -> Error {
        self.heap.counters.num_ooms += 1;
        let device = self.driver.memory_info().ok();
        self.heap.emit(Action::Oom, device.map_or(0, |info| info.free), request.size, request.pool);
        let facts = Facts {
            heap: &self.heap,
            strategy: &*self.strategy,
            config: &self.config,
            limit: self.limits.lowest,
            fraction_limit: self.limits.by_fraction,
            properties: self.driver.properties(),
            device,
            request,
        };
        let report = facts.report();
        tracing::warn!(%report, "out of memory");
        Error::OutOfMemory(Box::new(report))
    }

    fn check(&self) -> std::result::Result<(), String> {
        self.heap.check()?;
        self.strategy.check(&self.heap)
    }

    /// With the feature `paranoid` and in this crate's own tests, every operation ends with a full check.
    #[inline]
    fn checked(&self) -> Result<()> {
        if cfg!(any(feature = "paranoid", test))
            && let Err(broken) = self.check()
        {
            tracing::error!(%broken, "an invariant is broken");
            return Err(Error::Internal("an invariant is broken; the log says which"));
        }
        Ok(())
    }
}

/// An epoch of a stream ends once this part of what is reserved was freed in it, and never before this many bytes were.
/// An event costs a quarter of a microsecond.
const EPOCHS: u64 = 16;
const LONG_EPOCH: u64 = 32 << 20;

/// Gives every event and every free segment back. Blocks that are still live stay with the driver: freeing memory that
/// a program may still use is worse than a leak.
impl Drop for Allocator {
    fn drop(&mut self) {
        let core = self.core.get_mut();
        let live = core.heap.counters.allocation.current();
        if live > 0 {
            let bytes = core.heap.counters.allocated_bytes.current();
            tracing::warn!(live, bytes, "an allocator is dropped while allocations of it are live; their memory leaks");
        }
        core.leave_shared();
        if core.heap.private.capturing() {
            tracing::warn!("an allocator is dropped while a stream is being captured; all its memory leaks");
            core.timed(|strategy, ground| strategy.close(ground));
            core.heap.private.leak_sources();
            core.deferred.destroy_events(&*core.driver);
            return;
        }
        core.close_private();
        let released = core.timed(|strategy, ground| {
            // Where the wait fails, what waits stays; all else can be given back.
            let waited = ground.deferred.synchronize(ground.heap, ground.driver).map_err(Error::from);
            let reclaimed = waited.and_then(|()| ground.reclaim()?.map_or(Ok(()), Err));
            let released = strategy.release_cached(ground);
            strategy.close(ground);
            reclaimed.and(Ok(released?))
        });
        core.heap.private.leak_sources();
        if let Err(error) = released {
            tracing::warn!(%error, "memory could not be given back");
        }
        core.deferred.destroy_events(&*core.driver);
    }
}

/// A fraction of 1 is no limit: as in PyTorch, with it nothing is counted against the device's size, and no garbage is
/// collected.
fn without_full_fraction(config: Config) -> Config {
    Config { memory_fraction: config.memory_fraction.filter(|fraction| *fraction < 1.0), ..config }
}

/// The most bytes that may be held under these options.
fn limits_of(config: &Config, driver: &dyn Driver) -> Limits {
    let total = driver.properties().total_memory as f64;
    let by_fraction = config.memory_fraction.map(|fraction| (total * fraction) as u64);
    Limits { by_fraction, lowest: by_fraction.into_iter().chain(config.memory_limit).min() }
}
