//! Tests of each call as libcuda receives it: its context, its arguments, its errors, its count.

use super::*;
use crate::cuda::CudaOpenError;
use crate::prelude::*;
use crate::{Call, CaptureMode, EventId, Handle, IpcMemory, MemoryInfo, StreamId};
use std::os::fd::AsRawFd;
use std::sync::Arc;

#[test]
fn opening_asks_the_device_and_dropping_releases_it_once() {
    let driver = open();
    let properties = driver.properties();
    assert_eq!((properties.name.as_str(), properties.ordinal), ("cuda:1", 1));
    assert_eq!((properties.granularity, properties.total_memory), (GRANULARITY as u64, MEMORY as u64));
    assert_eq!(properties.recommended_granularity, RECOMMENDED_GRANULARITY as u64);
    assert!(properties.virtual_memory);
    drop(driver);
    assert_eq!(with(|state| state.releases), 1);
}

#[test]
fn a_device_that_is_not_there_is_told_from_no_device() {
    let error = CudaDriver::open_with(CudaApi::of(entry_points()), 2).unwrap_err();
    assert_eq!(error, CudaOpenError::NoSuchDevice { ordinal: 2, devices: 2 });
    let none = EntryPoints { init: Some(init_without_gpu), ..entry_points() };
    let error = CudaDriver::open_with(CudaApi::of(none), 0).unwrap_err();
    assert_eq!(error, CudaOpenError::NoSuchDevice { ordinal: 0, devices: 0 });
    let old = EntryPoints { device_total_mem: None, ..entry_points() };
    let error = CudaDriver::open_with(CudaApi::of(old), 0).unwrap_err();
    assert_eq!(error.to_string(), "libcuda has no cuDeviceTotalMem_v2 (CUDA 3.2 or newer is needed)");
    // No device had retained the context yet.
    assert_eq!(with(|state| state.releases), 0);
}

#[test]
fn calls_run_in_the_devices_context_and_the_thread_keeps_its_own() {
    let driver = open();
    let foreign = 0xf000;
    for own in [vec![], vec![foreign], vec![foreign, context_of(1)]] {
        with(|state| state.contexts.clone_from(&own));
        assert_eq!(driver.memory_info(), Ok(MemoryInfo { free: MEMORY as u64 / 2, total: MEMORY as u64 }));
        assert!(driver.create(u64::MAX / 2).is_err());
        with(|state| assert_eq!(state.contexts, own));
    }
    assert_eq!(with(|state| state.misplaced), 0);
}

#[test]
fn a_refused_context_is_an_error_of_the_call() {
    let refusing = EntryPoints { ctx_push_current: Some(ctx_push_refused), ..entry_points() };
    let driver = CudaDriver::open_with(CudaApi::of(refusing), 1).unwrap();
    let error = driver.create(GRANULARITY as u64).unwrap_err();
    assert_eq!((error.call, error.status), (Call::Create, Status::INVALID_CONTEXT));
    assert!(error.detail.contains("cuCtxPushCurrent"), "{error}");
    assert_eq!(with(|state| state.created), 0);
}

#[test]
fn errors_say_the_call_the_status_and_the_arguments() {
    let driver = open();
    let error = driver.create(MEMORY as u64 + 1).unwrap_err();
    assert!(error.is_out_of_memory());
    assert_eq!(error.to_string(), "cuMemCreate failed with CUDA_ERROR_OUT_OF_MEMORY (2): 1073741825 bytes");
    let error = driver.unmap(0x20_0000, 4096).unwrap_err();
    assert_eq!(error.status, Status(NEWER_STATUS));
    assert_eq!(error.to_string(), "cuMemUnmap failed with CUDA error 222: CUDA_ERROR_NEWER; 4096 bytes at 0x200000");
}

#[test]
fn every_call_is_counted_failed_ones_too() {
    let driver = open();
    let handle = driver.create(GRANULARITY as u64).unwrap();
    driver.create(u64::MAX / 2).unwrap_err();
    driver.release(handle).unwrap();
    let stats = driver.call_stats();
    assert_eq!(stats.get(Call::Create).count, 2);
    assert_eq!(stats.get(Call::Release).count, 1);
    assert_eq!(stats.get(Call::Map).count, 0);
    assert_eq!(driver.busy_ns(), stats.total_ns());
}

#[test]
fn memory_is_pinned_and_of_this_device() {
    let driver = open();
    driver.create(GRANULARITY as u64).unwrap();
    driver.set_access(0x20_0000, GRANULARITY as u64).unwrap();
    let (prop, access) = with(|state| (state.properties.unwrap(), state.access.clone()));
    assert_eq!(prop.kind, MEM_ALLOCATION_TYPE_PINNED);
    assert_eq!((prop.location.kind, prop.location.id), (MEM_LOCATION_TYPE_DEVICE, 1));
    assert_eq!(prop.alloc_flags.gpu_direct_rdma_capable, 0);
    assert_eq!(access, [(0x20_0000, vec![(1, MEM_ACCESS_READ_WRITE)])]);
}

#[test]
fn what_is_gone_or_foreign_never_reaches_libcuda() {
    let driver = open();
    let handle = driver.create(GRANULARITY as u64).unwrap();
    driver.release(handle).unwrap();
    let event = driver.event_create().unwrap();
    driver.event_destroy(event).unwrap();
    let before = driver.call_stats();
    for gone in [handle, Handle(0), Handle(77)] {
        assert_eq!(driver.release(gone).unwrap_err().status, Status::INVALID_VALUE);
        assert_eq!(driver.map(0, 0, 0, gone).unwrap_err().status, Status::INVALID_VALUE);
    }
    for gone in [event, EventId(0), EventId(u64::MAX)] {
        assert_eq!(driver.event_query(gone).unwrap_err().status, Status::INVALID_HANDLE);
        assert_eq!(driver.event_record(gone, StreamId::DEFAULT).unwrap_err().status, Status::INVALID_HANDLE);
        assert_eq!(driver.event_destroy(gone).unwrap_err().status, Status::INVALID_HANDLE);
    }
    assert_eq!(driver.call_stats(), before);
}

#[test]
fn a_query_tells_not_ready_from_failed() {
    let driver = open();
    let event = driver.event_create().unwrap();
    assert_eq!(driver.event_query(event), Ok(true));
    with(|state| state.query = Status::NOT_READY.0);
    assert_eq!(driver.event_query(event), Ok(false));
    with(|state| state.query = Status::ILLEGAL_ADDRESS.0);
    assert_eq!(driver.event_query(event).unwrap_err().status, Status::ILLEGAL_ADDRESS);
    driver.event_destroy(event).unwrap();
    assert!(with(|state| state.events.is_empty()));
}

#[test]
fn an_invalidated_capture_still_goes_on() {
    let driver = open();
    for (capture, expected) in [(0, false), (1, true), (2, true)] {
        with(|state| state.capture = capture);
        assert_eq!(driver.is_capturing(StreamId::DEFAULT), Ok(expected));
    }
}

#[test]
fn a_threads_capture_mode_is_exchanged() {
    let driver = open();
    assert_eq!(driver.exchange_capture_mode(CaptureMode::Relaxed), Ok(CaptureMode::Global));
    assert_eq!(with(|state| state.mode), 2);
    assert_eq!(driver.exchange_capture_mode(CaptureMode::ThreadLocal), Ok(CaptureMode::Relaxed));
    assert_eq!(driver.exchange_capture_mode(CaptureMode::Global), Ok(CaptureMode::ThreadLocal));
}

#[test]
fn the_device_is_waited_for_in_its_context() {
    let driver = open();
    driver.synchronize().unwrap();
    assert_eq!(with(|state| (state.synchronized, state.misplaced)), (1, 0));
}

#[test]
fn memory_is_exportable_wherever_it_can_be() {
    for (lacks, types) in [(vec![], MEM_HANDLE_TYPE_POSIX_FD), (vec![ATTRIBUTE_POSIX_FD], MEM_HANDLE_TYPE_NONE)] {
        with(|state| state.lacks = lacks);
        open().create(GRANULARITY as u64).unwrap();
        assert_eq!(with(|state| state.properties.unwrap().requested_handle_types), types);
    }
}

#[test]
fn a_handle_has_one_open_export_which_the_driver_does_not_keep() {
    let driver = open();
    let handle = driver.create(GRANULARITY as u64).unwrap();
    let exported = driver.export(handle).unwrap();
    let created = with(|state| state.created);
    assert_eq!(driver.export(handle).unwrap().number(), exported.number());
    assert_eq!(with(|state| state.created), created);
    let imported = driver.import(&exported, GRANULARITY as u64).unwrap();
    assert_eq!(with(|state| state.imported.clone()), [exported.descriptor().as_raw_fd() as usize]);
    driver.map(RESERVED, GRANULARITY as u64, 0, imported).unwrap();
    driver.release(imported).unwrap();
    assert_eq!(Arc::strong_count(exported.descriptor()), 1, "the driver keeps none");
    let number = exported.number();
    drop(exported);
    assert_ne!(driver.export(handle).unwrap().number(), number, "a closed one is exported anew");
    driver.release(handle).unwrap();
    assert_eq!(driver.export(handle).unwrap_err().status, Status::INVALID_VALUE);
    with(|state| state.lacks.push(ATTRIBUTE_POSIX_FD));
    let driver = open();
    let handle = driver.create(GRANULARITY as u64).unwrap();
    let error = driver.export(handle).unwrap_err();
    assert_eq!(error.status, Status::NOT_SUPPORTED);
    assert!(error.to_string().contains("cuda:1 exports no memory"), "{error}");
}

#[test]
fn plain_memory_has_cudas_own_handles() {
    let driver = open();
    let memory = driver.ipc_get(0x17).unwrap();
    assert_eq!(memory, IpcMemory([0x17; 64]));
    assert_eq!(driver.ipc_open(&memory), Ok(0x17 << 32));
    driver.ipc_close(0x17 << 32).unwrap();
    let error = driver.ipc_close(UNMAPPABLE).unwrap_err();
    assert_eq!(error.call, Call::IpcClose);
}

#[test]
fn a_lost_context_is_told_from_other_failures() {
    let driver = open();
    let event = driver.event_create().unwrap();
    with(|state| state.query = Status::ILLEGAL_ADDRESS.0);
    assert!(driver.event_query(event).unwrap_err().is_context_lost());
    assert!(!driver.create(u64::MAX / 2).unwrap_err().is_context_lost());
}

#[test]
fn memory_is_filled_in_stream_order_and_copied_on_a_stream_of_its_own() {
    let driver = open();
    let stream = driver.create_stream().unwrap();
    driver.fill(RESERVED, 300, 0xab, stream).unwrap();
    let mut bytes = [0; 100];
    driver.read(RESERVED, &mut bytes).unwrap();
    driver.read(RESERVED, &mut bytes).unwrap();
    assert_eq!(bytes, [0x5a; 100]);
    driver.copy(RESERVED, RESERVED + 4096, 1024).unwrap();
    assert_eq!(with(|state| state.copied.clone()), [(RESERVED, RESERVED + 4096, 1024)]);
    driver.write(RESERVED, &[1, 2, 3]).unwrap();
    assert_eq!(with(|state| state.written.clone()), [(RESERVED, vec![1, 2, 3])]);
    let (fills, copies, made) = with(|state| (state.fills.clone(), state.copies.clone(), state.streams.clone()));
    assert_eq!(fills, [(RESERVED, 0xab, 300, stream.0 as usize)]);
    assert_eq!((copies.len(), made.len()), (4, 2), "one stream for all");
    assert!(copies.iter().all(|of| *of != stream.0 as usize && Some(of) == made.last()));
    assert_eq!(with(|state| state.synchronized), 4, "the CPU waits for each copy");
    driver.destroy_stream(stream).unwrap();
    drop(driver);
    assert!(with(|state| state.streams.is_empty()), "the driver destroys the stream that it has made");
}
