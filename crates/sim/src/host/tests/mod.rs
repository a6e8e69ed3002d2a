//! Host memory: real bytes behind addresses, and the behaviour that it shares with the simulated GPU.

mod page_locked;
mod rules;
mod sharing;
mod streams;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::fstat;

use super::{HostConfig, HostDriver, HostWork, Range};
use seamalloc_driver::prelude::*;
use seamalloc_driver::{CaptureMode, Handle, Status, StreamId};

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 2 * MIB;
const S: StreamId = StreamId(1);
const T: StreamId = StreamId(2);

fn device() -> HostDriver {
    HostDriver::new(HostConfig { capacity: 256 * MIB }).unwrap()
}

fn range(address: u64, size: u64) -> Range {
    Range { address, size }
}

/// Returns a chunk that is mapped with access.
fn chunk(device: &HostDriver) -> (Handle, u64) {
    let (handle, address) = (device.create(CHUNK).unwrap(), device.reserve(CHUNK, 0).unwrap());
    device.map(address, CHUNK, 0, handle).unwrap();
    device.set_access(address, CHUNK).unwrap();
    (handle, address)
}

fn give_back(device: &HostDriver, (handle, address): (Handle, u64)) {
    device.unmap(address, CHUNK).unwrap();
    device.address_free(address, CHUNK).unwrap();
    device.release(handle).unwrap();
}

/// Returns work that sets word `i` to `first + i`.
fn fill(to: Range, first: u64) -> HostWork {
    let words = move |at, words: &mut [u64]| {
        words.iter_mut().zip(first + at..).for_each(|(word, value)| *word = value);
    };
    HostWork::Fill { to, words: Arc::new(words) }
}

/// Returns work that counts the words that differ from `first + i`.
fn check(at: Range, first: u64, wrong: &Arc<AtomicU64>) -> HostWork {
    let wrong = Arc::clone(wrong);
    let see = move |at, words: &[u64]| {
        let found = words.iter().zip(first + at..).filter(|(word, value)| **word != *value).count();
        wrong.fetch_add(found as u64, Ordering::Relaxed);
    };
    HostWork::Look { at, see: Arc::new(see) }
}

/// Returns the number of words that differ from `first + i`, after all work given to the stream is done.
fn wrong_words(device: &HostDriver, stream: StreamId, at: Range, first: u64) -> u64 {
    let wrong = Arc::new(AtomicU64::new(0));
    device.launch(stream, check(at, first, &wrong)).unwrap();
    device.stream_synchronize(stream).unwrap();
    wrong.load(Ordering::Relaxed)
}

#[test]
fn every_mapping_shows_the_same_bytes_and_they_stay_while_one_is_left() {
    let device = device();
    let (handle, address) = chunk(&device);
    let other = device.reserve(2 * CHUNK, 0).unwrap();
    device.map(other + CHUNK, CHUNK, 0, handle).unwrap();
    device.set_access(other + CHUNK, CHUNK).unwrap();
    device.launch(S, fill(range(address, CHUNK), 5)).unwrap();
    assert_eq!(wrong_words(&device, S, range(other + CHUNK, CHUNK), 5), 0);
    // The handle and one mapping are gone. The memory stays at its other address, and can be mapped again.
    device.release(handle).unwrap();
    device.unmap(address, CHUNK).unwrap();
    assert_eq!(wrong_words(&device, S, range(other + CHUNK, CHUNK), 5), 0);
    // A program's own pointer reads the same value.
    let pointer: *const u64 = std::ptr::with_exposed_provenance((other + CHUNK) as usize);
    // SAFETY: the chunk is mapped with access, and no stream has work.
    assert_eq!(unsafe { pointer.add(3).read_volatile() }, 8);
    device.unmap(other + CHUNK, CHUNK).unwrap();
    device.address_free(other, 2 * CHUNK).unwrap();
    device.address_free(address, CHUNK).unwrap();
    assert!(device.leaks().is_empty(), "{}", device.leaks());
    assert_eq!(device.faults(), []);
}

#[test]
fn fills_set_their_bytes_and_no_others_in_their_stream() {
    let device = device();
    let own = chunk(&device);
    let plain = device.malloc(CHUNK).unwrap();
    for start in [own.1, plain] {
        let mut bytes = [0; 64];
        for (from, size, value) in
            [(0_usize, 64_usize, 1_u8), (3, 2, 2), (6, 4, 3), (17, 30, 4), (40, 8, 5), (63, 1, 6)]
        {
            device.fill(start + from as u64, size as u64, value, S).unwrap();
            bytes[from..from + size].fill(value);
        }
        device.stream_synchronize(S).unwrap();
        for from in 0..20_usize {
            let mut read = vec![9; 40];
            device.read(start + from as u64, &mut read).unwrap();
            assert_eq!(read, bytes[from..from + 40]);
        }
        let mut behind = [9; 3];
        device.read(start + 64, &mut behind).unwrap();
        assert_eq!(behind, [0; 3]);
    }
    // The fill spans several work steps (`STEP`, 256 KiB) and waits for the end of a hold: no byte is written before
    // the hold ends.
    let hold = device.hold(S).unwrap();
    device.fill(own.1 + 1, CHUNK - 2, 7, S).unwrap();
    let mut word = [0; 2];
    device.read(own.1 + CHUNK - 2, &mut word).unwrap();
    assert_eq!(word, [0, 0]);
    device.finish_hold(hold);
    device.stream_synchronize(S).unwrap();
    device.read(own.1 + CHUNK - 2, &mut word).unwrap();
    assert_eq!(word, [7, 0]);
    let mut all = vec![0; CHUNK as usize - 2];
    device.read(own.1 + 1, &mut all).unwrap();
    assert!(all.iter().all(|byte| *byte == 7));
    // A fill or a read may not reach beyond the memory.
    assert_eq!(device.fill(own.1 + CHUNK - 1, 2, 0, S).unwrap_err().status, Status::INVALID_VALUE);
    assert_eq!(device.fill(own.1, 0, 0, S).unwrap_err().status, Status::INVALID_VALUE);
    assert_eq!(device.read(own.1 + CHUNK - 1, &mut word).unwrap_err().status, Status::INVALID_VALUE);
    assert_eq!(device.read(own.1, &mut []).unwrap_err().status, Status::INVALID_VALUE);
    device.free(plain).unwrap();
    give_back(&device, own);
    assert_eq!(device.faults(), []);
}

#[test]
fn a_captured_fill_is_a_part_of_the_graph() {
    let device = device();
    let own = chunk(&device);
    let byte = || {
        let mut byte = [9];
        device.synchronize().unwrap();
        device.read(own.1 + 5, &mut byte).unwrap();
        byte[0]
    };
    device.begin_capture(S, CaptureMode::Global).unwrap();
    device.fill(own.1, 10, 3, S).unwrap();
    let graph = device.end_capture(S).unwrap();
    assert_eq!(byte(), 0, "it does nothing before");
    device.replay(&graph, T).unwrap();
    assert_eq!(byte(), 3);
    device.begin_capture(S, CaptureMode::Global).unwrap();
    assert_eq!(device.read(own.1, &mut [0]).unwrap_err().status, Status::STREAM_CAPTURE_UNSUPPORTED);
    device.end_capture(S).unwrap_err();
    give_back(&device, own);
}

#[test]
fn stitched_chunks_are_one_range_of_words() {
    let device = device();
    let address = device.reserve(8 * CHUNK, 0).unwrap();
    let handles: Vec<Handle> = (0..8).map(|_| device.create(CHUNK).unwrap()).collect();
    // The chunks are mapped in another order than they have in the file.
    for (place, handle) in [5, 2, 7, 0, 3, 6, 1, 4].into_iter().zip(&handles) {
        device.map(address + place * CHUNK, CHUNK, 0, *handle).unwrap();
    }
    device.set_access(address, 8 * CHUNK).unwrap();
    device.launch(S, fill(range(address, 8 * CHUNK), 1)).unwrap();
    let (from, to) = (range(address + 8, 3 * CHUNK), address + 4 * CHUNK);
    device.launch(S, HostWork::Copy { from, to }).unwrap();
    assert_eq!(wrong_words(&device, S, range(to, 3 * CHUNK), 2), 0);
    assert_eq!(wrong_words(&device, S, range(address, 4 * CHUNK), 1), 0);
    assert!(wrong_words(&device, S, range(to, 3 * CHUNK), 1) > 0, "else nothing is looked at");
}

#[test]
fn released_memory_goes_back_to_the_machine_and_comes_again_as_zeros() {
    let device = device();
    let pages = || fstat(device.file.file()).unwrap().st_blocks;
    assert_eq!(pages(), 0, "memory that is not touched takes none");
    let own = chunk(&device);
    device.launch(S, fill(range(own.1, CHUNK), 9)).unwrap();
    device.synchronize().unwrap();
    assert_eq!(pages() as u64 * 512, CHUNK);
    give_back(&device, own);
    assert_eq!(pages(), 0);
    let again = chunk(&device);
    let zeros = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&zeros);
    let see = move |_, words: &[u64]| {
        let count = words.iter().filter(|word| **word == 0).count();
        seen.fetch_add(count as u64, Ordering::Relaxed);
    };
    device.launch(S, HostWork::Look { at: range(again.1, CHUNK), see: Arc::new(see) }).unwrap();
    device.synchronize().unwrap();
    assert_eq!(zeros.load(Ordering::Relaxed), CHUNK / 8);
    give_back(&device, again);
    // Plain memory is released too.
    let plain = device.malloc(3 * MIB).unwrap();
    device.launch(S, fill(range(plain, 3 * MIB), 9)).unwrap();
    device.free(plain).unwrap();
    assert_eq!((pages(), device.leaks().is_empty()), (0, true));
}

#[test]
fn what_is_unmapped_stays_reserved() {
    let device = device();
    let (handle, address) = chunk(&device);
    device.unmap(address, CHUNK).unwrap();
    // The kernel places no other memory of the process there, since the range is in the kernel's list, without access.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let found = maps.lines().any(|line| {
        let mut words = line.split_whitespace();
        let (at, access) = (words.next().unwrap(), words.next().unwrap());
        let (from, to) = at.split_once('-').unwrap();
        let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap());
        from <= address && address + CHUNK <= to && access == "---p"
    });
    assert!(found, "{address:#x} in {maps}");
    device.map(address, CHUNK, 0, handle).unwrap();
    give_back(&device, (handle, address));
}

#[test]
fn many_chunks_take_one_descriptor() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let device = HostDriver::new(HostConfig { capacity: 16 << 30 }).unwrap();
    let before = descriptors();
    let handles: Vec<Handle> = (0..4_000).map(|_| device.create(CHUNK).unwrap()).collect();
    // Other tests of the process open descriptors at the same time.
    assert!(descriptors() < before + 500);
    handles.into_iter().for_each(|handle| device.release(handle).unwrap());
}

#[test]
fn a_device_that_goes_takes_its_memory_with_it() {
    let device = device();
    let (_, address) = chunk(&device);
    let plain = device.malloc(MIB).unwrap();
    // Work that never began also ends with the device.
    device.hold(S).unwrap();
    device.launch(S, fill(range(address, CHUNK), 1)).unwrap();
    device.launch(T, HostWork::Pause { ns: u64::MAX }).unwrap();
    // Whole lines are compared, since they show the inode of the mapped file: the device of another test may get the
    // same addresses meanwhile.
    let lies_there = |at: u64| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().find(|line| line.starts_with(&format!("{at:x}-")) && line.contains("seamalloc")).map(str::to_owned)
    };
    let before = [address, plain].map(lies_there);
    drop(device);
    let after = [address, plain].map(lies_there);
    assert!(
        before.iter().zip(&after).all(|(before, after)| before.is_some() && before != after),
        "{before:?} {after:?}"
    );
}
