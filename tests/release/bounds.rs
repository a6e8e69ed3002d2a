//! The resources that views may take are bounded at every moment, and requests are met at the bound too.

use super::watch::Watch;
use super::{CHUNK, MAIN, MIB, balanced, on, reserved};
use crate::random::Random;
use crate::step::step;
use seamalloc::driver::{Call, Status};
use seamalloc::{Allocator, StrategyKind};

/// Blocks of one chunk pair each, every other one free: each larger request needs a view.
fn comb(options: &str) -> (std::sync::Arc<Watch>, Allocator, Vec<u64>) {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200", options);
    let held: Vec<u64> = (0..16).map(|_| allocator.allocate(CHUNK, MAIN).unwrap()).collect();
    for address in held.iter().step_by(2) {
        allocator.free(*address).unwrap();
    }
    (gpu, allocator, held.into_iter().skip(1).step_by(2).collect())
}

#[test]
fn the_number_of_views_is_bounded() {
    let (gpu, allocator, _) = comb("max_views:2");
    let two = [0, 1].map(|_| allocator.allocate(2 * CHUNK, MAIN).unwrap());
    assert_eq!(allocator.stats().views, 2);
    // Both are in use: memory grows in one piece.
    let before = reserved(&allocator);
    let third = allocator.allocate(2 * CHUNK, MAIN).unwrap();
    assert_eq!((allocator.stats().views, reserved(&allocator)), (2, before + 2 * CHUNK));
    allocator.free(third).unwrap();
    allocator.allocate(2 * CHUNK, MAIN).unwrap();
    // One of them is free now, and makes room for another over the same chunks.
    allocator.free(two[0]).unwrap();
    allocator.allocate(4 * CHUNK, MAIN).unwrap();
    assert_eq!((allocator.stats().views, allocator.stats().views_built), (2, 3));
    assert_eq!(reserved(&allocator), before + 2 * CHUNK);
    assert_eq!(gpu.sim.leaks().reservations, 3, "home and two views");
    balanced(&gpu, &allocator);
}

#[test]
fn the_addresses_of_views_are_bounded() {
    let (gpu, allocator, _) = comb("max_view_address_space:80MiB");
    let two = allocator.allocate(2 * CHUNK, MAIN).unwrap();
    let three = allocator.allocate(3 * CHUNK, MAIN).unwrap();
    let stats = allocator.stats();
    assert_eq!((stats.views, stats.view_address_space_bytes), (2, 5 * CHUNK));
    allocator.free(three).unwrap();
    allocator.free(two).unwrap();
    // The one unused longest goes first: it was the smaller one's turn.
    allocator.allocate(4 * CHUNK, MAIN).unwrap();
    assert_eq!(allocator.stats().view_address_space_bytes, 4 * CHUNK);
    // A view larger than the bound never comes, and drops none in vain.
    let views = allocator.stats().views;
    let before = reserved(&allocator);
    allocator.allocate(6 * CHUNK, MAIN).unwrap();
    assert_eq!(allocator.stats().views, views);
    assert!((6 * CHUNK..=8 * CHUNK).contains(&(reserved(&allocator) - before)), "{}", reserved(&allocator) / MIB);
    balanced(&gpu, &allocator);
}

#[test]
fn no_view_is_dropped_where_that_makes_no_room() {
    let (gpu, allocator, _) = comb("max_view_mappings:10");
    let keep = allocator.allocate(3 * CHUNK, MAIN).unwrap();
    let free = allocator.allocate(2 * CHUNK, MAIN).unwrap();
    allocator.free(free).unwrap();
    assert_eq!(allocator.stats().views, 2);
    allocator.allocate(4 * CHUNK, MAIN).unwrap();
    assert_eq!(allocator.stats().views, 2, "six mappings are in use, and eight more are beyond the bound");
    assert_eq!(allocator.allocate(2 * CHUNK, MAIN).unwrap(), free);
    allocator.free(keep).unwrap();
    balanced(&gpu, &allocator);
}

#[test]
fn bounds_hold_at_every_moment() {
    for (options, seeds) in [
        ("max_views:1", 0..4),
        ("max_views:4,sharing:never", 4..8),
        ("max_view_mappings:15", 8..12),
        ("max_view_address_space:150MiB,sharing:completed", 12..16),
    ] {
        let (mut built, mut at_bound) = (0, 0);
        for seed in seeds {
            let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200,capacity=400MiB", options);
            let config = allocator.config();
            let (mut random, mut live) = (Random(seed), Vec::new());
            for _ in 0..300 {
                if step(&allocator, &mut random, &mut live).is_err() {
                    while live.len() > 3 {
                        allocator.free(live.swap_remove(0)).unwrap();
                    }
                }
                let stats = allocator.stats();
                let leaks = gpu.sim.leaks();
                let in_views = gpu.in_views();
                assert!(stats.views <= config.max_views as u64 && leaks.reservations as u64 == 1 + stats.views);
                assert!(in_views <= config.max_view_mappings);
                assert!(stats.view_address_space_bytes <= config.max_view_address_space);
                at_bound += u64::from(stats.views == config.max_views as u64)
                    + u64::from(in_views + 4 > config.max_view_mappings)
                    + u64::from(stats.view_address_space_bytes + 60 * MIB > config.max_view_address_space);
                balanced(&gpu, &allocator);
            }
            built += allocator.stats().views_built;
        }
        assert!(built > 4 && at_bound > 50, "{options}: {built} views, {at_bound} times at the bound");
    }
}

#[test]
fn a_driver_out_of_addresses_is_a_bound_too() {
    let (gpu, allocator, _) = comb("");
    for call in [Call::Reserve, Call::Map, Call::SetAccess] {
        let before = reserved(&allocator);
        gpu.sim.fail_nth(call, 1, Status::OUT_OF_MEMORY);
        allocator.allocate(2 * CHUNK, MAIN).unwrap();
        assert_eq!((allocator.stats().views, reserved(&allocator)), (0, before + 2 * CHUNK), "{call}");
        balanced(&gpu, &allocator);
    }
    allocator.allocate(2 * CHUNK, MAIN).unwrap();
    assert_eq!(allocator.stats().views, 1);
}
