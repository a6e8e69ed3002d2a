//! Random programs that unwind: at any step, from any depth, with blocks of every kind alive. Whatever was dropped is free, what
//! was kept is live, no two live blocks share memory, and the tables hold.

use super::{MIB, live};
use crate::random::Random;
use crate::simulated;
use seamalloc::driver::sim::{Range, SimGpu};
use seamalloc::driver::{Call, Status};
use seamalloc::{Allocator, Block, Config, Pool, StrategyKind, StreamId};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::physical::Taken;

const SEEDS: u64 = 12;
const SCOPES: u64 = 60;
const DEEPEST: u64 = 4;
const STREAMS: u64 = 3;

/// The payload of the panic by which a scope unwinds.
struct Thrown;

struct World<'a> {
    gpu: &'a SimGpu,
    allocator: &'a Arc<Allocator>,
    random: Random,
    /// Whether driver calls fail now and then.
    storm: bool,
    steps: u64,
    unwound: u64,
}

impl World<'_> {
    fn stream(&mut self) -> StreamId {
        StreamId(self.random.below(STREAMS))
    }

    fn size(&mut self) -> u64 {
        match self.random.below(3) {
            0 => 1 + self.random.below(MIB),
            1 => MIB + self.random.below(8 * MIB),
            _ => 2 * MIB * (1 + self.random.below(24)),
        }
    }

    /// Uses a block on some stream, which it is freed on later.
    fn use_last<A: std::ops::Deref<Target = Allocator>>(&mut self, block: &mut Block<A>) {
        let stream = self.stream();
        let range = Range { address: block.address(), size: block.len() };
        self.gpu.launch(stream, &[range], self.random.below(200_000)).unwrap();
        block.set_last_use(stream);
    }

    /// A scope of a program: some blocks, some scopes inside of it, and perhaps an end before its end.
    fn scope(&mut self, depth: u64, kept: &mut Vec<Block>) {
        let allocator = Arc::clone(self.allocator);
        let pool = (self.random.below(4) == 0).then(|| Pool::create(&*allocator).unwrap());
        let mut borrowed = Vec::new();
        for _ in 0..self.random.below(12) {
            self.steps += 1;
            if self.storm && self.random.below(4) == 0 {
                let call = [Call::EventRecord, Call::Map, Call::Create][self.random.below(3) as usize];
                self.gpu.fail_nth(call, 1 + self.random.below(3), Status::UNKNOWN);
            }
            let (size, stream) = (self.size(), self.stream());
            match self.random.below(8) {
                0..=2 => {
                    if let Ok(mut block) = allocator.block(size, stream) {
                        self.use_last(&mut block);
                        borrowed.push(block);
                    }
                }
                3 => {
                    if let Some(Ok(block)) = pool.as_ref().map(|pool| pool.block(size, stream)) {
                        borrowed.push(block);
                    }
                }
                4 => {
                    if let Ok(mut block) = Block::new(Arc::clone(&allocator), size, stream) {
                        self.use_last(&mut block);
                        kept.push(block);
                    }
                }
                5 if !borrowed.is_empty() => {
                    let at = self.random.below(borrowed.len() as u64) as usize;
                    drop(borrowed.swap_remove(at));
                }
                6 if depth < DEEPEST => {
                    // Some scopes are caught here, others go on to the one outside.
                    if self.random.below(2) == 0 {
                        let caught = catch_unwind(AssertUnwindSafe(|| self.scope(depth + 1, kept)));
                        self.unwound += u64::from(caught.is_err());
                    } else {
                        self.scope(depth + 1, kept);
                    }
                }
                7 if self.random.below(3) == 0 => resume_unwind(Box::new(Thrown)),
                _ => {}
            }
        }
    }
}

/// No two of the blocks share a byte of physical memory.
fn assert_apart(gpu: &SimGpu, blocks: &[Block]) {
    let mut taken = Taken::default();
    for block in blocks {
        let pieces = gpu.physical(Range { address: block.address(), size: block.len() });
        assert_eq!(pieces.iter().map(|piece| piece.size).sum::<u64>(), block.len(), "{block:?} has memory everywhere");
        taken.take(&pieces);
    }
}

/// Returns how many scopes unwound.
fn run(kind: StrategyKind, seed: u64, storm: bool) -> u64 {
    let (gpu, allocator) = simulated::on("sim:h200,capacity=4GiB", Config::with_strategy(kind));
    let allocator = Arc::new(allocator);
    let mut world = World { gpu: &gpu, allocator: &allocator, random: Random(seed), storm, steps: 0, unwound: 0 };
    let mut kept: Vec<Block> = Vec::new();
    for _ in 0..SCOPES {
        let ended = catch_unwind(AssertUnwindSafe(|| world.scope(0, &mut kept)));
        world.unwound += u64::from(ended.is_err());
        gpu.fail_no_more();
        gpu.advance(world.random.below(300_000));
        allocator.reports().check().unwrap();
        // A free that a failing call refused has left its block live; without a storm there is none.
        let leaked = live(&allocator) - kept.len() as u64;
        assert!(storm || leaked == 0, "{kind}, seed {seed}: {leaked} blocks were not freed");
        assert_apart(&gpu, &kept);
        while kept.len() > 20 {
            let at = world.random.below(kept.len() as u64) as usize;
            drop(kept.swap_remove(at));
        }
    }
    assert!(world.steps > SCOPES, "{} steps", world.steps);
    let unwound = world.unwound;
    drop(kept);
    if !storm {
        assert_eq!(live(&allocator), 0);
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.reports().reserved(), 0, "{kind}, seed {seed}");
    }
    assert!(gpu.faults().is_empty(), "{kind}, seed {seed}: {:?}", gpu.faults());
    unwound
}

#[test]
fn what_unwinds_is_freed() {
    let mut unwound = 0;
    for kind in StrategyKind::MAIN {
        unwound += (0..SEEDS).map(|seed| run(kind, seed, false)).sum::<u64>();
    }
    assert!(unwound > 100, "only {unwound} scopes unwound");
}

#[test]
fn what_unwinds_in_a_storm_harms_nobody() {
    let unwound: u64 = (100..100 + SEEDS).map(|seed| run(StrategyKind::Stitch, seed, true)).sum();
    assert!(unwound > 20, "only {unwound} scopes unwound");
}
