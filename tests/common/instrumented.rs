//! The simulated GPU with something done around every call: a clock, or a note that the driver is at work.

use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Call, Driver, DriverResult, ForwardingDriver};
use std::sync::Arc;

/// Passes every call to `gpu`. `begin` runs before a call; what it returns is dropped when the call has ended.
pub(crate) struct Instrumented<F> {
    pub(crate) gpu: Arc<SimGpu>,
    pub(crate) begin: F,
}

impl<T, F: Fn() -> T + Send + Sync> ForwardingDriver for Instrumented<F> {
    fn inner(&self) -> &dyn Driver {
        &*self.gpu
    }
    fn make_call<R>(&self, _: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<R>) -> DriverResult<R> {
        let _until_the_end = (self.begin)();
        make(self.inner())
    }
}
