//! The sums of the authors: what their texts and tests say that a program comes to.

use super::model::MIB;
use super::{MAIN, held, on};
use seamalloc::driver::{Call, Driver};

const KIB: u64 = 1 << 10;

/// "When we ask for 66K, the buddy algorithm gives 128K": the tutorial's example of what it wastes, and slabs less.
#[test]
fn buddies_waste_what_the_tutorial_says() {
    let block = |strategy: &str| {
        let (_, allocator) = on("sim:h200", &format!("strategy:{strategy}"));
        let address = allocator.allocate(66 * KIB, MAIN).unwrap();
        allocator.reports().size_of(address).unwrap()
    };
    assert_eq!(block("buddy"), 128 * KIB);
    assert_eq!(block("slab"), 72 * KIB);
    assert_eq!(block("exact"), 66 * KIB);
}

/// A free block of 2048 bytes serves no request of 1024: the tutorial's reason for its third allocator.
#[test]
fn a_list_of_one_size_serves_no_other() {
    let free_2048_serves_1024 = |strategy: &str| {
        let (_, allocator) = on("sim:h200", &format!("strategy:{strategy}"));
        let a = allocator.allocate(2048, MAIN).unwrap();
        // Nothing behind it may be cut for the request.
        let rest = allocator.allocate((4 << 30) - 2048, MAIN);
        allocator.free(a).unwrap();
        let b = allocator.allocate(1024, MAIN).unwrap();
        drop(rest);
        a == b
    };
    assert!(free_2048_serves_1024("buddy"));
    assert!(!free_2048_serves_1024("exact"));
}

/// The tree of the tutorial: 4 GiB, of leaves of 1 KiB, which are one block again once all are free.
#[test]
fn a_whole_tree_of_leaves_is_one_tree_again() {
    let (gpu, allocator) = on("sim:h200", "strategy:buddy,buddy_capacity_mb:8");
    let leaves: Vec<u64> = (0..8 * KIB).map(|_| allocator.allocate(1, MAIN).unwrap()).collect();
    assert_eq!((gpu.call_stats().get(Call::Malloc).count, held(&allocator)), (1, 8 * MIB));
    assert!(leaves.windows(2).all(|pair| pair[1] == pair[0] + KIB), "the leftmost first");
    leaves.iter().rev().for_each(|leaf| allocator.free(*leaf).unwrap());
    assert_eq!(allocator.allocate(8 * MIB, MAIN), Ok(leaves[0]));
    allocator.reports().check().unwrap();
}

/// `test_memory_pool_flags` of Paddle's `test_allocator_flags` (pull request 74463), without what it takes in advance: seven
/// blocks of half a MiB are 3.5 MiB, in two chunks of the small pool.
#[test]
fn paddles_small_pool_has_chunks_of_its_own() {
    let (_, allocator) = on(
        "sim:h200",
        "strategy:paddle-auto-growth,FLAGS_small_pool_size_in_mb:1,FLAGS_auto_growth_chunk_size_in_mb:10,\
         FLAGS_small_pool_auto_growth_chunk_size_in_mb:2,FLAGS_large_pool_auto_growth_chunk_size_in_mb:16",
    );
    for _ in 0..7 {
        allocator.allocate(MIB / 2, MAIN).unwrap();
    }
    let stats = allocator.stats();
    assert_eq!(stats.allocated_bytes.all.current, 7 * MIB / 2);
    assert_eq!(stats.reserved_bytes.all.current, 4 * MIB, "auto_growth_chunk_size_in_mb has no meaning then");
    allocator.allocate(3 * MIB, MAIN).unwrap();
    assert_eq!(held(&allocator), 20 * MIB);
}

/// `test_large_pool_growth_override_16mb` there: a large block of 8 MiB takes a chunk of 16.
#[test]
fn paddles_large_pool_grows_by_its_own_flag() {
    let (_, allocator) = on(
        "sim:h200",
        "strategy:paddle-auto-growth,FLAGS_small_pool_size_in_mb:1,FLAGS_small_pool_auto_growth_chunk_size_in_mb:0,\
         FLAGS_large_pool_auto_growth_chunk_size_in_mb:16",
    );
    allocator.allocate(8 * MIB, MAIN).unwrap();
    assert_eq!(held(&allocator), 16 * MIB);
}

/// `test_single_pool` there: without a small pool, 0.5 MiB take a chunk of 10, and 10 MiB one more.
#[test]
fn paddles_single_pool_has_one_chunk_size() {
    let (_, allocator) = on(
        "sim:h200",
        "strategy:paddle-auto-growth,FLAGS_small_pool_size_in_mb:0,FLAGS_small_pool_auto_growth_chunk_size_in_mb:2,\
         FLAGS_large_pool_auto_growth_chunk_size_in_mb:4,FLAGS_auto_growth_chunk_size_in_mb:10",
    );
    for (size, allocated, reserved) in [(MIB / 2, MIB / 2, 10 * MIB), (10 * MIB, 21 * MIB / 2, 20 * MIB)] {
        allocator.allocate(size, MAIN).unwrap();
        assert_eq!(allocator.stats().allocated_bytes.all.current, allocated);
        assert_eq!(held(&allocator), reserved);
    }
}
