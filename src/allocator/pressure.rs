//! Asks programs to free memory before a request is refused.

use super::core::Core;
use super::operations::MemoryLimits;
use super::search::Search;
use crate::error::Result;
use crate::features::pressure::CallbackId;
use crate::heap::Request;
use crate::ids::BlockId;
use crate::report::pressure::MemoryPressure;
use crate::strategy::Means;
use parking_lot::MutexGuard;
use std::sync::Arc;

impl MemoryLimits<'_> {
    /// Registers `callback` for requests that find too little memory. The allocator calls it before the CPU waits for
    /// the GPU, and before cached memory is given back: the callback may free memory that the program can do without.
    /// Callbacks are called in the order in which they were added. After each callback that returns `true` (it freed
    /// memory) the request is tried again, and the next callback runs only if that failed. In PyTorch these are the
    /// `FreeMemoryCallback`s of `FreeCudaMemoryCallbacksRegistry`.
    ///
    /// The thread that makes the request calls `callback` without any lock of the allocator: the callback may call
    /// every method of the allocator. A request that a callback itself makes calls no callbacks. Several threads may
    /// call `callback` at the same time, and it may still be running on another thread when it is removed. A callback
    /// that panics is removed, and the request goes on. The callback should hold the allocator by [`std::sync::Weak`]:
    /// an allocator that its own callback owns would never be dropped.
    ///
    /// ```
    /// # use seamalloc::{Allocator, Config, driver::{StreamId, sim::{SimConfig, SimGpu}}};
    /// # use std::sync::{Arc, Mutex};
    /// # let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB")?)?);
    /// let allocator = Arc::new(Allocator::new(gpu, Config::default())?);
    /// let cache = Mutex::new(vec![allocator.allocate(600 << 20, StreamId::DEFAULT)?]);
    /// let weak = Arc::downgrade(&allocator);
    /// allocator.limits().on_pressure(move |_| {
    ///     let Some(allocator) = weak.upgrade() else { return false };
    ///     let entry = cache.lock().ok().and_then(|mut cache| cache.pop());
    ///     entry.is_some_and(|address| allocator.free(address).is_ok())
    /// });
    /// allocator.allocate(700 << 20, StreamId::DEFAULT)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_pressure(self, callback: impl Fn(&MemoryPressure) -> bool + Send + Sync + 'static) -> CallbackId {
        self.0.callbacks.add(Arc::new(callback))
    }

    /// Removes a callback. Returns `false` if the callback was removed already, or panicked.
    pub fn remove_callback(self, callback: CallbackId) -> bool {
        self.0.callbacks.remove(callback)
    }
}

/// Asks the program for memory, if the strategy finds none by cheap means, and retries after each callback that freed
/// memory.
pub(super) fn call_back(search: &mut Search<'_, '_>) -> Result<Option<BlockId>> {
    let Some(mut calls) = search.allocator.callbacks.begin()? else { return Ok(None) };
    if let Some(id) = search.ask(Means::Cheap)? {
        return Ok(Some(id));
    }
    let pressure = search.core.pressure(&search.prepared.request);
    while let Some(freed) = MutexGuard::unlocked(search.core, || calls.next(&pressure)) {
        if freed && let Some(id) = search.retry(Means::Cheap)? {
            return Ok(Some(id));
        }
    }
    // During a callback the lock was not held, so other threads may have freed memory.
    search.fit_again()
}

impl Core {
    /// Returns the information about a request that a callback gets.
    pub(super) fn pressure(&self, request: &Request) -> MemoryPressure {
        let mut pressure = MemoryPressure::new(request.requested, self.heap.pool(request.pool).stream);
        pressure.reserved = self.heap.reserved();
        pressure.allocated = self.heap.counters().allocated_bytes.current();
        pressure.limit = self.limits.lowest();
        pressure
    }
}
