//! A layer that asks the program what to do about a request that failed.
//!
//! Owns: the loop of callbacks and further tries. The rule is that of RMM's `failure_callback_resource_adaptor`
//! (`failure_callback_resource_adaptor_impl.hpp` lines 59 to 73): as long as the callback returns `true`, the request
//! is made again.
//!
//! [`MemoryLimits::on_pressure`](seamalloc::operations::MemoryLimits::on_pressure) differs: that callback is called
//! within a request, before the CPU waits for the GPU. The callback of this layer is called after the resource below
//! has refused the request, for any resource and any error.

use crate::contract::{Layer, MemoryResource};
use crate::error::{ResourceError, Result};
use seamalloc::RawBlock;
use seamalloc::StreamId;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Filter = Box<dyn Fn(&ResourceError) -> bool + Send + Sync>;
type Callback = Box<dyn Fn(u64, &ResourceError) -> bool + Send + Sync>;

/// Calls the program's callback when a request fails, and makes the request again if the callback returns `true`.
pub struct FailureCallback<R> {
    upstream: R,
    covers: Filter,
    callback: Callback,
}

impl<R: MemoryResource> FailureCallback<R> {
    /// Makes a layer that calls `callback` with the bytes of a request that found too little memory, and with the
    /// error. On `true` the request is made again; on `false` the caller gets the error.
    ///
    /// The thread of the request calls `callback` without any lock of the layer. The callback may allocate and free
    /// through the layer; a failed request of the callback calls the callback again. A panic counts as `false`.
    pub fn new(upstream: R, callback: impl Fn(u64, &ResourceError) -> bool + Send + Sync + 'static) -> Self {
        Self::on(upstream, ResourceError::is_out_of_memory, callback)
    }

    /// Makes a layer as [`Self::new`] does, but calls `callback` for every error for which `covers` returns `true`.
    pub fn on(
        upstream: R,
        covers: impl Fn(&ResourceError) -> bool + Send + Sync + 'static,
        callback: impl Fn(u64, &ResourceError) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { upstream, covers: Box::new(covers), callback: Box::new(callback) }
    }

    fn tries_again(&self, size: u64, error: &ResourceError) -> bool {
        let again = catch_unwind(AssertUnwindSafe(|| (self.covers)(error) && (self.callback)(size, error)));
        again.unwrap_or_else(|panic| {
            tracing::error!("a failure callback panicked; the request fails");
            drop(catch_unwind(AssertUnwindSafe(|| drop(panic))));
            false
        })
    }
}

impl<R: fmt::Debug> fmt::Debug for FailureCallback<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailureCallback").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}

impl<R: MemoryResource> Layer for FailureCallback<R> {
    type Upstream = R;

    fn upstream(&self) -> &R {
        &self.upstream
    }

    fn name(&self) -> &str {
        "failure callback"
    }

    fn allocate(&self, size: u64, stream: StreamId) -> Result<RawBlock> {
        loop {
            match self.upstream.allocate(size, stream) {
                Err(error) if self.tries_again(size, &error) => {}
                done => return done,
            }
        }
    }
}
