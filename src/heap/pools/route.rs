//! Routes. A route chooses the requests that go to a private pool.
//!
//! Owns: [`Route`]. `private_pools.rs` has the routes that were begun.

use crate::fallible::boxed;
use crate::ids::StreamId;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, ThreadId};

/// The requests that go to a private pool from [`Pools::begin`](crate::operations::Pools::begin) to
/// [`Pools::end`](crate::operations::Pools::end). A route also says whether a stream capture is under way during this
/// time.
///
pub struct Route {
    covers: Covers,
    captures: bool,
}

/// The requests that a route covers.
enum Covers {
    Stream(StreamId),
    Thread(ThreadId),
    /// Every thread whose request is covered by no other route.
    OtherThreads,
    /// The requests for which a filter returns `true`. `None` if the host had no memory for the filter; such a route
    /// cannot begin.
    When(Option<Box<dyn Filter>>),
}

/// The program's code that decides which streams a route covers.
trait Filter: Send {
    fn covers(&self, stream: StreamId) -> bool;
}

impl<F: Fn(StreamId) -> bool + Send> Filter for [F; 1] {
    fn covers(&self, stream: StreamId) -> bool {
        let [covers] = self;
        covers(stream)
    }
}

impl Route {
    /// Routes requests on the streams for which `covers` returns `true`. The thread that allocates calls this filter,
    /// under the allocator's lock. So the filter must be quick, and must not call the allocator. If the filter panics,
    /// the request is not routed. If the host has no memory for the filter, beginning the route fails with
    /// [`Error::HostMemory`](crate::Error::HostMemory).
    pub fn when(covers: impl Fn(StreamId) -> bool + Send + 'static) -> Self {
        let covers = boxed(covers).map(|covers| covers as Box<dyn Filter>);
        Self { covers: Covers::When(covers), captures: false }
    }

    /// Routes requests on one stream.
    #[must_use]
    pub fn stream(stream: StreamId) -> Self {
        Self { covers: Covers::Stream(stream), captures: false }
    }

    /// Routes requests of the calling thread, on any stream.
    #[must_use]
    pub fn this_thread() -> Self {
        Self { covers: Covers::Thread(thread::current().id()), captures: false }
    }

    /// Routes requests of all threads, on any stream, that no other route covers. The order in which the routes begin
    /// does not matter. This route covers backward passes, which PyTorch runs in threads of its own, but no requests
    /// that other threads route elsewhere.
    #[must_use]
    pub fn other_threads() -> Self {
        Self { covers: Covers::OtherThreads, captures: false }
    }

    /// Marks the route as one with a stream capture. A stream may be in a capture from the begin to the end of the
    /// route. Until the end, the allocator makes no call that a capture forbids, in any thread.
    #[must_use]
    pub fn capturing(self) -> Self {
        Self { captures: true, ..self }
    }

    /// Returns whether a stream capture is under way from the begin to the end of the route.
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        self.captures
    }

    /// Returns whether the route covers one thread or all other threads, without a capture. A pool may have several
    /// such routes at the same time.
    pub(super) fn is_of_threads(&self) -> bool {
        matches!(self.covers, Covers::Thread(_) | Covers::OtherThreads) && !self.captures
    }

    /// Returns whether the route covers requests of this thread only.
    pub(super) fn is_of(&self, thread: ThreadId) -> bool {
        matches!(self.covers, Covers::Thread(of) if of == thread)
    }

    /// Returns whether the route covers all threads without a route of their own.
    pub(super) fn is_of_others(&self) -> bool {
        matches!(self.covers, Covers::OtherThreads)
    }

    /// Returns whether the host had no memory for the route's filter.
    pub(super) fn lacks_filter(&self) -> bool {
        matches!(self.covers, Covers::When(None))
    }

    /// Returns whether the route covers a request of the calling thread on `stream`.
    pub(in crate::heap) fn covers(&self, stream: StreamId) -> bool {
        let covers = match &self.covers {
            Covers::OtherThreads => return true,
            Covers::Stream(of) => return *of == stream,
            Covers::Thread(thread) => return thread::current().id() == *thread,
            Covers::When(covers) => covers,
        };
        let Some(covers) = covers else { return false };
        // `covers` is the program's code, which is called in the middle of a request.
        catch_unwind(AssertUnwindSafe(|| covers.covers(stream))).unwrap_or_else(|panic| {
            tracing::error!(%stream, "the filter of a private pool panicked; the request is not routed");
            drop(catch_unwind(AssertUnwindSafe(|| drop(panic))));
            false
        })
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route").field("captures", &self.captures).finish_non_exhaustive()
    }
}
