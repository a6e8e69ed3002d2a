//! Where a replay runs: on the simulated GPU, or on a real one.
//!
//! Owns: what differs between the two beside the driver's calls: whose the streams are, and what holds a freed block
//! back.

use super::streams::simulated;
use crate::trace::Trace;
use seamalloc::driver::cuda::{CudaDriver, CudaOpenError};
use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{Driver, DriverResult, StreamId, Streams};
use std::sync::Arc;

/// A device, and streams on it.
pub(super) enum ReplayDevice {
    /// The trace's own handles are streams, as long as they are few, the clock is the replay's, and a free completes when the trace says so.
    Sim(Arc<SimGpu>),
    /// Streams are made for the trace's. They run no work, so a free completes when the GPU gets to it.
    Cuda(CudaReplayDevice),
}

/// A real device and the streams that were made for a replay.
pub(super) struct CudaReplayDevice {
    driver: Arc<CudaDriver>,
    /// One for each stream of the trace; the default stream stays what it is.
    streams: Vec<StreamId>,
    /// The stream whose use of a block makes its free complete later than it was requested.
    pub(super) side_stream: StreamId,
}

impl CudaReplayDevice {
    pub(super) fn new(driver: Arc<CudaDriver>, trace: &Trace) -> Result<Self, CudaOpenError> {
        let mut device = Self { driver, streams: Vec::new(), side_stream: StreamId::DEFAULT };
        for stream in &trace.streams {
            let own = if *stream == StreamId::DEFAULT { *stream } else { device.driver.create_stream()? };
            device.streams.push(own);
        }
        device.side_stream = device.driver.create_stream()?;
        Ok(device)
    }

    fn all(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.streams.iter().copied().chain([self.side_stream])
    }
}

impl Drop for CudaReplayDevice {
    fn drop(&mut self) {
        for stream in self.all().filter(|stream| *stream != StreamId::DEFAULT) {
            if let Err(error) = self.driver.destroy_stream(stream) {
                tracing::warn!(%error, "a stream of a replay was not destroyed");
            }
        }
    }
}

impl ReplayDevice {
    pub(super) fn driver(&self) -> &dyn Driver {
        match self {
            Self::Sim(sim) => &**sim,
            Self::Cuda(device) => &*device.driver,
        }
    }

    /// The device's streams for those of the trace, in their order.
    pub(super) fn streams(&self, trace: &Trace) -> Vec<StreamId> {
        match self {
            Self::Sim(_) => simulated(&trace.streams),
            Self::Cuda(device) => device.streams.clone(),
        }
    }

    /// An event of the trace has come.
    pub(super) fn tick(&self) {
        if let Self::Sim(sim) = self {
            sim.advance(1);
        }
    }

    /// Waits that were for all that a stream had been given; not known of a real device.
    pub(super) fn idle_waits(&self) -> u64 {
        match self {
            Self::Sim(sim) => sim.idle_waits(),
            Self::Cuda(_) => 0,
        }
    }

    /// A pass is over, and the next begins when the GPU has passed all of it.
    pub(super) fn synchronize(&self) -> DriverResult<()> {
        match self {
            Self::Sim(_) => Ok(()),
            Self::Cuda(device) => device.all().try_for_each(|stream| device.driver.stream_synchronize(stream)),
        }
    }
}
