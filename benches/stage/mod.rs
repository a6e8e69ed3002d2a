//! The device that benchmarks run on, and the operations of a trace that they carry out.

#![allow(dead_code, reason = "every benchmark uses a part")]

use seamalloc::driver::cuda::CudaDriver;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Driver, StreamId};
use seamalloc::{Allocator, Config};
use seamalloc_trace::{Trace, TraceEvent};
use std::sync::Arc;

/// The environment variable that names the device: sim:h200 (the default) or another simulated one, or cuda:N.
const DEVICE: &str = "SEAMALLOC_BENCH_DEVICE";

/// The device of all benchmarks.
pub(crate) enum Device {
    Sim(SimConfig),
    Cuda(Arc<CudaDriver>),
}

impl Device {
    /// The one that the environment names. Simulated calls cost the time of this machine that the simulation takes, and
    /// no other: what is measured is our own time.
    pub(crate) fn open() -> Self {
        let name = std::env::var(DEVICE).unwrap_or_else(|_| "sim:h200".to_owned());
        if name.starts_with("cuda") {
            let ordinal = CudaDriver::parse_ordinal(&name).expect("cuda:N");
            return Self::Cuda(Arc::new(CudaDriver::open(ordinal).expect("a device")));
        }
        let config = SimConfig::parse(&name).expect("a known device");
        Self::Sim(SimConfig { calls_advance_clock: false, ..config })
    }

    /// A simulated device of its own, or the real one.
    pub(crate) fn driver(&self) -> Arc<dyn Driver> {
        match self {
            Self::Sim(config) => Arc::new(SimGpu::new(config.clone()).expect("a valid device")),
            Self::Cuda(driver) => Arc::<CudaDriver>::clone(driver),
        }
    }

    /// A new allocator with options in the syntax of `Config::parse`.
    pub(crate) fn allocator(&self, options: &str) -> Allocator {
        Allocator::new(self.driver(), Config::parse(options).expect("valid options")).expect("a device that can do it")
    }

    /// Streams, the default stream first. They live as long as the process.
    pub(crate) fn streams(&self, count: usize) -> Vec<StreamId> {
        let stream = |number| match self {
            _ if number == 0 => StreamId::DEFAULT,
            Self::Sim(_) => StreamId(number),
            Self::Cuda(driver) => driver.create_stream().expect("a stream"),
        };
        (0..count as u64).map(stream).collect()
    }
}

/// An operation of a trace; a free names its allocation by its number in the pass.
#[derive(Clone, Copy)]
pub(crate) enum Op {
    /// Bytes, and the stream by its number in the trace.
    Allocate(u64, u32),
    Free(u32),
}

/// The operations of a trace, what is left live at its end freed. A free that completes later is made where it is
/// requested.
pub(crate) fn ops_of(trace: &Trace) -> Vec<Op> {
    let mut live = Vec::new();
    let mut ops = Vec::new();
    for event in &trace.events {
        match *event {
            TraceEvent::Alloc { size, stream } => {
                ops.push(Op::Allocate(size, stream));
                live.push(true);
            }
            TraceEvent::FreeRequested { block } => {
                live[block as usize] = false;
                ops.push(Op::Free(block));
            }
            TraceEvent::FreeCompleted { .. } => {}
        }
    }
    ops.extend((0..).zip(&live).filter(|(_, live)| **live).map(|(block, _)| Op::Free(block)));
    ops
}

/// Carries out a pass; `time` gets each operation to run.
pub(crate) fn pass(
    allocator: &Allocator,
    ops: &[Op],
    streams: &[StreamId],
    addresses: &mut Vec<u64>,
    mut time: impl FnMut(&mut dyn FnMut()),
) {
    addresses.clear();
    for op in ops {
        match *op {
            Op::Allocate(size, stream) => {
                let (mut address, stream) = (0, streams[stream as usize]);
                time(&mut || address = allocator.allocate(size, stream).expect("plenty of memory"));
                addresses.push(address);
            }
            Op::Free(block) => {
                let address = addresses[block as usize];
                time(&mut || allocator.free(address).expect("it is live"));
            }
        }
    }
}
