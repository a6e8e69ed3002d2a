//! The allocator: one device, one lock, any number of threads and streams.
//!
//! Owns: the order of things in an operation, the lock, the limit, and the errors users see. A hit is here and in the
//! heap alone; a miss goes to the strategy.

use crate::blocks::BlockId;
use crate::config::Config;
use crate::deferred::Deferred;
use crate::driver::{Driver, StreamId};
use crate::error::{Error, OutOfMemory, Result};
use crate::heap::{FitRules, Heap, Pool, Request};
use crate::observer::{Action, Observer};
use crate::rounding::{MAX_REQUEST, round_size, segment_size};
use crate::snapshot::Snapshot;
use crate::stats::Stats;
use crate::strategy::{self, Ground, Miss, Strategy};
use parking_lot::Mutex;
use std::sync::Arc;

/// A caching allocator for the memory of one device.
///
/// Addresses are those of the device (`CUdeviceptr`). Memory freed on a stream is handed out again on that stream in
/// stream order, without waiting for the GPU; where other streams use a block, say so with
/// [`Allocator::record_stream`].
///
/// ```
/// use memquilt::{Allocator, Config, driver::{StreamId, sim::{SimConfig, SimGpu}}};
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
}

struct Core {
    heap: Heap,
    deferred: Deferred,
    driver: Arc<dyn Driver>,
    config: Config,
    rules: FitRules,
    limit: Option<u64>,
    strategy: Box<dyn Strategy>,
}

impl Allocator {
    /// An allocator that holds nothing yet. Makes no driver call.
    ///
    /// # Errors
    /// [`Error::Config`] for options outside of their range, [`Error::NoVirtualMemory`] where the device cannot do what
    /// the strategy needs.
    pub fn new(driver: Arc<dyn Driver>, config: Config) -> Result<Self> {
        let config = without_full_fraction(config.validated()?);
        let kind = config.strategy;
        let properties = driver.properties();
        if kind.needs_virtual_memory() && !properties.virtual_memory {
            return Err(Error::NoVirtualMemory { strategy: kind.name(), device: properties.name.clone() });
        }
        let limit = limit_of(&config, &*driver);
        let strategy = strategy::new(kind);
        let core = Core {
            heap: Heap::new(config.max_split_size.unwrap_or(u64::MAX)),
            deferred: Deferred::default(),
            driver: Arc::clone(&driver),
            rules: strategy.rules(&config),
            config,
            limit,
            strategy,
        };
        Ok(Self { core: Mutex::new(core), driver })
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
    /// [`Error::Driver`] where a driver call failed otherwise. Nothing has changed for live allocations.
    pub fn allocate(&self, size: u64, stream: StreamId) -> Result<u64> {
        if size == 0 {
            return Ok(0);
        }
        if size > MAX_REQUEST {
            return Err(Error::RequestTooLarge { size });
        }
        self.core.lock().allocate(size, stream)
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
        let id = core.heap.live(address)?;
        core.deferred.record_use(&mut core.heap, id, stream);
        core.checked()
    }

    /// Waits for freed blocks that other streams use, and gives back to the driver all free memory that can be: the
    /// bytes given back.
    ///
    /// # Errors
    /// [`Error::Driver`]; what was given back before the call that failed stays given back, and is accounted.
    pub fn empty_cache(&self) -> Result<u64> {
        let core = &mut *self.core.lock();
        let before = core.heap.reserved();
        core.timed(|strategy, ground| {
            ground.heap.counters.num_sync_all_streams += 1;
            ground.deferred.synchronize(ground.heap, ground.driver)?;
            strategy.release_cached(ground)?;
            Ok(())
        })?;
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
        core.limit = limit_of(&core.config, &*core.driver);
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
            host_bytes: core.heap.host_bytes() as u64,
            ..core.heap.counters.stats()
        }
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
        Snapshot { device: 0, segments: core.heap.segment_infos(), settings: core.config.to_string() }
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
        self.core.lock().heap.check()
    }
}

impl Core {
    fn allocate(&mut self, size: u64, stream: StreamId) -> Result<u64> {
        let rounded = round_size(size, &self.config.roundup_power2_divisions);
        let (pool, class) = self.heap.pool_for(stream, rounded);
        let request = Request { size: rounded, requested: size, pool, class };
        if !self.deferred.is_empty() {
            self.timed(|_, ground| Ok(ground.deferred.poll(ground.heap, ground.driver)?))?;
        }
        let mut id = self.heap.fit(&request, &self.rules);
        if id.is_none() {
            id = self.miss(&request)?;
        }
        let address = self.heap.hand_out(id, &request, &self.rules)?;
        self.checked()?;
        Ok(address)
    }

    #[cold]
    fn miss(&mut self, request: &Request) -> Result<BlockId> {
        let found = self.timed(|strategy, ground| match strategy.miss(ground, request) {
            Ok(id) => Ok(Some(id)),
            Err(Miss::OutOfMemory) => Ok(None),
            Err(Miss::Failed(error)) => Err(error),
        })?;
        found.ok_or_else(|| self.out_of_memory(request))
    }

    fn free(&mut self, address: u64) -> Result<()> {
        let id = self.heap.take_live(address)?;
        if self.heap.blocks[id].has_uses {
            let before = self.driver.busy_ns();
            let pending = self.deferred.record_events(&*self.driver, id).inspect_err(|_| self.heap.keep_live(id))?;
            self.heap.free_requested(id);
            self.deferred.defer(&mut self.heap, pending);
            self.heap.counters.stalls.add(self.driver.busy_ns().saturating_sub(before));
        } else {
            self.heap.free_requested(id);
            self.heap.free_completed(id);
        }
        self.checked()
    }

    /// Runs a step that calls the driver, and counts its time as a stall.
    fn timed<T>(&mut self, step: impl FnOnce(&mut dyn Strategy, &mut Ground<'_>) -> Result<T>) -> Result<T> {
        let before = self.driver.busy_ns();
        let mut ground = Ground {
            heap: &mut self.heap,
            deferred: &mut self.deferred,
            driver: &*self.driver,
            config: &self.config,
            limit: self.limit,
        };
        let result = step(&mut *self.strategy, &mut ground);
        self.heap.counters.stalls.add(self.driver.busy_ns().saturating_sub(before));
        result
    }

    #[cold]
    fn out_of_memory(&mut self, request: &Request) -> Error {
        self.heap.counters.num_ooms += 1;
        let info = self.driver.memory_info();
        let properties = self.driver.properties();
        let (device_free, device_total) = info.map_or((0, properties.total_memory), |info| (info.free, info.total));
        let heap = &mut self.heap;
        heap.emit(Action::Oom, device_free, request.size, request.pool);
        let own = &heap.pools[request.pool as usize];
        let free_of =
            |pool: &Pool| -> u64 { pool.free.in_order(&heap.blocks).into_iter().map(|id| heap.blocks[id].size).sum() };
        let report = OutOfMemory {
            device: properties.name.clone(),
            requested: request.requested,
            segment: segment_size(request.size, self.config.large_segment_size),
            device_total,
            device_free,
            limit: self.limit,
            reserved: heap.reserved(),
            allocated: heap.counters.allocated_bytes.current(),
            pending: heap.counters.active_bytes.current() - heap.counters.allocated_bytes.current(),
            largest_free: heap.blocks[own.free.largest(&heap.blocks)].size,
            free_on_other_streams: heap.pools.iter().filter(|pool| pool.stream != own.stream).map(free_of).sum(),
        };
        tracing::warn!(%report, "out of memory");
        Error::OutOfMemory(Box::new(report))
    }

    /// With the feature `paranoid` and in this crate's own tests, every operation ends with a full check.
    #[inline]
    fn checked(&self) -> Result<()> {
        if cfg!(any(feature = "paranoid", test))
            && let Err(broken) = self.heap.check()
        {
            tracing::error!(%broken, "an invariant is broken");
            return Err(Error::Internal("an invariant is broken; the log says which"));
        }
        Ok(())
    }
}

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
        let released = core.timed(|strategy, ground| {
            // Where the wait fails, what waits stays; all else can be given back.
            let waited = ground.deferred.synchronize(ground.heap, ground.driver);
            let released = strategy.release_cached(ground);
            strategy.close(ground);
            released?;
            Ok(waited?)
        });
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

/// The most bytes that may be held under these options, if limited.
fn limit_of(config: &Config, driver: &dyn Driver) -> Option<u64> {
    let total = driver.properties().total_memory as f64;
    config.memory_fraction.map(|fraction| (total * fraction) as u64)
}
