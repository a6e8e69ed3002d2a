//! The limit in bytes is used to the last granule.

use super::{CHUNK, MAIN, MIB, balanced, on, reserved};
use seamalloc::StrategyKind;

#[test]
fn a_limit_that_is_no_multiple_counts_as_the_multiple_below() {
    let (_, allocator) = on(StrategyKind::Stitch, "sim:h200", "memory_limit:67108863B");
    assert!(allocator.allocate(64 * MIB, MAIN).is_err());
    allocator.allocate(62 * MIB, MAIN).unwrap();
    let (_, allocator) = on(StrategyKind::Stitch, "sim:h200", "memory_limit:0B");
    assert!(allocator.allocate(1, MAIN).unwrap_err().is_out_of_memory());
}

#[test]
fn stitching_uses_a_limit_to_the_last_granule() {
    let (gpu, allocator) = on(StrategyKind::Stitch, "sim:h200", "memory_limit:66MiB");
    let held: Vec<u64> = (0..4).map(|_| allocator.allocate(CHUNK, MAIN).unwrap()).collect();
    allocator.free(held[1]).unwrap();
    allocator.free(held[3]).unwrap();
    allocator.allocate(2 * CHUNK + 2 * MIB, MAIN).unwrap();
    assert_eq!(reserved(&allocator), 66 * MIB);
    assert!(allocator.allocate(512, MAIN).unwrap_err().is_out_of_memory());
    balanced(&gpu, &allocator);
}
