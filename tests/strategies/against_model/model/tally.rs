//! How PyTorch counts: each figure for its pool and for all, with peak and accumulated sums.

use seamalloc::{Stat, StatByPool, Stats};

pub(super) fn increase(stat: &mut Stat, amount: u64) {
    stat.current += amount;
    stat.peak = stat.peak.max(stat.current);
    stat.allocated += amount;
}

pub(super) fn decrease(stat: &mut Stat, amount: u64) {
    stat.current -= amount;
    stat.freed += amount;
}

fn both(stats: &mut StatByPool, small: bool) -> [&mut Stat; 2] {
    [&mut stats.all, if small { &mut stats.small_pool } else { &mut stats.large_pool }]
}

pub(super) fn raise(stats: &mut StatByPool, small: bool, amount: u64) {
    both(stats, small).into_iter().for_each(|stat| increase(stat, amount));
}

pub(super) fn lower(stats: &mut StatByPool, small: bool, amount: u64) {
    both(stats, small).into_iter().for_each(|stat| decrease(stat, amount));
}

/// One net change, so that a peak does not see the way there.
pub(super) fn change(stats: &mut StatByPool, small: bool, by: i64) {
    match by {
        0.. => raise(stats, small, by.unsigned_abs()),
        _ => lower(stats, small, by.unsigned_abs()),
    }
}

pub(super) fn each(stats: &mut Stats, mut f: impl FnMut(&mut Stat)) {
    for by_pool in [
        &mut stats.allocation,
        &mut stats.segment,
        &mut stats.active,
        &mut stats.inactive_split,
        &mut stats.allocated_bytes,
        &mut stats.reserved_bytes,
        &mut stats.active_bytes,
        &mut stats.inactive_split_bytes,
        &mut stats.requested_bytes,
    ] {
        f(&mut by_pool.all);
        f(&mut by_pool.small_pool);
        f(&mut by_pool.large_pool);
    }
    f(&mut stats.oversize_allocations);
    f(&mut stats.oversize_segments);
}
