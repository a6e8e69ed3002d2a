//! A checkpoint of a private pool brings back the blocks that were live, where they were.

use crate::{GRAPH, Graph, MAIN, MIB, SIDE, capture, on};
use seamalloc::driver::sim::Range;
use seamalloc::{Allocator, Error, PoolBlock, PoolId, StrategyKind};

fn total(blocks: &[PoolBlock]) -> u64 {
    blocks.iter().map(|block| block.size).sum()
}

fn free_all(allocator: &Allocator, blocks: &[PoolBlock]) {
    blocks.iter().for_each(|block| allocator.free(block.address).unwrap());
}

#[test]
fn live_blocks_come_back_at_their_addresses_over_their_memory() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200,capacity=400MiB");
    // Holes of 16 MiB between live blocks, so that what is larger is stitched.
    let held: Vec<u64> = (0..20).map(|_| allocator.allocate(16 * MIB, MAIN).unwrap()).collect();
    held.iter().step_by(2).for_each(|address| allocator.free(*address).unwrap());
    let pass = allocator.allocate(100 * MIB, SIDE).unwrap();
    allocator.free(pass).unwrap();
    let pool = allocator.create_pool();
    let sizes = [40 * MIB, 700, 3 * MIB, 5000, 60 * MIB, MIB, 900 * 1024, 12 * MIB + 512];
    let mut graph = Graph::default();
    let (checkpoint, rest) = capture(&gpu, &allocator, pool, || {
        let all: Vec<u64> = sizes.iter().map(|size| allocator.allocate(*size, GRAPH).unwrap()).collect();
        all.iter().for_each(|address| graph.uses(&gpu, &allocator, *address));
        all.iter().step_by(3).for_each(|address| allocator.free(*address).unwrap());
        (allocator.pool_blocks(pool).unwrap(), all)
    });
    assert_eq!(checkpoint.len(), sizes.len() - sizes.len().div_ceil(3));
    assert!(checkpoint.iter().any(|block| block.requested == 700) && rest.len() == sizes.len());
    let views = allocator.stats().views_built;
    assert!(views > 0, "some of it is stitched");

    // What was live dies, what comes next in the pool lies elsewhere, and slabs become large memory again.
    let before = allocator.stats();
    free_all(&allocator, &checkpoint);
    let strangers = capture(&gpu, &allocator, pool, || {
        [90 * MIB, 2000, 7 * MIB].map(|size| allocator.allocate(size, GRAPH).unwrap())
    });
    let live = allocator.pool_blocks(pool).unwrap();
    assert_eq!(live.len(), strangers.len());

    for _ in 0..3 {
        allocator.restore_pool(pool, &checkpoint).unwrap();
        allocator.check().unwrap();
        assert_eq!(allocator.pool_blocks(pool).unwrap(), checkpoint);
        let stats = allocator.stats();
        assert_eq!(stats.allocated_bytes.all.current, before.allocated_bytes.all.current);
        assert_eq!(stats.requested_bytes.all.current, before.requested_bytes.all.current);
        assert_eq!(allocator.pool_stats(pool).unwrap().allocated_bytes, total(&checkpoint));
        for block in &checkpoint {
            assert_eq!(allocator.size_of(block.address), Ok(block.size));
        }
        graph.replay(&gpu, SIDE);
        let more = allocator.allocate_in(pool, 30 * MIB, GRAPH).unwrap();
        let pieces = gpu.physical(Range { address: more, size: 30 * MIB });
        for block in &checkpoint {
            for piece in gpu.physical(Range { address: block.address, size: block.size }) {
                let meets = |other: &seamalloc::driver::sim::Piece| {
                    other.memory == piece.memory
                        && other.offset < piece.offset + piece.size
                        && piece.offset < other.offset + other.size
                };
                assert!(!pieces.iter().any(meets), "{block:?} is in use");
            }
        }
        allocator.restore_pool(pool, &live).unwrap();
        assert_eq!(allocator.pool_blocks(pool).unwrap(), live);
        allocator.check().unwrap();
    }
    allocator.restore_pool(pool, &[]).unwrap();
    assert_eq!(allocator.pool_stats(pool).unwrap().allocations, 0);
    held.iter().skip(1).step_by(2).for_each(|address| allocator.free(*address).unwrap());
    allocator.release_pool(pool).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.stats().reserved_bytes.all.current, 0);
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
}

#[test]
fn random_histories_are_restored() {
    for seed in 0..20u64 {
        let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200,capacity=2GiB");
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % bound
        };
        let others: Vec<u64> = (0..40).map(|_| allocator.allocate(1 + below(24 * MIB), MAIN).unwrap()).collect();
        others.iter().step_by(2).for_each(|address| allocator.free(*address).unwrap());
        let pool = allocator.create_pool();
        let mut checkpoints = Vec::new();
        for _ in 0..12 {
            capture(&gpu, &allocator, pool, || {
                for _ in 0..30 {
                    let live = allocator.pool_blocks(pool).unwrap();
                    if live.len() > 12 || (below(2) == 0 && !live.is_empty()) {
                        allocator.free(live[below(live.len() as u64) as usize].address).unwrap();
                    } else {
                        let most = [4000, MIB, 40 * MIB][below(3) as usize];
                        let _ = allocator.allocate(1 + below(most), GRAPH).unwrap();
                    }
                }
            });
            checkpoints.push(allocator.pool_blocks(pool).unwrap());
            let back = &checkpoints[below(checkpoints.len() as u64) as usize];
            allocator.restore_pool(pool, back).unwrap();
            assert_eq!(&allocator.pool_blocks(pool).unwrap(), back, "seed {seed}");
            allocator.check().unwrap();
        }
        assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    }
}

#[test]
fn what_cannot_be_restored_is_an_error() {
    let (_, allocator) = on(StrategyKind::Stitch, "sim:h200");
    let pool = allocator.create_pool();
    let foreign = allocator.allocate(3 * MIB, MAIN).unwrap();
    let block = |address| PoolBlock { address, size: 3 * MIB, requested: 3 * MIB };
    let not = |address| Err(Error::NotRestorable { address });
    assert_eq!(allocator.restore_pool(pool, &[block(foreign)]), not(foreign));
    allocator.free(foreign).unwrap();
    assert_eq!(allocator.restore_pool(pool, &[block(foreign)]), not(foreign), "free, but not the pool's");
    let own = allocator.allocate_in(pool, 3 * MIB, MAIN).unwrap();
    let twice = [block(own), block(own)];
    assert_eq!(allocator.restore_pool(pool, &twice), not(own), "twice the same");
    assert_eq!(allocator.restore_pool(pool, &[block(own + (1 << 50))]), not(own + (1 << 50)));
    assert_eq!(allocator.restore_pool(pool, &[block(u64::MAX - 511)]), not(u64::MAX - 511));
    assert_eq!(allocator.restore_pool(PoolId(0, 99), &[]), Err(Error::UnknownPool { pool: PoolId(0, 99) }));
    assert_eq!(allocator.pool_blocks(PoolId(0, 99)), Err(Error::UnknownPool { pool: PoolId(0, 99) }));
    allocator.check().unwrap();

    let (_, allocator) = on(StrategyKind::Caching, "sim:h200");
    let pool = allocator.create_pool();
    let own = allocator.allocate_in(pool, 3 * MIB, MAIN).unwrap();
    assert_eq!(allocator.restore_pool(pool, &[block(own)]), not(own));
    assert_eq!(allocator.pool_blocks(pool).unwrap().len(), 1, "it is as it was");
}
