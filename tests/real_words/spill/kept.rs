//! The host memory that blocks are spilled to is kept for the next time, counted to the byte, and goes back.

use super::{OF_SPILLING, small_step};
use crate::device::{MAIN, MIB};
use crate::world::World;
use seamalloc::driver::sim::{Range, SimGpu};
use seamalloc::driver::{Call, Driver, Status};
use seamalloc::{Advice, Allocator, Backup, Config, Error, Stats};
use std::sync::Arc;

/// Blocks of these sizes fill a device, and one of `new` spills the first of them.
fn spilled(sizes: &[u64], new: u64, options: &str) -> (World, Vec<u64>) {
    let options = format!("chunk_size_mb:8,spill:host=1GiB,{options}");
    let mut world = World::new(sizes.iter().sum::<u64>() * MIB, &options);
    let mut blocks: Vec<u64> = sizes.iter().map(|mib| world.allocate(mib * MIB, MAIN).unwrap()).collect();
    world.allocator.spill().advise(blocks[0], Advice::Cold).unwrap();
    blocks.push(world.allocate(new * MIB, MAIN).unwrap());
    assert!(world.spilled() >= new * MIB);
    (world, blocks)
}

fn made(world: &World) -> u64 {
    world.device.calls().get(Call::CreateOnHost).count
}

#[test]
fn what_came_back_leaves_its_memory_for_the_next_spill() {
    let (mut world, mut blocks) = spilled(&[16, 16, 16], 16, "");
    assert_eq!((world.kept(), world.stats().spills.reused_bytes), (0, 0));
    let before = made(&world);
    for turn in 1..=3 {
        world.free(blocks.pop().unwrap());
        assert_eq!(world.allocator.spill().restore(), Ok(16 * MIB));
        assert_eq!((world.spilled(), world.kept(), world.used()), (0, 16 * MIB, (32 * MIB + 16 * MIB, 16 * MIB)));
        world.check_all();
        blocks.push(world.allocate(16 * MIB, MAIN).unwrap());
        assert_eq!((world.spilled(), world.kept()), (16 * MIB, 0));
        assert_eq!(world.stats().spills.reused_bytes, turn * 16 * MIB);
        world.check_all();
    }
    assert_eq!(made(&world), before, "the machine was asked once");
    // A block that is freed leaves its memory too.
    world.free(blocks[0]);
    world.device.settle();
    world.allocator.trim(0).unwrap();
    assert_eq!((world.spilled(), world.kept()), (0, 16 * MIB));
    world.check_all();
    world.end_empty(&[]);
}

#[test]
fn it_goes_back_where_the_program_empties_the_cache_and_where_nothing_is_spilled_for_long() {
    let (mut world, mut blocks) = spilled(&[16, 16, 16], 16, "");
    world.free(blocks.pop().unwrap());
    world.allocator.spill().restore().unwrap();
    assert_eq!(world.kept(), 16 * MIB);
    world.allocator.trim(u64::MAX).unwrap();
    assert_eq!(world.kept(), 16 * MIB, "it is not the device's");
    world.allocator.empty_cache().unwrap();
    assert_eq!((world.kept(), world.used().1), (0, 0));
    // Now by itself.
    blocks.push(world.allocate(16 * MIB, MAIN).unwrap());
    world.free(blocks.pop().unwrap());
    world.allocator.spill().restore().unwrap();
    world.free(blocks.pop().unwrap());
    assert_eq!(world.kept(), 16 * MIB);
    let steps = (1..1000).find(|_| {
        small_step(&world);
        world.kept() == 0
    });
    assert!(steps.is_some_and(|steps| steps > 40), "{steps:?}: sixteen times the device's memory");
    world.check_all();
    world.end_empty(&[]);
}

#[test]
fn no_more_is_kept_and_spilled_than_once_lay_spilled() {
    let (mut world, mut blocks) = spilled(&[24, 8, 8, 8], 24, "");
    let most = world.spilled();
    let mut order = 0;
    for size in [2, 10, 24, 6, 20, 14, 24, 4] {
        world.free(blocks.pop().unwrap());
        if size % 4 == 0 {
            world.allocator.spill().restore().unwrap();
        }
        order += 1;
        world.allocator.spill().advise(blocks[order % 4], Advice::Cold).unwrap();
        blocks.push(world.allocate(size * MIB, MAIN).unwrap());
        assert!(world.spilled() + world.kept() <= most, "{size}: {:?}", world.stats());
        world.check_all();
    }
    assert!(world.stats().spills.reused_bytes > 0);
    world.end_empty(&[]);
}

/// Blocks of other sizes lie in several pieces of what is kept, and come back as they were.
#[test]
fn what_is_spilled_lies_in_several_kept_pieces_where_none_fits() {
    let mut world = World::new(32 * MIB, "chunk_size_mb:4,spill:host=1GiB");
    let small: Vec<u64> = (0..4).map(|_| world.allocate(4 * MIB, MAIN).unwrap()).collect();
    let large = world.allocate(16 * MIB, MAIN).unwrap();
    small.iter().for_each(|address| world.allocator.spill().advise(*address, Advice::Cold).unwrap());
    let new = world.allocate(16 * MIB, MAIN).unwrap();
    assert_eq!(world.spilled(), 16 * MIB);
    small.iter().for_each(|address| world.free(*address));
    world.device.settle();
    world.allocator.trim(0).unwrap();
    assert_eq!((world.spilled(), world.kept()), (0, 16 * MIB));
    let before = made(&world);
    world.free(new);
    world.allocator.spill().advise(large, Advice::Cold).unwrap();
    let new = world.allocate(26 * MIB, MAIN).unwrap();
    assert!(world.spilled() >= 10 * MIB && made(&world) == before, "{:?}", world.stats());
    world.check_all();
    world.free(new);
    assert!(world.allocator.spill().restore().unwrap() >= 10 * MIB);
    world.check_all();
    world.end_empty(&[]);
}

#[test]
fn an_option_bounds_what_is_kept() {
    for (options, kept) in [("backup_cache:0B", 0), ("backup_cache:10MiB", 8 * MIB), ("backup_cache:1GiB", 16 * MIB)] {
        let (mut world, mut blocks) = spilled(&[16, 16, 16], 16, options);
        world.free(blocks.pop().unwrap());
        world.allocator.spill().restore().unwrap();
        assert_eq!((world.spilled(), world.kept()), (0, kept), "{options}");
        world.check_all();
        world.end_empty(&[]);
    }
}

/// The machine has no more: what is kept goes back for what is to be spilled, and for a backup.
#[test]
fn a_machine_that_refuses_gets_back_what_is_kept() {
    let gpu = Arc::new(SimGpu::new("sim:h200,capacity=48MiB,host=18MiB".parse().unwrap()).unwrap());
    let config = Config::parse("chunk_size_mb:8,spill:host=1GiB").unwrap();
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), config).unwrap();
    let old: Vec<u64> = (0..6).map(|_| allocator.allocate(8 * MIB, MAIN).unwrap()).collect();
    let new = allocator.allocate(16 * MIB, MAIN).unwrap();
    allocator.free(new).unwrap();
    allocator.spill().restore().unwrap();
    assert_eq!(allocator.stats().spill_kept_bytes, 16 * MIB);
    // Chunks of 6 MiB, for which what is kept is too large, and beside which the machine has room for 2 MiB.
    old.into_iter().for_each(|address| allocator.free(address).unwrap());
    allocator.trim(u64::MAX).unwrap();
    let old: Vec<u64> = (0..8).map(|_| allocator.allocate(6 * MIB, MAIN).unwrap()).collect();
    let new = allocator.allocate(18 * MIB, MAIN).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.spilled_bytes.current, stats.spill_kept_bytes, gpu.leaks().host_bytes), (18 * MIB, 0, 18 * MIB));
    allocator.reports().check().unwrap();
    old.into_iter().chain([new]).for_each(|address| allocator.free(address).unwrap());
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

/// A backup for which the host can lock no more memory has what is kept given back first.
#[test]
fn backups_have_what_is_kept_given_back() {
    let gpu = Arc::new(SimGpu::new("sim:h200,capacity=48MiB".parse().unwrap()).unwrap());
    let config = Config::parse("chunk_size_mb:8,spill:host=1GiB").unwrap();
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), config).unwrap();
    let old = allocator.allocate(40 * MIB, MAIN).unwrap();
    let new = allocator.allocate(16 * MIB, MAIN).unwrap();
    [old, new].into_iter().for_each(|address| allocator.free(address).unwrap());
    allocator.trim(u64::MAX).unwrap();
    assert!(allocator.stats().spill_kept_bytes > 0);
    let tag = allocator.tags().create().unwrap();
    let block = allocator.pools().allocate(tag, 8 * MIB, MAIN).unwrap();
    gpu.fail_nth(Call::HostMalloc, 1, Status::OUT_OF_MEMORY);
    allocator.tags().sleep(tag, &Backup::Pinned).unwrap();
    assert_eq!((allocator.stats().spill_kept_bytes, gpu.leaks().host_bytes), (0, 0));
    allocator.tags().wake(tag).unwrap();
    allocator.free(block).unwrap();
    allocator.pools().release(tag).unwrap();
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{}", gpu.leaks());
}

/// Fails calls of one kind from the n-th on while memory is spilled to what was kept, for which some is new. Returns whether there
/// were as many.
fn fails(call: Call, nth: u64, lasting: bool, status: Status) -> bool {
    let gpu = Arc::new(SimGpu::new("sim:h200,capacity=36MiB".parse().unwrap()).unwrap());
    let config = Config::parse("chunk_size_mb:4,spill:host=1GiB").unwrap();
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), config).unwrap();
    let when = format!("{call} failed the {nth}th time, lasting: {lasting}, {status:?}");
    let agrees = || {
        allocator.reports().check().unwrap_or_else(|error| panic!("{when}: {error}"));
        let (stats, leaks) = (allocator.stats(), gpu.leaks());
        assert_eq!((stats.reserved_bytes.all.current, stats.host()), (leaks.bytes, leaks.host_bytes), "{when}");
    };
    let mut blocks: Vec<u64> = [3, 7, 5, 9, 8].map(|mib| allocator.allocate(mib * MIB, MAIN).unwrap()).to_vec();
    let new = allocator.allocate(10 * MIB, MAIN).unwrap();
    allocator.free(new).unwrap();
    allocator.spill().restore().unwrap();
    let before = allocator.stats();
    assert!(before.spill_kept_bytes > 0 && before.spilled_bytes.current == 0, "{before:?}");
    let most = if lasting { nth + 60 } else { nth };
    (nth..=most).for_each(|nth| gpu.fail_nth(call, nth, status));
    let made = gpu.call_stats().get(call).count;
    let answer = allocator.allocate(26 * MIB, MAIN);
    let failed = gpu.call_stats().get(call).count - made >= nth;
    agrees();
    gpu.fail_no_more();
    if let Err(error) = &answer {
        assert!(failed && matches!(error, Error::Driver(_) | Error::OutOfMemory(_)), "{when}: {error}");
        // What is left to undo is undone, and what is spilled comes back as far as there is room.
        let small = allocator.allocate(512, MAIN).unwrap();
        allocator.free(small).unwrap();
        agrees();
        allocator.spill().restore().unwrap();
        agrees();
        let after = allocator.stats();
        assert_eq!(after.allocated_bytes.all.current, before.allocated_bytes.all.current, "{when}");
        assert!(after.host() <= 26 * MIB, "{when}: {after:?}");
    }
    blocks.push(answer.unwrap_or_else(|_| allocator.allocate(26 * MIB, MAIN).unwrap()));
    assert!(allocator.stats().spills.reused_bytes > 0 || failed, "{when}");
    agrees();
    blocks.into_iter().for_each(|address| allocator.free(address).unwrap());
    allocator.empty_cache().unwrap();
    assert_eq!(gpu.leaks().host_bytes, 0, "{when}");
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{when}: {}", gpu.leaks());
    failed
}

#[test]
fn every_call_that_fails_leaves_what_is_kept_counted() {
    for call in OF_SPILLING {
        let mut failures = 0;
        for (lasting, status) in [(false, Status::UNKNOWN), (true, Status::UNKNOWN), (false, Status::OUT_OF_MEMORY)] {
            failures += (1..500).take_while(|nth| fails(call, *nth, lasting, status)).count();
        }
        // Addresses go back only where something else has failed.
        assert!(failures > 2 || call == Call::Synchronize, "{call} failed {failures} times");
    }
}

/// The machine refuses each time it is asked for memory in turn: what was kept goes back for it, the request is served, or all is
/// as before.
#[test]
fn a_machine_that_has_no_more_for_good_leaves_all_as_it_was() {
    assert!((1..500).take_while(|nth| fails(Call::CreateOnHost, *nth, true, Status::OUT_OF_MEMORY)).count() > 1);
}

/// A call fails for good, and all is undone: what was kept is kept, and is what the next spill takes.
#[test]
fn a_spill_that_comes_to_nothing_leaves_what_is_kept() {
    for call in [Call::Reserve, Call::Map, Call::SetAccess, Call::Copy] {
        let gpu = Arc::new(SimGpu::new("sim:h200,capacity=36MiB".parse().unwrap()).unwrap());
        let config = Config::parse("chunk_size_mb:12,spill:host=1GiB").unwrap();
        let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), config).unwrap();
        let blocks: Vec<u64> = (0..3).map(|_| allocator.allocate(12 * MIB, MAIN).unwrap()).collect();
        let new = allocator.allocate(12 * MIB, MAIN).unwrap();
        allocator.free(new).unwrap();
        allocator.spill().restore().unwrap();
        let made = gpu.call_stats().get(Call::CreateOnHost).count;
        gpu.fail_nth(call, 1, Status::UNKNOWN);
        assert!(matches!(allocator.allocate(12 * MIB, MAIN), Err(Error::Driver(_))), "{call}");
        let stats = allocator.stats();
        assert_eq!((stats.spill_kept_bytes, stats.spilled_bytes.current), (12 * MIB, 0), "{call}");
        assert_eq!(gpu.leaks().host_bytes, 12 * MIB, "{call}");
        allocator.reports().check().unwrap();
        let new = allocator.allocate(12 * MIB, MAIN).unwrap();
        assert_eq!(gpu.call_stats().get(Call::CreateOnHost).count, made, "{call}: there was some");
        assert_eq!(allocator.stats().spills.reused_bytes, 12 * MIB, "{call}");
        [new].into_iter().chain(blocks).for_each(|address| allocator.free(address).unwrap());
        drop(allocator);
        assert!(gpu.leaks().is_empty(), "{call}: {}", gpu.leaks());
    }
}

/// A call of an exchange fails, and one that unmaps on the way back, and all of these from another one on. Returns whether a live
/// block lies in other memory than before, or in none.
fn breaks(call: Call, nth: u64, unmap: u64, from: u64) -> bool {
    let gpu = Arc::new(SimGpu::new("sim:h200,capacity=36MiB".parse().unwrap()).unwrap());
    let config = Config::parse("chunk_size_mb:12,spill:host=1GiB").unwrap();
    let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), config).unwrap();
    let blocks: Vec<u64> = (0..3).map(|_| allocator.allocate(12 * MIB, MAIN).unwrap()).collect();
    let lie = || -> Vec<_> {
        let at = |address: &u64| gpu.physical(Range { address: *address, size: 12 * MIB });
        blocks.iter().map(at).collect()
    };
    let new = allocator.allocate(12 * MIB, MAIN).unwrap();
    allocator.free(new).unwrap();
    allocator.spill().restore().unwrap();
    let (before, stats) = (lie(), allocator.stats());
    assert_eq!(stats.spill_kept_bytes, 12 * MIB);
    gpu.fail_nth(call, nth, Status::UNKNOWN);
    [unmap].into_iter().chain(from..from + 20).for_each(|nth| gpu.fail_nth(Call::Unmap, nth, Status::UNKNOWN));
    let answer = allocator.allocate(12 * MIB, MAIN);
    gpu.fail_no_more();
    let when = format!("{call} {nth}, unmaps {unmap} and from {from}: {answer:?}");
    let is_spilled = || allocator.stats().spills.chunks > stats.spills.chunks;
    let is_broken = !is_spilled() && lie() != before;
    if is_broken {
        assert_eq!(allocator.stats().spill_kept_bytes, 0, "{when}: it may be mapped at a block");
    }
    // The next operation makes all whole.
    let small = allocator.allocate(512, MAIN).unwrap();
    assert!(is_spilled() || lie() == before, "{when}");
    allocator.reports().check().unwrap();
    [small].into_iter().chain(answer).chain(blocks).for_each(|address| allocator.free(address).unwrap());
    allocator.empty_cache().unwrap();
    drop(allocator);
    assert!(gpu.leaks().is_empty(), "{when}: {}", gpu.leaks());
    is_broken
}

#[test]
fn what_may_be_mapped_at_a_live_block_is_not_kept() {
    let mut broken = 0;
    for call in [Call::Map, Call::SetAccess] {
        for (nth, first) in (1..4).flat_map(|nth| (1..5).map(move |first| (nth, first))) {
            broken += (first + 1..6).filter(|second| breaks(call, nth, first, *second)).count();
        }
    }
    assert!(broken > 0, "every way back succeeded");
}

/// Host memory.
trait OfTheMachine {
    fn host(&self) -> u64;
}

impl OfTheMachine for Stats {
    fn host(&self) -> u64 {
        self.spilled_bytes.current + self.spill_kept_bytes
    }
}
