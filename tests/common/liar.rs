//! A driver that lies.

use seamalloc::driver::sim::CaptureMode;
use seamalloc::driver::{
    Call, CallStats, Contents, DeviceProperties, Driver, DriverError, DriverResult, EventId, Events, Exported,
    GateCopy, Handle, HostBuffer, IpcMemory, MemoryInfo, MemoryPool, MemoryPools, PageLocked, PeerAccess, PlainMemory,
    PoolAttribute, ProcessSharing, Status, StreamCapture, StreamGate, StreamId, Streams, VirtualMemory,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: u64 = 1 << 20;

/// A driver whose answers come from a script, or else from one that knows nothing and grants everything.
pub(crate) struct Liar {
    properties: DeviceProperties,
    /// The answers of `malloc` and `reserve`.
    addresses: Mutex<Box<dyn FnMut(u64) -> DriverResult<u64> + Send>>,
    /// Whether a call of that kind fails.
    pub(crate) fails: Mutex<Box<dyn FnMut(Call) -> Option<Status> + Send>>,
    info: MemoryInfo,
    /// The answer of `busy_ns`, added to at each question.
    busy: AtomicU64,
    pub(crate) busy_step: u64,
    /// How many chunks `create` still gives.
    chunks: AtomicU64,
    pub(crate) freed: Mutex<Vec<u64>>,
}

impl Liar {
    pub(crate) fn new(addresses: impl FnMut(u64) -> DriverResult<u64> + Send + 'static) -> Self {
        Self {
            properties: DeviceProperties {
                name: "liar".into(),
                total_memory: 1 << 30,
                granularity: 2 * MIB,
                recommended_granularity: 2 * MIB,
                ordinal: 0,
                identity: String::new(),
                memory_pools: true,
                stream_gates: true,
                virtual_memory: true,
            },
            addresses: Mutex::new(Box::new(addresses)),
            fails: Mutex::new(Box::new(|_| None)),
            info: MemoryInfo { free: u64::MAX, total: 1 },
            busy: AtomicU64::new(u64::MAX / 2),
            busy_step: 1,
            chunks: AtomicU64::new(2_000),
            freed: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn of_memory(total_memory: u64, granularity: u64) -> Self {
        let mut next = 1 << 40;
        let mut liar = Self::new(move |size| {
            let address = next;
            next = u64::saturating_add(next, size);
            Ok(address)
        });
        liar.properties.total_memory = total_memory;
        liar.properties.granularity = granularity;
        liar
    }

    fn answer<T>(&self, call: Call, value: T) -> DriverResult<T> {
        match (self.fails.lock().unwrap())(call) {
            Some(status) => Err(DriverError::new(call, status, "a lie")),
            None => Ok(value),
        }
    }

    fn address(&self, call: Call, size: u64) -> DriverResult<u64> {
        self.answer(call, ())?;
        (self.addresses.lock().unwrap())(size)
    }
}

impl VirtualMemory for Liar {
    fn reserve(&self, size: u64, _: u64) -> DriverResult<u64> {
        self.address(Call::Reserve, size)
    }
    fn address_free(&self, address: u64, _: u64) -> DriverResult<()> {
        self.freed.lock().unwrap().push(address);
        self.answer(Call::AddressFree, ())
    }
    fn create(&self, _: u64) -> DriverResult<Handle> {
        let left = self.chunks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left.is_err() {
            return Err(DriverError::new(Call::Create, Status::OUT_OF_MEMORY, "no more"));
        }
        self.answer(Call::Create, Handle(7))
    }
    fn create_on_host(&self, _: u64) -> DriverResult<Handle> {
        self.answer(Call::CreateOnHost, Handle(7))
    }
    fn release(&self, _: Handle) -> DriverResult<()> {
        self.answer(Call::Release, ())
    }
    fn map(&self, _: u64, _: u64, _: u64, _: Handle) -> DriverResult<()> {
        self.answer(Call::Map, ())
    }
    fn unmap(&self, _: u64, _: u64) -> DriverResult<()> {
        self.answer(Call::Unmap, ())
    }
    fn set_access(&self, _: u64, _: u64) -> DriverResult<()> {
        self.answer(Call::SetAccess, ())
    }
}

impl PlainMemory for Liar {
    fn malloc(&self, size: u64) -> DriverResult<u64> {
        self.address(Call::Malloc, size)
    }
    fn free(&self, address: u64) -> DriverResult<()> {
        self.freed.lock().unwrap().push(address);
        self.answer(Call::Free, ())
    }
}

impl MemoryPools for Liar {
    fn pool_create(&self, _: u64) -> DriverResult<MemoryPool> {
        self.answer(Call::PoolCreate, MemoryPool(7))
    }
    fn pool_destroy(&self, _: MemoryPool) -> DriverResult<()> {
        self.answer(Call::PoolDestroy, ())
    }
    fn pool_malloc(&self, _: MemoryPool, size: u64, _: StreamId) -> DriverResult<u64> {
        self.address(Call::PoolMalloc, size)
    }
    fn pool_free(&self, address: u64, _: StreamId) -> DriverResult<()> {
        self.freed.lock().unwrap().push(address);
        self.answer(Call::PoolFree, ())
    }
    fn pool_trim(&self, _: MemoryPool, _: u64) -> DriverResult<()> {
        self.answer(Call::PoolTrim, ())
    }
    fn pool_attribute(&self, _: MemoryPool, _: PoolAttribute) -> DriverResult<u64> {
        self.answer(Call::PoolAttribute, u64::MAX)
    }
    fn stream_create(&self) -> DriverResult<StreamId> {
        self.answer(Call::StreamCreate, StreamId(77))
    }
    fn stream_destroy(&self, _: StreamId) -> DriverResult<()> {
        self.answer(Call::StreamDestroy, ())
    }
}

impl Events for Liar {
    fn event_create(&self) -> DriverResult<EventId> {
        self.answer(Call::EventCreate, EventId(1))
    }
    fn event_destroy(&self, _: EventId) -> DriverResult<()> {
        self.answer(Call::EventDestroy, ())
    }
    fn event_record(&self, _: EventId, _: StreamId) -> DriverResult<()> {
        self.answer(Call::EventRecord, ())
    }
    fn event_query(&self, event: EventId) -> DriverResult<bool> {
        self.answer(Call::EventQuery, event.0.is_multiple_of(2))
    }
    fn event_synchronize(&self, _: EventId) -> DriverResult<()> {
        self.answer(Call::EventSynchronize, ())
    }
    fn stream_wait(&self, _: StreamId, _: EventId) -> DriverResult<()> {
        self.answer(Call::StreamWait, ())
    }
}

impl Streams for Liar {
    fn canonical_stream(&self, stream: StreamId) -> DriverResult<StreamId> {
        Ok(stream)
    }
    fn stream_number(&self, _: StreamId) -> DriverResult<Option<u64>> {
        Ok(None)
    }
    fn stream_synchronize(&self, _: StreamId) -> DriverResult<()> {
        self.answer(Call::StreamSynchronize, ())
    }
}

impl StreamCapture for Liar {
    fn is_capturing(&self, _: StreamId) -> DriverResult<bool> {
        self.answer(Call::IsCapturing, true)
    }
    fn exchange_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        self.answer(Call::ExchangeCaptureMode, mode)
    }
}

impl StreamGate for Liar {
    fn close_gate(&self, _: &[StreamId], _: &[GateCopy], _: u64) -> DriverResult<bool> {
        self.answer(Call::CloseGate, true)
    }
    fn open_gate(&self) {}
}

impl PeerAccess for Liar {
    fn enable_peer_access(&self, _: u32, _: bool) -> DriverResult<()> {
        Err(DriverError::new(Call::EnablePeer, Status::PEER_ACCESS_UNSUPPORTED, "it knows no other devices"))
    }
}

impl Contents for Liar {
    fn fill(&self, _: u64, _: u64, _: u8, _: StreamId) -> DriverResult<()> {
        self.answer(Call::Fill, ())
    }
    fn read(&self, _: u64, bytes: &mut [u8]) -> DriverResult<()> {
        bytes.fill(0);
        self.answer(Call::Read, ())
    }
    fn write(&self, _: u64, _: &[u8]) -> DriverResult<()> {
        self.answer(Call::Write, ())
    }
    fn copy(&self, _: u64, _: u64, _: u64) -> DriverResult<()> {
        self.answer(Call::Copy, ())
    }
}

impl PageLocked for Liar {
    fn host_malloc(&self, _: u64) -> DriverResult<HostBuffer> {
        self.answer(Call::HostMalloc, HostBuffer(7))
    }
    fn host_free(&self, _: HostBuffer) -> DriverResult<()> {
        self.answer(Call::HostFree, ())
    }
    fn copy_out(&self, _: u64, _: HostBuffer, _: u64, _: u64) -> DriverResult<()> {
        self.answer(Call::CopyOut, ())
    }
    fn copy_in(&self, _: HostBuffer, _: u64, _: u64, _: u64) -> DriverResult<()> {
        self.answer(Call::CopyIn, ())
    }
    fn host_wait(&self, _: HostBuffer) -> DriverResult<()> {
        self.answer(Call::HostWait, ())
    }
    fn host_bytes(&self, _: HostBuffer, _: u64, _: u64, with: &mut dyn FnMut(&mut [u8])) -> DriverResult<()> {
        // Fewer than it was asked for.
        with(&mut [1, 2, 3]);
        self.answer(Call::HostWait, ())
    }
}

impl ProcessSharing for Liar {
    fn export(&self, _: Handle) -> DriverResult<Exported> {
        not_shared(Call::Export)
    }
    fn import(&self, _: &Exported, _: u64) -> DriverResult<Handle> {
        not_shared(Call::Import)
    }
    fn ipc_get(&self, _: u64) -> DriverResult<IpcMemory> {
        not_shared(Call::IpcGet)
    }
    fn ipc_open(&self, _: &IpcMemory) -> DriverResult<u64> {
        not_shared(Call::IpcOpen)
    }
    fn ipc_close(&self, _: u64) -> DriverResult<()> {
        not_shared(Call::IpcClose)
    }
}

impl Driver for Liar {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }
    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.answer(Call::MemoryInfo, self.info)
    }
    fn synchronize(&self) -> DriverResult<()> {
        self.answer(Call::Synchronize, ())
    }
    fn call_stats(&self) -> CallStats {
        CallStats::default()
    }
    fn busy_ns(&self) -> u64 {
        self.busy.fetch_add(self.busy_step, Ordering::Relaxed)
    }
    fn clock_ns(&self) -> u64 {
        self.busy.fetch_add(self.busy_step, Ordering::Relaxed)
    }
    fn rest(&self, _: u64) {}
}

fn not_shared<T>(call: Call) -> DriverResult<T> {
    Err(DriverError::new(call, Status::NOT_SUPPORTED, "it shares no memory between processes"))
}
