//! Mistakes that the program makes on purpose, one a run: each must show as wrong words, or a clean run would say nothing.
//!
//! Owns: which mistakes there are, and the one that is the driver's.

use seamalloc::driver::{
    CallStats, CaptureMode, DeviceProperties, Driver, DriverResult, EventId, Handle, MemoryInfo, StreamId,
};
use std::str::FromStr;
use std::sync::Arc;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// The program does not tell the allocator which other streams use a block.
    Untold,
    /// No GPU-side wait that the allocator asks for is made.
    Unwaited,
    /// A graph's outputs are freed right after its capture, and used all the same.
    FreedOutputs,
}

impl FromStr for Sabotage {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "untold" => Ok(Self::Untold),
            "unwaited" => Ok(Self::Unwaited),
            "freed-outputs" => Ok(Self::FreedOutputs),
            _ => Err(format!("there is no sabotage `{name}`: untold, unwaited, freed-outputs")),
        }
    }
}

/// The driver that an allocator gets in a run with that mistake.
pub(crate) fn driver(sabotage: Option<Sabotage>, driver: Arc<dyn Driver>) -> Arc<dyn Driver> {
    match sabotage {
        Some(Sabotage::Unwaited) => Arc::new(WithoutWaits(driver)),
        _ => driver,
    }
}

/// A driver whose streams wait for nothing.
struct WithoutWaits(Arc<dyn Driver>);

impl Driver for WithoutWaits {
    fn stream_wait(&self, _: StreamId, _: EventId) -> DriverResult<()> {
        Ok(())
    }
    fn properties(&self) -> &DeviceProperties {
        self.0.properties()
    }
    fn reserve(&self, size: u64, alignment: u64) -> DriverResult<u64> {
        self.0.reserve(size, alignment)
    }
    fn address_free(&self, address: u64, size: u64) -> DriverResult<()> {
        self.0.address_free(address, size)
    }
    fn create(&self, size: u64) -> DriverResult<Handle> {
        self.0.create(size)
    }
    fn release(&self, handle: Handle) -> DriverResult<()> {
        self.0.release(handle)
    }
    fn map(&self, address: u64, size: u64, offset: u64, handle: Handle) -> DriverResult<()> {
        self.0.map(address, size, offset, handle)
    }
    fn unmap(&self, address: u64, size: u64) -> DriverResult<()> {
        self.0.unmap(address, size)
    }
    fn set_access(&self, address: u64, size: u64) -> DriverResult<()> {
        self.0.set_access(address, size)
    }
    fn malloc(&self, size: u64) -> DriverResult<u64> {
        self.0.malloc(size)
    }
    fn free(&self, address: u64) -> DriverResult<()> {
        self.0.free(address)
    }
    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.0.memory_info()
    }
    fn event_create(&self) -> DriverResult<EventId> {
        self.0.event_create()
    }
    fn event_destroy(&self, event: EventId) -> DriverResult<()> {
        self.0.event_destroy(event)
    }
    fn event_record(&self, event: EventId, stream: StreamId) -> DriverResult<()> {
        self.0.event_record(event, stream)
    }
    fn event_query(&self, event: EventId) -> DriverResult<bool> {
        self.0.event_query(event)
    }
    fn event_synchronize(&self, event: EventId) -> DriverResult<()> {
        self.0.event_synchronize(event)
    }
    fn stream_synchronize(&self, stream: StreamId) -> DriverResult<()> {
        self.0.stream_synchronize(stream)
    }
    fn is_capturing(&self, stream: StreamId) -> DriverResult<bool> {
        self.0.is_capturing(stream)
    }
    fn synchronize(&self) -> DriverResult<()> {
        self.0.synchronize()
    }
    fn exchange_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        self.0.exchange_capture_mode(mode)
    }
    fn call_stats(&self) -> CallStats {
        self.0.call_stats()
    }
    fn busy_ns(&self) -> u64 {
        self.0.busy_ns()
    }
}
