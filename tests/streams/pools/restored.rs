//! A checkpoint of a private pool brings back the blocks that were live, where they were.

use super::{GRAPH, Graph, MAIN, MIB, SIDE, capture, on};
use crate::graph::meet;
use seamalloc::driver::sim::{Range, SimGpu};
use seamalloc::{Allocator, Error, PoolBlock, PoolId, Stats, StrategyKind};
use std::sync::Arc;

fn total(blocks: &[PoolBlock]) -> u64 {
    blocks.iter().map(|block| block.size).sum()
}

fn free_all(allocator: &Allocator, blocks: &[PoolBlock]) {
    blocks.iter().for_each(|block| allocator.free(block.address).unwrap());
}

/// A pool with a checkpoint of a graph's live blocks, some of them stitched, and what became of it since.
struct Checkpointed {
    gpu: Arc<SimGpu>,
    allocator: Allocator,
    pool: PoolId,
    graph: Graph,
    /// The blocks that are live outside of the pool.
    others: Vec<u64>,
    /// The figures when the checkpoint was taken.
    figures: Stats,
    checkpoint: Vec<PoolBlock>,
    /// The blocks that are live now: none of them was live then.
    live: Vec<PoolBlock>,
}

impl Checkpointed {
    fn new() -> Self {
        let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200,capacity=400MiB");
        // Holes of 16 MiB between live blocks, so that what is larger is stitched.
        let held: Vec<u64> = (0..20).map(|_| allocator.allocate(16 * MIB, MAIN).unwrap()).collect();
        held.iter().step_by(2).for_each(|address| allocator.free(*address).unwrap());
        let pass = allocator.allocate(100 * MIB, SIDE).unwrap();
        allocator.free(pass).unwrap();
        let pool = allocator.pools().create();
        let sizes = [40 * MIB, 700, 3 * MIB, 5000, 60 * MIB, MIB, 900 * 1024, 12 * MIB + 512];
        let mut graph = Graph::default();
        let checkpoint = capture(&gpu, &allocator, pool, || {
            let all: Vec<u64> = sizes.iter().map(|size| allocator.allocate(*size, GRAPH).unwrap()).collect();
            all.iter().for_each(|address| graph.uses(&gpu, &allocator, *address));
            all.iter().step_by(3).for_each(|address| allocator.free(*address).unwrap());
            allocator.pools().blocks(pool).unwrap()
        });
        assert_eq!(checkpoint.len(), sizes.len() - sizes.len().div_ceil(3));
        assert!(checkpoint.iter().any(|block| block.requested == 700));
        assert!(allocator.stats().views_built > 0, "some of it is stitched");

        // What was live dies, what comes next in the pool lies elsewhere, and slabs become large memory again.
        let figures = allocator.stats();
        free_all(&allocator, &checkpoint);
        let strangers = capture(&gpu, &allocator, pool, || {
            [90 * MIB, 2000, 7 * MIB].map(|size| allocator.allocate(size, GRAPH).unwrap())
        });
        let live = allocator.pools().blocks(pool).unwrap();
        assert_eq!(live.len(), strangers.len());
        let others = held.into_iter().skip(1).step_by(2).collect();
        Self { gpu, allocator, pool, graph, others, figures, checkpoint, live }
    }

    /// Brings the pool to the checkpoint and back, several times; `at_checkpoint` looks at what is there.
    fn to_and_fro(&self, at_checkpoint: impl Fn(&Self)) {
        for _ in 0..3 {
            self.allocator.pools().restore(self.pool, &self.checkpoint).unwrap();
            self.allocator.reports().check().unwrap();
            at_checkpoint(self);
            self.allocator.pools().restore(self.pool, &self.live).unwrap();
            assert_eq!(self.allocator.pools().blocks(self.pool).unwrap(), self.live);
            self.allocator.reports().check().unwrap();
        }
        assert!(self.gpu.faults().is_empty(), "{:?}", self.gpu.faults());
    }
}

#[test]
fn live_blocks_come_back_at_their_addresses() {
    Checkpointed::new().to_and_fro(|Checkpointed { allocator, pool, checkpoint, .. }| {
        assert_eq!(&allocator.pools().blocks(*pool).unwrap(), checkpoint);
        for block in checkpoint {
            assert_eq!(allocator.reports().size_of(block.address), Ok(block.size));
        }
    });
}

#[test]
fn figures_are_those_of_the_checkpoint() {
    Checkpointed::new().to_and_fro(|Checkpointed { allocator, pool, checkpoint, figures, .. }| {
        let stats = allocator.stats();
        assert_eq!(stats.allocated_bytes.all.current, figures.allocated_bytes.all.current);
        assert_eq!(stats.requested_bytes.all.current, figures.requested_bytes.all.current);
        assert_eq!(allocator.pools().stats(*pool).unwrap().allocated_bytes, total(checkpoint));
    });
}

#[test]
fn a_graph_finds_its_memory_behind_what_comes_back() {
    Checkpointed::new().to_and_fro(|Checkpointed { gpu, graph, .. }| graph.replay(gpu, SIDE));
}

#[test]
fn what_comes_back_is_handed_out_to_nobody_else() {
    Checkpointed::new().to_and_fro(|Checkpointed { gpu, allocator, pool, checkpoint, .. }| {
        let more = allocator.pools().allocate(*pool, 30 * MIB, GRAPH).unwrap();
        let pieces = gpu.physical(Range { address: more, size: 30 * MIB });
        for block in checkpoint {
            for piece in gpu.physical(Range { address: block.address, size: block.size }) {
                assert!(!pieces.iter().any(|other| meet(other, &piece)), "{block:?} is in use");
            }
        }
    });
}

#[test]
fn what_was_restored_to_nothing_goes_back_whole() {
    let of = Checkpointed::new();
    of.to_and_fro(|_| {});
    of.allocator.pools().restore(of.pool, &[]).unwrap();
    assert_eq!(of.allocator.pools().stats(of.pool).unwrap().allocations, 0);
    of.others.iter().for_each(|address| of.allocator.free(*address).unwrap());
    of.allocator.pools().release(of.pool).unwrap();
    of.allocator.empty_cache().unwrap();
    assert_eq!(of.allocator.stats().reserved_bytes.all.current, 0);
    assert!(of.gpu.faults().is_empty(), "{:?}", of.gpu.faults());
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
        let pool = allocator.pools().create();
        let mut checkpoints = Vec::new();
        for _ in 0..12 {
            capture(&gpu, &allocator, pool, || {
                for _ in 0..30 {
                    let live = allocator.pools().blocks(pool).unwrap();
                    if live.len() > 12 || (below(2) == 0 && !live.is_empty()) {
                        allocator.free(live[below(live.len() as u64) as usize].address).unwrap();
                    } else {
                        let most = [4000, MIB, 40 * MIB][below(3) as usize];
                        let _ = allocator.allocate(1 + below(most), GRAPH).unwrap();
                    }
                }
            });
            checkpoints.push(allocator.pools().blocks(pool).unwrap());
            let back = &checkpoints[below(checkpoints.len() as u64) as usize];
            allocator.pools().restore(pool, back).unwrap();
            assert_eq!(&allocator.pools().blocks(pool).unwrap(), back, "seed {seed}");
            allocator.reports().check().unwrap();
        }
        assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
    }
}

/// On a full device small blocks lie in a slab cut out of large memory, which is large again when the last of them is freed.
#[test]
fn small_blocks_come_back_where_large_memory_is() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200,capacity=32MiB");
    let pool = allocator.pools().create();
    let [first, second] = [(); 2].map(|()| allocator.pools().allocate(pool, 16 * MIB, MAIN).unwrap());
    allocator.free(first).unwrap();
    let small = [(); 3].map(|()| allocator.pools().allocate(pool, 1000, MAIN).unwrap());
    assert!((first..first + 16 * MIB).contains(&small[0]), "{first:x} {small:x?}");
    allocator.free(small[0]).unwrap();
    let checkpoint = allocator.pools().blocks(pool).unwrap();
    let large: Vec<PoolBlock> = checkpoint.iter().copied().filter(|block| block.address == second).collect();
    for _ in 0..2 {
        allocator.pools().restore(pool, &large).unwrap();
        allocator.reports().check().unwrap();
        assert_eq!(allocator.pools().allocate(pool, 16 * MIB, MAIN), Ok(first), "large again");
        allocator.free(first).unwrap();
        allocator.pools().restore(pool, &checkpoint).unwrap();
        assert_eq!(allocator.pools().blocks(pool).unwrap(), checkpoint);
        allocator.reports().check().unwrap();
        assert_eq!(allocator.pools().allocate(pool, 1000, MAIN), Ok(small[0]), "in the slab that came back");
        allocator.free(small[0]).unwrap();
    }
    assert!(gpu.faults().is_empty(), "{:?}", gpu.faults());
}

#[test]
fn what_cannot_be_restored_is_an_error() {
    let (_, allocator) = on(StrategyKind::Stitch, "sim:h200");
    let pool = allocator.pools().create();
    let foreign = allocator.allocate(3 * MIB, MAIN).unwrap();
    let block = |address| PoolBlock { address, size: 3 * MIB, requested: 3 * MIB };
    let not = |address| Err(Error::NotRestorable { address });
    assert_eq!(allocator.pools().restore(pool, &[block(foreign)]), not(foreign));
    allocator.free(foreign).unwrap();
    assert_eq!(allocator.pools().restore(pool, &[block(foreign)]), not(foreign), "free, but not the pool's");
    // Free memory of the pool that only small blocks may have.
    let small = allocator.pools().allocate(pool, 1000, MAIN).unwrap();
    allocator.free(small).unwrap();
    let large = PoolBlock { address: small, size: 3 * MIB / 2, requested: 3 * MIB / 2 };
    assert_eq!(allocator.pools().restore(pool, &[large]), not(small), "a large block in a slab");
    let own = allocator.pools().allocate(pool, 3 * MIB, MAIN).unwrap();
    let twice = [block(own), block(own)];
    assert_eq!(allocator.pools().restore(pool, &twice), not(own), "twice the same");
    for (address, size) in [(own + 1, 3 * MIB), (own, 3 * MIB - 1), (own + 1, 3 * MIB - 1), (own, 0), (own, 64 * MIB)] {
        let wrong = PoolBlock { address, size, requested: size };
        assert_eq!(allocator.pools().restore(pool, &[wrong]), not(address), "{size} bytes");
    }
    assert_eq!(allocator.pools().restore(pool, &[block(own + (1 << 50))]), not(own + (1 << 50)));
    assert_eq!(allocator.pools().restore(pool, &[block(u64::MAX - 511)]), not(u64::MAX - 511));
    assert_eq!(allocator.pools().restore(PoolId(0, 99), &[]), Err(Error::UnknownPool { pool: PoolId(0, 99) }));
    assert_eq!(allocator.pools().blocks(PoolId(0, 99)), Err(Error::UnknownPool { pool: PoolId(0, 99) }));
    allocator.reports().check().unwrap();

    // A range that begins in memory with its place at home mapped, and goes on where it never was: no block was there.
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200");
    let pool = allocator.pools().create();
    let [first, second] = [(); 2].map(|()| allocator.pools().allocate(pool, 16 * MIB, MAIN).unwrap());
    allocator.free(first).unwrap();
    let stitched = allocator.pools().allocate(pool, 32 * MIB, MAIN).unwrap();
    [second, stitched].iter().for_each(|address| allocator.free(*address).unwrap());
    let across = PoolBlock { address: second, size: 32 * MIB, requested: 32 * MIB };
    assert!(
        gpu.physical(Range { address: second, size: 32 * MIB }).iter().map(|piece| piece.size).sum::<u64>()
            < across.size
    );
    assert_eq!(allocator.pools().restore(pool, &[across]), not(second));
    allocator.pools().restore(pool, &[PoolBlock { size: 16 * MIB, requested: 16 * MIB, ..across }]).unwrap();
    allocator.reports().check().unwrap();
    // What lies in a view and a part of it at home are not both free.
    let view = PoolBlock { address: stitched, size: 32 * MIB, requested: 32 * MIB };
    let home = PoolBlock { address: first, size: 16 * MIB, requested: 16 * MIB };
    assert_eq!(allocator.pools().restore(pool, &[home, view]), not(stitched));
    assert_eq!(allocator.pools().restore(pool, &[view, home]), not(first));
    allocator.pools().restore(pool, &[view]).unwrap();
    allocator.reports().check().unwrap();

    let (_, allocator) = on(StrategyKind::Caching, "sim:h200");
    let pool = allocator.pools().create();
    let own = allocator.pools().allocate(pool, 3 * MIB, MAIN).unwrap();
    assert_eq!(allocator.pools().restore(pool, &[block(own)]), not(own));
    assert_eq!(allocator.pools().blocks(pool).unwrap().len(), 1, "it is as it was");
}
