//! Random programs whose live memory is more than the device has, with memory spilled at random: every word is read.

use crate::random::Random;
use crate::real_words::{MAIN, MIB, SIDE};
use crate::world::World;
use parking_lot::Mutex;
use seamalloc::driver::{Status, StreamId};
use seamalloc::{Advice, Error, SpillCandidate, SpillPolicy};

const OPERATIONS: u64 = if cfg!(feature = "paranoid") { 100 } else { 250 };

/// Chooses at random.
struct AtRandom(Mutex<Random>);

impl SpillPolicy for AtRandom {
    fn name(&self) -> &'static str {
        "at random"
    }

    fn coldness(&self, _: &SpillCandidate) -> Option<u64> {
        let mut random = self.0.lock();
        let never = random.below(6) == 0;
        (!never).then(|| random.below(1 << 30))
    }
}

/// What programs have come to.
#[derive(Debug, Default)]
struct Tally {
    chunks: u64,
    returned: u64,
    refusals: u64,
    failures: u64,
    words: u64,
}

fn program(seed: u64, options: &str, fails: bool, all: &mut Tally) {
    let mut random = Random(seed);
    let mut world = World::new(96 * MIB, &format!("spill:host=96MiB,{options}"));
    world.allocator.set_spill_policy(AtRandom(Mutex::new(Random(seed + 1000))));
    let mut seen = (0, 0);
    for operation in 0..OPERATIONS {
        let stream = [MAIN, MAIN, SIDE, StreamId(8)][random.below(4) as usize];
        let pick = |world: &World, random: &mut Random| {
            world.live.keys().copied().nth(random.below(world.live.len() as u64) as usize)
        };
        if fails && random.below(8) == 0 {
            let status = [Status::UNKNOWN, Status::OUT_OF_MEMORY][random.below(2) as usize];
            world.device.fail(1 + random.below(30), 1 + random.below(3), status);
        }
        match random.below(100) {
            0..48 => {
                let size = match random.below(10) {
                    0..2 => 512 * (1 + random.below(2_000)),
                    2..6 => MIB * (1 + random.below(12)),
                    6..9 => MIB + 4096 * random.below(3_000),
                    _ => MIB * (20 + random.below(40)),
                };
                match world.allocate(size, stream) {
                    Ok(_) => {}
                    Err(Error::OutOfMemory(_)) => {
                        all.refusals += 1;
                        for _ in 0..1 + world.live.len() / 4 {
                            let next = pick(&world, &mut random);
                            world.device.heal();
                            next.into_iter().for_each(|address| world.free(address));
                        }
                    }
                    Err(Error::Driver(_)) if fails => all.failures += 1,
                    Err(error) => panic!("seed {seed}, {options}: {error}"),
                }
            }
            48..80 => {
                world.device.heal();
                if let Some(address) = pick(&world, &mut random) {
                    world.check(address);
                    world.free(address);
                }
            }
            80..88 => {
                if let Some(address) = pick(&world, &mut random) {
                    let advice = Advice::ALL[random.below(3) as usize];
                    match world.allocator.advise(address, advice) {
                        Err(Error::Driver(_)) if fails => all.failures += 1,
                        advised => advised.unwrap(),
                    }
                }
            }
            88..91 => {
                if let Some(address) = pick(&world, &mut random) {
                    world.allocator.record_stream(address, [SIDE, StreamId(8)][random.below(2) as usize]).unwrap();
                }
            }
            91..94 => {
                // Written anew, wherever it lies.
                if let Some(address) = pick(&world, &mut random) {
                    let size = world.live[&address].size;
                    world.device.settle();
                    world.fill(address, size, MAIN);
                    world.device.settle();
                }
            }
            94..98 => match world.allocator.unspill() {
                Err(Error::Driver(_)) if fails => all.failures += 1,
                returned => drop(returned.unwrap()),
            },
            _ => match world.allocator.empty_cache() {
                Err(Error::Driver(_)) if fails => all.failures += 1,
                emptied => drop(emptied.unwrap()),
            },
        }
        world.device.heal();
        let stats = world.stats();
        let now = (stats.spills.chunks, stats.spills.returned_chunks);
        // What could not be undone is, before kernels use the memory.
        let small = if fails { world.allocate(512, MAIN).ok() } else { None };
        if now != seen || operation % 50 == 0 {
            seen = now;
            world.check_all();
        }
        small.into_iter().for_each(|address| world.free(address));
    }
    world.check_all();
    let spills = world.stats().spills;
    all.chunks += spills.chunks;
    all.returned += spills.returned_chunks;
    all.words += world.words;
    world.end();
}

const OPTIONS: [&str; 6] = [
    "chunk_size_mb:16",
    "chunk_size_mb:8,sharing:wait",
    "sharing:never",
    "split:last_resort,chunk_size_mb:16",
    "strategy:planned,chunk_size_mb:4",
    "memory_limit:80MiB,sharing:completed",
];

#[test]
fn random_programs_lose_no_word() {
    let mut all = Tally::default();
    for (seed, options) in (1..).zip(OPTIONS) {
        program(seed, options, false, &mut all);
    }
    println!("{all:?}");
    assert!(all.chunks > 100 && all.returned > 20 && all.words > 1 << 27, "{all:?}: too tame to show anything");
}

#[test]
fn random_programs_lose_no_word_while_calls_fail() {
    let mut all = Tally::default();
    for (seed, options) in (101..).zip(OPTIONS) {
        program(seed, options, true, &mut all);
    }
    println!("{all:?}");
    assert!(all.chunks > 50 && all.failures > 5, "{all:?}: too tame to show anything");
}
