//! The memory that a graph may use stays where it is, whatever others want.

use super::{GRAPH, MAIN, MIB, SIDE, graph_of, on, reserved};
use crate::simulated;
use seamalloc::{Config, StrategyKind};

#[test]
fn views_that_a_graph_may_use_outlive_every_bound() {
    let config = Config::parse("strategy:stitch,max_view_mappings:4").unwrap();
    let (gpu, allocator) = simulated::on("sim:h200", config);
    let pool = allocator.pools().create();
    let blocks: Vec<u64> = (0..5).map(|_| allocator.pools().allocate(pool, 16 * MIB, GRAPH).unwrap()).collect();
    for at in [0, 2] {
        allocator.free(blocks[at]).unwrap();
    }
    let graph = graph_of(&gpu, &allocator, pool, &[32 * MIB]);
    assert_eq!(allocator.stats().views_built, 1);
    // Others want more mappings than there may be, so old views are dropped.
    let held: Vec<u64> = (0..12).map(|_| allocator.allocate(16 * MIB, MAIN).unwrap()).collect();
    for pair in [[0, 2], [4, 6], [1, 8], [3, 10]] {
        pair.iter().for_each(|at| allocator.free(held[*at]).unwrap());
        let stitched = allocator.allocate(32 * MIB, MAIN).unwrap();
        graph.is_apart_from(&gpu, &allocator, stitched);
        allocator.free(stitched).unwrap();
        allocator.allocate(16 * MIB, MAIN).unwrap();
        allocator.allocate(16 * MIB, MAIN).unwrap();
        graph.replay(&gpu, SIDE);
        allocator.reports().check().unwrap();
    }
    assert!(allocator.stats().views_built > 1);
}

#[test]
fn of_a_view_that_a_graph_uses_a_part_of_that_part_stays() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200");
    let held: Vec<u64> = (0..6).map(|_| allocator.allocate(16 * MIB, MAIN).unwrap()).collect();
    [0, 2, 4].iter().for_each(|at| allocator.free(held[*at]).unwrap());
    let stitched = allocator.allocate(48 * MIB, MAIN).unwrap();
    allocator.free(stitched).unwrap();
    // Another stream's miss makes it idle.
    let other = allocator.allocate(1, SIDE).unwrap();
    let pool = allocator.pools().create();
    let graph = graph_of(&gpu, &allocator, pool, &[30 * MIB]);
    assert_eq!(graph.0[0].0.address, stitched, "the first two holes, through the view that is there");
    allocator.free(other).unwrap();
    allocator.empty_cache().unwrap();
    graph.replay(&gpu, SIDE);
    assert_eq!(reserved(&allocator), 5 * 16 * MIB, "the third hole is cut out of the view");
    let mappings = (allocator.stats().mappings, allocator.stats().view_mappings);
    assert_eq!(mappings, (5 + 2, 2));
    held.iter().skip(1).step_by(2).for_each(|address| allocator.free(*address).unwrap());
    allocator.empty_cache().unwrap();
    graph.replay(&gpu, SIDE);
    allocator.pools().release(pool).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(reserved(&allocator), 0);
}

/// The end of all work of a stream says nothing of graphs, which run on any stream.
#[test]
fn what_a_graph_uses_stays_though_the_stream_of_its_capture_ends() {
    for kind in StrategyKind::MAIN {
        let (gpu, allocator) = on(kind, "sim:h200");
        let pool = allocator.pools().create();
        let graph = graph_of(&gpu, &allocator, pool, &[30 * MIB, 5000]);
        let held = reserved(&allocator);
        allocator.streams().forget(GRAPH).unwrap();
        gpu.destroy_stream(GRAPH);
        assert_eq!(allocator.empty_cache().unwrap() + allocator.trim(held).unwrap(), 0, "{kind}");
        graph.replay(&gpu, SIDE);
        allocator.pools().release(pool).unwrap();
        assert_eq!(allocator.empty_cache().unwrap(), held, "{kind}");
    }
}
