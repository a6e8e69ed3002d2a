//! Inputs that are copied into a pool before a capture and freed within it, as PyTorch's trees of graphs do: the work that
//! copied them may not be done when the graph runs on another stream.

use super::{MIB, SIDE, on};
use seamalloc::driver::sim::{CaptureMode, SimGpu};
use seamalloc::{Allocator, PoolId, Route, StrategyKind};

const POOL: PoolId = PoolId(0, 1);

fn copied(gpu: &SimGpu, allocator: &Allocator, size: u64) -> u64 {
    allocator.open_pool(POOL).unwrap();
    allocator.begin_allocate_to_pool(POOL, Route::stream(SIDE)).unwrap();
    let input = allocator.allocate(size, SIDE).unwrap();
    gpu.launch(SIDE, &[], 1_000_000_000).unwrap();
    allocator.end_allocate_to_pool(POOL).unwrap();
    allocator.release_pool(POOL).unwrap();
    input
}

fn captured<T>(gpu: &SimGpu, allocator: &Allocator, within: impl FnOnce() -> T) -> T {
    allocator.open_pool(POOL).unwrap();
    allocator.begin_allocate_to_pool(POOL, Route::stream(SIDE).capturing()).unwrap();
    gpu.begin_capture(SIDE, CaptureMode::ThreadLocal).unwrap();
    let done = within();
    gpu.end_capture(SIDE).unwrap();
    allocator.end_allocate_to_pool(POOL).unwrap();
    done
}

#[test]
fn no_capture_takes_one_that_it_frees_and_the_next_may() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200");
    captured(&gpu, &allocator, || ());
    let input = copied(&gpu, &allocator, 8 * MIB);
    captured(&gpu, &allocator, || {
        allocator.free(input).unwrap();
        let other = allocator.allocate(8 * MIB, SIDE).unwrap();
        assert_ne!(other, input);
        allocator.free(other).unwrap();
    });
    captured(&gpu, &allocator, || {
        let both = [(); 2].map(|()| allocator.allocate(8 * MIB, SIDE).unwrap());
        assert!(both.contains(&input));
    });
    allocator.check().unwrap();
}

/// A model's forward and backward pass, warmed up and captured, for two lengths in turn. Before, an input that a capture freed
/// set all of the pool aside, and each capture took as much again: 2,000 MiB.
#[test]
fn all_else_that_the_pool_has_serves_the_capture() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200");
    captured(&gpu, &allocator, || ());
    let step = |scale: u64, captures: bool| {
        let mut saved = Vec::new();
        for forward in [true, false] {
            let inputs: Vec<u64> = (0..3).map(|_| copied(&gpu, &allocator, 9 * MIB)).collect();
            let run = || {
                inputs.into_iter().for_each(|input| allocator.free(input).unwrap());
                for layer in 0..20 {
                    let scratch = allocator.allocate(7 * MIB * scale, SIDE).unwrap();
                    if forward {
                        saved.push(allocator.allocate((5 + layer % 3) * MIB * scale, SIDE).unwrap());
                    } else {
                        allocator.free(saved.pop().unwrap()).unwrap();
                    }
                    allocator.free(scratch).unwrap();
                }
            };
            if captures {
                captured(&gpu, &allocator, run);
            } else {
                allocator.begin_allocate_to_pool(POOL, Route::stream(SIDE)).unwrap();
                run();
                allocator.end_allocate_to_pool(POOL).unwrap();
            }
        }
        allocator.reserved()
    };
    let warm = step(4, false).max(step(3, false));
    let held = [4, 3, 4].map(|scale| step(scale, true));
    let peak = allocator.stats().allocated_bytes.all.peak;
    // Beside what is live, the inputs that the present capture has freed.
    assert!(
        held.iter().all(|held| *held <= warm + 28 * MIB && *held <= peak + 30 * MIB),
        "{held:?} of {warm}, {peak} live"
    );
    allocator.check().unwrap();
}

#[test]
fn a_stitched_one_is_set_aside_with_its_pieces() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200");
    captured(&gpu, &allocator, || ());
    // Free ranges of the pool with live blocks between them.
    let blocks: Vec<u64> = (0..8).map(|_| copied(&gpu, &allocator, 20 * MIB)).collect();
    blocks.iter().step_by(2).for_each(|block| allocator.free(*block).unwrap());
    let stitched = copied(&gpu, &allocator, 60 * MIB);
    assert!(allocator.stats().views > 0);
    let reserved = allocator.reserved();
    captured(&gpu, &allocator, || {
        allocator.free(stitched).unwrap();
        allocator.check().unwrap();
        let other = allocator.allocate(60 * MIB, SIDE).unwrap();
        assert!(allocator.reserved() >= reserved + 40 * MIB, "a part of the input was handed out");
        allocator.free(other).unwrap();
    });
    captured(&gpu, &allocator, || allocator.free(allocator.allocate(100 * MIB, SIDE).unwrap()).unwrap());
    allocator.check().unwrap();
}
