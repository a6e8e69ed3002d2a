//! Tests of gates for streams: which kernels are launched, in which order, and the state of a gate that cannot be
//! closed.
//!
//! The fake runs each kernel at its launch, up to the write by which the kernel reports that it holds its stream.

use super::*;
use crate::prelude::*;
use crate::{Call, GateCopy, StreamId};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const HOLD: usize = 1;
const COPY: usize = 2;
const MODULE: usize = 0x77;
const BLOCKING: usize = 0xb10c;
const PATIENCE: u64 = 20_000_000;

/// A launch that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launch {
    /// The stream that a kernel holds, and the number of words for which this kernel waits.
    Hold(usize, u32),
    Copy(usize, u64, u64, u64),
}

#[derive(Default)]
struct Gates {
    modules: u32,
    unloaded: u32,
    launches: Vec<Launch>,
    /// The number of the launch that fails, and the number of the launch that takes too long.
    fails_at: Option<usize>,
    sleeps_at: Option<usize>,
    /// Whether the kernel behind the copies never reports, as if the copies never ended.
    stuck: bool,
    no_module: bool,
}

thread_local! {
    static GATES: RefCell<Gates> = RefCell::default();
}

fn gates<T>(change: impl FnOnce(&mut Gates) -> T) -> T {
    GATES.with_borrow_mut(change)
}

unsafe extern "C" fn attribute(value: *mut c_int, attribute: u32, device: CUdevice) -> RawStatus {
    if attribute == ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR {
        return put(value, 9);
    }
    // SAFETY: the arguments are passed on.
    unsafe { device_get_attribute(value, attribute, device) }
}
unsafe extern "C" fn module_load_data(module: *mut CUmodule, image: *const c_void) -> RawStatus {
    // SAFETY: the driver under test passes a text with a 0 at its end.
    let text = unsafe { std::ffi::CStr::from_ptr(image.cast()) }.to_str().unwrap();
    assert!(text.contains(".visible .entry seamalloc_hold") && text.contains(".visible .entry seamalloc_copy"));
    in_context(|_| {
        if gates(|gates| gates.no_module) {
            return NEWER_STATUS;
        }
        gates(|gates| gates.modules += 1);
        put(module, ptr::without_provenance_mut(MODULE))
    })
}
unsafe extern "C" fn module_unload(module: CUmodule) -> RawStatus {
    assert_eq!(module.addr(), MODULE);
    in_context(|_| {
        gates(|gates| gates.unloaded += 1);
        Status::SUCCESS.0
    })
}
unsafe extern "C" fn module_get_function(function: *mut CUfunction, _: CUmodule, name: *const c_char) -> RawStatus {
    // SAFETY: the driver under test passes a text with a 0 at its end.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    let number = if name == c"seamalloc_hold" { HOLD } else { COPY };
    in_context(|_| put(function, ptr::without_provenance_mut(number)))
}
unsafe extern "C" fn mem_host_get_device_pointer(address: *mut CUdeviceptr, host: *mut c_void, _: c_uint) -> RawStatus {
    in_context(|_| put(address, host.expose_provenance() as CUdeviceptr))
}
unsafe extern "C" fn stream_get_flags(stream: CUstream, flags: *mut c_uint) -> RawStatus {
    in_context(|_| put(flags, u32::from(stream.addr() != BLOCKING)))
}
#[allow(clippy::too_many_arguments, reason = "the signature is CUDA's")]
unsafe extern "C" fn launch_kernel(
    function: CUfunction,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    stream: CUstream,
    arguments: *mut *mut c_void,
    _: *mut *mut c_void,
) -> RawStatus {
    let [wide, narrow] = [8, 4];
    // SAFETY: each argument is a live value of this size.
    let argument = |at: usize, bytes: usize| unsafe {
        let pointer = arguments.add(at).read();
        if bytes == wide { pointer.cast::<u64>().read() } else { u64::from(pointer.cast::<u32>().read()) }
    };
    in_context(|state| {
        let number = gates(|gates| gates.launches.len());
        if gates(|gates| gates.fails_at) == Some(number) {
            return NEWER_STATUS;
        }
        if gates(|gates| gates.sleeps_at) == Some(number) {
            std::thread::sleep(Duration::from_nanos(3 * PATIENCE));
        }
        let launch = if function.addr() == HOLD {
            let (mark, epoch, count) = (argument(0, wide), argument(1, narrow) as u32, argument(3, narrow) as u32);
            // The fake writes only words in host memory, since it has no device memory.
            let of_host = state
                .host
                .iter()
                .find(|bytes| bytes.as_ptr_range().contains(&ptr::with_exposed_provenance(mark as usize)));
            // The kernel behind the copies waits for no word (`count` is 0). In a test with `stuck` this kernel never
            // writes.
            if of_host.is_some() && !(count == 0 && gates(|gates| gates.stuck)) {
                // SAFETY: the word lies in memory of `mem_host_alloc`.
                unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(mark as usize)) }
                    .store(epoch, Ordering::Release);
            }
            Launch::Hold(stream.addr(), count)
        } else {
            Launch::Copy(stream.addr(), argument(0, wide), argument(1, wide), argument(2, wide))
        };
        gates(|gates| gates.launches.push(launch));
        Status::SUCCESS.0
    })
}

fn with_gates() -> CudaDriver {
    let entry_points = EntryPoints {
        device_get_attribute: Some(attribute),
        module_load_data: Some(module_load_data),
        module_unload: Some(module_unload),
        module_get_function: Some(module_get_function),
        mem_host_get_device_pointer: Some(mem_host_get_device_pointer),
        stream_get_flags: Some(stream_get_flags),
        launch_kernel: Some(launch_kernel),
        ..entry_points()
    };
    let driver = CudaDriver::open_with(CudaApi::of(entry_points), 1).unwrap();
    // SAFETY: the fake does not follow handles.
    unsafe { driver.trust_streams() };
    driver
}

fn launches() -> Vec<Launch> {
    gates(|gates| std::mem::take(&mut gates.launches))
}

const STREAMS: [StreamId; 3] = [StreamId(0xa), StreamId(BLOCKING as u64), StreamId(0xc)];
const COPIES: [GateCopy; 2] =
    [GateCopy { from: 0x100, to: 0x200, size: 64 }, GateCopy { from: 0x300, to: 0x400, size: 32 }];

#[test]
fn the_relay_comes_first_then_every_stream_and_then_the_copies() {
    let driver = with_gates();
    assert!(driver.properties().stream_gates);
    let [relay, copies] = with(|state| [state.streams[0], state.streams[1]]);
    // Each kernel is run once when the device is opened, while there is memory to load it.
    assert_eq!(launches().len(), 2);
    assert_eq!(driver.close_gate(&STREAMS, &COPIES, PATIENCE), Ok(true));
    let expected = [
        Launch::Hold(relay, 1),
        // The second stream needs no kernel: it waits for the default stream, which is held.
        Launch::Hold(0xa, 1),
        Launch::Hold(0xc, 1),
        Launch::Hold(0, 1),
        // The copies wait until three streams have reported that they are held.
        Launch::Hold(copies, 3),
        Launch::Copy(copies, 0x200, 0x100, 4),
        Launch::Copy(copies, 0x400, 0x300, 2),
        Launch::Hold(copies, 0),
    ];
    assert_eq!(launches(), expected);
    assert_eq!(driver.close_gate(&[], &[], PATIENCE), Ok(false), "it is closed");
    assert!(launches().is_empty());
    driver.open_gate();
    assert_eq!(driver.close_gate(&[], &[], PATIENCE), Ok(true));
    driver.open_gate();
    let calls = driver.call_stats().get(Call::CloseGate).count;
    assert_eq!(calls, 7, "two closings, the flags of three streams, and whether two of them have work");
    drop(driver);
    assert_eq!(gates(|gates| (gates.modules, gates.unloaded)), (1, 1));
    with(|state| assert!(state.streams.is_empty() && state.host.is_empty() && state.misplaced == 0));
}

#[test]
fn streams_with_work_are_held_last() {
    let driver = with_gates();
    launches();
    with(|state| state.busy = 0xa);
    assert_eq!(driver.close_gate(&STREAMS, &[], PATIENCE), Ok(true));
    assert_eq!(launches()[1..4], [Launch::Hold(0xc, 1), Launch::Hold(0xa, 1), Launch::Hold(0, 1)]);
    driver.open_gate();
    with(|state| state.busy = 0);
}

#[test]
fn a_launch_that_fails_or_takes_long_opens_the_gate_again() {
    let driver = with_gates();
    launches();
    for at in 0..6 {
        gates(|gates| gates.fails_at = Some(at));
        let error = driver.close_gate(&STREAMS, &COPIES, PATIENCE).unwrap_err();
        assert_eq!(error.call, Call::CloseGate, "{error}");
        gates(|gates| gates.fails_at = None);
        launches();
        assert_eq!(driver.close_gate(&STREAMS, &COPIES, PATIENCE), Ok(true), "after launch {at} failed");
        driver.open_gate();
        launches();
    }
    gates(|gates| gates.sleeps_at = Some(2));
    assert_eq!(driver.close_gate(&STREAMS, &COPIES, PATIENCE), Ok(false), "another thread held the driver's lock");
    gates(|gates| (gates.sleeps_at, gates.stuck) = (None, true));
    assert_eq!(driver.close_gate(&STREAMS, &COPIES, PATIENCE), Ok(false), "a stream had too much work");
    gates(|gates| gates.stuck = false);
    assert_eq!(driver.close_gate(&STREAMS, &COPIES, PATIENCE), Ok(true));
    driver.open_gate();
}

#[test]
fn captured_streams_and_too_many_are_not_held() {
    let driver = with_gates();
    launches();
    with(|state| state.capture = 1);
    assert_eq!(driver.close_gate(&STREAMS, &COPIES, PATIENCE), Ok(false));
    with(|state| state.capture = 0);
    let many: Vec<StreamId> = (100..300).map(StreamId).collect();
    assert_eq!(driver.close_gate(&many, &COPIES, PATIENCE), Ok(false));
    assert!(launches().is_empty());
}

#[test]
fn a_device_without_kernels_has_no_gate() {
    gates(|gates| gates.no_module = true);
    let driver = with_gates();
    assert!(!driver.properties().stream_gates);
    assert_eq!(driver.close_gate(&[], &[], PATIENCE).unwrap_err().status, Status::NOT_SUPPORTED);
    driver.open_gate();
    gates(|gates| gates.no_module = false);
    assert!(!open().properties().stream_gates, "a driver without the entry points");
    with(|state| assert!(state.streams.is_empty() && state.host.is_empty()));
}
