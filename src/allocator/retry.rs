//! A request that would be refused waits for memory that others give back: other threads, other processes, callbacks.
//!
//! Owns: how long such a request waits, and when it is tried again. The lock is not held meanwhile.

use super::search::Search;
use crate::error::Result;
use crate::ids::BlockId;
use crate::strategy::Means;
use parking_lot::MutexGuard;
use std::thread;
use std::time::{Duration, Instant};

/// The time that the thread sleeps before it looks for frees of this process.
const TICK: Duration = Duration::from_millis(1);

/// The number of looks for frees of this process after which the driver is asked for the device's free memory, since
/// other processes do not report their frees.
const LOOKS_PER_QUESTION: u32 = 10;

/// The figures by which a request sees that memory may have become free.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// Allocations and frees so far.
    operations: u64,
    /// Free bytes of the device; 0 if the driver does not report them.
    free: u64,
}

impl Seen {
    fn now(search: &Search<'_, '_>) -> Self {
        let free = search.allocator.driver.memory_info().map_or(0, |info| info.free);
        Self { operations: operations(search), free }
    }
}

/// Tries the request again whenever memory may have become free, for as long as the option `retry_ms` says. During a
/// capture the request is not tried again, because a thread that could free memory may be waiting for a lock that this
/// thread holds.
pub(super) fn retry(search: &mut Search<'_, '_>) -> Result<Option<BlockId>> {
    let patience = Duration::from_millis(search.core.config.retry_ms);
    // No wait makes room for more than the device has, or a limit allows.
    let core = &*search.core;
    let most = core.limits.lowest().unwrap_or(u64::MAX).min(core.driver.properties().total_memory);
    if patience.is_zero() || search.prepared.request.size > most {
        return Ok(None);
    }
    let Some(until) = Instant::now().checked_add(patience) else { return Ok(None) };
    let mut seen = Seen::now(search);
    let mut looks = 0;
    while Instant::now() < until && !search.core.capturing() {
        MutexGuard::unlocked(search.core, || thread::sleep(TICK));
        looks += 1;
        let asks = looks % LOOKS_PER_QUESTION == 0;
        let now = if asks { Seen::now(search) } else { Seen { operations: operations(search), ..seen } };
        if now == seen {
            continue;
        }
        if let Some(id) = search.retry(Means::All)? {
            return Ok(Some(id));
        }
        seen = Seen::now(search);
    }
    Ok(None)
}

/// Returns the number of allocations and frees so far.
fn operations(search: &Search<'_, '_>) -> u64 {
    search.core.heap.counters().operations()
}
