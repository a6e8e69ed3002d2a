//! Tests that a layer over the simulated GPU makes each call once.

use std::sync::Mutex;

use crate::{SimConfig, SimGpu};
use seamalloc_driver::prelude::*;
use seamalloc_driver::{
    Call, CaptureMode, DriverError, DriverResult, EventId, Exported, ForwardingDriver, Handle, HostBuffer, IpcMemory,
    MemoryPool, PoolAttribute, Status, StreamId,
};

/// A layer that notes its calls of a simulated GPU.
struct Noting {
    gpu: SimGpu,
    made: Mutex<Vec<Call>>,
}

impl ForwardingDriver for Noting {
    fn inner(&self) -> &dyn Driver {
        &self.gpu
    }
    fn make_call<T>(&self, call: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        self.made.lock().unwrap().push(call);
        make(self.inner())
    }
}

/// Makes a call of that kind, valid or not. Returns `None` for calls of a program, which are not made.
fn make(driver: &dyn Driver, call: Call) -> Option<DriverResult<()>> {
    let (stream, event, handle) = (StreamId(1), EventId(77), Handle(77));
    let ipc = IpcMemory([0; 64]);
    Some(match call {
        Call::Reserve => driver.reserve(0, 0).map(drop),
        Call::AddressFree => driver.address_free(0, 0),
        Call::Create => driver.create(0).map(drop),
        Call::Release => driver.release(handle),
        Call::Map => driver.map(0, 0, 0, handle),
        Call::Unmap => driver.unmap(0, 0),
        Call::SetAccess => driver.set_access(0, 0),
        Call::Malloc => driver.malloc(0).map(drop),
        Call::Free => driver.free(1),
        Call::MemoryInfo => driver.memory_info().map(drop),
        Call::EventCreate => driver.event_create().map(drop),
        Call::EventDestroy => driver.event_destroy(event),
        Call::EventRecord => driver.event_record(event, stream),
        Call::EventQuery => driver.event_query(event).map(drop),
        Call::EventSynchronize => driver.event_synchronize(event),
        Call::StreamWait => driver.stream_wait(stream, event),
        Call::StreamSynchronize => driver.stream_synchronize(stream),
        Call::StreamNumber => driver.stream_number(stream).map(drop),
        Call::IsCapturing => driver.is_capturing(stream).map(drop),
        Call::Synchronize => driver.synchronize(),
        Call::Fill => driver.fill(0, 0, 0, stream),
        Call::Read => driver.read(0, &mut [0]),
        Call::Write => driver.write(0, &[0]),
        Call::Copy => driver.copy(0, 8, 8),
        Call::CloseGate => driver.close_gate(&[stream], &[], 0).map(drop),
        Call::HostMalloc => driver.host_malloc(0).map(drop),
        Call::HostFree => driver.host_free(HostBuffer(77)),
        Call::CopyOut => driver.copy_out(0, HostBuffer(77), 0, 8),
        Call::CopyIn => driver.copy_in(HostBuffer(77), 0, 0, 8),
        Call::HostWait => driver.host_wait(HostBuffer(77)),
        Call::CreateOnHost => driver.create_on_host(0).map(drop),
        Call::EnablePeer => driver.enable_peer_access(1, true),
        Call::Export => driver.export(handle).map(drop),
        Call::Import => driver.import(&Exported::new(std::io::pipe().unwrap().0.into()), 0).map(drop),
        Call::IpcGet => driver.ipc_get(1).map(drop),
        Call::IpcOpen => driver.ipc_open(&ipc).map(drop),
        Call::IpcClose => driver.ipc_close(1),
        Call::ExchangeCaptureMode => driver.exchange_capture_mode(CaptureMode::Global).map(drop),
        Call::PoolCreate => driver.pool_create(u64::MAX).map(drop),
        Call::PoolDestroy => driver.pool_destroy(MemoryPool(77)),
        Call::PoolMalloc => driver.pool_malloc(MemoryPool(77), 1, stream).map(drop),
        Call::PoolFree => driver.pool_free(1, stream),
        Call::PoolTrim => driver.pool_trim(MemoryPool(77), 0),
        Call::PoolAttribute => driver.pool_attribute(MemoryPool(77), PoolAttribute::Used).map(drop),
        Call::StreamCreate => driver.stream_create().map(drop),
        Call::StreamDestroy => driver.stream_destroy(stream),
        Call::Launch | Call::BeginCapture | Call::EndCapture => return None,
    })
}

#[test]
fn every_call_reaches_the_driver_below_once_under_its_name() {
    let layer = Noting { gpu: SimGpu::new(SimConfig::default()).unwrap(), made: Mutex::default() };
    let bare = SimGpu::new(SimConfig::default()).unwrap();
    let mut expected = Vec::new();
    for call in Call::ALL {
        let Some(answer) = make(&layer, call) else { continue };
        assert_eq!(Some(answer), make(&bare, call), "{call}");
        assert_eq!(layer.gpu.call_stats().get(call).count, 1, "{call}");
        expected.push(call);
    }
    assert_eq!(*layer.made.lock().unwrap(), expected);
    let driver: &dyn Driver = &layer;
    assert_eq!(driver.properties(), layer.gpu.properties());
    assert_eq!(driver.canonical_stream(StreamId(3)), Ok(StreamId(3)));
    assert!(driver.host_bytes(HostBuffer(77), 0, 8, &mut |_| ()).is_err());
    assert_eq!((driver.call_stats(), driver.busy_ns()), (layer.gpu.call_stats(), layer.gpu.busy_ns()));
    assert_eq!(*layer.made.lock().unwrap(), expected, "these are no calls");
}

/// A driver that refuses to create memory, and passes all other calls on.
struct Full(SimGpu);

impl ForwardingDriver for Full {
    fn inner(&self) -> &dyn Driver {
        &self.0
    }
    fn create(&self, _: u64) -> DriverResult<Handle> {
        Err(DriverError::new(Call::Create, Status::OUT_OF_MEMORY, "full"))
    }
}

#[test]
fn what_a_layer_writes_takes_the_place_of_the_call_below() {
    let full = Full(SimGpu::new(SimConfig::default()).unwrap());
    let driver: &dyn Driver = &full;
    assert!(driver.create(2 << 20).is_err_and(|error| error.is_out_of_memory()));
    assert!(driver.malloc(2 << 20).is_ok());
    assert_eq!(full.0.call_stats().get(Call::Create).count, 0);
    assert_eq!(full.0.leaks().mallocs, 1);
}
