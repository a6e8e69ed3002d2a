//! Chunks and mappings: what is mapped twice, given back twice, or left without access.

use super::{MAIN as A, MIB, SIDE as B};
use seamalloc::driver::sim::{Range, SimGpu};
use seamalloc::driver::{Call, Driver, Status, StreamId};
use seamalloc::{Allocator, Error, StrategyKind};
use std::sync::Arc;

fn on(kind: StrategyKind) -> (Arc<SimGpu>, Allocator) {
    super::on(kind, "sim:h200,capacity=1GiB")
}

/// A kernel on all of a block: a range without access to it is a fault.
fn touch(gpu: &SimGpu, allocator: &Allocator, address: u64, stream: StreamId) {
    let size = allocator.reports().size_of(address).unwrap();
    gpu.launch(stream, &[Range { address, size }], 50_000).unwrap();
}

#[test]
fn what_was_closed_is_given_back_whole_also_where_it_grew_in_pieces() {
    for kind in StrategyKind::MAIN {
        let (gpu, allocator) = on(kind);
        for cycle in 0..20 {
            // It grows, is freed in another order, and joined for a block of everything.
            let blocks = [40, 3, 64, 21, 90].map(|size| allocator.allocate(size * MIB, A).unwrap());
            blocks.iter().for_each(|address| touch(&gpu, &allocator, *address, A));
            [2, 0, 4, 1, 3].iter().for_each(|index| allocator.free(blocks[*index]).unwrap());
            let whole = allocator.allocate(210 * MIB, A).unwrap();
            touch(&gpu, &allocator, whole, A);
            allocator.free(whole).unwrap();
            allocator.empty_cache().unwrap();
            let info = gpu.memory_info().unwrap();
            assert_eq!((info.total - info.free, allocator.reports().reserved()), (0, 0), "{kind:?}, cycle {cycle}");
        }
        // Nothing was unmapped while a kernel used it.
        assert_eq!(gpu.faults(), [], "{kind:?}");
        drop(allocator);
        assert!(gpu.leaks().is_empty(), "{kind:?}: {}", gpu.leaks());
    }
}

#[test]
fn a_growth_that_fails_takes_no_access_from_what_was_there() {
    for kind in StrategyKind::MAIN {
        for call in [Call::Reserve, Call::Create, Call::Map, Call::SetAccess, Call::Malloc] {
            for nth in 1..6 {
                let (gpu, allocator) = on(kind);
                let live = [30, 50, 20].map(|size| allocator.allocate(size * MIB, A).unwrap());
                // Free memory in two pieces, which are joined for the next request, and more is added.
                allocator.free(live[1]).unwrap();
                gpu.fail_nth(call, nth, Status::UNKNOWN);
                let grown = allocator.allocate(70 * MIB, A);
                gpu.fail_no_more();
                for address in [live[0], live[2]].into_iter().chain(grown.ok()) {
                    touch(&gpu, &allocator, address, A);
                }
                let again = allocator.allocate(70 * MIB, A).unwrap();
                touch(&gpu, &allocator, again, A);
                assert_eq!(gpu.faults(), [], "{kind:?}: {call} {nth}");
                allocator.reports().check().unwrap();
            }
        }
    }
}

#[test]
fn nothing_is_released_twice_and_no_error_outlives_its_call() {
    for kind in StrategyKind::MAIN {
        for call in [Call::Release, Call::Unmap, Call::Free, Call::AddressFree] {
            let (gpu, allocator) = on(kind);
            let blocks = [30, 50, 20].map(|size| allocator.allocate(size * MIB, A).unwrap());
            allocator.record_stream(blocks[0], B).unwrap();
            for address in blocks {
                allocator.free(address).unwrap();
                assert_eq!(allocator.free(address).unwrap_err(), Error::InvalidAddress { address }, "freed twice");
            }
            gpu.fail_nth(call, 1, Status::UNKNOWN);
            // Refused by the simulated GPU where it is asked to release or unmap once more what is gone.
            let failed = allocator.empty_cache();
            assert!(failed.as_ref().is_ok() || matches!(&failed, Err(Error::Driver(error)) if error.call == call));
            gpu.fail_no_more();
            allocator.empty_cache().unwrap();
            allocator.empty_cache().unwrap();
            assert_eq!(allocator.reports().reserved(), 0, "{kind:?}: {call}");
            let again = allocator.allocate(60 * MIB, A).unwrap();
            touch(&gpu, &allocator, again, A);
            allocator.free(again).unwrap();
            drop(allocator);
            assert!(gpu.leaks().is_empty(), "{kind:?}: {call}: {}", gpu.leaks());
            assert_eq!(gpu.faults(), []);
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_segment_keeps_its_handle_whatever_happens_beside_the_shared_block() {
    for kind in StrategyKind::MAIN {
        let (_gpu, allocator) = on(kind);
        // Both from one piece of memory.
        allocator.free(allocator.allocate(18 * MIB, A).unwrap()).unwrap();
        let [first, second] = [5, 6].map(|size| allocator.allocate(size * MIB, A).unwrap());
        let [name, other] = [first, second].map(|address| allocator.sharing().export(address).unwrap());
        // A receiver recognizes the segment by these bytes.
        let same = name.handle == other.handle;
        assert!(same || kind == StrategyKind::Gmlake, "{kind:?}: blocks of one segment, with the handles of two");
        for size in [3, 40, 90] {
            let more = allocator.allocate(size * MIB, B).unwrap();
            allocator.sharing().export(more).unwrap();
            allocator.free(more).unwrap();
            allocator.empty_cache().unwrap();
            assert_eq!(allocator.sharing().export(first).unwrap(), name, "{kind:?}");
        }
        allocator.free(second).unwrap();
        assert_eq!(allocator.sharing().export(first).unwrap(), name, "{kind:?}");
        let again = allocator.allocate(6 * MIB, A).unwrap();
        // With a share of its own memory ended, it is another share.
        if same && again == second {
            assert_eq!(allocator.sharing().export(again).unwrap(), other, "{kind:?}");
        }
    }
}
