//! Tests of where page-locked memory comes from: pages of the system, which are really mapped here, or else libcuda.

use std::cell::Cell;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::thread;

use rustix::io::Errno;
use rustix::mm::{Advice, madvise, munmap};

use super::*;
use crate::cuda::host_pages::System;
use crate::prelude::*;
use crate::{Call, HostBuffer};

const MIB: usize = 1 << 20;

/// The system calls for memory that a thread has made, and which of them fail.
#[derive(Default)]
struct Asked {
    /// The address ranges that were taken, and the bytes of all ranges that were not given back.
    taken: Vec<(usize, usize)>,
    left: usize,
    /// The number of address ranges that were taken.
    times: usize,
    refused: Option<(Advice, Errno)>,
    /// The number of unmaps that still succeed before one is refused.
    keeps: Option<usize>,
}

thread_local! {
    static ASKED: RefCell<Asked> = RefCell::default();
    static AVAILABLE: Cell<Option<u64>> = const { Cell::new(Some(u64::MAX)) };
    static HUGE_PAGES: Cell<bool> = const { Cell::new(true) };
}

fn asked<T>(change: impl FnOnce(&mut Asked) -> T) -> T {
    ASKED.with_borrow_mut(change)
}

/// Maps addresses that do not begin at a multiple of 64 KiB, so that the driver must trim pages before and after the
/// buffer.
fn map(size: usize) -> rustix::io::Result<*mut c_void> {
    const PAGE: usize = 4096;
    let start = (System::default().map)(size + PAGE)?;
    let shift = if (start.addr() + PAGE).is_multiple_of(64 << 10) { 0 } else { PAGE };
    let at = start.wrapping_byte_add(shift);
    // SAFETY: the page before or after the returned range is this function's, and nobody uses it.
    unsafe { munmap(if shift == 0 { at.wrapping_byte_add(size) } else { start }, PAGE)? };
    asked(|asked| {
        asked.taken.push((at.addr(), size));
        asked.left += size;
        asked.times += 1;
    });
    Ok(at)
}

unsafe fn unmap(at: *mut c_void, size: usize) -> rustix::io::Result<()> {
    let refused = asked(|asked| {
        let inside = |(start, of): &(usize, usize)| *start <= at.addr() && at.addr() + size <= start + of;
        assert!(asked.taken.iter().any(inside), "{size} bytes at {at:?} are not of one range");
        let refused = asked.keeps == Some(0);
        asked.keeps = asked.keeps.and_then(|more| more.checked_sub(1));
        refused
    });
    if refused {
        return Err(Errno::NOMEM);
    }
    asked(|asked| asked.left -= size);
    // SAFETY: as the caller says.
    unsafe { munmap(at, size) }
}

unsafe fn advise(at: *mut c_void, size: usize, advice: Advice) -> rustix::io::Result<()> {
    match asked(|asked| asked.refused) {
        Some((refused, error)) if refused as u32 == advice as u32 => Err(error),
        // SAFETY: as the caller says.
        _ => unsafe { madvise(at, size, advice) },
    }
}

/// Opens a device on this thread's system.
fn open_here() -> CudaDriver {
    let mut driver = open();
    let (available, has_huge_pages) = (|| AVAILABLE.get(), || HUGE_PAGES.get());
    driver.host_pages.system = System { map, advise, unmap, has_huge_pages, available };
    driver
}

/// Returns the bytes of addresses that were not given back.
fn left() -> usize {
    asked(|asked| asked.left)
}

fn registered() -> Vec<(usize, usize, c_uint)> {
    with(|state| state.registered.clone())
}

/// Returns how often memory came from `cuMemHostAlloc`, and how often it was given back.
fn of_libcuda() -> (usize, usize) {
    with(|state| (state.page_locked.0.len(), state.page_locked.1))
}

/// Returns the flags that the kernel has for an address of this process.
fn flags_at(address: usize) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in text.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text: &str| usize::from_str_radix(text, 16);
        if let Some((Ok(start), Ok(end))) = range.map(|(start, end)| (number(start), number(end))) {
            inside = (start..end).contains(&address);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
            return flags.split_whitespace().map(str::to_owned).collect();
        }
    }
    panic!("nothing lies at {address:#x}");
}

/// Returns whether every page is present, according to the kernel; `true` where pages have another size than 4 KiB, or
/// the kernel does not report it.
fn is_made(address: usize, size: usize) -> bool {
    const PAGE: usize = 4096;
    let Ok(file) = std::fs::File::open("/proc/self/pagemap") else { return true };
    let pages = address / PAGE..(address + size).div_ceil(PAGE);
    cfg!(not(target_arch = "x86_64"))
        || pages.into_iter().all(|page| {
            let mut entry = [0; 8];
            file.read_exact_at(&mut entry, 8 * page as u64).unwrap();
            u64::from_le_bytes(entry) >> 63 == 1
        })
}

#[test]
fn the_systems_pages_are_registered_for_all_contexts_and_go_back() {
    let driver = open_here();
    for size in [1, 4096, 100_000, 2 * MIB, 3 * MIB + 5, 6 * MIB] {
        let buffer = driver.host_malloc(size as u64).unwrap();
        let at = buffer.0 as usize;
        assert_eq!(registered(), [(at, size, HOST_REGISTER_PORTABLE)]);
        assert!(is_made(at, size), "{size} bytes: the driver had to make pages");
        assert!(size < 2 * MIB || at.is_multiple_of(2 * MIB), "{size} bytes at {at:#x} do not begin with a huge page");
        assert_eq!(left(), size.next_multiple_of(64 << 10), "what was not asked for went back at once");
        for address in [at, at + size - 1] {
            let flags = flags_at(address);
            let has = |flag: &str| flags.iter().any(|of| of == flag);
            assert!(has("dc"), "children have it: {flags:?}");
            assert_eq!(has("hg"), size >= 2 * MIB, "{flags:?}");
        }
        let mut sum = 1;
        driver
            .host_bytes(buffer, 0, size as u64, &mut |bytes| {
                sum = bytes.iter().map(|byte| u64::from(*byte)).sum();
                bytes.fill(7);
            })
            .unwrap();
        assert_eq!(sum, 0);
        driver.host_free(buffer).unwrap();
        assert_eq!((registered(), left()), (vec![], 0), "{size} bytes");
    }
    assert_eq!((of_libcuda(), with(|state| (state.registrations, state.events.len()))), ((0, 0), ((6, 6), 0)));
    assert_eq!(driver.call_stats().get(Call::HostMalloc).count, 6);
}

#[test]
fn nothing_is_left_of_pages_that_libcuda_does_not_register() {
    for (status, tries) in [(Status::OUT_OF_MEMORY, 2), (Status::NOT_SUPPORTED, 1), (Status::NOT_PERMITTED, 1)] {
        let driver = open_here();
        let before = (asked(|asked| asked.times), of_libcuda());
        with(|state| state.register = status.0);
        let buffers = [5 * MIB as u64, 4096].map(|size| driver.host_malloc(size).unwrap());
        assert_eq!((left(), registered()), (0, vec![]), "{status}");
        // After a status that stays true (not supported, not permitted), registering is not tried again. After one that
        // may pass (out of memory), it is.
        assert_eq!(asked(|asked| asked.times) - before.0, tries, "{status}");
        assert_eq!(of_libcuda(), (before.1.0 + 2, before.1.1), "{status}: cuMemHostAlloc is asked instead");
        buffers.into_iter().for_each(|buffer| driver.host_free(buffer).unwrap());
        assert_eq!(of_libcuda(), (before.1.0 + 2, before.1.1 + 2));
    }
    assert!(with(|state| state.events.is_empty()));
}

#[test]
fn a_driver_without_the_calls_locks_memory_of_its_own() {
    for without in [
        EntryPoints { mem_host_register: None, ..entry_points() },
        EntryPoints { mem_host_unregister: None, ..entry_points() },
    ] {
        with(|state| state.page_locked = (vec![], 0));
        let driver = CudaDriver::open_with(CudaApi::of(without), 1).unwrap();
        let buffer = driver.host_malloc(4096).unwrap();
        let made = with(|state| state.page_locked.0.clone());
        assert_eq!((made, registered()), (vec![(4096, HOST_ALLOC_PORTABLE)], vec![]));
        driver.host_free(buffer).unwrap();
        assert_eq!(of_libcuda(), (1, 1));
    }
}

#[test]
fn a_refusal_of_both_is_the_drivers_and_leaves_nothing() {
    let driver = open_here();
    with(|state| (state.register, state.host_alloc) = (Status::UNKNOWN.0, Status::OUT_OF_MEMORY.0));
    let error = driver.host_malloc(4096).unwrap_err();
    assert_eq!(error.to_string(), "cuMemHostAlloc failed with CUDA_ERROR_OUT_OF_MEMORY (2): 4096 bytes");
    assert_eq!((with(|state| state.events.len()), of_libcuda(), registered(), left()), (0, (0, 0), vec![], 0));
    with(|state| (state.register, state.host_alloc) = (0, 0));
    let buffer = driver.host_malloc(4096).unwrap();
    assert_eq!(registered().len(), 1, "what was refused once is tried again");
    driver.host_free(buffer).unwrap();
}

#[test]
fn a_buffer_that_cannot_be_given_back_is_as_before() {
    let driver = open_here();
    let buffer = driver.host_malloc(2 * MIB as u64).unwrap();
    driver.copy_out(RESERVED, buffer, 0, 8).unwrap();
    with(|state| state.unregister = Status::UNKNOWN.0);
    let error = driver.host_free(buffer).unwrap_err();
    assert!(error.detail.starts_with("cuMemHostUnregister of buffer 0x"), "{error}");
    assert_eq!((error.call, registered().len(), with(|state| state.events.len())), (Call::HostFree, 1, 1));
    driver.host_bytes(buffer, 0, 8, &mut |bytes| assert_eq!(bytes, [0x5a; 8])).unwrap();
    driver.copy_in(buffer, 0, RESERVED, 8).unwrap();
    driver.host_wait(buffer).unwrap();
    with(|state| state.unregister = 0);
    driver.host_free(buffer).unwrap();
    assert_eq!(driver.host_free(buffer).unwrap_err().status, Status::INVALID_VALUE, "it was freed");
    assert_eq!((with(|state| (state.registrations, state.events.len())), left()), (((1, 1), 0), 0));
}

#[test]
fn a_system_with_too_little_memory_is_not_made_to_end_a_process() {
    let driver = open_here();
    AVAILABLE.set(Some(300 * MIB as u64));
    for registers in [true, false] {
        driver.registers_pages.store(registers, Ordering::Relaxed);
        assert!(driver.host_malloc(45 * MIB as u64).unwrap_err().is_out_of_memory(), "of 300 MiB others are left 256");
        assert_eq!((of_libcuda(), asked(|asked| asked.times), with(|state| state.events.len())), ((0, 0), 0, 0));
    }
    driver.registers_pages.store(true, Ordering::Relaxed);
    for (available, size) in [(Some(300 * MIB as u64), 44 * MIB as u64), (None, 4096)] {
        AVAILABLE.set(available);
        let buffer = driver.host_malloc(size).unwrap();
        assert_eq!(registered().len(), 1, "{available:?}");
        driver.host_free(buffer).unwrap();
    }
}

/// The size is larger than the address space.
#[test]
fn a_size_that_no_system_has_is_refused_and_leaves_nothing() {
    let driver = open_here();
    for size in [1 << 60, u64::MAX - 5, u64::MAX] {
        assert!(driver.host_malloc(size).unwrap_err().is_out_of_memory());
    }
    AVAILABLE.set(None);
    for size in [1 << 60, u64::MAX - MIB as u64, u64::MAX] {
        assert!(driver.host_malloc(size).unwrap_err().is_out_of_memory());
    }
    assert_eq!(driver.host_malloc(0).unwrap_err().status, Status::INVALID_VALUE);
    assert_eq!((with(|state| state.events.len()), asked(|asked| asked.times)), (0, 0));
}

#[test]
fn a_system_that_refuses_advice_has_other_pages_or_none() {
    for (advice, error, kept, for_good) in [
        // Without huge pages, the buffer has small pages.
        (Advice::LinuxHugepage, Errno::INVAL, true, false),
        // If the system does not populate pages, the driver writes to each page.
        (Advice::LinuxPopulateWrite, Errno::INVAL, true, false),
        (Advice::LinuxPopulateWrite, Errno::NOSYS, true, false),
        // If populating fails for another reason, `cuMemHostAlloc` makes the memory.
        (Advice::LinuxPopulateWrite, Errno::IO, false, false),
        // If a child process would inherit the pages, `cuMemHostAlloc` makes the memory, now and later.
        (Advice::LinuxDontFork, Errno::INVAL, false, true),
    ] {
        let driver = open_here();
        let before = (asked(|asked| (asked.refused = Some((advice, error)), asked.times).1), of_libcuda());
        for size in [1, 2 * MIB as u64 + 1] {
            let buffer = driver.host_malloc(size).unwrap();
            assert_eq!(registered().len(), usize::from(kept), "{advice:?} {error}");
            assert!(!kept || is_made(buffer.0 as usize, size as usize), "{advice:?} {error}");
            driver.host_bytes(buffer, 0, size, &mut |bytes| bytes.fill(1)).unwrap();
            driver.host_free(buffer).unwrap();
            assert_eq!(left(), 0, "{advice:?} {error}");
        }
        let tries = asked(|asked| asked.times) - before.0;
        assert_eq!(tries, if for_good { 1 } else { 2 }, "{advice:?} {error}");
        assert_eq!(of_libcuda().0 - before.1.0, if kept { 0 } else { 2 }, "{advice:?} {error}");
    }
}

#[test]
fn memory_that_runs_out_halfway_is_given_back() {
    let driver = open_here();
    asked(|asked| asked.refused = Some((Advice::LinuxPopulateWrite, Errno::NOMEM)));
    let error = driver.host_malloc(5 * MIB as u64).unwrap_err();
    assert_eq!(error.to_string(), "cuMemHostAlloc failed with CUDA_ERROR_OUT_OF_MEMORY (2): 5242880 bytes");
    assert_eq!((left(), of_libcuda(), with(|state| state.events.len())), (0, (0, 0), 0));
    asked(|asked| asked.refused = None);
    let buffer = driver.host_malloc(5 * MIB as u64).unwrap();
    assert_eq!(registered().len(), 1, "there may be memory later");
    driver.host_free(buffer).unwrap();
}

#[test]
fn a_system_without_huge_pages_has_small_ones() {
    HUGE_PAGES.set(false);
    let driver = open_here();
    let buffer = driver.host_malloc(4 * MIB as u64).unwrap();
    assert_eq!(registered().len(), 1);
    driver.host_free(buffer).unwrap();
    assert_eq!(left(), 0);
}

/// The process has as many address ranges as the kernel allows, so splitting one is refused.
#[test]
fn addresses_that_cannot_be_trimmed_go_back_whole() {
    for (size, keeps) in [(4096, 0), (4096, 1), (4 * MIB as u64, 0), (4 * MIB as u64, 1)] {
        let driver = open_here();
        asked(|asked| asked.keeps = Some(keeps));
        assert!(driver.host_malloc(size).unwrap_err().is_out_of_memory());
        assert_eq!((left(), registered(), of_libcuda()), (0, vec![], (0, 0)), "{size} bytes, trimming {keeps}");
    }
}

#[test]
fn addresses_that_cannot_be_given_back_keep_no_memory() {
    let driver = open_here();
    let buffer = driver.host_malloc(4 * MIB as u64).unwrap();
    driver.host_bytes(buffer, 0, 1, &mut |bytes| bytes[0] = 9).unwrap();
    asked(|asked| asked.keeps = Some(0));
    driver.host_free(buffer).unwrap();
    assert_eq!((registered(), left(), driver.host_free(buffer).is_err()), (vec![], 4 * MIB, true));
    let at = ptr::with_exposed_provenance_mut::<c_void>(buffer.0 as usize);
    // SAFETY: the addresses stayed mapped, and nobody uses them.
    let first = unsafe { at.cast::<u8>().read() };
    assert_eq!(first, 0, "the page that was written has gone");
    // SAFETY: as above.
    unsafe { munmap(at, 4 * MIB).unwrap() };
}

/// The driver forgets a buffer before it unmaps the buffer's addresses, since another thread may get the addresses
/// right after.
#[test]
fn threads_take_and_give_back_at_once() {
    let driver = open_here();
    let work = |number: u8| {
        for _ in 0..50 {
            let buffer: HostBuffer = driver.host_malloc(3 * MIB as u64).unwrap();
            driver.host_bytes(buffer, 0, 4096, &mut |bytes| bytes.fill(number)).unwrap();
            driver.host_bytes(buffer, 0, 4096, &mut |bytes| assert!(bytes.iter().all(|byte| *byte == number))).unwrap();
            driver.host_free(buffer).unwrap();
        }
        // Each thread has its own fake of libcuda and its own record of system calls.
        assert_eq!((registered(), of_libcuda(), left()), (vec![], (0, 0), 0));
    };
    thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || work(number));
        }
    });
    assert!(driver.buffers.lock().is_empty());
}
