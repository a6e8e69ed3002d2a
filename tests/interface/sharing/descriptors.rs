//! The cost of sharing in open files; a call which fails costs nothing.

use super::alone::{alone, open_files, settles_at, with_files};
use super::{A, DEVICE, MIB, of};
use crate::simulated;
use seamalloc::driver::{Call, Status};
use seamalloc::{Allocator, Config, Error, IpcError, StrategyKind};

/// An allocator with chunks of 2 MiB, and how many of them it is given.
const CHUNKS: usize = 150;

fn in_chunks() -> (std::sync::Arc<seamalloc::driver::sim::SimGpu>, Allocator) {
    simulated::on(DEVICE, Config::parse("chunk_size_mb:2").unwrap())
}

#[test]
fn a_driver_that_fails_halfway_leaves_no_descriptor_open() {
    alone("sharing::descriptors::a_driver_that_fails_halfway_leaves_no_descriptor_open", || {
        let (gpu, allocator) = in_chunks();
        let address = allocator.allocate(CHUNKS as u64 * 2 * MIB, A).unwrap();
        let before = open_files();
        for nth in [1, 2, CHUNKS as u64 / 2, CHUNKS as u64] {
            gpu.fail_nth(Call::Export, nth, Status::UNKNOWN);
            assert!(
                matches!(allocator.sharing().export(address), Err(Error::Driver(error)) if error.call == Call::Export)
            );
            assert_eq!(open_files(), before, "after export {nth} failed");
        }
        allocator.sharing().export(address).unwrap();
        let shared = open_files();
        assert_eq!(shared, before + CHUNKS + 1, "one for each chunk, and the socket");
        // What was open before stays open.
        let other = allocator.allocate(2 * MIB, A).unwrap();
        gpu.fail_nth(Call::Export, 1, Status::UNKNOWN);
        allocator.sharing().export(other).unwrap_err();
        gpu.fail_no_more();
        assert_eq!(open_files(), shared);
        allocator.sharing().export(address).unwrap();
        allocator.reports().check().unwrap();
    });
}

#[test]
fn a_process_that_may_open_no_more_files_keeps_what_it_had() {
    alone("sharing::descriptors::a_process_that_may_open_no_more_files_keeps_what_it_had", || {
        let (_gpu, allocator) = in_chunks();
        let address = allocator.allocate(CHUNKS as u64 * 2 * MIB, A).unwrap();
        let before = open_files();
        for more in [0, 1, CHUNKS as u64 - 1, CHUNKS as u64] {
            let (error, opens) = with_files(more, || {
                (allocator.sharing().export(address).unwrap_err(), std::fs::File::open("/dev/null").is_ok())
            });
            let unavailable = matches!(error, Error::Ipc(IpcError::Unavailable { .. }));
            // The last one misses the socket alone.
            assert!(unavailable || (more < CHUNKS as u64 && matches!(error, Error::Driver(_))), "{more}: {error}");
            assert_eq!((open_files(), opens), (before, more > 0), "with {more} more files");
        }
        with_files(CHUNKS as u64 + 1, || allocator.sharing().export(address)).unwrap();
        assert_eq!(open_files(), before + CHUNKS + 1);
    });
}

#[test]
fn descriptors_are_closed_with_the_last_allocation_that_was_shared() {
    alone("sharing::descriptors::descriptors_are_closed_with_the_last_allocation_that_was_shared", || {
        let (_gpu, allocator) = in_chunks();
        let receiver = of(StrategyKind::Stitch).1;
        // Two small blocks of one slab, and a large one.
        let [first, second, large] = [700, 900, 30 * MIB].map(|size| allocator.allocate(size, A).unwrap());
        let before = open_files();
        let names = [first, second, large].map(|address| allocator.sharing().export(address).unwrap().handle);
        assert_eq!(
            (open_files(), names[0] == names[1]),
            (before + 1 + 15 + 1, true),
            "the slab, the large one, the socket"
        );
        names.iter().for_each(|name| receiver.sharing().close(receiver.sharing().open(name).unwrap()).unwrap());
        allocator.sharing().export(first).unwrap();
        allocator.free(large).unwrap();
        settles_at(before + 2);
        // Freed, but not given back to the driver: nobody may open it any more.
        let gone = Error::Ipc(IpcError::Gone { pid: std::process::id() });
        assert_eq!(receiver.sharing().open(&names[2]).unwrap_err(), gone);
        allocator.free(first).unwrap();
        // The other lies in the same chunk.
        settles_at(before + 2);
        assert_eq!(allocator.sharing().export(second).unwrap().handle, names[1]);
        receiver.sharing().close(receiver.sharing().open(&names[1]).unwrap()).unwrap();
        // It waits for another stream, but the program has given it up.
        allocator.record_stream(second, seamalloc::driver::StreamId(3)).unwrap();
        allocator.free(second).unwrap();
        // The socket stays.
        settles_at(before + 1);
        assert_eq!(receiver.sharing().open(&names[1]).unwrap_err(), gone);
        let again = allocator.allocate(700, A).unwrap();
        assert_ne!(allocator.sharing().export(again).unwrap().handle, names[0], "old handles open nothing new");
        drop(allocator);
        settles_at(before + 1);
    });
}

#[test]
fn plain_memory_costs_none() {
    alone("sharing::descriptors::plain_memory_costs_none", || {
        let (_gpu, allocator) = of(StrategyKind::Caching);
        let address = allocator.allocate(30 * MIB, A).unwrap();
        let before = open_files();
        let shared = allocator.sharing().export(address).unwrap();
        assert_eq!((open_files(), shared.handle.len()), (before, allocator.sharing().handle_len(address).unwrap()));
    });
}

#[test]
fn how_long_a_handle_is_costs_none() {
    alone("sharing::descriptors::how_long_a_handle_is_costs_none", || {
        let (_gpu, allocator) = in_chunks();
        let address = allocator.allocate(CHUNKS as u64 * 2 * MIB, A).unwrap();
        let before = open_files();
        let length = allocator.sharing().handle_len(address).unwrap();
        assert_eq!(open_files(), before);
        assert_eq!(allocator.sharing().export(address).unwrap().handle.len(), length);
        assert_eq!(
            allocator.sharing().handle_len(address + 512).unwrap_err(),
            Error::InvalidAddress { address: address + 512 }
        );
    });
}
