//! The driver's calls on the simulated GPU.
//!
//! Owns: which parts of the device (memory, streams, captures) serve each call, in which order. The parts check the
//! rules.

use std::sync::atomic::Ordering;

use super::contents::Writer;
use super::gpu::SimGpu;
use super::state::State;
use crate::bookkeeping::{Fault, Range};
use seamalloc_driver::{
    Call, CallStats, CaptureMode, Contents, DeviceProperties, Driver, DriverResult, EventId, Events, Handle,
    MemoryInfo, PeerAccess, PlainMemory, StreamCapture, StreamId, Streams, VirtualMemory,
};

impl VirtualMemory for SimGpu {
    fn reserve(&self, size: u64, alignment: u64) -> DriverResult<u64> {
        self.call(Call::Reserve, size, |state| {
            let State { memory, addresses, .. } = state;
            memory.reserve(size, alignment, |size, alignment| addresses.reserve(size, alignment))
        })
    }

    fn address_free(&self, address: u64, size: u64) -> DriverResult<()> {
        self.call(Call::AddressFree, size, |state| {
            let State { memory, addresses, .. } = state;
            memory.address_free(address, size, || {
                addresses.address_free(address, size);
                Ok(())
            })
        })
    }

    fn create(&self, size: u64) -> DriverResult<Handle> {
        self.call(Call::Create, size, |state| state.memory.create(size, || Ok(())))
    }

    fn create_on_host(&self, size: u64) -> DriverResult<Handle> {
        self.call(Call::CreateOnHost, size, |state| state.memory.create_on_host(size, || Ok(())))
    }

    fn release(&self, handle: Handle) -> DriverResult<()> {
        self.charged(Call::Release, 0, |state| {
            let (number, _) = state.memory.of_handle(handle)?;
            let size = state.memory.release(handle)?;
            state.contents.forget_gone([number], &state.memory);
            state.exported.remove(&handle);
            Ok(((), self.config.profile.cost(Call::Release, size)))
        })
    }

    fn map(&self, address: u64, size: u64, offset: u64, handle: Handle) -> DriverResult<()> {
        self.charged(Call::Map, size, |state| {
            let first = state.memory.map(address, size, offset, handle, |()| Ok(()))?;
            Ok(((), self.config.profile.map(size, first)))
        })
    }

    fn unmap(&self, address: u64, size: u64) -> DriverResult<()> {
        self.charged(Call::Unmap, size, |state| {
            let cost = self.config.profile.unmap(state.memory.whole_mappings(address, size)?);
            for (range, stream) in state.timeline.in_use(Range { address, size }) {
                state.report(Fault::UnmapInUse { range, stream });
            }
            let known = state.contents.known_in(Range { address, size }, &state.memory);
            state.memory.unmap(address, size, || Ok(()))?;
            state.contents.forget_gone(known, &state.memory);
            Ok(((), cost))
        })
    }

    fn set_access(&self, address: u64, size: u64) -> DriverResult<()> {
        self.charged(Call::SetAccess, size, |state| {
            let handles = state.memory.whole_mappings(address, size)?;
            let cost = self.config.profile.set_access_for(handles, state.peers.count());
            state.memory.set_access(address, size, || Ok(()))?;
            Ok(((), cost))
        })
    }
}

impl PlainMemory for SimGpu {
    fn malloc(&self, size: u64) -> DriverResult<u64> {
        self.call(Call::Malloc, size, |state| {
            state.captures.refuse_unsafe()?;
            let State { memory, addresses, .. } = state;
            memory.malloc(size, |size| addresses.malloc(size))
        })
    }

    fn free(&self, address: u64) -> DriverResult<()> {
        self.charged(Call::Free, 0, |state| {
            state.captures.refuse_unsafe()?;
            let size = state.memory.malloc_size(address)?;
            if address != 0 {
                state.timeline.wait_for_device();
            }
            let State { memory, addresses, contents, .. } = state;
            let number = memory.of_malloc(address).map(|(number, _)| number);
            memory.free(address, |size| {
                addresses.free(address, size);
                Ok(())
            })?;
            contents.forget_gone(number, memory);
            Ok(((), self.config.profile.cost(Call::Free, size)))
        })
    }
}

impl Events for SimGpu {
    fn event_create(&self) -> DriverResult<EventId> {
        self.call(Call::EventCreate, 0, |state| Ok(state.timeline.event_create()))
    }

    fn event_destroy(&self, event: EventId) -> DriverResult<()> {
        self.call(Call::EventDestroy, 0, |state| state.timeline.event_destroy(event))
    }

    fn event_record(&self, event: EventId, stream: StreamId) -> DriverResult<()> {
        self.call(Call::EventRecord, 0, |state| {
            state.timeline.check_stream(stream)?;
            let runs = state.captures.check_work(stream)?;
            state.timeline.event_record(event, stream, runs)
        })
    }

    fn event_query(&self, event: EventId) -> DriverResult<bool> {
        self.call(Call::EventQuery, 0, |state| {
            let now = state.timeline.now();
            let event = state.timeline.event(event)?;
            state.captures.check_event(event.captured())?;
            state.captures.refuse_unsafe()?;
            Ok(event.is_complete(now))
        })
    }

    fn event_synchronize(&self, event: EventId) -> DriverResult<()> {
        self.call(Call::EventSynchronize, 0, |state| {
            let captured = state.timeline.event(event)?.captured();
            state.captures.check_event(captured)?;
            state.captures.refuse_unsafe()?;
            state.timeline.wait_for_event(event)?;
            state.release_pools();
            Ok(())
        })
    }

    fn stream_wait(&self, stream: StreamId, event: EventId) -> DriverResult<()> {
        self.call(Call::StreamWait, 0, |state| {
            state.timeline.check_stream(stream)?;
            let waited_for = state.timeline.event(event)?;
            if waited_for.is_recorded() && state.captures.check_wait(stream, waited_for.captured())? {
                state.timeline.stream_wait(stream, event)?;
            }
            Ok(())
        })
    }
}

impl Streams for SimGpu {
    fn canonical_stream(&self, stream: StreamId) -> DriverResult<StreamId> {
        Ok(stream)
    }

    fn stream_number(&self, stream: StreamId) -> DriverResult<Option<u64>> {
        if stream == StreamId::DEFAULT {
            return Ok(None);
        }
        self.call(Call::StreamNumber, 0, |state| {
            state.timeline.check_stream(stream)?;
            state.captures.refuse_of_captured(stream)?;
            Ok(Some(state.timeline.number_of(stream)))
        })
    }

    fn stream_synchronize(&self, stream: StreamId) -> DriverResult<()> {
        self.call(Call::StreamSynchronize, 0, |state| {
            state.timeline.check_stream(stream)?;
            state.captures.refuse_synchronize(stream)?;
            state.timeline.wait_for_stream(stream);
            state.release_pools();
            Ok(())
        })
    }
}

impl StreamCapture for SimGpu {
    fn is_capturing(&self, stream: StreamId) -> DriverResult<bool> {
        self.call(Call::IsCapturing, 0, |state| Ok(state.captures.is_capturing(stream)))
    }

    fn exchange_capture_mode(&self, mode: CaptureMode) -> DriverResult<CaptureMode> {
        self.call(Call::ExchangeCaptureMode, 0, |state| Ok(state.captures.exchange_mode(mode)))
    }
}

impl Contents for SimGpu {
    fn fill(&self, address: u64, size: u64, value: u8, stream: StreamId) -> DriverResult<()> {
        let range = Range { address, size };
        self.call(Call::Fill, size, |state| {
            state.timeline.check_stream(stream)?;
            state.memory.check_usable(range, stream)?;
            if state.captures.check_work(stream)? {
                state.timeline.launch(stream, &[range], 0);
                state.contents.fill_range(range, value, Writer::Allocator, &state.memory);
            }
            Ok(())
        })
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> DriverResult<()> {
        let range = Range { address, size: bytes.len() as u64 };
        self.call(Call::Read, range.size, |state| {
            state.captures.refuse_unsafe()?;
            state.memory.check_usable(range, StreamId::DEFAULT)?;
            state.contents.read_at(address, bytes, &state.memory);
            Ok(())
        })
    }

    fn write(&self, address: u64, bytes: &[u8]) -> DriverResult<()> {
        let range = Range { address, size: bytes.len() as u64 };
        self.call(Call::Write, range.size, |state| {
            state.captures.refuse_unsafe()?;
            state.memory.check_usable(range, StreamId::DEFAULT)?;
            state.contents.write_at(address, bytes, &state.memory);
            Ok(())
        })
    }

    fn copy(&self, from: u64, to: u64, size: u64) -> DriverResult<()> {
        let [from, to] = [from, to].map(|address| Range { address, size });
        self.charged(Call::Copy, size, |state| {
            state.captures.refuse_unsafe()?;
            state.memory.check_copy(from, to)?;
            let over_bus = [from, to].iter().any(|range| state.memory.is_on_host(range.address));
            state.contents.copy(from, to, &state.memory);
            Ok(((), self.config.profile.copy(size, over_bus)))
        })
    }
}

impl PeerAccess for SimGpu {
    fn enable_peer_access(&self, peer: u32, plain: bool) -> DriverResult<()> {
        self.charged(Call::EnablePeer, 0, |state| {
            let new = state.peers.enable(peer, plain)?;
            let handles = state.memory.accessible().filter(|_| new);
            Ok(((), self.config.profile.set_access_for(handles, state.peers.count())))
        })
    }
}

impl Driver for SimGpu {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.call(Call::MemoryInfo, 0, |state| Ok(state.memory.info()))
    }

    fn synchronize(&self) -> DriverResult<()> {
        self.call(Call::Synchronize, 0, |state| {
            state.captures.refuse_synchronize_all()?;
            state.timeline.wait_for_device();
            state.release_pools();
            Ok(())
        })
    }

    fn call_stats(&self) -> CallStats {
        self.state.lock().stats.clone()
    }

    fn busy_ns(&self) -> u64 {
        self.busy_ns.load(Ordering::Relaxed)
    }

    fn clock_ns(&self) -> u64 {
        self.now_ns()
    }

    fn rest(&self, ns: u64) {
        self.advance(ns);
    }
}
