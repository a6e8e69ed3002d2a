//! The figures of statistics and snapshots, against the device and against each other.

use crate::random::Random;
use crate::step::step;
use crate::{MAIN, MIB, SIDE, Subject, balanced, on};
use seamalloc::snapshot::BlockState;
use seamalloc::{Allocator, Stat, StatByPool};

fn each(stat: &StatByPool) -> [&Stat; 3] {
    [&stat.all, &stat.small_pool, &stat.large_pool]
}

/// The figures of all pools are the sum of both classes, and what is there is what came less what went.
fn adds_up(stat: &StatByPool) {
    let [all, small, large] = each(stat).map(|stat| stat.current);
    assert_eq!(all, small + large);
    for stat in each(stat) {
        assert_eq!(stat.current, stat.allocated - stat.freed);
        assert!(stat.current <= stat.peak && stat.peak <= stat.allocated);
    }
}

pub(crate) fn statistics_balance_after_each_operation(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let (mut random, mut live) = (Random(2), Vec::new());
    for _ in 0..300 {
        step(&allocator, &mut random, &mut live).unwrap();
        let stats = allocator.stats();
        for stat in
            [&stats.allocation, &stats.allocated_bytes, &stats.requested_bytes, &stats.active, &stats.active_bytes]
        {
            adds_up(stat);
        }
        adds_up(&stats.reserved_bytes);
        assert_eq!(stats.allocation.all.current, live.len() as u64, "{kind}");
        let sizes = live.iter().map(|address| allocator.reports().size_of(*address).unwrap()).sum::<u64>();
        assert_eq!(stats.allocated_bytes.all.current, sizes, "{kind}");
        let [allocated, active, reserved] =
            [&stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes].map(|stat| stat.all.current);
        assert!(stats.requested_bytes.all.current <= active && allocated <= active && active <= reserved, "{kind}");
        balanced(&gpu, &allocator);
    }
}

pub(crate) fn peaks_and_sums_can_be_reset(Subject { kind, .. }: Subject) {
    let (_, allocator) = on(kind, "sim:h200");
    let [kept, freed] = [20 * MIB, 40 * MIB].map(|size| allocator.allocate(size, MAIN).unwrap());
    allocator.free(freed).unwrap();
    let bytes = |allocator: &Allocator| allocator.stats().allocated_bytes.all;
    assert_eq!((bytes(&allocator).current, bytes(&allocator).peak), (20 * MIB, 60 * MIB), "{kind}");
    allocator.reports().reset_peaks();
    assert_eq!(bytes(&allocator).peak, 20 * MIB, "{kind}");
    allocator.reports().reset_accumulated();
    assert_eq!((bytes(&allocator).allocated, bytes(&allocator).freed), (0, 0), "{kind}");
    assert_eq!(bytes(&allocator).current, 20 * MIB, "{kind}");
    allocator.free(kept).unwrap();
    assert_eq!((bytes(&allocator).current, bytes(&allocator).freed), (0, 20 * MIB), "{kind}");
}

pub(crate) fn a_snapshot_tiles_what_is_reserved(Subject { kind, .. }: Subject) {
    let (gpu, allocator) = on(kind, "sim:h200");
    let (mut random, mut live) = (Random(3), Vec::new());
    for _ in 0..150 {
        step(&allocator, &mut random, &mut live).unwrap();
    }
    // One that is freed, and waits.
    let waiting = allocator.allocate(30 * MIB, MAIN).unwrap();
    gpu.hold(SIDE);
    allocator.record_stream(waiting, SIDE).unwrap();
    allocator.free(waiting).unwrap();

    let (snapshot, stats) = (allocator.reports().snapshot(), allocator.stats());
    let mut segments = snapshot.segments;
    segments.sort_by_key(|segment| segment.address);
    assert!(segments.windows(2).all(|pair| pair[0].address + pair[0].total_size <= pair[1].address), "{kind}");
    for segment in &segments {
        let end = segment.blocks.iter().fold(segment.address, |at, block| {
            assert_eq!(block.address, at, "{kind}: each block begins where the last one ends");
            at + block.size
        });
        assert_eq!(end, segment.address + segment.total_size, "{kind}");
    }
    let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
    let of = |state| blocks().filter(|block| block.state == state).map(|block| block.size).sum::<u64>();
    assert_eq!(blocks().map(|block| block.size).sum::<u64>(), stats.reserved_bytes.all.current, "{kind}");
    assert_eq!(of(BlockState::ActiveAllocated), stats.allocated_bytes.all.current, "{kind}");
    let pending = stats.active_bytes.all.current - stats.allocated_bytes.all.current;
    assert_eq!(of(BlockState::ActivePendingFree), pending, "{kind}");
    assert!(pending >= 30 * MIB, "{kind}");
}
