//! Memory of one process in another: named, opened and closed, whatever it lies in.
//!
//! Two simulated GPUs stand for two processes; where it matters, there are two.

mod alone;
mod descriptors;
mod peers;

use crate::shared_blocks::blocks;
use crate::simulated;
use seamalloc::driver::sim::{Piece, Range, SimGpu};
use seamalloc::driver::{Call, CaptureMode, Driver, Status, StreamId};
use seamalloc::{Allocator, Config, Error, IpcError, Route, StrategyKind};
use std::process::Command;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const A: StreamId = StreamId::DEFAULT;
const DEVICE: &str = "sim:h200,capacity=1GiB";

fn of(kind: StrategyKind) -> (Arc<SimGpu>, Allocator) {
    simulated::on(DEVICE, Config::with_strategy(kind))
}

fn behind(gpu: &SimGpu, address: u64, size: u64) -> Vec<Piece> {
    gpu.physical(Range { address, size })
}

#[test]
fn what_is_opened_is_the_memory_that_was_shared() {
    for kind in [StrategyKind::Stitch, StrategyKind::Expandable, StrategyKind::Gmlake] {
        let (gpu, allocator) = of(kind);
        let driver = Arc::clone(&gpu) as Arc<dyn Driver>;
        let receiver = Allocator::new(driver, Config::default()).unwrap();
        for address in blocks(&allocator) {
            let size = allocator.reports().size_of(address).unwrap();
            let Ok(shared) = allocator.sharing().export(address) else {
                panic!("{kind:?}: {size} bytes cannot be shared")
            };
            if kind == StrategyKind::Gmlake && size <= MIB {
                // Plain memory, which a process cannot open itself.
                assert!(matches!(receiver.sharing().open(&shared.handle), Err(Error::Driver(_))));
                continue;
            }
            let opened = receiver.sharing().open(&shared.handle).unwrap();
            assert_eq!(behind(&gpu, opened + shared.offset, size), behind(&gpu, address, size), "{kind:?}");
            gpu.launch(A, &[Range { address: opened + shared.offset, size }], 1).unwrap();
            receiver.sharing().close(opened).unwrap();
        }
        assert_eq!(receiver.reports().reserved(), 0, "memory of others is not held");
        assert_eq!(gpu.faults(), []);
        allocator.reports().check().unwrap();
    }
}

/// Chunks that went back left holes in a view; what lies behind them is found all the same.
#[test]
fn a_block_behind_holes_of_its_view_is_shared() {
    const CHUNK: u64 = 16 * MIB;
    let (gpu, allocator) = of(StrategyKind::Stitch);
    let driver = Arc::clone(&gpu) as Arc<dyn Driver>;
    let receiver = Allocator::new(driver, Config::default()).unwrap();
    let held: Vec<u64> = (0..10).map(|_| allocator.allocate(CHUNK, A).unwrap()).collect();
    held.iter().step_by(2).for_each(|address| allocator.free(*address).unwrap());
    let view = allocator.allocate(5 * CHUNK, A).unwrap();
    // The places at home of its chunks, in the view's order.
    let lies_at = |at: u64, address: &u64| behind(&gpu, *address, CHUNK) == behind(&gpu, at, CHUNK);
    let at_home = |part| *held.iter().find(|address| lies_at(view + part * CHUNK, address)).unwrap();
    let chunks: Vec<u64> = (0..5).map(at_home).collect();
    allocator.free(view).unwrap();
    let mut taken = [(); 5].map(|()| allocator.allocate(CHUNK, A).unwrap()).to_vec();
    taken.sort_unstable();
    assert!(taken.iter().eq(held.iter().step_by(2)));
    chunks[2..4].iter().for_each(|address| allocator.free(*address).unwrap());
    let address = allocator.allocate(2 * CHUNK, A).unwrap();
    assert_eq!(address, view + 2 * CHUNK, "it lies in the view, behind two chunks");
    // The hole between two chunks first: what lies before one counts too.
    for gone in [chunks[1], chunks[0]] {
        allocator.free(gone).unwrap();
        assert_eq!(allocator.empty_cache().unwrap(), CHUNK);
        let shared = allocator.sharing().export(address).unwrap();
        let opened = receiver.sharing().open(&shared.handle).unwrap();
        assert_eq!(behind(&gpu, opened + shared.offset, 2 * CHUNK), behind(&gpu, address, 2 * CHUNK));
        receiver.sharing().close(opened).unwrap();
    }
    allocator.reports().check().unwrap();
}

#[test]
fn the_same_memory_has_the_same_name() {
    let (_gpu, allocator) = of(StrategyKind::Stitch);
    let [first, second] = [3 * MIB, 5 * MIB].map(|size| allocator.allocate(size, A).unwrap());
    let shared = allocator.sharing().export(first).unwrap();
    assert_eq!(allocator.sharing().export(first).unwrap(), shared);
    assert_ne!(allocator.sharing().export(second).unwrap(), shared);
    let error = allocator.sharing().export(first + 512).unwrap_err();
    assert_eq!(error, Error::InvalidAddress { address: first + 512 });
}

#[test]
fn what_is_opened_twice_is_closed_twice() {
    for kind in [StrategyKind::Caching, StrategyKind::Stitch] {
        let (_gpu, allocator) = of(kind);
        let (other, receiver) = of(kind);
        let shared = allocator.sharing().export(allocator.allocate(30 * MIB, A).unwrap()).unwrap();
        let [first, second] = [0; 2].map(|_| receiver.sharing().open(&shared.handle).unwrap());
        assert_eq!(first == second, kind == StrategyKind::Caching, "CUDA opens plain memory once, and counts");
        receiver.sharing().close(first).unwrap();
        assert!(!other.leaks().is_empty(), "{kind:?}");
        other.launch(A, &[Range { address: second, size: 30 * MIB }], 1).unwrap();
        receiver.sharing().close(second).unwrap();
        assert!(other.leaks().is_empty(), "{kind:?}: {}", other.leaks());
        assert_eq!(receiver.sharing().close(first).unwrap_err(), Error::Ipc(IpcError::NotOpen { address: first }));
    }
}

#[test]
fn a_block_of_more_chunks_than_a_message_has_descriptors() {
    let config = Config::parse("chunk_size_mb:2").unwrap();
    let (gpu, allocator) = simulated::on(DEVICE, config);
    let address = allocator.allocate(400 * MIB, A).unwrap();
    let shared = allocator.sharing().export(address).unwrap();
    let (_other, receiver) = of(StrategyKind::Stitch);
    let opened = receiver.sharing().open(&shared.handle).unwrap();
    assert_eq!(gpu.call_stats().get(Call::Export).count, 200);
    receiver.sharing().close(opened).unwrap();
}

#[test]
fn memory_that_went_back_is_gone() {
    let (_gpu, allocator) = of(StrategyKind::Stitch);
    let (other, receiver) = of(StrategyKind::Stitch);
    let address = allocator.allocate(64 * MIB, A).unwrap();
    let shared = allocator.sharing().export(address).unwrap();
    allocator.free(address).unwrap();
    allocator.empty_cache().unwrap();
    let error = receiver.sharing().open(&shared.handle).unwrap_err();
    assert_eq!(error, Error::Ipc(IpcError::Gone { pid: std::process::id() }));
    assert!(other.leaks().is_empty());
}

#[test]
fn names_that_name_nothing_are_refused() {
    let (_gpu, allocator) = of(StrategyKind::Stitch);
    let shared = allocator.sharing().export(allocator.allocate(MIB, A).unwrap()).unwrap();
    let (other, receiver) = of(StrategyKind::Stitch);
    for handle in [&b""[..], b"seam-ipc", &[7; 64], &shared.handle[..shared.handle.len() - 1]] {
        let error = receiver.sharing().open(handle).unwrap_err();
        assert!(matches!(error, Error::Ipc(IpcError::BadHandle { .. })), "{error}");
    }
    // A process that has ended, as far as anyone can tell: its socket has another name.
    let mut unknown = shared.handle.clone();
    unknown[20] ^= 1;
    let error = receiver.sharing().open(&unknown).unwrap_err();
    assert!(matches!(&error, Error::Ipc(IpcError::Unreachable { pid, .. }) if *pid == std::process::id()), "{error}");
    // A chunk that the process never named; a chunk of another size than it has.
    let mut never = shared.handle.clone();
    never[35] = 0xff;
    let error = receiver.sharing().open(&never).unwrap_err();
    assert!(matches!(error, Error::Ipc(IpcError::Gone { .. })), "{error}");
    let mut larger = shared.handle.clone();
    larger[42] ^= 0x40;
    let error = receiver.sharing().open(&larger).unwrap_err();
    assert!(matches!(&error, Error::Driver(error) if error.call == Call::Import), "{error}");
    assert!(other.leaks().is_empty(), "{}", other.leaks());
}

#[test]
fn what_everyone_can_read_opens_nothing() {
    let (_gpu, allocator) = of(StrategyKind::Stitch);
    let shared = allocator.sharing().export(allocator.allocate(MIB, A).unwrap()).unwrap();
    let secret = &shared.handle[16..32];
    let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let names = std::fs::read_to_string("/proc/net/unix").unwrap();
    assert!(names.contains(&digits[..16]) && !names.contains(&digits[16..]), "half of it is in the socket's name");
    let mut guessed = shared.handle.clone();
    guessed[31] ^= 1;
    let (_other, receiver) = of(StrategyKind::Stitch);
    let error = receiver.sharing().open(&guessed).unwrap_err();
    assert!(matches!(error, Error::Ipc(IpcError::Unreachable { .. })), "{error}");
    receiver.sharing().open(&shared.handle).unwrap();
}

#[test]
fn a_call_that_fails_leaves_nothing_open() {
    let (gpu, allocator) = of(StrategyKind::Stitch);
    let address = *blocks(&allocator).last().unwrap();
    let (other, receiver) = of(StrategyKind::Stitch);
    gpu.fail_nth(Call::Export, 1, Status::UNKNOWN);
    assert!(matches!(allocator.sharing().export(address), Err(Error::Driver(error)) if error.call == Call::Export));
    let shared = allocator.sharing().export(address).unwrap();
    for call in [Call::Import, Call::Reserve, Call::Map, Call::SetAccess] {
        for nth in 1.. {
            other.fail_nth(call, nth, Status::UNKNOWN);
            match receiver.sharing().open(&shared.handle) {
                Err(error) => assert!(matches!(&error, Error::Driver(error) if error.call == call), "{error}"),
                Ok(opened) => {
                    assert!(nth > 1, "{call} is never made");
                    other.fail_no_more();
                    receiver.sharing().close(opened).unwrap();
                    break;
                }
            }
            assert!(other.leaks().is_empty(), "{call}: {}", other.leaks());
        }
    }
    // What cannot be undone at once, and what cannot be closed, goes with the next that is closed.
    for call in [Call::Synchronize, Call::Unmap, Call::Release, Call::AddressFree] {
        let opened = receiver.sharing().open(&shared.handle).unwrap();
        other.fail_nth(call, 1, Status::UNKNOWN);
        assert!(matches!(receiver.sharing().close(opened), Err(Error::Driver(error)) if error.call == call));
        assert!(!other.leaks().is_empty());
        receiver.empty_cache().unwrap();
        assert!(other.leaks().is_empty(), "{call}: {}", other.leaks());
    }
    other.fail_nth(Call::SetAccess, 1, Status::UNKNOWN);
    other.fail_nth(Call::Unmap, 1, Status::UNKNOWN);
    receiver.sharing().open(&shared.handle).unwrap_err();
    assert!(!other.leaks().is_empty());
    drop(receiver);
    assert!(other.leaks().is_empty(), "{}", other.leaks());
}

#[test]
fn a_capture_is_not_harmed() {
    let (_gpu, allocator) = of(StrategyKind::Caching);
    let (other, receiver) = of(StrategyKind::Caching);
    let [first, second] =
        [30, 40].map(|size| allocator.sharing().export(allocator.allocate(size * MIB, A).unwrap()).unwrap());
    let early = receiver.sharing().open(&first.handle).unwrap();
    let pool = receiver.pools().create();
    let captured = StreamId(5);
    receiver.pools().begin(pool, Route::when(move |stream| stream == captured).capturing()).unwrap();
    other.begin_capture(captured, CaptureMode::Global).unwrap();
    let late = receiver.sharing().open(&second.handle).unwrap();
    receiver.sharing().close(early).unwrap();
    receiver.sharing().close(late).unwrap();
    assert_eq!(other.leaks().mallocs, 2, "closed later");
    other.end_capture(captured).unwrap();
    receiver.pools().end(pool).unwrap();
    receiver.empty_cache().unwrap();
    assert!(other.leaks().is_empty(), "{}", other.leaks());
}

/// In a process of its own, for no other test may have shared memory before.
#[test]
fn what_failed_once_may_work_later() {
    alone::alone("sharing::what_failed_once_may_work_later", || {
        let (_gpu, allocator) = of(StrategyKind::Stitch);
        let address = allocator.allocate(MIB, A).unwrap();
        // The chunk's descriptor is the last that can be opened: none is left for the socket.
        let error = alone::with_files(1, || allocator.sharing().export(address).unwrap_err());
        assert!(matches!(error, Error::Ipc(IpcError::Unavailable { .. })), "{error}");
        allocator.sharing().export(address).unwrap();
    });
}

/// Set in the process that `another_process_opens_it` starts: the name, and what it should find.
const NAME: &str = "SEAMALLOC_TEST_SHARED";

#[test]
fn another_process_opens_it() {
    if std::env::var_os(NAME).is_some() {
        return;
    }
    let (_gpu, allocator) = of(StrategyKind::Stitch);
    let address = *blocks(&allocator).iter().rev().nth(1).unwrap();
    let shared = allocator.sharing().export(address).unwrap();
    let name: String = shared.handle.iter().map(|byte| format!("{byte:02x}")).collect();
    let child = || {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "sharing::the_other_process", "--nocapture"])
            .env(NAME, format!("{name}:{}", shared.offset));
        child.output().unwrap()
    };
    let done = child();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    assert!(String::from_utf8_lossy(&done.stdout).contains("opened and closed"));
    allocator.free(address).unwrap();
    drop(allocator);
    let done = child();
    assert!(String::from_utf8_lossy(&done.stdout).contains("has freed the memory"), "{done:?}");
}

#[test]
fn the_other_process() {
    let Some(name) = std::env::var(NAME).ok().filter(|name| !name.is_empty()) else { return };
    let (name, offset) = name.split_once(':').unwrap();
    let digits: Vec<char> = name.chars().collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    let handle: Vec<u8> = digits.chunks(2).map(byte).collect();
    let (gpu, allocator) = of(StrategyKind::Stitch);
    match allocator.sharing().open(&handle) {
        Ok(opened) => {
            let range = Range { address: opened + offset.parse::<u64>().unwrap(), size: 70 * MIB };
            gpu.launch(A, &[range], 1).unwrap();
            allocator.sharing().close(opened).unwrap();
            assert!(gpu.leaks().is_empty());
            println!("opened and closed");
        }
        Err(error) => println!("{error}"),
    }
}
