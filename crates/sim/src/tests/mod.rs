//! Tests of the simulated GPU as an allocator sees it: the rules of memory, faults, leaks, failures and costs.

mod bytes;
mod capture;
mod forward;
mod share;
mod time;

use std::fmt;

use super::{Fault, Leaks, Piece, Profile, Range, SimConfig, SimConfigError, SimGpu};
use crate::bookkeeping::GRANULARITY;
use seamalloc_driver::prelude::*;
use seamalloc_driver::{
    Call, CaptureMode, DriverResult, GateCopy, Handle, MemoryInfo, PoolAttribute, Status, StreamId,
};

const G: u64 = GRANULARITY;
const GIB: u64 = 1 << 30;
const S: StreamId = StreamId(1);

fn gpu_of(capacity: u64) -> SimGpu {
    SimGpu::new(SimConfig { capacity, ..SimConfig::default() }).unwrap()
}

fn gpu() -> SimGpu {
    gpu_of(64 * G)
}

fn status<T: fmt::Debug>(result: DriverResult<T>) -> Status {
    result.unwrap_err().status
}

/// Maps chunks of these sizes at adjacent addresses, at the start of a reservation of twice their size, with access.
fn mapped(gpu: &SimGpu, sizes: &[u64]) -> (u64, Vec<Handle>) {
    let size: u64 = sizes.iter().sum();
    let address = gpu.reserve(2 * size, 0).unwrap();
    let mut at = address;
    let mut handles = Vec::new();
    for &size in sizes {
        let handle = gpu.create(size).unwrap();
        gpu.map(at, size, 0, handle).unwrap();
        handles.push(handle);
        at += size;
    }
    gpu.set_access(address, size).unwrap();
    (address, handles)
}

#[test]
fn a_device_must_hold_something() {
    assert!(matches!(
        SimGpu::new(SimConfig { capacity: G - 1, ..SimConfig::default() }),
        Err(SimConfigError::Capacity { capacity }) if capacity == G - 1
    ));
    let gpu = SimGpu::new(SimConfig::parse("sim:h200,capacity=200GiB").unwrap()).unwrap();
    let properties = gpu.properties();
    assert_eq!(properties.name, "sim:h200,capacity=200GiB");
    assert_eq!((properties.total_memory, properties.granularity, properties.virtual_memory), (200 * GIB, G, true));
}

#[test]
fn reservations_are_aligned_ascending_and_reused() {
    let gpu = gpu();
    let first = gpu.reserve(3 * G, 0).unwrap();
    let second = gpu.reserve(G, G).unwrap();
    assert_eq!(second, first + 3 * G);
    let aligned = gpu.reserve(G, GIB).unwrap();
    assert!(aligned.is_multiple_of(GIB) && aligned > second);
    gpu.address_free(first, 3 * G).unwrap();
    assert_eq!(gpu.reserve(G, 0).unwrap(), first, "the lowest that fits");
    for (size, alignment) in [(0, 0), (G + 1, 0), (4096, 0), (G, 3), (G, 3 * G), (u64::MAX, 0)] {
        assert_eq!(status(gpu.reserve(size, alignment)), Status::INVALID_VALUE, "{size} aligned to {alignment}");
    }
}

#[test]
fn address_space_is_64_tib() {
    const TIB: u64 = 1 << 40;
    let gpu = gpu();
    let all = gpu.reserve(64 * TIB, 0).unwrap();
    assert_eq!(status(gpu.reserve(G, 0)), Status::OUT_OF_MEMORY);
    gpu.address_free(all, 64 * TIB).unwrap();
    assert_eq!(status(gpu.reserve(64 * TIB + G, 0)), Status::OUT_OF_MEMORY);
    assert_eq!(status(gpu.reserve(u64::MAX - G + 1, 1 << 63)), Status::OUT_OF_MEMORY);
    gpu.reserve(32 * TIB, 0).unwrap();
    assert_eq!(status(gpu.reserve(33 * TIB, 0)), Status::OUT_OF_MEMORY);
}

#[test]
fn a_reservation_is_freed_whole_and_empty() {
    let gpu = gpu();
    let (address, handles) = mapped(&gpu, &[G]);
    for (at, size) in [(address, 2 * G), (address, G), (address + G, G), (address - G, 2 * G), (0, 0)] {
        assert_eq!(status(gpu.address_free(at, size)), Status::INVALID_VALUE, "{size} at {at:#x}");
    }
    gpu.unmap(address, G).unwrap();
    gpu.address_free(address, 2 * G).unwrap();
    assert_eq!(status(gpu.address_free(address, 2 * G)), Status::INVALID_VALUE, "twice");
    gpu.release(handles[0]).unwrap();
    assert!(gpu.leaks().is_empty());
}

#[test]
fn create_and_malloc_share_the_memory_there_is() {
    let gpu = gpu_of(4 * G + 1);
    let handle = gpu.create(2 * G).unwrap();
    let memory = gpu.malloc(G + 1).unwrap();
    assert_eq!(gpu.memory_info().unwrap(), MemoryInfo { free: 1, total: 4 * G + 1 });
    assert_eq!(status(gpu.create(G)), Status::OUT_OF_MEMORY);
    assert_eq!(status(gpu.malloc(1)), Status::OUT_OF_MEMORY);
    gpu.free(memory).unwrap();
    assert_eq!(status(gpu.create(3 * G)), Status::OUT_OF_MEMORY);
    gpu.release(handle).unwrap();
    gpu.create(4 * G).unwrap();
    for size in [0, 1, G - 1, G + 4096] {
        assert_eq!(status(gpu.create(size)), Status::INVALID_VALUE, "{size}");
    }
    assert_eq!(status(gpu.create(u64::MAX - G + 1)), Status::OUT_OF_MEMORY);
    assert_eq!(status(gpu.malloc(0)), Status::INVALID_VALUE);
    assert_eq!(status(gpu.malloc(u64::MAX)), Status::OUT_OF_MEMORY);
}

#[test]
fn host_memory_is_mapped_as_the_devices_and_takes_none_of_it() {
    let gpu = SimGpu::new(SimConfig { capacity: 2 * G, host_capacity: 3 * G, ..SimConfig::default() }).unwrap();
    let [own, host] = [gpu.create(2 * G).unwrap(), gpu.create_on_host(2 * G).unwrap()];
    assert_eq!(gpu.memory_info().unwrap(), MemoryInfo { free: 0, total: 2 * G });
    assert_eq!(status(gpu.create_on_host(2 * G)), Status::OUT_OF_MEMORY, "the machine has 3");
    for size in [0, 1, G + 4096] {
        assert_eq!(status(gpu.create_on_host(size)), Status::INVALID_VALUE, "{size}");
    }
    let address = gpu.reserve(4 * G, 0).unwrap();
    for (at, handle) in [(0, own), (2 * G, host)] {
        gpu.map(address + at, 2 * G, 0, handle).unwrap();
    }
    gpu.set_access(address, 4 * G).unwrap();
    gpu.write(address, &[7; 4096]).unwrap();
    let took = |from, to| {
        let before = gpu.busy_ns();
        gpu.copy(from, to, G).unwrap();
        gpu.busy_ns() - before
    };
    assert!(took(address, address + 2 * G) > 3 * took(address, address + G), "over the bus");
    let mut bytes = [0; 4096];
    gpu.read(address + 2 * G, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4096]);
    gpu.release(host).unwrap();
    assert_eq!((gpu.leaks().bytes, gpu.leaks().host_bytes), (2 * G, 2 * G), "it is still mapped");
    gpu.unmap(address, 4 * G).unwrap();
    assert_eq!((gpu.leaks().bytes, gpu.leaks().host_bytes), (2 * G, 0));
    gpu.release(own).unwrap();
    gpu.address_free(address, 4 * G).unwrap();
    assert!(gpu.leaks().is_empty());
}

#[test]
fn malloc_is_freed_by_its_first_address() {
    let gpu = gpu();
    let [first, second] = [gpu.malloc(512).unwrap(), gpu.malloc(G).unwrap()];
    assert!(first.is_multiple_of(G) && second == first + G);
    let reserved = gpu.reserve(G, 0).unwrap();
    for address in [first + 512, second + G, reserved, 12345, u64::MAX] {
        assert_eq!(status(gpu.free(address)), Status::INVALID_VALUE, "{address:#x}");
    }
    gpu.free(first).unwrap();
    assert_eq!(status(gpu.free(first)), Status::INVALID_VALUE, "twice");
    assert_eq!(gpu.malloc(1).unwrap(), first);
}

#[test]
fn a_handle_is_mapped_whole_inside_a_reservation_over_nothing() {
    let gpu = gpu();
    let address = gpu.reserve(4 * G, 0).unwrap();
    let neighbour = gpu.reserve(4 * G, 0).unwrap();
    assert_eq!(neighbour, address + 4 * G);
    let [small, large] = [gpu.create(G).unwrap(), gpu.create(2 * G).unwrap()];
    for (at, size, offset, handle, expected) in [
        (address, G, 0, large, Status::NOT_SUPPORTED),
        (address, G, G, large, Status::NOT_SUPPORTED),
        (address, 2 * G, G, large, Status::NOT_SUPPORTED),
        (address, 2 * G, 0, small, Status::NOT_SUPPORTED),
        (address, 0, 0, small, Status::INVALID_VALUE),
        (address + 4096, G, 0, small, Status::INVALID_VALUE),
        (address, G, 0, Handle(999), Status::INVALID_VALUE),
        (address - G, G, 0, small, Status::INVALID_VALUE),
        (address - G, 2 * G, 0, large, Status::INVALID_VALUE),
        (address + 3 * G, 2 * G, 0, large, Status::INVALID_VALUE),
        (neighbour + 4 * G, G, 0, small, Status::INVALID_VALUE),
        (u64::MAX - G + 1, G, 0, small, Status::INVALID_VALUE),
    ] {
        assert_eq!(status(gpu.map(at, size, offset, handle)), expected, "{size} at {at:#x}, offset {offset}");
    }
    gpu.map(address + G, 2 * G, 0, large).unwrap();
    for (at, size, handle) in
        [(address, 2 * G, large), (address + G, G, small), (address + 2 * G, 2 * G, large), (address + 2 * G, G, small)]
    {
        assert_eq!(status(gpu.map(at, size, 0, handle)), Status::INVALID_VALUE, "over a mapping, {size} at {at:#x}");
    }
    gpu.map(address, G, 0, small).unwrap();
    gpu.map(address + 3 * G, G, 0, small).unwrap();
    gpu.map(neighbour, 2 * G, 0, large).unwrap();
    assert_eq!(gpu.leaks().mappings, 4, "a handle may be mapped at several addresses");
    assert_eq!(gpu.memory_info().unwrap().free, 61 * G, "which takes no memory");
}

#[test]
fn ranges_of_unmap_and_access_are_whole_mappings_without_a_gap() {
    let gpu = gpu();
    let (address, handles) = mapped(&gpu, &[G, 2 * G, G]);
    // One mapping lies after a gap, and another in the next reservation.
    gpu.map(address + 5 * G, G, 0, handles[0]).unwrap();
    gpu.map(address + 7 * G, G, 0, handles[0]).unwrap();
    let neighbour = gpu.reserve(G, 0).unwrap();
    assert_eq!(neighbour, address + 8 * G);
    gpu.map(neighbour, G, 0, handles[0]).unwrap();
    for (at, size, what) in [
        (address + G, G, "a part of a mapping"),
        (address + 2 * G, G, "its other part"),
        (address, 2 * G, "one and a part"),
        (address + 2 * G, 2 * G, "a part and one"),
        (address, 6 * G, "a gap"),
        (address + 3 * G, 2 * G, "a gap at the end"),
        (address + 4 * G, G, "nothing"),
        (address + 4 * G, 2 * G, "a gap at the start"),
        (address + 7 * G, 2 * G, "two reservations"),
        (address, 0, "no size"),
        (address, 4096, "no multiple of the granularity"),
        (address + 4096, G, "no multiple of the granularity"),
        (address, u64::MAX - G + 1, "an overflow"),
        (8 * G, G, "no reservation"),
    ] {
        assert_eq!(status(gpu.unmap(at, size)), Status::INVALID_VALUE, "{what}");
        assert_eq!(status(gpu.set_access(at, size)), Status::INVALID_VALUE, "{what}");
    }
    assert_eq!(gpu.leaks().mappings, 6, "nothing was unmapped");
    gpu.set_access(address + G, 3 * G).unwrap();
    gpu.unmap(address, 4 * G).unwrap();
    assert_eq!(gpu.leaks().mappings, 3);
    gpu.map(address, G, 0, handles[0]).unwrap();
}

#[test]
fn released_memory_lives_as_long_as_its_mappings() {
    let gpu = gpu_of(2 * G);
    let (address, handles) = mapped(&gpu, &[G]);
    gpu.map(address + G, G, 0, handles[0]).unwrap();
    gpu.release(handles[0]).unwrap();
    assert_eq!(status(gpu.release(handles[0])), Status::INVALID_VALUE);
    assert_eq!(status(gpu.map(address + G, G, 0, handles[0])), Status::INVALID_VALUE);
    gpu.launch(S, &[Range { address, size: G }], 1).unwrap();
    gpu.stream_synchronize(S).unwrap();
    gpu.unmap(address, G).unwrap();
    assert_eq!(gpu.memory_info().unwrap().free, G);
    gpu.unmap(address + G, G).unwrap();
    assert_eq!(gpu.memory_info().unwrap().free, 2 * G);
    assert_eq!(status(gpu.release(handles[0])), Status::INVALID_VALUE);
    assert_eq!(status(gpu.release(Handle(0))), Status::INVALID_VALUE);
    assert!(gpu.faults().is_empty());
}

#[test]
fn a_kernel_needs_mapped_memory_with_access() {
    let gpu = gpu();
    let (address, handles) = mapped(&gpu, &[G, G]);
    let memory = gpu.malloc(1000).unwrap();
    let range = |address, size| Range { address, size };
    gpu.launch(S, &[range(address + 5, 2 * G - 5), range(memory, 1000), range(7, 0)], 10).unwrap();
    assert!(gpu.faults().is_empty());

    gpu.map(address + 3 * G, G, 0, handles[0]).unwrap();
    let mut expected = Vec::new();
    for (used, fault) in [
        (range(address + G, 2 * G), Fault::UnmappedUse { range: range(address + 2 * G, G), stream: S }),
        (range(address + G, 3 * G), Fault::UnmappedUse { range: range(address + 2 * G, G), stream: S }),
        (range(address + 3 * G + 1, 1), Fault::NoAccess { range: range(address + 3 * G + 1, 1), stream: S }),
        (range(memory, 1001), Fault::UnmappedUse { range: range(memory + 1000, 1), stream: S }),
        (range(8, u64::MAX), Fault::UnmappedUse { range: range(8, memory - 8), stream: S }),
    ] {
        assert_eq!(status(gpu.launch(S, &[used], 10)), Status::ILLEGAL_ADDRESS, "{used}");
        expected.push(fault);
        assert_eq!(gpu.faults(), expected);
    }
    gpu.set_access(address + 3 * G, G).unwrap();
    gpu.launch(S, &[range(address + 3 * G, G)], 10).unwrap();
}

#[test]
fn unmapping_what_a_kernel_uses_is_reported_and_done() {
    let gpu = gpu();
    let (address, handles) = mapped(&gpu, &[G, G]);
    gpu.map(address + 2 * G, G, 0, handles[0]).unwrap();
    gpu.launch(S, &[Range { address: address + 512, size: G }], 1_000_000).unwrap();
    gpu.unmap(address + 2 * G, G).unwrap();
    assert!(gpu.faults().is_empty(), "another address of the same memory");
    gpu.unmap(address, G).unwrap();
    let range = Range { address: address + 512, size: G - 512 };
    assert_eq!(gpu.faults(), [Fault::UnmapInUse { range, stream: S }]);
    assert_eq!(gpu.leaks().mappings, 1, "it is unmapped nevertheless");
    gpu.advance(1_000_000);
    gpu.unmap(address + G, G).unwrap();
    assert_eq!(gpu.faults().len(), 1, "the kernel is done");

    gpu.map(address, G, 0, handles[0]).unwrap();
    gpu.set_access(address, G).unwrap();
    let hold = gpu.hold(S);
    gpu.launch(S, &[Range { address, size: 1 }], 0).unwrap();
    gpu.advance(1_000_000);
    gpu.finish_hold(hold);
    gpu.unmap(address, G).unwrap();
    assert_eq!(gpu.faults().len(), 1, "a kernel that was held back is done too");
}

#[test]
fn free_waits_and_so_frees_nothing_in_use() {
    let gpu = gpu();
    let memory = gpu.malloc(G).unwrap();
    gpu.launch(S, &[Range { address: memory, size: G }], 5_000_000).unwrap();
    gpu.free(memory).unwrap();
    assert!(gpu.faults().is_empty() && gpu.now_ns() >= 5_000_000);
    assert_eq!(gpu.call_stats().get(Call::Free).total_ns, 5_000_000 + 27_000);
    assert_eq!(status(gpu.launch(S, &[Range { address: memory, size: 1 }], 1)), Status::ILLEGAL_ADDRESS);
}

#[test]
fn what_lies_behind_addresses_is_told_whatever_leads_to_it() {
    let gpu = gpu();
    let (address, handles) = mapped(&gpu, &[G, 2 * G]);
    let second = gpu.reserve(3 * G, 0).unwrap();
    gpu.map(second + G, 2 * G, 0, handles[1]).unwrap();
    let physical = |address, size| gpu.physical(Range { address, size });
    let [one, two] = [handles[0].0, handles[1].0];
    let piece = |memory, offset, size| Piece { memory, offset, size };
    assert_eq!(physical(address, 3 * G), [piece(one, 0, G), piece(two, 0, 2 * G)]);
    assert_eq!(physical(address + G - 1, 3), [piece(one, G - 1, 1), piece(two, 0, 2)]);
    assert_eq!(physical(second, 2 * G), [piece(two, 0, G)], "the same memory, and nothing before it");
    assert_eq!(physical(second + G + 5, u64::MAX), [piece(two, 5, 2 * G - 5)]);
    let first = gpu.malloc(100).unwrap();
    let before = physical(first, 100);
    assert_eq!(before[0].size, 100);
    gpu.free(first).unwrap();
    assert!(physical(first, 100).is_empty() && physical(0, u64::MAX).len() == 3);
    assert_eq!(gpu.malloc(100), Ok(first));
    assert_ne!(physical(first, 100), before, "the address is the same, the memory another's");
}

#[test]
fn when_a_stream_is_done_is_known_unless_it_is_held() {
    let gpu = gpu();
    let stream = StreamId(3);
    assert_eq!(gpu.done_at(stream), Some(0));
    gpu.advance(10);
    gpu.launch(stream, &[], 5).unwrap();
    gpu.launch(stream, &[], 7).unwrap();
    assert_eq!(gpu.done_at(stream), Some(22));
    gpu.hold(stream);
    assert_eq!(gpu.done_at(stream), None);
    gpu.advance(90);
    gpu.finish(stream);
    assert_eq!(gpu.done_at(stream), Some(100));
}

#[test]
fn failures_that_have_not_come_can_be_called_off() {
    let gpu = gpu();
    gpu.fail_nth(Call::Malloc, 1, Status::UNKNOWN);
    gpu.fail_no_more();
    assert!(gpu.malloc(G).is_ok());
}

#[test]
fn what_is_held_shows_as_leaks() {
    let gpu = gpu();
    let (address, handles) = mapped(&gpu, &[G, G]);
    let memory = gpu.malloc(1).unwrap();
    let event = gpu.event_create().unwrap();
    gpu.release(handles[0]).unwrap();
    let held =
        Leaks { reservations: 1, handles: 1, mappings: 2, mallocs: 1, events: 1, bytes: 3 * G, ..Leaks::default() };
    assert_eq!(gpu.leaks(), held);
    gpu.unmap(address, 2 * G).unwrap();
    gpu.address_free(address, 4 * G).unwrap();
    gpu.release(handles[1]).unwrap();
    gpu.free(memory).unwrap();
    gpu.event_destroy(event).unwrap();
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

#[test]
fn the_calls_cost_what_the_table_says() {
    let gpu = gpu_of(2 * GIB);
    let (address, handles) = mapped(&gpu, &[32 << 20; 32]);
    gpu.unmap(address, GIB).unwrap();
    gpu.map(address, 32 << 20, 0, handles[0]).unwrap();
    gpu.unmap(address, 32 << 20).unwrap();
    handles.into_iter().for_each(|handle| gpu.release(handle).unwrap());
    assert_eq!(status(gpu.create(4 * GIB)), Status::OUT_OF_MEMORY);
    let stats = gpu.call_stats();
    let of = |call| (stats.get(call).count, stats.get(call).total_ns);
    assert_eq!(
        of(Call::Create),
        (33, 32 * 11_400 + Profile::H200.refused(Call::Create, Status::OUT_OF_MEMORY, 4 * GIB))
    );
    assert_eq!(of(Call::Map), (33, 32 * 4_600 + 1_000));
    assert_eq!(of(Call::SetAccess), (1, 21_000 + 31 * 22_500));
    assert_eq!(of(Call::Unmap), (2, 2 * 17_000 + 31 * 15_000));
    assert_eq!(of(Call::Release), (32, 32 * 16_600));
    assert_eq!((gpu.busy_ns(), gpu.now_ns()), (stats.total_ns(), stats.total_ns()));
    gpu.advance(7);
    assert_eq!((gpu.busy_ns(), gpu.now_ns()), (stats.total_ns(), stats.total_ns() + 7));
}

/// Makes one legal call of that kind, which is made to fail. Returns `None` for calls that are not the driver's.
fn attempt(gpu: &SimGpu, call: Call) -> Option<DriverResult<()>> {
    let (address, handles) = mapped(gpu, &[G]);
    let empty = gpu.reserve(G, 0).unwrap();
    let memory = gpu.malloc(1).unwrap();
    // The first allocation of the other GPU has the same address.
    let other = self::gpu();
    other.malloc(1).unwrap();
    let event = gpu.event_create().unwrap();
    let pool = gpu.pool_create(u64::MAX).unwrap();
    let pooled = gpu.pool_malloc(pool, G, S).unwrap();
    let own = gpu.stream_create().unwrap();
    let buffer = gpu.host_malloc(4096).unwrap();
    let start = gpu.now_ns();
    gpu.launch(S, &[], 1_000_000).unwrap();
    let before = (gpu.leaks(), gpu.memory_info().unwrap());
    gpu.fail_nth(call, 1, Status::UNKNOWN);
    let answer = match call {
        Call::Reserve => gpu.reserve(G, 0).map(drop),
        Call::AddressFree => gpu.address_free(empty, G),
        Call::Create => gpu.create(G).map(drop),
        Call::Release => gpu.release(handles[0]),
        Call::Map => gpu.map(address + G, G, 0, handles[0]),
        Call::Unmap => gpu.unmap(address, G),
        Call::SetAccess => gpu.set_access(address, G),
        Call::Malloc => gpu.malloc(1).map(drop),
        Call::Free => gpu.free(memory),
        Call::MemoryInfo => gpu.memory_info().map(drop),
        Call::EventCreate => gpu.event_create().map(drop),
        Call::EventDestroy => gpu.event_destroy(event),
        Call::EventRecord => gpu.event_record(event, S),
        Call::EventQuery => gpu.event_query(event).map(drop),
        Call::EventSynchronize => gpu.event_synchronize(event),
        Call::StreamWait => gpu.stream_wait(S, event),
        Call::StreamSynchronize => gpu.stream_synchronize(S),
        Call::StreamNumber => gpu.stream_number(S).map(drop),
        Call::Fill => gpu.fill(address, 512, 1, S),
        Call::Read => gpu.read(address, &mut [0; 8]),
        Call::Write => gpu.write(address, &[0; 8]),
        Call::Copy => gpu.copy(address, address + 512, 512),
        Call::CloseGate => {
            let copy = GateCopy { from: address, to: address + 512, size: 512 };
            gpu.close_gate(&[S], &[copy], u64::MAX).map(drop)
        }
        Call::HostMalloc => gpu.host_malloc(G).map(drop),
        Call::HostFree => gpu.host_free(buffer),
        Call::CopyOut => gpu.copy_out(address, buffer, 0, 512),
        Call::CopyIn => gpu.copy_in(buffer, 0, address, 512),
        Call::HostWait => gpu.host_wait(buffer),
        Call::CreateOnHost => gpu.create_on_host(G).map(drop),
        Call::EnablePeer => {
            gpu.connect_peer(1);
            let answer = gpu.enable_peer_access(1, true);
            assert!(!gpu.can_peer_use(1, Range { address, size: G }));
            answer
        }
        Call::Export => gpu.export(handles[0]).map(drop),
        Call::Import => gpu.import(&gpu.export(handles[0]).unwrap(), G).map(drop),
        Call::IpcGet => gpu.ipc_get(memory).map(drop),
        Call::IpcOpen => gpu.ipc_open(&other.ipc_get(memory).unwrap()).map(drop),
        Call::IpcClose => {
            gpu.fail_no_more();
            let opened = gpu.ipc_open(&other.ipc_get(memory).unwrap()).unwrap();
            gpu.fail_nth(call, 1, Status::UNKNOWN);
            let answer = gpu.ipc_close(opened);
            gpu.ipc_close(opened).unwrap();
            answer
        }
        Call::IsCapturing => gpu.is_capturing(S).map(drop),
        Call::Synchronize => gpu.synchronize(),
        Call::ExchangeCaptureMode => gpu.exchange_capture_mode(CaptureMode::Relaxed).map(drop),
        Call::PoolCreate => gpu.pool_create(0).map(drop),
        Call::PoolDestroy => gpu.pool_destroy(pool),
        Call::PoolMalloc => gpu.pool_malloc(pool, 64 * G, S).map(drop),
        Call::PoolFree => gpu.pool_free(pooled, S),
        Call::PoolTrim => gpu.pool_trim(pool, 0),
        Call::PoolAttribute => gpu.pool_attribute(pool, PoolAttribute::Used).map(drop),
        Call::StreamCreate => gpu.stream_create().map(drop),
        Call::StreamDestroy => gpu.stream_destroy(own),
        Call::Launch | Call::BeginCapture | Call::EndCapture => return None,
    };
    assert_eq!((gpu.leaks(), gpu.memory_info().unwrap()), before, "{call} changed something");
    assert!(gpu.now_ns() < start + 1_000_000, "{call} waited");
    assert!(gpu.event_query(event).unwrap(), "{call} recorded");
    Some(answer)
}

#[test]
fn every_call_can_be_made_to_fail_and_then_changes_nothing() {
    let mut failed = 0;
    for call in Call::ALL {
        if let Some(answer) = attempt(&gpu(), call) {
            let error = answer.unwrap_err();
            assert_eq!((error.call, error.status), (call, Status::UNKNOWN));
            failed += 1;
        }
    }
    assert_eq!(failed, Call::COUNT - 3, "all but those that are not the driver's");
}

#[test]
fn a_peer_uses_what_it_was_given_access_to() {
    let gpu = gpu();
    let (mapped, _) = mapped(&gpu, &[G, G]);
    let plain = gpu.malloc(G).unwrap();
    let [mapped, plain] = [mapped, plain].map(|address| Range { address, size: G });
    assert_eq!(status(gpu.enable_peer_access(1, false)), Status::PEER_ACCESS_UNSUPPORTED);
    gpu.connect_peer(1);
    assert!(!gpu.can_peer_use(1, mapped));
    gpu.enable_peer_access(1, false).unwrap();
    assert!(gpu.can_peer_use(1, mapped) && !gpu.can_peer_use(1, plain) && !gpu.can_peer_use(2, mapped));
    gpu.enable_peer_access(1, true).unwrap();
    assert!(gpu.can_peer_use(1, plain));
    let later = gpu.reserve(G, 0).unwrap();
    gpu.map(later, G, 0, gpu.create(G).unwrap()).unwrap();
    assert!(!gpu.can_peer_use(1, Range { address: later, size: G }), "no access yet");
    let before = gpu.busy_ns();
    gpu.set_access(later, G).unwrap();
    assert!(gpu.can_peer_use(1, Range { address: later, size: G }));
    let alone = Profile::H200.set_access([G]);
    assert_eq!(gpu.busy_ns() - before, alone + alone / 5 * 4, "a list of two takes longer");
}

#[test]
fn with_a_lost_context_every_call_fails() {
    let gpu = gpu();
    let handle = gpu.create(G).unwrap();
    gpu.lose_context(Status::ILLEGAL_ADDRESS);
    let error = gpu.release(handle).unwrap_err();
    assert!(error.is_context_lost(), "{error}");
    assert!(gpu.memory_info().unwrap_err().is_context_lost());
}

#[test]
fn a_replaced_stream_knows_nothing_of_the_work_before() {
    let gpu = gpu();
    let (address, _) = mapped(&gpu, &[G]);
    let range = Range { address, size: G };
    let number = gpu.stream_number(S).unwrap();
    gpu.launch(S, &[range], 1_000_000).unwrap();
    gpu.destroy_stream(S);
    assert_eq!(status(gpu.stream_synchronize(S)), Status::INVALID_CONTEXT);
    gpu.replace_stream(S);
    assert_ne!(gpu.stream_number(S).unwrap(), number);
    gpu.stream_synchronize(S).unwrap();
    let event = gpu.event_create().unwrap();
    gpu.event_record(event, S).unwrap();
    assert!(gpu.event_query(event).unwrap() && gpu.now_ns() < 1_000_000);
    gpu.unmap(address, G).unwrap();
    assert_eq!(gpu.faults(), [Fault::UnmapInUse { range, stream: S }], "the kernel of the old stream runs still");
    gpu.synchronize().unwrap();
    assert!(gpu.now_ns() >= 1_000_000);
}

#[test]
fn failures_wait_for_their_turn() {
    let gpu = gpu();
    gpu.fail_nth(Call::Create, 2, Status::OUT_OF_MEMORY);
    gpu.fail_nth(Call::Create, 4, Status::UNKNOWN);
    gpu.fail_nth(Call::Map, 1, Status::INVALID_VALUE);
    let answers: Vec<_> = (0..5).map(|_| gpu.create(G).map(drop).map_err(|error| error.status)).collect();
    assert_eq!(answers, [Ok(()), Err(Status::OUT_OF_MEMORY), Ok(()), Err(Status::UNKNOWN), Ok(())]);
    assert_eq!(gpu.leaks().handles, 3);
    assert_eq!(gpu.call_stats().get(Call::Create).count, 5, "failed calls are counted");
}

#[test]
fn threads_share_it() {
    let gpu = gpu_of(GIB);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let handle = gpu.create(G).unwrap();
                    gpu.release(handle).unwrap();
                }
            });
        }
    });
    assert!(gpu.leaks().is_empty());
    assert_eq!(gpu.call_stats().get(Call::Create).count, 800);
}
