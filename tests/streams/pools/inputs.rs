//! Inputs that are copied into a pool before a capture and freed within it, as PyTorch's trees of graphs do: the work that
//! copied them may not be done when the graph runs on another stream.

use super::{MAIN, MIB, SIDE, on};
use crate::random::Random;
use seamalloc::driver::Driver;
use seamalloc::driver::sim::{CaptureMode, Piece, Range, SimGpu};
use seamalloc::{Allocator, Error, PoolId, Route, StrategyKind};

const POOL: PoolId = PoolId(0, 1);

fn copied(gpu: &SimGpu, allocator: &Allocator, size: u64) -> u64 {
    copied_to(POOL, gpu, allocator, size)
}

fn copied_to(pool: PoolId, gpu: &SimGpu, allocator: &Allocator, size: u64) -> u64 {
    allocator.pools().open(pool).unwrap();
    allocator.pools().begin(pool, Route::stream(SIDE)).unwrap();
    let input = allocator.allocate(size, SIDE).unwrap();
    gpu.launch(SIDE, &[], 1_000_000_000).unwrap();
    allocator.pools().end(pool).unwrap();
    allocator.pools().release(pool).unwrap();
    input
}

fn captured<T>(gpu: &SimGpu, allocator: &Allocator, within: impl FnOnce() -> T) -> T {
    captured_in(POOL, gpu, allocator, within)
}

fn captured_in<T>(pool: PoolId, gpu: &SimGpu, allocator: &Allocator, within: impl FnOnce() -> T) -> T {
    allocator.pools().open(pool).unwrap();
    allocator.pools().begin(pool, Route::stream(SIDE).capturing()).unwrap();
    gpu.begin_capture(SIDE, CaptureMode::ThreadLocal).unwrap();
    let done = within();
    gpu.end_capture(SIDE).unwrap();
    allocator.pools().end(pool).unwrap();
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
    allocator.reports().check().unwrap();
}

/// Two pools serve the same stream, and each has inputs set aside.
#[test]
fn an_input_stays_with_its_pool() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200");
    let pools = [POOL, PoolId(0, 2)];
    let inputs = pools.map(|pool| {
        captured_in(pool, &gpu, &allocator, || ());
        let input = copied_to(pool, &gpu, &allocator, 8 * MIB);
        captured_in(pool, &gpu, &allocator, || allocator.free(input).unwrap());
        input
    });
    for (pool, input) in pools.into_iter().zip(inputs) {
        captured_in(pool, &gpu, &allocator, || {
            assert_eq!(allocator.allocate(8 * MIB, SIDE).unwrap(), input);
        });
    }
    allocator.reports().check().unwrap();
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
                allocator.pools().begin(POOL, Route::stream(SIDE)).unwrap();
                run();
                allocator.pools().end(POOL).unwrap();
            }
        }
        allocator.reports().reserved()
    };
    let warm = step(4, false).max(step(3, false));
    let held = [4, 3, 4].map(|scale| step(scale, true));
    let peak = allocator.stats().allocated_bytes.all.peak;
    // Beside what is live, the inputs that the present capture has freed.
    assert!(
        held.iter().all(|held| *held <= warm + 28 * MIB && *held <= peak + 30 * MIB),
        "{held:?} of {warm}, {peak} live"
    );
    allocator.reports().check().unwrap();
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
    let reserved = allocator.reports().reserved();
    captured(&gpu, &allocator, || {
        allocator.free(stitched).unwrap();
        allocator.reports().check().unwrap();
        let other = allocator.allocate(60 * MIB, SIDE).unwrap();
        assert!(allocator.reports().reserved() >= reserved + 40 * MIB, "a part of the input was handed out");
        allocator.free(other).unwrap();
    });
    captured(&gpu, &allocator, || allocator.free(allocator.allocate(100 * MIB, SIDE).unwrap()).unwrap());
    allocator.reports().check().unwrap();
}

/// Then too the capture has all else.
#[test]
fn beside_a_stitched_one_the_pool_serves_the_capture() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200");
    captured(&gpu, &allocator, || {
        let blocks: Vec<u64> = (0..8).map(|_| allocator.allocate(20 * MIB, SIDE).unwrap()).collect();
        blocks.iter().step_by(2).for_each(|block| allocator.free(*block).unwrap());
    });
    let stitched = copied(&gpu, &allocator, 60 * MIB);
    let (reserved, views) = (allocator.reports().reserved(), allocator.stats().views);
    assert_eq!((reserved, views), (160 * MIB, 1));
    captured(&gpu, &allocator, || {
        allocator.free(stitched).unwrap();
        allocator.allocate(20 * MIB, SIDE).unwrap();
        assert_eq!(allocator.reports().reserved(), reserved);
    });
    allocator.reports().check().unwrap();
}

/// A program of captures that free inputs, small ones, large ones and stitched ones, some of them used by another stream; of
/// checkpoints that are restored, and of a stream that ends. No capture takes a byte of an input that it has freed, no two
/// live blocks share one, and in the end the pool gives all of it back.
#[test]
fn inputs_of_any_kind_are_set_aside_whatever_becomes_of_the_pool() {
    for seed in 0..400 {
        let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200");
        let mut random = Random(seed);
        // Inputs with the number of the stream: what one that was forgotten has used is passed.
        let (mut inputs, mut stream) = (Vec::<(u64, u64)>::new(), 0);
        let (mut live, mut checkpoint) = (Vec::new(), None);
        let size = |random: &mut Random| {
            let most = [3000, 2 * MIB, 50 * MIB][random.below(3) as usize];
            1 + random.below(most)
        };
        captured(&gpu, &allocator, || ());
        for _ in 0..60 {
            match random.below(8) {
                0..3 => inputs.extend((0..3).map(|_| (copied(&gpu, &allocator, size(&mut random)), stream))),
                3..6 => captured(&gpu, &allocator, || {
                    let mut aside: Vec<Piece> = Vec::new();
                    for _ in 0..8 {
                        if random.below(3) == 0 && !inputs.is_empty() {
                            let (input, of_stream) = inputs.swap_remove(random.below(inputs.len() as u64) as usize);
                            let size = allocator.reports().size_of(input).unwrap();
                            if of_stream == stream {
                                aside.extend(gpu.physical(Range { address: input, size }));
                            }
                            if random.below(4) == 0 {
                                allocator.record_stream(input, MAIN).unwrap();
                            }
                            allocator.free(input).unwrap();
                        } else if random.below(3) == 0 && !live.is_empty() {
                            allocator.free(live.swap_remove(random.below(live.len() as u64) as usize)).unwrap();
                        } else {
                            let address = allocator.allocate(size(&mut random), SIDE).unwrap();
                            let size = allocator.reports().size_of(address).unwrap();
                            let taken = gpu.physical(Range { address, size });
                            for (piece, other) in taken.iter().flat_map(|piece| aside.iter().map(move |of| (piece, of)))
                            {
                                let apart = piece.memory != other.memory
                                    || piece.offset + piece.size <= other.offset
                                    || other.offset + other.size <= piece.offset;
                                assert!(apart, "seed {seed}: {piece:?} of an input that the capture has freed");
                            }
                            live.push(address);
                        }
                        allocator.reports().check().unwrap();
                    }
                }),
                6 => match checkpoint.take() {
                    None => checkpoint = Some((allocator.pools().blocks(POOL).unwrap(), inputs.clone(), live.clone())),
                    Some((blocks, of_inputs, of_live)) => {
                        allocator.pools().restore(POOL, &blocks).unwrap();
                        assert_eq!(allocator.pools().blocks(POOL).unwrap(), blocks);
                        (inputs, live) = (of_inputs, of_live);
                    }
                },
                _ => {
                    allocator.streams().forget(SIDE).unwrap();
                    stream += 1;
                }
            }
            allocator.reports().check().unwrap();
            let all = inputs.iter().map(|(input, _)| input).chain(&live);
            let pieces = all.flat_map(|address| {
                gpu.physical(Range { address: *address, size: allocator.reports().size_of(*address).unwrap() })
            });
            let mut pieces: Vec<_> = pieces.map(|of| (of.memory, of.offset, of.offset + of.size)).collect();
            pieces.sort_unstable();
            assert!(pieces.is_sorted_by(|of, next| of.0 != next.0 || of.2 <= next.1), "seed {seed}: two share a byte");
        }
        if seed % 2 == 0 {
            inputs
                .drain(..)
                .map(|(input, _)| input)
                .chain(live.drain(..))
                .for_each(|address| allocator.free(address).unwrap());
        }
        while !matches!(allocator.pools().release(POOL), Err(Error::UnknownPool { .. })) {}
        allocator.reports().check().unwrap();
        inputs.into_iter().map(|(input, _)| input).chain(live).for_each(|address| allocator.free(address).unwrap());
        gpu.synchronize().unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.reports().reserved(), 0, "seed {seed}");
        allocator.reports().check().unwrap();
        assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    }
}
