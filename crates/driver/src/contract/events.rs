//! Events: markers in streams, and waits for them.
//!
//! Owns: the contract of [`Events`].

use crate::error::DriverResult;
use crate::ids::{EventId, StreamId};

/// Markers in streams, and waits for them by the CPU or by other streams.
///
/// pre, for every call: an event came from `event_create`, and was not destroyed.
/// pre, for every call: a stream's handle is the handle of a live stream (unchecked if the driver was told to trust
/// streams, see [`CudaDriver`](crate::cuda::CudaDriver)).
pub trait Events {
    /// `cuEventCreate`: returns a new event, without timing.
    fn event_create(&self) -> DriverResult<EventId>;

    /// `cuEventDestroy`: destroys an event.
    fn event_destroy(&self, event: EventId) -> DriverResult<()>;

    /// `cuEventRecord`: the event completes when all work given to `stream` so far has completed. A later record of the
    /// same event replaces the earlier record.
    fn event_record(&self, event: EventId, stream: StreamId) -> DriverResult<()>;

    /// `cuEventQuery`: returns whether the event is complete. An event that was never recorded is complete.
    ///
    /// pre: no capture forbids the call, and the event was not recorded in a captured stream.
    fn event_query(&self, event: EventId) -> DriverResult<bool>;

    /// `cuEventSynchronize`: the CPU waits until the event is complete.
    ///
    /// pre: as for `event_query`.
    fn event_synchronize(&self, event: EventId) -> DriverResult<()>;

    /// `cuStreamWaitEvent`: work given to `stream` from now on starts after the event has completed. The CPU does not
    /// wait.
    ///
    /// pre: if `stream` is being captured, the event was recorded in the same capture.
    fn stream_wait(&self, stream: StreamId, event: EventId) -> DriverResult<()>;
}
