//! Random programs against what they should hold, with every word read, under options that move memory about.

use crate::random::Random;
use crate::real_words::{MAIN, MIB, SIDE};
use crate::world::World;
use seamalloc::StreamId;
use seamalloc::driver::Status;

const STREAMS: [StreamId; 3] = [MAIN, SIDE, StreamId(8)];

fn run(seed: u64, options: &str, faults: bool) -> (u64, u64) {
    let mut random = Random(seed);
    let mut world = World::new(56 * MIB, options);
    let (mut grown, mut refused) = (0, 0);
    for _ in 0..200 {
        if faults && random.below(3) == 0 {
            let status = if random.below(2) == 0 { Status::UNKNOWN } else { Status::OUT_OF_MEMORY };
            world.device.fail(1 + random.below(6), 1 + random.below(2), status);
        }
        let live: Vec<u64> = world.live.keys().copied().collect();
        let caches: Vec<u64> = live.iter().copied().filter(|address| world.live[address].grows).collect();
        let any = |random: &mut Random, of: &[u64]| of.get(random.below(of.len() as u64) as usize).copied();
        let stream = STREAMS[random.below(3) as usize];
        let done = match random.below(12) {
            0 if caches.len() < 5 => world.reserve(MIB + random.below(40 * MIB), stream).map(drop),
            1..=4 => match any(&mut random, &caches) {
                Some(cache) => {
                    let capacity = world.allocator.extent(cache).unwrap().capacity;
                    let most = if random.below(4) == 0 { 20 * MIB } else { 4 * MIB };
                    let more = random.below(most);
                    // Whole words.
                    let size = (world.live[&cache].size + more).min(capacity) / 8 * 8;
                    grown += 1;
                    world.grow(cache, size)
                }
                None => Ok(()),
            },
            5 | 6 => match any(&mut random, &caches) {
                Some(cache) => {
                    let size = random.below(world.live[&cache].size + 1) / 8 * 8;
                    let shrunk = world.shrink(cache, size);
                    world.live.get_mut(&cache).unwrap().size = world.allocator.extent(cache).unwrap().len;
                    shrunk
                }
                None => Ok(()),
            },
            7 | 8 => world.allocate((1 + random.below(8 * MIB)).next_multiple_of(512), stream).map(drop),
            9 | 10 => match any(&mut random, &live) {
                Some(address) => {
                    let freed = world.allocator.free(address);
                    match freed {
                        Ok(()) => drop(world.live.remove(&address)),
                        Err(_) if world.live[&address].grows => {
                            world.live.get_mut(&address).unwrap().size = world.allocator.extent(address).unwrap().len;
                        }
                        Err(_) => {}
                    }
                    freed
                }
                None => Ok(()),
            },
            _ => match random.below(3) {
                0 => world.allocator.trim(random.below(12 * MIB)).map(drop),
                1 => world.allocator.empty_cache().map(drop),
                _ => match any(&mut random, &caches) {
                    Some(cache) => world.allocator.record_stream(cache, stream),
                    None => Ok(()),
                },
            },
        };
        let failed = !world.device.heal().is_empty();
        if let Err(error) = done {
            assert!(error.is_out_of_memory() || failed, "seed {seed}: {error}");
            refused += 1;
        }
        world.allocator.check().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        if random.below(6) == 0 {
            // What could not be undone is undone by the next request.
            settle(&world);
            world.device.settle();
            world.check_all();
        }
    }
    settle(&world);
    world.check_all();
    world.end(&[]);
    (grown, refused)
}

/// Undoes what could not be undone, as any request that calls the driver does.
fn settle(world: &World) {
    world.allocator.trim(0).unwrap();
    if let Ok(small) = world.allocator.allocate(512, MAIN) {
        world.allocator.free(small).unwrap();
    }
}

/// The options under which memory moves between streams, splits, goes back early, or is bounded.
const OPTIONS: [&str; 6] = [
    "strategy:stitch,chunk_size_mb:4",
    "strategy:stitch,chunk_size_mb:6,sharing:never",
    "strategy:stitch,sharing:wait",
    "strategy:stitch,chunk_size_mb:8,split:before_growth,sharing:wait",
    "strategy:stitch,chunk_size_mb:2,memory_limit:40MiB,sharing:completed",
    "strategy:stitch,chunk_size_mb:4,max_view_mappings:24,max_views:8",
];

#[test]
fn random_programs_lose_no_word_and_no_byte() {
    let (mut grown, mut refused) = (0, 0);
    for (number, options) in OPTIONS.iter().enumerate() {
        for seed in 1..=5 {
            let (more, not) = run(100 * number as u64 + seed, options, false);
            (grown, refused) = (grown + more, refused + not);
        }
    }
    assert!(grown > 1000 && refused > 10 && refused < grown, "{grown} growths, {refused} refused");
}

#[test]
fn random_programs_lose_none_while_calls_fail() {
    let (mut grown, mut refused) = (0, 0);
    for (number, options) in OPTIONS.iter().enumerate() {
        for seed in 1..=5 {
            let (more, not) = run(1000 + 100 * number as u64 + seed, options, true);
            (grown, refused) = (grown + more, refused + not);
        }
    }
    assert!(grown > 1000 && refused > 100, "{grown} growths, {refused} refused");
}
