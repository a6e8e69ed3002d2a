//! The simulated GPU with something done around every call: a clock, or a note that the driver is at work.

use seamalloc::driver::sim::SimGpu;
use seamalloc::driver::{
    CallStats, CaptureMode, DeviceProperties, Driver, DriverResult, EventId, Exported, Handle, IpcMemory, MemoryInfo,
    StreamId,
};
use std::sync::Arc;

/// Calls go to `gpu`; what `begin` gives is dropped when a call has ended.
pub(crate) struct Around<F> {
    pub(crate) gpu: Arc<SimGpu>,
    pub(crate) begin: F,
}

impl<T, F: Fn() -> T + Send + Sync> Around<F> {
    fn call<R>(&self, call: impl FnOnce(&SimGpu) -> R) -> R {
        let _until_the_end = (self.begin)();
        call(&self.gpu)
    }
}

impl<T, F: Fn() -> T + Send + Sync> Driver for Around<F> {
    fn properties(&self) -> &DeviceProperties {
        self.gpu.properties()
    }
    fn reserve(&self, size: u64, alignment: u64) -> DriverResult<u64> {
        self.call(|gpu| gpu.reserve(size, alignment))
    }
    fn address_free(&self, address: u64, size: u64) -> DriverResult<()> {
        self.call(|gpu| gpu.address_free(address, size))
    }
    fn create(&self, size: u64) -> DriverResult<Handle> {
        self.call(|gpu| gpu.create(size))
    }
    fn release(&self, handle: Handle) -> DriverResult<()> {
        self.call(|gpu| gpu.release(handle))
    }
    fn map(&self, address: u64, size: u64, offset: u64, handle: Handle) -> DriverResult<()> {
        self.call(|gpu| gpu.map(address, size, offset, handle))
    }
    fn unmap(&self, address: u64, size: u64) -> DriverResult<()> {
        self.call(|gpu| gpu.unmap(address, size))
    }
    fn set_access(&self, address: u64, size: u64) -> DriverResult<()> {
        self.call(|gpu| gpu.set_access(address, size))
    }
    fn malloc(&self, size: u64) -> DriverResult<u64> {
        self.call(|gpu| gpu.malloc(size))
    }
    fn free(&self, address: u64) -> DriverResult<()> {
        self.call(|gpu| gpu.free(address))
    }
    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.call(|gpu| gpu.memory_info())
    }
    fn event_create(&self) -> DriverResult<EventId> {
        self.call(|gpu| gpu.event_create())
    }
    fn event_destroy(&self, event: EventId) -> DriverResult<()> {
        self.call(|gpu| gpu.event_destroy(event))
    }
    fn event_record(&self, event: EventId, stream: StreamId) -> DriverResult<()> {
        self.call(|gpu| gpu.event_record(event, stream))
    }
    fn event_query(&self, event: EventId) -> DriverResult<bool> {
        self.call(|gpu| gpu.event_query(event))
    }
    fn event_synchronize(&self, event: EventId) -> DriverResult<()> {
        self.call(|gpu| gpu.event_synchronize(event))
    }
    fn stream_wait(&self, stream: StreamId, event: EventId) -> DriverResult<()> {
        self.call(|gpu| gpu.stream_wait(stream, event))
    }
    fn stream_synchronize(&self, stream: StreamId) -> DriverResult<()> {
        self.call(|gpu| gpu.stream_synchronize(stream))
    }
    fn stream_number(&self, stream: StreamId) -> DriverResult<Option<u64>> {
        self.call(|gpu| gpu.stream_number(stream))
    }
    fn enable_peer_access(&self, peer: u32, plain: bool) -> DriverResult<()> {
        self.call(|gpu| gpu.enable_peer_access(peer, plain))
    }
    fn export(&self, handle: Handle) -> DriverResult<Exported> {
        self.call(|gpu| gpu.export(handle))
    }
    fn import(&self, memory: &Exported, size: u64) -> DriverResult<Handle> {
        self.call(|gpu| gpu.import(memory, size))
    }
    fn ipc_get(&self, address: u64) -> DriverResult<IpcMemory> {
        self.call(|gpu| gpu.ipc_get(address))
    }
    fn ipc_open(&self, memory: &IpcMemory) -> DriverResult<u64> {
        self.call(|gpu| gpu.ipc_open(memory))
    }
    fn ipc_close(&self, address: u64) -> DriverResult<()> {
        self.call(|gpu| gpu.ipc_close(address))
    }
    fn is_capturing(&self, stream: StreamId) -> DriverResult<bool> {
        self.call(|gpu| gpu.is_capturing(stream))
    }
    fn synchronize(&self) -> DriverResult<()> {
        self.call(|gpu| gpu.synchronize())
    }
    fn exchange_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        self.call(|gpu| gpu.exchange_capture_mode(mode))
    }
    fn call_stats(&self) -> CallStats {
        self.gpu.call_stats()
    }
    fn busy_ns(&self) -> u64 {
        self.gpu.busy_ns()
    }
}
