//! The device of a replay: the simulated GPU, host memory, or a real GPU.
//!
//! Owns: the differences between the devices apart from the driver's calls: the streams that are used, and the way to
//! hold back a freed block.

use super::streams::simulated;
use crate::trace::Trace;
use seamalloc::driver::cuda::{CudaDriver, CudaOpenError};
use seamalloc::driver::host::{HostDriver, HostHold};
use seamalloc::driver::sim::{Hold, SimGpu};
use seamalloc::driver::{Driver, DriverResult, StreamId, Streams};
use std::sync::Arc;

/// A device, and the streams on it.
pub(super) enum ReplayDevice {
    /// A simulated GPU. The streams have the trace's own handles if there are few streams. The clock advances with the
    /// events of the trace, and a free completes when the trace says so.
    Sim(Arc<SimGpu>),
    /// Host memory. Handles and frees follow the rules of the simulated GPU; the clock is the machine's.
    Host(Arc<HostDriver>),
    /// A real GPU. New streams stand for the streams of the trace. New streams run no work, so a free completes when
    /// the GPU reaches it.
    Cuda(CudaReplayDevice),
}

/// Work that lasts until [`ReplayDevice::finish`], and keeps a freed block in use until its free completes in the
/// trace.
pub(super) enum Held {
    Sim(Hold),
    Host(HostHold),
}

/// A real device, and the streams that were made for a replay.
pub(super) struct CudaReplayDevice {
    driver: Arc<CudaDriver>,
    /// One new stream for each stream of the trace. The default stream stands for itself.
    streams: Vec<StreamId>,
    /// The stream that uses a block if the block's free completes later than it was requested.
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
            Self::Host(host) => &**host,
            Self::Cuda(device) => &*device.driver,
        }
    }

    /// Returns the device's streams for the streams of the trace, in the same order.
    pub(super) fn streams(&self, trace: &Trace) -> Vec<StreamId> {
        match self {
            Self::Sim(_) | Self::Host(_) => simulated(&trace.streams),
            Self::Cuda(device) => device.streams.clone(),
        }
    }

    /// Gives `stream` work that lasts until [`Self::finish`]. Returns `None` if the device has no such work.
    pub(super) fn hold(&self, stream: StreamId) -> DriverResult<Option<Held>> {
        Ok(match self {
            Self::Sim(sim) => Some(Held::Sim(sim.hold(stream))),
            Self::Host(host) => Some(Held::Host(host.hold(stream)?)),
            Self::Cuda(_) => None,
        })
    }

    /// Ends the work of [`Self::hold`], unless a wait of the CPU has ended it already.
    pub(super) fn finish(&self, held: Held) {
        match (self, held) {
            (Self::Sim(sim), Held::Sim(hold)) => {
                sim.finish_hold(hold);
            }
            (Self::Host(host), Held::Host(hold)) => {
                host.finish_hold(hold);
            }
            _ => {}
        }
    }

    /// Advances the clock by one event of the trace.
    pub(super) fn tick(&self) {
        if let Self::Sim(sim) = self {
            sim.advance(1);
        }
    }

    /// Returns the number of GPU-side waits whose event was already complete; 0 on a real device, where the number is
    /// unknown.
    pub(super) fn idle_waits(&self) -> u64 {
        match self {
            Self::Sim(sim) => sim.idle_waits(),
            Self::Host(host) => host.idle_waits(),
            Self::Cuda(_) => 0,
        }
    }

    /// Waits at the end of a pass until the GPU has finished all work of the pass.
    pub(super) fn synchronize(&self) -> DriverResult<()> {
        match self {
            Self::Sim(_) => Ok(()),
            Self::Host(host) => host.synchronize(),
            Self::Cuda(device) => device.all().try_for_each(|stream| device.driver.stream_synchronize(stream)),
        }
    }
}
