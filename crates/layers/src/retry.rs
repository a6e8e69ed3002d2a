//! A layer in which a request that finds too little memory waits for frees of other threads.
//!
//! Owns: who waits, and who tries next. The rule is that of Paddle's `RetryAllocator` (`retry_allocator.cc` lines 34 to
//! 92, commit 10ceeef: wait on a condition variable that every free wakes, try again, and once more when the time is
//! over). In addition, requests take turns.
//!
//! # Note: turns
//!
//! **Rationale.** Where a free wakes all waiting threads, chance decides which of them gets the memory. A thread that
//! frees and allocates in turns takes its memory back before a woken thread runs, so that the woken thread may wait
//! until its time is over.
//!
//! **Approach.** Frees are counted. Each waiting request remembers the count at its last try. The request tries again
//! when the count is higher, and all requests that have waited longer have tried at this count and failed. So memory
//! that a free makes available is offered to the waiting requests in the order in which they came. A new request first
//! lets the waiting requests try, for [`GIVE_WAY`] at most; then it makes its own first try as if no request waited.
//!
//! **Limitations.** Any try that is under way at a free may take the freed memory. Memory is not saved up for a large
//! request: smaller requests that can be served are served first. Otherwise a thread that needs a little memory before
//! it can free much would wait for the large request, which may wait for this free. A thread that is in a try may make
//! a further request, in a [`FailureCallback`](crate::FailureCallback) below. This request does not wait.
//!
//! The allocator's own wait before a refusal (docs/decisions/0044-waiting-for-the-oldest.md, option `wait_ms`) is for
//! memory that was freed and that the GPU still uses. That wait comes before the wait of this layer.

use crate::contract::{Layer, MemoryResource};
use crate::error::{ResourceError, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use seamalloc::RawBlock;
use seamalloc::StreamId;
use seamalloc_driver::fallible::TryPush;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// The longest time for which a new request lets waiting requests try first.
pub const GIVE_WAY: Duration = Duration::from_millis(50);

/// The time that a request waits in Paddle (`FLAGS_gpu_allocator_retry_time`), in milliseconds.
pub const PADDLE_RETRY_TIME_MS: u64 = 10_000;

/// A request that waits.
#[derive(Debug)]
struct Waiter {
    ticket: u64,
    thread: ThreadId,
    /// The count of frees at the request's last try.
    tried: u64,
    /// Whether the request is trying now.
    tries: bool,
}

#[derive(Debug, Default)]
struct Queue {
    /// The waiting requests, the oldest first.
    waiters: Vec<Waiter>,
    next_ticket: u64,
    figures: RetryFigures,
}

/// The figures of a [`Retry`] layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryFigures {
    /// Requests that waited.
    pub waited: u64,
    /// The part of `waited` that was served.
    pub served: u64,
    /// The part of `waited` whose time was over, and whose last try failed too.
    pub timed_out: u64,
    /// Tries of waiting requests, without the first try of each.
    pub tries: u64,
}

/// Makes requests that find too little memory wait for frees.
#[derive(Debug)]
pub struct Retry<R> {
    upstream: R,
    time: Duration,
    /// The number of blocks freed through the layer.
    frees: AtomicU64,
    /// The number of requests that wait. The number is written under the lock.
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
    /// Signals a free, or the end of a try or of a wait.
    changed: Condvar,
}

impl<R: MemoryResource> Retry<R> {
    /// Makes a layer in which a request waits up to `retry_time_ms` milliseconds. With 0 no request waits.
    pub fn new(upstream: R, retry_time_ms: u64) -> Self {
        Self {
            upstream,
            time: Duration::from_millis(retry_time_ms),
            frees: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            queue: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Returns the figures of the layer.
    pub fn figures(&self) -> RetryFigures {
        self.queue.lock().figures
    }

    /// Returns how many requests wait at this moment.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Counts a free, and wakes the waiting requests.
    fn freed(&self) {
        self.frees.fetch_add(1, Ordering::SeqCst);
        if self.waiting() > 0 {
            // A request holds the lock from its check of the count until it waits. Taking the lock here ensures that
            // such a request does not miss the signal.
            drop(self.queue.lock());
            self.changed.notify_all();
        }
    }

    /// Lets waiting requests try for freed memory, before a new request tries.
    #[cold]
    fn give_way(&self, stream: StreamId) {
        let mut queue = self.queue.lock();
        let frees = self.frees.load(Ordering::SeqCst);
        let thread = thread::current().id();
        let newest = queue.next_ticket;
        let behind = |queue: &Queue| {
            queue.waiters.iter().any(|of| of.ticket < newest && (of.tries || of.tried < frees))
                && queue.waiters.iter().all(|of| of.thread != thread)
        };
        if !behind(&queue) || !self.may_wait(stream) {
            return;
        }
        let until = Instant::now() + GIVE_WAY;
        while behind(&queue) && !self.changed.wait_until(&mut queue, until).timed_out() {}
    }

    /// Returns whether a request may wait: not while its stream is known to be captured.
    fn may_wait(&self, stream: StreamId) -> bool {
        !self.time.is_zero() && matches!(self.upstream.is_capturing(stream), Ok(false))
    }

    /// Waits for a request's turn and tries, until the request is served, fails with another error, or its time is
    /// over.
    #[cold]
    fn wait(&self, size: u64, stream: StreamId, tried: u64, refused: ResourceError) -> Result<RawBlock> {
        let until = Instant::now().checked_add(self.time);
        let Some(mut place) = self.enter(tried)? else { return Err(refused) };
        loop {
            let in_time = place.wait_for_turn(until);
            match place.try_now(|| self.upstream.allocate(size, stream)) {
                Ok(block) => {
                    place.figures().served += 1;
                    return Ok(block);
                }
                Err(error) if !error.is_out_of_memory() => return Err(error),
                Err(error) if !in_time => {
                    place.figures().timed_out += 1;
                    return Err(error);
                }
                Err(_) => {}
            }
        }
    }

    /// Adds a waiting request after all others. Returns `None` if this thread is trying already.
    fn enter(&self, tried: u64) -> Result<Option<Place<'_, R>>> {
        let mut queue = self.queue.lock();
        let thread = thread::current().id();
        if queue.waiters.iter().any(|of| of.thread == thread) {
            return Ok(None);
        }
        let ticket = queue.next_ticket;
        queue.waiters.try_push(Waiter { ticket, thread, tried, tries: false })?;
        queue.next_ticket += 1;
        queue.figures.waited += 1;
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Ok(Some(Place { of: self, ticket, queue: Some(queue) }))
    }
}

/// The place of a request in the queue. The place holds the lock, except in a try.
struct Place<'a, R> {
    of: &'a Retry<R>,
    ticket: u64,
    queue: Option<MutexGuard<'a, Queue>>,
}

impl<'a, R> Place<'a, R> {
    fn queue(&mut self) -> &mut MutexGuard<'a, Queue> {
        let of = self.of;
        self.queue.get_or_insert_with(|| of.queue.lock())
    }

    fn figures(&mut self) -> &mut RetryFigures {
        &mut self.queue().figures
    }

    /// Waits until the request may try, or until its time is over. Returns whether the turn came in time.
    fn wait_for_turn(&mut self, until: Option<Instant>) -> bool {
        let (of, ticket) = (self.of, self.ticket);
        let queue = self.queue();
        loop {
            if until.is_some_and(|until| Instant::now() >= until) {
                return false;
            }
            let frees = of.frees.load(Ordering::SeqCst);
            let older = queue.waiters.iter().take_while(|waiter| waiter.ticket != ticket);
            let all_tried = older.clone().all(|waiter| !waiter.tries && waiter.tried >= frees);
            let own = queue.waiters.iter().find(|waiter| waiter.ticket == ticket);
            if all_tried && own.is_some_and(|own| own.tried < frees) {
                return true;
            }
            match until {
                Some(until) => drop(of.changed.wait_until(queue, until)),
                None => of.changed.wait(queue),
            }
        }
    }

    /// Makes a try, without the lock.
    fn try_now(&mut self, allocate: impl FnOnce() -> Result<RawBlock>) -> Result<RawBlock> {
        let (frees, ticket) = (self.of.frees.load(Ordering::SeqCst), self.ticket);
        let queue = self.queue();
        if let Some(own) = queue.waiters.iter_mut().find(|waiter| waiter.ticket == ticket) {
            (own.tried, own.tries) = (frees, true);
        }
        self.queue = None;
        let done = allocate();
        self.queue().figures.tries += 1;
        if let Some(own) = self.queue().waiters.iter_mut().find(|waiter| waiter.ticket == ticket) {
            own.tries = false;
        }
        self.of.changed.notify_all();
        done
    }
}

impl<R> Drop for Place<'_, R> {
    /// Leaves the queue, also if the resource below panics in a try.
    fn drop(&mut self) {
        let ticket = self.ticket;
        self.queue().waiters.retain(|waiter| waiter.ticket != ticket);
        self.of.waiting.fetch_sub(1, Ordering::SeqCst);
        self.queue = None;
        self.of.changed.notify_all();
    }
}

impl<R: MemoryResource> Layer for Retry<R> {
    type Upstream = R;

    fn upstream(&self) -> &R {
        &self.upstream
    }

    fn name(&self) -> &str {
        "retry"
    }

    fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock> {
        if self.waiting() > 0 {
            self.give_way(stream);
        }
        // Each free that is counted from here on is a reason for another try.
        let frees = self.frees.load(Ordering::SeqCst);
        match self.upstream.allocate(size, stream) {
            Err(refused) if refused.is_out_of_memory() && self.may_wait(stream) => {
                self.wait(size, stream, frees, refused)
            }
            done => done,
        }
    }

    fn deallocate(&self, block: RawBlock, stream: StreamId) -> Result<()> {
        self.upstream.deallocate(block, stream)?;
        if !block.is_empty() {
            self.freed();
        }
        Ok(())
    }

    fn release(&self) -> Result<u64> {
        let released = self.upstream.release()?;
        if released > 0 {
            self.freed();
        }
        Ok(released)
    }
}
