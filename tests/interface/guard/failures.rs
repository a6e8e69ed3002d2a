//! Every driver call can fail in guard mode too: memory stays accounted to the byte, and nothing is lost at the end.

use super::*;
use seamalloc::driver::sim::CaptureMode;
use seamalloc::{Error, Route};

/// About how many calls of one kind fail.
const CALLS: u64 = 25;

/// Runs a fixed series of operations. Returns how many failed.
fn run(gpu: &SimGpu, allocator: &Allocator, live: &mut Vec<u64>) -> u32 {
    let mut failed = 0;
    let pool = allocator.pools().create();
    for step in 0..60u64 {
        let stream = StreamId(step % 3);
        let before = allocator.stats().allocation.all.current;
        let result = match step % 8 {
            0..=2 => allocator.allocate(step * 100_000 + 700, stream).map(|address| live.push(address)),
            3 | 4 if !live.is_empty() => {
                let at = (step as usize * 7) % live.len();
                let address = live[at];
                gpu.launch(T, &[range(address, 1)], 5).unwrap();
                let noted =
                    allocator.guard().record_access(&[address], T).and_then(|()| allocator.record_stream(address, U));
                let freed = noted.and_then(|()| allocator.free_with_current_stream(address, stream));
                if freed.is_ok() {
                    live.swap_remove(at);
                }
                freed
            }
            5 => allocator.guard().check().map(drop),
            6 => allocator.empty_cache().map(drop),
            _ => {
                let begun = allocator.pools().begin(pool, Route::stream(S).capturing());
                begun.and_then(|()| {
                    gpu.begin_capture(S, CaptureMode::Global).unwrap();
                    let made = allocator.allocate(3 * MIB, S).and_then(|address| allocator.free(address));
                    gpu.end_capture(S).unwrap();
                    allocator.pools().end(pool).unwrap();
                    made
                })
            }
        };
        gpu.advance(3);
        match result {
            Ok(()) => {}
            Err(Error::Driver(_) | Error::OutOfMemory(_)) => {
                failed += 1;
                let after = allocator.stats().allocation.all.current;
                // In the capture, the allocation may have come before the free that failed.
                assert!(after == before || (step % 8 == 7 && after == before + 1), "step {step}");
            }
            Err(error) => panic!("step {step}: {error}"),
        }
        balanced(gpu, allocator);
    }
    allocator.pools().release(pool).unwrap();
    failed
}

#[test]
fn any_call_may_fail_at_any_time() {
    let options = "guard:all,guard_quarantine_mb:64";
    let (plain, allocator) = guarded(options);
    assert_eq!(run(&plain, &allocator, &mut Vec::new()), 0);
    assert_eq!(allocator.guard().findings().len(), 0);
    for call in [Call::Fill, Call::Read, Call::Reserve, Call::AddressFree, Call::Unmap, Call::Release] {
        assert!(made(&plain, call) > 0, "{call}");
    }
    for call in Call::ALL {
        let made = made(&plain, call);
        for nth in (1..=made).step_by((made / CALLS).max(1) as usize) {
            let name = format!("{call} number {nth}");
            let (gpu, allocator) = guarded(options);
            gpu.fail_nth(call, nth, Status::UNKNOWN);
            let mut live = Vec::new();
            run(&gpu, &allocator, &mut live);
            gpu.fail_no_more();
            let snapshot = allocator.reports().snapshot();
            let left = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
            let left = left.filter(|block| block.state == seamalloc::snapshot::BlockState::ActiveAllocated);
            for address in left.map(|block| block.address) {
                allocator.free(address).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            allocator.empty_cache().unwrap();
            balanced(&gpu, &allocator);
            assert_eq!(allocator.stats().reserved_bytes.all.current, 0, "{name}");
            assert!(allocator.guard().findings().is_empty(), "{name}: {:?}", allocator.guard().findings());
            drop(allocator);
            assert!(gpu.leaks().is_empty(), "{name}: {}", gpu.leaks());
            assert!(gpu.faults().is_empty(), "{name}: {:?}", gpu.faults());
        }
    }
}

#[test]
fn a_lost_context_leaves_the_explanation() {
    let (gpu, allocator) = guarded("guard:on");
    let address = allocator.allocate(1000, S).unwrap();
    gpu.lose_context(Status::ILLEGAL_ADDRESS);
    let text = allocator.guard().explain(address + 1024).unwrap().to_string();
    assert!(text.contains("24 bytes behind the end of allocation #1"), "{text}");
    allocator.free(address).unwrap();
    assert!(allocator.guard().explain(address).unwrap().to_string().contains("still mapped"));
}
