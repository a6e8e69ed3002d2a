//! The blocks that are spilled, and those that never are.

use super::{FURNISHED, TOO_LARGE, furnished};
use crate::device::{MAIN, MIB, SIDE};
use crate::world::World;
use seamalloc::driver::{Call, CaptureMode, Driver, StreamId};
use seamalloc::{Advice, Error, PoolId, Route, SpillCandidate, SpillPolicy};

const SPILL: &str = "spill:host=1GiB";

#[test]
fn a_request_that_would_be_refused_is_served() {
    let (mut refused, _) = furnished("");
    assert!(refused.allocate(TOO_LARGE, MAIN).unwrap_err().is_out_of_memory());
    let (mut world, _) = furnished(SPILL);
    assert_eq!((world.spilled(), world.stats().spills.chunks), (0, 0), "nothing is spilled while there is room");
    let large = world.allocate(TOO_LARGE, MAIN).unwrap();
    world.check_all();
    let stats = world.stats();
    assert!(stats.spilled_bytes.current >= 10 * MIB && stats.spilled_bytes.current <= TOO_LARGE, "{stats:?}");
    assert!(stats.spills.chunks > 0 && stats.spills.requests == 1 && stats.spills.total_ns > 0, "{:?}", stats.spills);
    assert_eq!(stats.num_ooms, 0);
    assert!(stats.reserved_bytes.all.peak <= FURNISHED, "the device has no more");
    // Contents written after it stay too.
    let first = *world.live.keys().next().unwrap();
    world.rewrite(first, MAIN);
    world.check_all();
    world.free(large);
    world.end_empty(&[]);
}

#[test]
fn it_is_off_by_default_and_a_budget_bounds_it() {
    let (mut world, _) = furnished("spill:host=8MiB");
    let Err(Error::OutOfMemory(report)) = world.allocate(TOO_LARGE, MAIN) else { panic!("beyond the budget") };
    assert_eq!((report.spill_budget, report.spilled, report.spill_policy), (Some(8 * MIB), 0, "coldest"));
    assert!(report.to_string().contains("spilled to host memory, of 8.00 MiB, coldest first"), "{report}");
    assert_eq!(world.stats().spills.chunks, 0, "nothing is spilled for a request that is refused all the same");
    world.check_all();
    let mut served = 0;
    while world.allocate(2 * MIB, MAIN).is_ok() {
        served += 1;
    }
    assert!(served > 0 && (MIB..=8 * MIB).contains(&world.spilled()), "{served}, {}", world.spilled());
    world.check_all();
    world.end_empty(&[]);
    let (world, _) = furnished("");
    let Err(Error::OutOfMemory(report)) = world.allocator.allocate(TOO_LARGE, MAIN) else { panic!("it is off") };
    assert!(report.spill_budget.is_none() && !report.to_string().contains("spilled"), "{report}");
    world.end_empty(&[]);
}

/// Returns which of these blocks have a part that is spilled: no longer than host memory has it, it comes back.
fn spilled_of(world: &World, blocks: &[u64]) -> Vec<usize> {
    let is_spilled = |address: &u64| {
        let before = world.stats().spills.returned_chunks;
        world.allocator.spill().advise(*address, Advice::Hot).unwrap();
        world.stats().spills.returned_chunks > before
    };
    (0..blocks.len()).filter(|index| is_spilled(&blocks[*index])).collect()
}

/// Four blocks of 12 MiB in chunks of their own fill the device, but for a slab.
fn four() -> (World, Vec<u64>) {
    let mut world = World::new(50 * MIB, &format!("chunk_size_mb:12,{SPILL}"));
    let blocks = (0..4).map(|_| world.allocate(12 * MIB, MAIN).unwrap()).collect();
    (world, blocks)
}

#[test]
fn the_programs_word_comes_first_then_age() {
    let tells = |advise: &dyn Fn(&World, &[u64])| {
        let (mut world, blocks) = four();
        // Many operations make the ages differ.
        for _ in 0..40 {
            let small = world.allocate(512, MAIN).unwrap();
            world.free(small);
        }
        advise(&world, &blocks);
        let new = world.allocate(12 * MIB, MAIN);
        let new = new.unwrap();
        world.check_all();
        world.free(new);
        let spilled = spilled_of(&world, &blocks);
        world.check_all();
        world.end_empty(&[]);
        spilled
    };
    let cold = tells(&|world, blocks| world.allocator.spill().advise(blocks[2], Advice::Cold).unwrap());
    assert!(cold.contains(&2), "{cold:?}");
    let used = tells(&|world, blocks| {
        for block in [0, 1, 3] {
            world.allocator.record_stream(blocks[block], SIDE).unwrap();
        }
    });
    assert!(used.contains(&2), "{used:?}: the others were used since");
    let hot = tells(&|world, blocks| {
        for block in [0, 1] {
            world.allocator.spill().advise(blocks[block], Advice::Hot).unwrap();
        }
    });
    assert!(!hot.contains(&0) && !hot.contains(&1), "{hot:?}");
    let normal = tells(&|world, blocks| {
        world.allocator.spill().advise(blocks[3], Advice::Cold).unwrap();
        world.allocator.spill().advise(blocks[3], Advice::Normal).unwrap();
        (0..3).for_each(|block| world.allocator.spill().advise(blocks[block], Advice::Cold).unwrap());
    });
    assert!(!normal.contains(&3), "{normal:?}");
}

/// There is room for one of two blocks.
#[test]
fn the_hottest_comes_back_first() {
    for (hot, cold) in [(0, 1), (1, 0)] {
        let (mut world, blocks) = four();
        [0, 1]
            .into_iter()
            .for_each(|block: usize| world.allocator.spill().advise(blocks[block], Advice::Cold).unwrap());
        let new = [(); 2].map(|()| world.allocate(12 * MIB, MAIN).unwrap());
        assert_eq!(world.spilled(), 24 * MIB, "no more than is needed");
        world.allocator.spill().advise(blocks[hot], Advice::Normal).unwrap();
        world.free(new[0]);
        assert_eq!(world.allocator.spill().restore(), Ok(12 * MIB));
        assert!(
            world.allocator.sharing().pin_physical(blocks[cold]).unwrap_err().is_out_of_memory(),
            "{cold} is spilled"
        );
        world.allocator.sharing().pin_physical(blocks[hot]).unwrap();
        world.check_all();
        world.end_empty(&[]);
    }
}

/// The first time that memory is spilled is an event for who runs the program.
#[test]
fn the_first_spill_is_a_warning() {
    // A place of the code is known to the log from its first event on, of whatever thread: another one may have it known as one
    // that nobody listens to.
    crate::log::warnings(|| {
        let (mut other, _) = four();
        other.allocate(12 * MIB, MAIN).unwrap();
        other.end_empty(&[]);
    });
    let (mut world, _) = four();
    for expected in [1, 0] {
        let warned = crate::log::warnings(|| {
            world.allocate(12 * MIB, MAIN).unwrap();
        });
        assert_eq!(warned.len(), expected, "{warned:?}");
        assert!(warned.iter().all(|line| line.contains("does not fit the device")), "{warned:?}");
    }
    world.end_empty(&[]);
}

/// Two blocks lie in one chunk, and the program says that one of them is cold.
#[test]
fn a_chunk_is_as_hot_as_the_hottest_of_its_blocks() {
    for advice in [[Advice::Hot, Advice::Cold], [Advice::Cold, Advice::Hot]] {
        let (mut world, mut blocks) = four();
        world.free(blocks.remove(0));
        world.device.settle();
        let both = [(); 2].map(|()| world.allocate(6 * MIB, MAIN).unwrap());
        for (block, advice) in both.into_iter().zip(advice) {
            world.allocator.spill().advise(block, advice).unwrap();
        }
        let new = world.allocate(12 * MIB, MAIN).unwrap();
        assert_eq!(world.spilled(), 12 * MIB, "{advice:?}: one chunk");
        world.free(new);
        blocks.extend(both);
        let spilled = spilled_of(&world, &blocks);
        assert!(spilled.iter().all(|block| *block < 3) && !spilled.is_empty(), "{advice:?}: {spilled:?}");
        world.check_all();
        world.end_empty(&[]);
    }
}

#[test]
fn a_policy_of_the_programs_decides() {
    struct Only(u64);
    impl SpillPolicy for Only {
        fn name(&self) -> &'static str {
            "only"
        }
        fn coldness(&self, candidate: &SpillCandidate) -> Option<u64> {
            assert!(candidate.live <= candidate.size && candidate.live > 0, "{candidate:?}");
            (candidate.largest == self.0).then_some(1)
        }
    }
    let (mut world, large) = furnished(SPILL);
    world.allocator.spill().set_policy(Only(5 * MIB));
    let Err(Error::OutOfMemory(report)) = world.allocate(TOO_LARGE, MAIN) else { panic!("one block is too little") };
    assert_eq!(report.spill_policy, "only");
    let nine = *large.iter().find(|address| world.live[address].size == 5 * MIB).unwrap();
    while world.allocate(2 * MIB, MAIN).is_ok() {}
    let spilled = world.spilled();
    assert!(spilled > 0 && spilled <= 16 * MIB, "{spilled}");
    world.check_all();
    world.free(nine);
    world.end_empty(&[]);
}

#[test]
fn what_others_know_is_never_spilled() {
    type Tells = dyn Fn(&World, u64);
    let why: [(&str, &Tells); 2] = [
        ("named to fix_memory", &|world, address| world.allocator.sharing().pin_physical(address).unwrap()),
        ("shared with other processes", &|world, address| drop(world.allocator.sharing().export(address).unwrap())),
    ];
    for (why, fix) in why {
        let (mut world, blocks) = four();
        blocks.iter().for_each(|address| fix(&world, *address));
        assert!(world.allocate(12 * MIB, MAIN).unwrap_err().is_out_of_memory(), "{why}");
        assert_eq!(world.stats().spills.chunks, 0, "{why}");
        world.check_all();
        world.end_empty(&[]);
    }
}

/// A stitched block has its memory in two chunks, beside which others lie.
#[test]
fn what_others_know_of_a_stitched_block_is_all_of_its_chunks_and_no_other() {
    let mut world = World::new(34 * MIB, &format!("chunk_size_mb:8,{SPILL}"));
    let blocks = [(); 4].map(|()| world.allocate(8 * MIB, MAIN).unwrap());
    [0, 2].into_iter().for_each(|block: usize| world.free(blocks[block]));
    let stitched = world.allocate(16 * MIB, MAIN).unwrap();
    world.allocator.sharing().pin_physical(stitched).unwrap();
    assert!(world.allocate(24 * MIB, MAIN).unwrap_err().is_out_of_memory(), "two chunks may go");
    assert_eq!(world.spilled(), 0);
    world.allocate(16 * MIB, MAIN).unwrap();
    assert_eq!(world.spilled(), 16 * MIB);
    world.check_all();
    world.end_empty(&[]);
}

#[test]
fn what_others_know_of_a_block_is_not_its_neighbours() {
    for fixed in 0..4 {
        let (mut world, blocks) = four();
        world.allocator.sharing().pin_physical(blocks[fixed]).unwrap();
        world.allocate(36 * MIB, MAIN).unwrap();
        assert_eq!(world.spilled(), 36 * MIB, "{fixed}");
        world.check_all();
        world.end_empty(&[]);
    }
}

/// A spilled block comes back before others are told of it, or they are not told.
#[test]
fn what_others_are_to_know_comes_back_first() {
    let (mut world, blocks) = four();
    let new = world.allocate(12 * MIB, MAIN).unwrap();
    assert_eq!(world.spilled(), 12 * MIB);
    let spilled = *blocks.iter().find(|address| world.allocator.sharing().pin_physical(**address).is_err()).unwrap();
    let error = world.allocator.sharing().export(spilled).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}: there is no room for it");
    world.check_all();
    world.free(new);
    world.allocator.sharing().pin_physical(spilled).unwrap();
    assert_eq!(world.spilled(), 0);
    world.check_all();
    world.end_empty(&[]);
}

#[test]
fn private_pools_tags_and_small_blocks_are_never_spilled() {
    for tag in [false, true] {
        let mut world = World::new(48 * MIB, &format!("chunk_size_mb:12,{SPILL}"));
        let pool = if tag { world.allocator.tags().create().unwrap() } else { world.allocator.pools().create() };
        for _ in 0..4 {
            world.allocate_in(pool, 12 * MIB, MAIN).unwrap();
        }
        assert!(world.allocate(2 * MIB, MAIN).unwrap_err().is_out_of_memory(), "{tag}");
        assert_eq!(world.stats().spills.chunks, 0, "{tag}");
        world.check_all();
        let live: Vec<u64> = world.live.keys().copied().collect();
        live.into_iter().for_each(|address| world.free(address));
        world.allocator.pools().release(pool).unwrap();
        world.end_empty(&[]);
    }
    let mut world = World::new(16 * MIB, SPILL);
    for _ in 0..16 << 10 {
        world.allocate(1 << 10, MAIN).unwrap();
    }
    assert!(world.allocate(1 << 10, MAIN).unwrap_err().is_out_of_memory());
    assert_eq!(world.stats().spills.chunks, 0);
    world.end_empty(&[]);
}

/// The memory of small blocks, all of which were freed, is a part of a stitched one. It is for small blocks again later.
#[test]
fn a_slab_is_never_spilled() {
    let mut world = World::new(18 * MIB, &format!("chunk_size_mb:8,{SPILL}"));
    let small = world.allocate(512, MAIN).unwrap();
    let blocks = [(); 2].map(|()| world.allocate(8 * MIB, MAIN).unwrap());
    [small, blocks[0]].into_iter().for_each(|block| world.free(block));
    let stitched = world.allocate(10 * MIB, MAIN).unwrap();
    assert_eq!((world.used(), world.views()), ((18 * MIB, 0), 1), "it has what was free");
    world.allocator.spill().advise(stitched, Advice::Cold).unwrap();
    world.allocate(10 * MIB, MAIN).unwrap();
    assert_eq!(world.spilled(), 16 * MIB, "two chunks, and not the slab");
    world.check_all();
    world.end_empty(&[]);
}

/// A private pool's request is served by spilling what is not private.
#[test]
fn requests_of_private_pools_are_served_too() {
    let (mut world, _) = four();
    let pool: PoolId = world.allocator.pools().create();
    let address = world.allocate_in(pool, 20 * MIB, MAIN).unwrap();
    assert_eq!(world.spilled(), 24 * MIB);
    world.check_all();
    world.free(address);
    world.allocator.pools().release(pool).unwrap();
    world.end_empty(&[]);
}

#[test]
fn nothing_is_spilled_and_nothing_comes_back_during_a_capture() {
    let (mut world, blocks) = four();
    let new = world.allocate(12 * MIB, MAIN).unwrap();
    let spilled = world.spilled();
    let stream = StreamId(9);
    let pool = world.allocator.pools().create();
    world.allocator.pools().begin(pool, Route::stream(stream).capturing()).unwrap();
    world.device.host.begin_capture(stream, CaptureMode::Global).unwrap();
    assert!(world.allocator.allocate(30 * MIB, stream).unwrap_err().is_out_of_memory());
    world.free(new);
    assert_eq!(world.allocator.spill().restore(), Ok(0));
    blocks.iter().for_each(|address| world.allocator.spill().advise(*address, Advice::Hot).unwrap());
    let gone = blocks[0];
    world.free(gone);
    assert_eq!((world.spilled(), world.stats().spills.returned_chunks), (spilled, 0));
    world.device.host.end_capture(stream).unwrap();
    world.allocator.pools().end(pool).unwrap();
    world.allocator.pools().release(pool).unwrap();
    assert!(world.allocator.spill().restore().unwrap() > 0 || world.spilled() == 0);
    world.check_all();
    world.end_empty(&[]);
}

/// Another device may use the memory at any time, so that nothing is exchanged from then on.
#[test]
fn what_is_spilled_comes_back_before_another_device_has_access() {
    let gpu =
        std::sync::Arc::new(seamalloc::driver::sim::SimGpu::new("sim:h200,capacity=64MiB".parse().unwrap()).unwrap());
    gpu.connect_peer(1);
    let config = seamalloc::Config::parse(&format!("chunk_size_mb:8,{SPILL}")).unwrap();
    let allocator = seamalloc::Allocator::new(std::sync::Arc::<_>::clone(&gpu) as _, config).unwrap();
    let old = allocator.allocate(48 * MIB, MAIN).unwrap();
    let new = allocator.allocate(32 * MIB, MAIN).unwrap();
    assert!(allocator.stats().spilled_bytes.current >= 16 * MIB);
    allocator.free(new).unwrap();
    allocator.sharing().enable_peer_access(1).unwrap();
    assert_eq!(allocator.stats().spilled_bytes.current, 0);
    assert!(allocator.allocate(32 * MIB, MAIN).unwrap_err().is_out_of_memory());
    allocator.reports().check().unwrap();
    allocator.free(old).unwrap();
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

/// The machine has too little, or cannot give any: the request is refused as without the option.
#[test]
fn a_machine_without_room_refuses() {
    let gpu = std::sync::Arc::new(
        seamalloc::driver::sim::SimGpu::new("sim:h200,capacity=64MiB,host=4MiB".parse().unwrap()).unwrap(),
    );
    let config = seamalloc::Config::parse(&format!("chunk_size_mb:8,{SPILL}")).unwrap();
    let allocator = seamalloc::Allocator::new(std::sync::Arc::<_>::clone(&gpu) as _, config).unwrap();
    let old = allocator.allocate(48 * MIB, MAIN).unwrap();
    assert!(allocator.allocate(32 * MIB, MAIN).unwrap_err().is_out_of_memory());
    assert_eq!((allocator.stats().spilled_bytes.current, gpu.leaks().host_bytes), (0, 0));
    allocator.reports().check().unwrap();
    allocator.free(old).unwrap();
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

/// A hit makes no call of the driver, and neither does a free of what is not spilled.
#[test]
fn hits_call_no_driver() {
    let (mut world, blocks) = four();
    let new = world.allocate(12 * MIB, MAIN).unwrap();
    let device: &dyn Driver = &*world.device;
    let before = device.call_stats();
    for _ in 0..100 {
        world.allocator.free(new).unwrap();
        assert_eq!(world.allocator.allocate(12 * MIB, MAIN).unwrap(), new);
    }
    assert_eq!(device.call_stats().since(&before).get(Call::Map).count, 0);
    assert_eq!(device.call_stats(), before);
    assert_eq!(world.stats().spills.chunks, 1);
    assert!(blocks.len() == 4);
    world.end_empty(&[]);
}

/// An allocation that grows in place is live memory as any other: its oldest part goes first, and it grows, shrinks and
/// is read as before.
#[test]
fn an_allocation_that_grows_is_spilled_and_grows_on() {
    let mut world = World::new(48 * MIB, "chunk_size_mb:8,spill:host=1GiB");
    let cache = world.reserve(64 * MIB, MAIN).unwrap();
    world.grow(cache, 24 * MIB).unwrap();
    // More than is left.
    let other = world.allocate(40 * MIB, MAIN).unwrap();
    assert!(world.spilled() >= 16 * MIB, "{:?}", world.stats());
    world.check_all();
    // Now what is older goes for it.
    world.grow(cache, 32 * MIB).unwrap();
    world.check_all();
    world.rewrite(cache, MAIN);
    world.check_all();
    world.free(other);
    assert!(world.allocator.spill().restore().unwrap() >= 16 * MIB, "it waits for what was freed");
    assert_eq!(world.spilled(), 0);
    world.check_all();
    world.shrink(cache, 8 * MIB).unwrap();
    world.check_all();
    world.end_empty(&[]);
}
