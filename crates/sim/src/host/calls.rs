//! The driver's calls, as [`HostDriver`] serves them: a device whose memory is the host's.
//!
//! Owns: which parts of the device (memory, streams, captures) serve each call, in which order. The parts check the
//! rules.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::addresses::{Reserved, map_anywhere, reserve};
use super::chunk::Chunk;
use super::device::HostDriver;
use super::work::{HostWork, copy_words, read_bytes, write_bytes};
use crate::bookkeeping::{Answer, Fault, Range, refuse};
use seamalloc_driver::{
    Call, CallStats, CaptureMode, Contents, DeviceProperties, Driver, DriverResult, EventId, Events, Handle,
    MemoryInfo, PeerAccess, PlainMemory, Status, StreamCapture, StreamId, Streams, VirtualMemory,
};

impl VirtualMemory for HostDriver {
    fn reserve(&self, size: u64, alignment: u64) -> DriverResult<u64> {
        self.locked(Call::Reserve, |state| {
            state.memory.reserve(size, alignment, |size, alignment| Ok(reserve(size, alignment)?.address()))
        })
    }

    fn address_free(&self, address: u64, size: u64) -> DriverResult<()> {
        self.locked(Call::AddressFree, |state| {
            state.memory.address_free(address, size, || Reserved::known(address, size).give_back())
        })
    }

    fn create(&self, size: u64) -> DriverResult<Handle> {
        self.locked(Call::Create, |state| state.memory.create(size, || self.file.chunk(size)))
    }

    fn create_on_host(&self, size: u64) -> DriverResult<Handle> {
        self.locked(Call::CreateOnHost, |state| state.memory.create_on_host(size, || self.file.chunk(size)))
    }

    fn release(&self, handle: Handle) -> DriverResult<()> {
        self.locked(Call::Release, |state| state.memory.release(handle).map(drop))
    }

    fn map(&self, address: u64, size: u64, offset: u64, handle: Handle) -> DriverResult<()> {
        self.locked(Call::Map, |state| {
            let place = |chunk: &Chunk| Reserved::known(address, size).map(chunk.part(), false);
            state.memory.map(address, size, offset, handle, place).map(drop)
        })
    }

    fn unmap(&self, address: u64, size: u64) -> DriverResult<()> {
        self.call(Call::Unmap, |shared| {
            let mut state = shared.state.write();
            // A refused range is an error of the call, not a fault.
            state.memory.whole_mappings(address, size).map(drop)?;
            let used = shared.streams.lock().in_use(Range { address, size });
            for (range, stream) in used {
                state.report(Fault::UnmapInUse { range, stream });
            }
            state.memory.unmap(address, size, || Reserved::known(address, size).unmap())
        })
    }

    fn set_access(&self, address: u64, size: u64) -> DriverResult<()> {
        self.locked(Call::SetAccess, |state| {
            state.memory.set_access(address, size, || Reserved::known(address, size).open())
        })
    }
}

impl PlainMemory for HostDriver {
    fn malloc(&self, size: u64) -> DriverResult<u64> {
        self.locked(Call::Malloc, |state| {
            state.captures.refuse_unsafe()?;
            state.memory.malloc(size, |size| {
                let chunk = self.file.chunk(size)?;
                Ok((map_anywhere(chunk.part(), size)?.address(), chunk))
            })
        })
    }

    fn free(&self, address: u64) -> DriverResult<()> {
        self.call(Call::Free, |shared| {
            let mut state = shared.state.write();
            state.captures.refuse_unsafe()?;
            if address == 0 {
                return Ok(());
            }
            state.memory.of_malloc(address)?;
            drop(state);
            shared.wait_for(|streams| Ok(streams.mark_all()))?;
            shared.state.write().memory.free(address, |size| Reserved::known(address, size).give_back())
        })
    }
}

impl HostDriver {
    /// Refuses a query of an event, or a wait for it, if a capture forbids the call.
    fn check_event(&self, event: EventId) -> Answer<()> {
        let captured = self.shared.streams.lock().event(event)?.captured;
        let mut state = self.shared.state.write();
        state.captures.check_event(captured)?;
        state.captures.refuse_unsafe()
    }
}

impl Events for HostDriver {
    fn event_create(&self) -> DriverResult<EventId> {
        self.call(Call::EventCreate, |shared| Ok(shared.with_streams(|streams| streams.event_create())))
    }

    fn event_destroy(&self, event: EventId) -> DriverResult<()> {
        self.call(Call::EventDestroy, |shared| shared.with_streams(|streams| streams.event_destroy(event)))
    }

    fn event_record(&self, event: EventId, stream: StreamId) -> DriverResult<()> {
        self.call(Call::EventRecord, |shared| {
            shared.streams.lock().check_stream(stream)?;
            let runs = shared.state.read().captures.check_work(stream)?;
            shared.with_streams(|streams| streams.event_record(event, stream, runs))
        })
    }

    fn event_query(&self, event: EventId) -> DriverResult<bool> {
        self.call(Call::EventQuery, |shared| {
            self.check_event(event)?;
            Ok(shared.streams.lock().mark_of(event)?.has_passed())
        })
    }

    fn event_synchronize(&self, event: EventId) -> DriverResult<()> {
        self.call(Call::EventSynchronize, |shared| {
            self.check_event(event)?;
            shared.wait_for(|streams| Ok(vec![streams.mark_of(event)?]))
        })
    }

    fn stream_wait(&self, stream: StreamId, event: EventId) -> DriverResult<()> {
        self.call(Call::StreamWait, |shared| {
            let streams = shared.streams.lock();
            streams.check_stream(stream)?;
            let (is_recorded, captured) = streams.event(event).map(|event| (event.is_recorded, event.captured))?;
            drop(streams);
            if is_recorded && shared.state.write().captures.check_wait(stream, captured)? {
                shared.with_streams(|streams| streams.stream_wait(stream, event))?;
            }
            Ok(())
        })
    }
}

impl Streams for HostDriver {
    fn canonical_stream(&self, stream: StreamId) -> DriverResult<StreamId> {
        Ok(stream)
    }

    fn stream_number(&self, stream: StreamId) -> DriverResult<Option<u64>> {
        if stream == StreamId::DEFAULT {
            return Ok(None);
        }
        self.call(Call::StreamNumber, |shared| {
            shared.streams.lock().check_stream(stream)?;
            shared.state.write().captures.refuse_of_captured(stream)?;
            shared.with_streams(|streams| streams.number_of(stream)).map(Some)
        })
    }

    fn stream_synchronize(&self, stream: StreamId) -> DriverResult<()> {
        self.call(Call::StreamSynchronize, |shared| {
            shared.streams.lock().check_stream(stream)?;
            shared.state.write().captures.refuse_synchronize(stream)?;
            shared.wait_for(|streams| Ok(vec![streams.mark(stream)?]))
        })
    }
}

impl StreamCapture for HostDriver {
    fn is_capturing(&self, stream: StreamId) -> DriverResult<bool> {
        self.call(Call::IsCapturing, |shared| Ok(shared.state.read().captures.is_capturing(stream)))
    }

    fn exchange_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        self.locked(Call::ExchangeCaptureMode, |state| Ok(state.captures.exchange_mode(mode)))
    }
}

impl Contents for HostDriver {
    fn fill(&self, address: u64, size: u64, value: u8, stream: StreamId) -> DriverResult<()> {
        let to = Range { address, size };
        self.call(Call::Fill, |shared| {
            shared.streams.lock().check_stream(stream)?;
            shared.state.read().memory.check_usable(to, stream)?;
            self.give(stream, &Arc::new(HostWork::Set { to, value }))
        })
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> DriverResult<()> {
        self.call(Call::Read, |shared| {
            shared.state.write().captures.refuse_unsafe()?;
            read_bytes(&shared.state.read().memory, address, bytes)
        })
    }

    fn write(&self, address: u64, bytes: &[u8]) -> DriverResult<()> {
        self.call(Call::Write, |shared| {
            shared.state.write().captures.refuse_unsafe()?;
            write_bytes(&shared.state.read().memory, address, bytes)
        })
    }

    fn copy(&self, from: u64, to: u64, size: u64) -> DriverResult<()> {
        self.call(Call::Copy, |shared| {
            shared.state.write().captures.refuse_unsafe()?;
            copy_words(&shared.state.read().memory, Range { address: from, size }, to)
        })
    }
}

impl PeerAccess for HostDriver {
    fn enable_peer_access(&self, peer: u32, _: bool) -> DriverResult<()> {
        self.call(Call::EnablePeer, |_| {
            Err(refuse(Status::PEER_ACCESS_UNSUPPORTED, format!("no device {peer} is connected to host memory")))
        })
    }
}

impl Driver for HostDriver {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.call(Call::MemoryInfo, |shared| Ok(shared.state.read().memory.info()))
    }

    fn synchronize(&self) -> DriverResult<()> {
        self.call(Call::Synchronize, |shared| {
            shared.state.write().captures.refuse_synchronize_all()?;
            shared.wait_for(|streams| Ok(streams.mark_all()))
        })
    }

    fn call_stats(&self) -> CallStats {
        self.calls.snapshot()
    }

    fn busy_ns(&self) -> u64 {
        self.calls.busy_ns()
    }

    fn clock_ns(&self) -> u64 {
        self.calls.clock_ns()
    }

    fn rest(&self, ns: u64) {
        thread::sleep(Duration::from_nanos(ns));
    }
}
