//! Memory that a live private pool keeps from others, or seems to.

use super::{MAIN, MIB, SIDE, on, sound};
use seamalloc::{Error, Route, StrategyKind};

/// vLLM 49151: while the context of a pool was active, `empty_cache` did nothing at all.
#[test]
fn while_requests_are_routed_to_a_pool_the_memory_of_others_is_given_back() {
    for kind in StrategyKind::MAIN {
        let (gpu, allocator) = on(kind, "sim:h200");
        let public = allocator.allocate(100 * MIB, MAIN).unwrap();
        let pool = allocator.pools().create();
        allocator.pools().begin(pool, Route::stream(SIDE)).unwrap();
        let weights = allocator.allocate(60 * MIB, SIDE).unwrap();
        allocator.free(public).unwrap();
        assert_eq!(allocator.empty_cache().unwrap(), 100 * MIB, "{kind}");
        assert_eq!(allocator.pools().stats(pool).unwrap().reserved_bytes, 60 * MIB, "{kind}");
        allocator.pools().end(pool).unwrap();
        allocator.free(weights).unwrap();
        sound(&gpu, &allocator);
    }
}

/// PyTorch 159674: segments of a live pool that are wholly free cannot be given back. Nor can they here, because a graph may
/// use them: what is owed is that a refusal says so, and that they go when the pool is released.
#[test]
fn what_a_live_pool_keeps_is_named_and_goes_with_its_last_use() {
    for kind in StrategyKind::MAIN {
        let (gpu, allocator) = on(kind, "sim:h200,capacity=100MiB");
        let pool = allocator.pools().create();
        let stage = allocator.pools().allocate(pool, 80 * MIB, MAIN).unwrap();
        allocator.free(stage).unwrap();
        assert_eq!(allocator.empty_cache().unwrap(), 0, "{kind}");
        let Err(Error::OutOfMemory(report)) = allocator.allocate(60 * MIB, MAIN) else { panic!("{kind}: it is kept") };
        assert_eq!(report.free_in_private_pools, 80 * MIB, "{kind}");
        assert!(report.to_string().contains("80.00 MiB of it in other private pools"), "{report}");
        // It serves the pool itself meanwhile.
        let again = allocator.pools().allocate(pool, 70 * MIB, MAIN).unwrap();
        allocator.free(again).unwrap();
        allocator.pools().release(pool).unwrap();
        allocator.allocate(60 * MIB, MAIN).unwrap();
        sound(&gpu, &allocator);
    }
}
