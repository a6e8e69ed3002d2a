//! A simulated GPU whose calls take their time on the clock of a timeline.
//!
//! Owns: which calls depend on streams and events, and go to that clock. Memory, costs and refusals are those of the
//! simulated GPU; its own clock and streams are not used.

use std::sync::Arc;

use parking_lot::Mutex;
use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Call, Driver, DriverResult, EventId, ForwardingDriver, StreamId};

use super::clock::Clock;

/// The simulated GPU, and the clock that a replay shares with it.
pub(super) struct TimedDriver {
    gpu: SimGpu,
    clock: Arc<Mutex<Clock>>,
}

impl TimedDriver {
    /// Makes a layer over a simulated GPU. The GPU's own clock stands still.
    pub(super) fn new(gpu: SimGpu, clock: Arc<Mutex<Clock>>) -> Self {
        Self { gpu, clock }
    }
}

impl ForwardingDriver for TimedDriver {
    fn inner(&self) -> &dyn Driver {
        &self.gpu
    }

    fn make_call<T>(&self, _call: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        let before = self.gpu.busy_ns();
        let answer = make(&self.gpu);
        self.clock.lock().drive(self.gpu.busy_ns().saturating_sub(before));
        answer
    }

    fn free(&self, address: u64) -> DriverResult<()> {
        if address != 0 {
            // The driver waits until no stream can use the memory.
            self.clock.lock().wait_for_device();
        }
        self.make_call(Call::Free, |gpu| gpu.free(address))
    }

    fn event_destroy(&self, event: EventId) -> DriverResult<()> {
        self.make_call(Call::EventDestroy, |gpu| gpu.event_destroy(event))?;
        self.clock.lock().destroy_own(event);
        Ok(())
    }

    fn event_record(&self, event: EventId, stream: StreamId) -> DriverResult<()> {
        self.make_call(Call::EventRecord, |gpu| gpu.event_record(event, stream))?;
        self.clock.lock().record_own(event, stream);
        Ok(())
    }

    fn event_query(&self, event: EventId) -> DriverResult<bool> {
        self.make_call(Call::EventQuery, |gpu| gpu.event_query(event))?;
        Ok(self.clock.lock().is_complete(event))
    }

    fn event_synchronize(&self, event: EventId) -> DriverResult<()> {
        self.make_call(Call::EventSynchronize, |gpu| gpu.event_synchronize(event))?;
        self.clock.lock().wait_for_own(event);
        Ok(())
    }

    fn stream_wait(&self, stream: StreamId, event: EventId) -> DriverResult<()> {
        self.make_call(Call::StreamWait, |gpu| gpu.stream_wait(stream, event))?;
        self.clock.lock().hold_back(stream, event);
        Ok(())
    }

    fn stream_synchronize(&self, stream: StreamId) -> DriverResult<()> {
        self.make_call(Call::StreamSynchronize, |gpu| gpu.stream_synchronize(stream))?;
        self.clock.lock().wait_for_stream(stream);
        Ok(())
    }

    fn clock_ns(&self) -> u64 {
        self.clock.lock().caller_ns()
    }

    fn rest(&self, ns: u64) {
        self.clock.lock().drive(ns);
    }

    fn synchronize(&self) -> DriverResult<()> {
        self.make_call(Call::Synchronize, |gpu| gpu.synchronize())?;
        self.clock.lock().wait_for_device();
        Ok(())
    }
}
