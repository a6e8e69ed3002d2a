//! Tests of opening devices on any machine, and of answers that only a real GPU can give.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::locked_buffer::Origin;
use super::{CudaDriver, CudaOpenError};
use crate::prelude::*;
use crate::{Call, Status};

#[test]
fn names_of_devices_are_read() {
    assert_eq!(CudaDriver::parse_ordinal("cuda:0"), Ok(0));
    assert_eq!(CudaDriver::parse_ordinal("cuda"), Ok(0));
    assert_eq!(CudaDriver::parse_ordinal("cuda:17"), Ok(17));
    for bad in ["", "cuda:", "cuda1", "cuda:-1", "cuda:+1", "cuda: 1", "cuda:1x", "cuda:4294967296", "sim:h200"] {
        assert_eq!(CudaDriver::parse_ordinal(bad), Err(CudaOpenError::BadName { name: bad.into() }), "{bad}");
    }
}

#[test]
fn names_of_page_locked_memory_are_read() {
    assert_eq!(CudaDriver::parse_pinned("pinned"), Ok((0, None)));
    assert_eq!(CudaDriver::parse_pinned("pinned:2"), Ok((2, None)));
    assert_eq!(CudaDriver::parse_pinned("pinned:2,node=1"), Ok((2, Some(1))));
    assert_eq!(CudaDriver::parse_pinned("pinned,node=0"), Ok((0, Some(0))));
    for bad in
        ["", "pinned:", "pinned0", "pinned:-1", "pinned:0,node=", "pinned:0,node=+1", "pinned:0,nodes=1", "cuda:0"]
    {
        assert_eq!(CudaDriver::parse_pinned(bad), Err(CudaOpenError::BadPinnedName { name: bad.into() }), "{bad}");
    }
}

#[test]
fn opening_what_is_not_there_is_a_typed_error() {
    // The error is expected on every machine: without a driver, with a driver but no GPU, and with GPUs.
    let error = CudaDriver::open(u32::MAX).unwrap_err();
    assert!(
        matches!(
            error,
            CudaOpenError::Load(_) | CudaOpenError::NoSuchDevice { ordinal: u32::MAX, .. } | CudaOpenError::Call { .. }
        ),
        "{error}"
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_thread_keeps_its_own_context() {
    let driver = CudaDriver::open(0).unwrap();
    let current = || {
        let mut context = ptr::null_mut();
        // SAFETY: the pointer is to a live pointer.
        assert_eq!(unsafe { driver.api.ctx_get_current(&mut context) }, Ok(Status::SUCCESS));
        context
    };
    assert!(current().is_null());
    let event = driver.event_create().unwrap();
    assert!(driver.event_query(event).unwrap());
    driver.event_destroy(event).unwrap();
    assert!(current().is_null());
    assert!(driver.model().contains("NVIDIA"));
    assert_eq!(driver.call_stats().get(Call::EventQuery).count, 1);
    assert_eq!(driver.busy_ns(), driver.call_stats().total_ns());
}

/// Tests both sources of page-locked memory, and the contents after copies in both directions.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn page_locked_memory_is_the_systems_and_else_libcudas() {
    const SIZE: u64 = (300 << 20) + 12_345;
    let driver = CudaDriver::open(0).unwrap();
    let device = driver.malloc(SIZE).unwrap();
    let words = |bytes: &mut [u8], first: u64| {
        bytes.chunks_exact_mut(8).zip(first..).for_each(|(word, value)| word.copy_from_slice(&value.to_le_bytes()));
    };
    for registers in [true, false] {
        driver.registers_pages.store(registers, Ordering::Relaxed);
        let buffers = [(); 2].map(|()| driver.host_malloc(SIZE).unwrap());
        for buffer in buffers {
            let live = Arc::clone(&driver.buffers.lock()[&buffer]);
            assert_eq!(matches!(live.lock().origin, Origin::System(_)), registers, "the other way was taken");
        }
        let first = 7 + u64::from(registers);
        driver.host_bytes(buffers[0], 0, SIZE, &mut |bytes| words(bytes, first)).unwrap();
        driver.copy_in(buffers[0], 0, device, SIZE).unwrap();
        driver.host_wait(buffers[0]).unwrap();
        driver.copy_out(device, buffers[1], 0, SIZE).unwrap();
        driver.host_wait(buffers[1]).unwrap();
        let mut expected = vec![0; usize::try_from(SIZE).unwrap()];
        words(&mut expected, first);
        // Nobody has written the last byte, which is not a whole word.
        driver.host_bytes(buffers[1], 0, SIZE - 1, &mut |bytes| assert!(bytes == &expected[..bytes.len()])).unwrap();
        // This copy is still under way when the buffers are freed.
        driver.copy_out(device, buffers[0], 0, SIZE).unwrap();
        buffers.into_iter().for_each(|buffer| driver.host_free(buffer).unwrap());
        assert!(buffers.into_iter().all(|buffer| driver.host_free(buffer).is_err()));
    }
    driver.free(device).unwrap();
}

/// A stale handle is refused before it reaches libcuda. This is right only if libcuda would refuse the handle with the
/// same status.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn libcuda_refuses_a_released_handle_as_we_do() {
    let driver = CudaDriver::open(0).unwrap();
    let handle = driver.create(driver.properties().granularity).unwrap();
    driver.release(handle).unwrap();
    let ours = driver.release(handle).unwrap_err().status;
    // SAFETY: this is not known to be safe: that is what the test is for, and a crash is an answer too.
    let theirs = driver.ask(Call::Release, String::new, |api| unsafe { api.mem_release(handle.0) }).unwrap();
    assert_eq!(theirs, ours);
}
