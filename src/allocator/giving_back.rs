//! Memory goes back to the driver, and programs are asked for theirs.
//!
//! Owns: `trim`, the limit in bytes, the callbacks for memory pressure, and the order of the last steps of a miss.

use super::{Allocator, Core, limits_of};
use crate::blocks::BlockId;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::heap::Request;
use crate::pressure::{CallbackId, MemoryPressure};
use crate::strategy::{Miss, segmented};
use parking_lot::MutexGuard;
use std::sync::Arc;

impl Allocator {
    /// Gives free memory back to the driver until `bytes` were given back, and hardly more: the bytes given back. Fewer
    /// only where not as much is free.
    ///
    /// Bytes are physical ones, and go in whole pieces: with `caching` segments of which nothing is in use, with
    /// `expandable` the units of its segments (2 or 20 MiB), with `gmlake` primitive blocks that are not split, with
    /// `stitch` chunks (2 MiB or a multiple). None of the pieces could have been kept. What fits best is chosen; of what
    /// fits as well, what lay unused longest.
    ///
    /// Where what the GPU has passed suffices, nothing is waited for (but with `caching`, whose `cudaFree` waits by
    /// itself); otherwise the CPU waits for the streams. Memory of private pools that were not released stays, and during a
    /// stream capture, when nothing can be waited for, nothing is given back. The memory that goes may serve a request again only by being
    /// taken from the driver anew, which costs time.
    ///
    /// # Errors
    /// [`Error::Driver`]; what was given back before the call that failed stays given back, and is accounted.
    /// [`Error::Source`] where the source of a private pool that has ended did not take its own back; all else was given back.
    ///
    /// ```
    /// # use seamalloc::{Allocator, Config, driver::{StreamId, sim::{SimConfig, SimGpu}}};
    /// # use std::sync::Arc;
    /// # let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200")?)?);
    /// let allocator = Allocator::new(gpu, Config::parse("strategy:stitch")?)?;
    /// let address = allocator.allocate(96 << 20, StreamId::DEFAULT)?;
    /// allocator.free(address)?;
    /// let given = allocator.trim(30 << 20)?;
    /// assert!(given >= 30 << 20 && given < 96 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim(&self, bytes: u64) -> Result<u64> {
        let core = &mut *self.core.lock();
        let down_to = core.heap.reserved().saturating_sub(bytes);
        core.trim(down_to)
    }

    /// Limits the physical bytes that the allocator may hold at any moment; `None` lifts the limit. Where
    /// [`Allocator::set_memory_fraction`] allows less, that counts. Free memory beyond the new limit is given back, as by
    /// [`Allocator::trim`]; what is in use beyond it stays, and nothing is taken until enough was freed.
    ///
    /// # Errors
    /// [`Error::Driver`], [`Error::Source`] where memory could not be given back; the limit is in force all the same.
    pub fn set_memory_limit(&self, bytes: Option<u64>) -> Result<()> {
        let core = &mut *self.core.lock();
        core.config = Config { memory_limit: bytes, ..core.config.clone() };
        core.limits = limits_of(&core.config, &*core.driver);
        let limit = bytes.unwrap_or(u64::MAX);
        if core.heap.reserved() > limit {
            core.trim(limit)?;
        }
        Ok(())
    }

    /// From now on `callback` is called when a request finds too little memory, before the CPU waits for the GPU and
    /// cached memory is given back for it: it may free what the program can do without. After each callback that answers
    /// `true` (it freed something) the request is tried again, and the next is called only if that did not help; they are
    /// called in the order in which they were added. In PyTorch these are the `FreeMemoryCallback`s of
    /// `FreeCudaMemoryCallbacksRegistry`.
    ///
    /// The thread whose request it is calls it, without any lock of the allocator: it may call every method of the
    /// allocator. A request that it makes itself is refused without callbacks if memory is short. It may be called by
    /// several threads at once, and may still run on another thread when it is removed. One that panics is removed,
    /// and the request goes on. It should not own the allocator ([`std::sync::Weak`] will do), which would then never be
    /// dropped.
    ///
    /// ```
    /// # use seamalloc::{Allocator, Config, driver::{StreamId, sim::{SimConfig, SimGpu}}};
    /// # use std::sync::{Arc, Mutex};
    /// # let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB")?)?);
    /// let allocator = Arc::new(Allocator::new(gpu, Config::default())?);
    /// let cache = Mutex::new(vec![allocator.allocate(600 << 20, StreamId::DEFAULT)?]);
    /// let weak = Arc::downgrade(&allocator);
    /// allocator.on_memory_pressure(move |_| {
    ///     let Some(allocator) = weak.upgrade() else { return false };
    ///     let entry = cache.lock().ok().and_then(|mut cache| cache.pop());
    ///     entry.is_some_and(|address| allocator.free(address).is_ok())
    /// });
    /// allocator.allocate(700 << 20, StreamId::DEFAULT)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_memory_pressure(&self, callback: impl Fn(&MemoryPressure) -> bool + Send + Sync + 'static) -> CallbackId {
        self.callbacks.add(Arc::new(callback))
    }

    /// Removes a callback. `false` if it was removed already, or panicked.
    pub fn remove_memory_callback(&self, callback: CallbackId) -> bool {
        self.callbacks.remove(callback)
    }

    /// A block for a request that no free block fits: by the strategy, then by callbacks, then by the last resort.
    #[cold]
    pub(super) fn miss(&self, core: &mut MutexGuard<'_, Core>, request: &Request) -> Result<BlockId> {
        if let Some(id) = core.ask(request)? {
            return Ok(id);
        }
        let Some(mut calls) = self.callbacks.begin() else {
            return core.miss(request, true)?.ok_or_else(|| core.out_of_memory(request));
        };
        if let Some(id) = core.miss(request, false)? {
            return Ok(id);
        }
        let pressure = core.pressure(request);
        while let Some(freed) = MutexGuard::unlocked(core, || calls.next(&pressure)) {
            if freed && let Some(id) = core.retry(request, false)? {
                return Ok(id);
            }
        }
        // Other threads have had the lock meanwhile.
        core.retry(request, true)?.ok_or_else(|| core.out_of_memory(request))
    }
}

impl Core {
    /// What the strategy finds; by all means, or only by those that cost other requests nothing. `None` is too little
    /// memory.
    pub(super) fn miss(&mut self, request: &Request, by_all_means: bool) -> Result<Option<BlockId>> {
        self.heap.counters.views_refused = None;
        let found = self.timed(|strategy, ground| {
            if ground.heap.is_segmented(request.pool) {
                return segmented::miss(strategy, ground, request, by_all_means);
            }
            match strategy.miss(ground, request) {
                Err(Miss::OutOfMemory) if by_all_means => {
                    ground.reclaim()?;
                    strategy.last_resort(ground, request)
                }
                found => found,
            }
        });
        match found {
            Ok(id) => Ok(Some(id)),
            Err(Miss::OutOfMemory) => Ok(None),
            Err(Miss::Failed(error)) => Err(error),
        }
    }

    /// Frees what other streams have passed, where that was not asked before the request: whether it fits now.
    fn ask(&mut self, request: &Request) -> Result<Option<BlockId>> {
        if self.rules.asks_first || self.deferred.waiting() == 0 {
            return Ok(None);
        }
        self.poll()?;
        let id = self.heap.fit(request, &self.rules);
        if id.is_none() { Ok(None) } else { self.usable(id, request).map(Some) }
    }

    /// The request again, from the start.
    fn retry(&mut self, request: &Request, by_all_means: bool) -> Result<Option<BlockId>> {
        self.poll()?;
        let id = self.heap.fit(request, &self.rules);
        if id.is_none() {
            return self.miss(request, by_all_means);
        }
        self.usable(id, request).map(Some)
    }

    /// A free block that was found, with memory at its addresses.
    fn usable(&mut self, id: BlockId, request: &Request) -> Result<BlockId> {
        if self.heap.is_bare(id, request.size) {
            self.map_home(id, request)?;
        }
        Ok(id)
    }

    /// Gives memory back until no more than `down_to` bytes are held: the bytes given back.
    fn trim(&mut self, down_to: u64) -> Result<u64> {
        if self.heap.private.capturing() {
            return Ok(0);
        }
        let before = self.heap.reserved();
        self.timed(|strategy, ground| {
            ground.deferred.poll(ground.heap, ground.driver)?;
            if !strategy.trim(ground, down_to, false)? {
                ground.heap.counters.num_sync_all_streams += 1;
                ground.deferred.synchronize(ground.heap, ground.driver)?;
                let failed = ground.reclaim()?;
                strategy.trim(ground, down_to, true)?;
                return failed.map_or(Ok(()), Err);
            }
            Ok::<_, Error>(())
        })?;
        self.checked()?;
        Ok(before.saturating_sub(self.heap.reserved()))
    }

    pub(super) fn pressure(&self, request: &Request) -> MemoryPressure {
        MemoryPressure {
            requested: request.requested,
            stream: self.heap.pools[request.pool as usize].stream,
            reserved: self.heap.reserved(),
            allocated: self.heap.counters.allocated_bytes.current(),
            limit: self.limits.lowest,
        }
    }
}
