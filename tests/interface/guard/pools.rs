//! Guard mode with private pools, captures, checkpoints and other processes.

use super::*;
use seamalloc::Route;
use seamalloc::driver::sim::CaptureMode;

/// Captures a graph that allocates and frees. Returns its pool and the address.
fn captured(gpu: &SimGpu, allocator: &Allocator) -> (seamalloc::PoolId, u64) {
    let pool = allocator.pools().create();
    allocator.pools().begin(pool, Route::stream(S).capturing()).unwrap();
    gpu.begin_capture(S, CaptureMode::Global).unwrap();
    let address = allocator.allocate(MIB, S).unwrap();
    let other = allocator.allocate(MIB, S).unwrap();
    allocator.free(address).unwrap();
    allocator.guard().record_access(&[other], T).unwrap();
    allocator.free(other).unwrap();
    gpu.end_capture(S).unwrap();
    allocator.pools().end(pool).unwrap();
    (pool, address)
}

#[test]
fn a_graph_that_outlives_its_pool_uses_an_illegal_address() {
    let (gpu, allocator) = guarded("guard:all");
    let (pool, address) = captured(&gpu, &allocator);
    // The graph may be launched as often as its pool lives, whatever else is freed.
    for _ in 0..3 {
        gpu.launch(T, &[range(address, MIB)], 10).unwrap();
        let other = allocator.allocate(MIB, S).unwrap();
        allocator.free(other).unwrap();
        allocator.empty_cache().unwrap();
        gpu.advance(100);
    }
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    allocator.pools().release(pool).unwrap();
    let text = illegal(&gpu, &allocator, T, range(address, MIB));
    assert!(text.contains("is the first byte of allocation #1") && text.contains("unmapped since"), "{text}");
    ends_clean(&gpu, allocator);
}

#[test]
fn captures_stay_legal_and_unguarded_unless_asked() {
    let (gpu, allocator) = guarded("guard:on");
    let (pool, address) = captured(&gpu, &allocator);
    assert_eq!(allocator.stats().guard.guarded, 0);
    gpu.launch(T, &[range(address, MIB)], 10).unwrap();
    gpu.advance(100);
    // Elsewhere, guarded memory comes and goes during the capture.
    allocator.pools().begin(pool, Route::stream(S).capturing()).unwrap();
    gpu.begin_capture(S, CaptureMode::Global).unwrap();
    let other = allocator.allocate(1000, T).unwrap();
    allocator.record_stream(other, U).unwrap();
    allocator.free(other).unwrap();
    assert_eq!(allocator.stats().guard.guarded, 1);
    assert!(allocator.guard().check().is_err());
    gpu.end_capture(S).unwrap();
    allocator.pools().end(pool).unwrap();
    assert_eq!(allocator.guard().check(), Ok(0));
    assert_eq!(allocator.stats().guard.held_bytes, 0, "what was freed in the capture is unmapped after it");
    allocator.pools().release(pool).unwrap();
    allocator.empty_cache().unwrap();
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    ends_clean(&gpu, allocator);
}

#[test]
fn pools_without_captures_are_guarded_like_all_else() {
    let (gpu, allocator) = guarded("guard:on");
    let pool = allocator.pools().create();
    let address = allocator.pools().allocate(pool, MIB, S).unwrap();
    assert_eq!(allocator.pools().stats(pool).unwrap().reserved_bytes, 2 * MIB);
    allocator.free(address).unwrap();
    allocator.guard().check().unwrap();
    let text = illegal(&gpu, &allocator, S, range(address, 1));
    assert!(text.contains("allocation #1"), "{text}");
    let own = allocator.pools().create();
    allocator.pools().open_with(own, seamalloc::Segments::by_malloc()).unwrap();
    let plain = allocator.pools().allocate(own, MIB, S).unwrap();
    assert_eq!(allocator.stats().guard.guarded, 1, "segments of its own are not guarded");
    allocator.free(plain).unwrap();
    allocator.pools().release(own).unwrap();
    allocator.pools().release(own).unwrap();
    allocator.pools().release(pool).unwrap();
    allocator.empty_cache().unwrap();
    ends_clean(&gpu, allocator);
}

#[test]
fn checkpoints_are_restored_with_guards() {
    let (gpu, allocator) = guarded("guard:all");
    let pool = allocator.pools().create();
    allocator.pools().begin(pool, Route::stream(S).capturing()).unwrap();
    gpu.begin_capture(S, CaptureMode::Global).unwrap();
    let kept: Vec<u64> = [MIB, 700, 5 * MIB].map(|size| allocator.allocate(size, S).unwrap()).into();
    gpu.end_capture(S).unwrap();
    allocator.pools().end(pool).unwrap();
    let checkpoint = allocator.pools().blocks(pool).unwrap();
    assert_eq!(checkpoint.len(), 3);
    for _ in 0..2 {
        for address in &kept {
            allocator.free(*address).unwrap();
        }
        allocator.empty_cache().unwrap();
        allocator.pools().restore(pool, &checkpoint).unwrap();
        assert_eq!(allocator.pools().blocks(pool).unwrap(), checkpoint);
        balanced(&gpu, &allocator);
    }
    for address in &kept {
        gpu.launch(S, &[range(*address, 512)], 10).unwrap();
        allocator.free(*address).unwrap();
    }
    gpu.advance(100);
    allocator.pools().release(pool).unwrap();
    assert_eq!(allocator.stats().guard.held_bytes, 0);
    ends_clean(&gpu, allocator);
}

#[cfg(target_os = "linux")]
#[test]
fn guarded_memory_can_be_shared_with_other_processes() {
    let (gpu, allocator) = guarded("guard:on");
    let address = allocator.allocate(3 * MIB, S).unwrap();
    let shared = allocator.sharing().export(address).unwrap();
    assert_eq!(shared.offset, MIB, "it ends where its memory ends");
    let opened = allocator.sharing().open(&shared.handle).unwrap();
    let physical = |address| gpu.physical(range(address, 3 * MIB));
    assert_eq!(physical(opened + shared.offset), physical(address));
    allocator.sharing().close(opened).unwrap();
    allocator.free(address).unwrap();
    ends_clean(&gpu, allocator);
}
